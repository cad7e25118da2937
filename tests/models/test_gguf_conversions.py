"""Conversions against the converters' formulas, element by element."""

from __future__ import annotations

import torch

from octavo.models.gguf_conversions import CONVERSIONS

HEADS, KV_HEADS, HEAD = 4, 2, 8


def test_rows_are_unpermuted_as_converters_permute_them() -> None:
    class Config:
        num_attention_heads = HEADS
        num_key_value_heads = KV_HEADS

    def permute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
        """The converter's formula: row 2i + j of a head is the original's row j * half + i."""
        rows = [
            head * HEAD + half * (HEAD // 2) + i
            for head in range(num_heads)
            for i in range(HEAD // 2)
            for half in range(2)
        ]
        return weight[rows]

    for architecture in ("llama", "granite", "smollm3"):
        for name, num_heads in (("blk.0.attn_q.weight", HEADS), ("blk.0.attn_k.bias", KV_HEADS)):
            weight = torch.arange(num_heads * HEAD * 3.0).view(num_heads * HEAD, 3)
            assert torch.equal(CONVERSIONS[architecture].undo(name, permute(weight, num_heads), Config()), weight)
        value = torch.randn(KV_HEADS * HEAD, 3)
        assert CONVERSIONS[architecture].undo("blk.0.attn_v.weight", value, Config()) is value


def test_heads_that_lie_apart_are_brought_together() -> None:
    class Config:
        num_attention_heads = 2

    one_after_another = torch.tensor(
        [[part * 100 + head * 10 + i] for part in range(3) for head in range(2) for i in range(2)]
    )
    by_head = [[part * 100 + head * 10 + i] for head in range(2) for part in range(3) for i in range(2)]
    for architecture in ("gptneox", "bloom"):
        undo = CONVERSIONS[architecture].undo
        assert undo("blk.0.attn_qkv.weight", one_after_another, Config()).tolist() == by_head
        assert undo("blk.0.ffn_up.weight", one_after_another, Config()) is one_after_another


def test_gate_and_up_of_experts() -> None:
    parameter = torch.arange(2 * 4 * 3).view(2, 4, 3)
    gate, up = CONVERSIONS["gpt-oss"].halves(parameter.transpose(1, 2))
    assert torch.equal(gate, parameter[:, ::2].transpose(1, 2))
    assert torch.equal(up, parameter[:, 1::2].transpose(1, 2))


def test_value_heads_of_the_delta_rule_lie_by_key_head() -> None:
    class Config:
        linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim = 2, 6, 3, 4

    undo = CONVERSIONS["qwen35"].undo
    # In a file the first value head of each key head comes first: places 0 to 2 of key heads 0 and 1.
    stored = torch.tensor([[place * 10 + key for key in range(2)] for place in range(3)]).flatten().float()
    ordered = torch.tensor([0.0, 10, 20, 1, 11, 21])
    assert torch.equal(undo("blk.0.ssm_dt.bias", stored, Config()), ordered)
    assert torch.equal(undo("blk.0.ssm_beta.weight", stored[:, None], Config())[:, 0], ordered)
    torch.testing.assert_close(undo("blk.7.ssm_a", -torch.exp(stored / 10), Config()), ordered / 10)
    wide = stored.repeat_interleave(4)
    assert torch.equal(undo("blk.0.attn_gate.weight", wide[:, None], Config())[:, 0], ordered.repeat_interleave(4))
    assert torch.equal(undo("blk.0.ssm_out.weight", wide[None], Config())[0], ordered.repeat_interleave(4))
    others = torch.arange(12.0) + 100
    joint = undo("blk.0.attn_qkv.weight", torch.cat([others, wide])[:, None], Config())[:, 0]
    assert torch.equal(joint, torch.cat([others, ordered.repeat_interleave(4)]))
    norm = torch.ones(4)
    assert torch.equal(undo("blk.0.ssm_norm.weight", norm, Config()), norm)
    assert torch.equal(undo("output_norm.weight", norm, Config()), norm - 1)
