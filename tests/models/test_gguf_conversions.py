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
