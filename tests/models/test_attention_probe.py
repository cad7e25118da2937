"""Refusals: each by a property that shows when the model runs, on models that transformers has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.errors import UnsupportedModelError
from octavo.models.attention_interface import PROBE_NAME
from octavo.models.attention_probe import NUM_PROBE_TOKENS, AttentionProbe
from octavo.models.mask_kind import MaskKind
from octavo.models.position_cache import PositionCache
from octavo.models.transformers_api import PreTrainedModel
from octavo.models.zoo import find_model
from tests.models.architectures import ARCHITECTURES, COMMON, MIXED, WINDOW


def build(model_type: str, fields: dict[str, Any]) -> PreTrainedModel:
    config, model_class = find_model({"model_type": model_type, **fields})
    torch.manual_seed(0)
    return model_class._from_config(config, dtype=torch.float32, attn_implementation=PROBE_NAME).eval()


def probe(model: PreTrainedModel, length: int = 96) -> AttentionProbe:
    with torch.inference_mode():
        found = AttentionProbe(model, length=length, vocab_size=100)
        found.check_independence()
    return found


def test_what_a_probe_sees() -> None:
    model = build("gemma2", ARCHITECTURES["gemma2"].fields)
    found = probe(model)
    assert [call.layer_index for call in found.calls] == [0, 1, 2, 3]
    assert [call.mask for call in found.calls] == [MaskKind("window", WINDOW), MaskKind("full")] * 2
    first = found.calls[0]
    assert (first.num_heads, first.num_kv_heads, first.head_size, first.value_size) == (4, 2, 8, 8)
    assert (first.scale, first.soft_cap, first.sinks, first.shares_with) == (pytest.approx(256**-0.5), 3.0, None, None)
    assert found.base_path == "model"
    assert found.logits.shape == (1, NUM_PROBE_TOKENS, 160)


def test_sinks_are_seen() -> None:
    model = build("gpt_oss", ARCHITECTURES["gpt_oss"].fields)
    with torch.no_grad():
        for index, layer in enumerate(model.model.layers):
            layer.self_attn.sinks.fill_(index)
    assert [call.sinks.tolist() for call in probe(model).calls if call.sinks is not None] == [[i] * 4 for i in range(4)]


def test_a_window_that_only_the_mask_has_is_seen() -> None:
    fields = COMMON | {"sliding_window": WINDOW, "num_local_experts": 4}
    assert {call.mask for call in probe(build("phimoe", fields)).calls} == {MaskKind("window", WINDOW)}


def test_chunks_are_seen() -> None:
    kinds = [MaskKind("chunk", WINDOW), MaskKind("full")] * 2
    assert [call.mask for call in probe(build("llama4_text", ARCHITECTURES["llama4_text"].fields)).calls] == kinds


@pytest.mark.parametrize("floor_scale", [11, 70])
def test_positions_that_a_module_counts_itself_must_come_out_right(
    monkeypatch: pytest.MonkeyPatch, floor_scale: int
) -> None:
    """The temperature of queries is 1 up to `floor_scale`: further than the probe's few tokens reach, in one case."""
    model = build("llama4_text", ARCHITECTURES["llama4_text"].fields | {"floor_scale": floor_scale})
    positions = torch.tensor([80, 3, 4])
    found = probe(model).position_input.at(positions)
    assert (found["cache"].get_seq_length() + torch.arange(3)).tolist() == positions.tolist()
    monkeypatch.setattr(PositionCache, "at", staticmethod(lambda positions: PositionCache(0)))
    with pytest.raises(UnsupportedModelError, match=r"its neighbours|as if they were one sequence"):
        probe(model)


def test_a_window_that_the_mask_ignores_is_not_believed() -> None:
    fields = COMMON | {"num_experts": 4, "num_experts_per_tok": 2}
    model = build("olmoe", fields)
    for layer in model.model.layers:
        layer.self_attn.sliding_window = 5
    assert {call.mask for call in probe(model).calls} == {MaskKind("full")}


def test_value_heads_of_another_size() -> None:
    fields = COMMON | {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8}
    fields |= {"qk_nope_head_dim": 8, "v_head_dim": 4, "n_routed_experts": 4, "first_k_dense_replace": 4}
    first = probe(build("deepseek_v3", fields)).calls[0]
    assert (first.num_kv_heads, first.head_size, first.value_size) == (4, 16, 4)


def test_shared_keys_and_values_are_seen() -> None:
    fields = {key: field for key, field in COMMON.items() if key != "intermediate_size"} | {
        "head_dim": 8,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": MIXED,
        "sliding_window": WINDOW,
        "vocab_size_per_layer_input": 160,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0] * 4,
    }
    calls = probe(build("gemma3n_text", fields)).calls
    assert [call.shares_with for call in calls] == [None, None, 0, 1]


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("diffllama", {}, "Layer 0 computes attention more than once in a forward"),
        ("doge", {"keep_window_size": 4}, "DogeAttention computes its attention mask or a bias itself"),
        ("roberta", {"is_decoder": False}, "RobertaSelfAttention sees later tokens"),
        ("trocr", {"decoder_layers": 2, "d_model": 32}, "the model takes no positions, it counts"),
        ("qwen3_next", {"layer_types": ["full_attention", "linear_attention"] * 2}, "depend on its neighbours"),
        ("roberta", {"is_decoder": True}, "where its sequence starts: positions are not counted"),
        ("inkling_text", {}, "a tensor 'position_bias' that Octavo does not know"),
    ],
)
def test_properties_that_cannot_be_computed(model_type: str, fields: dict[str, Any], message: str) -> None:
    sizes = {"head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    model = build(model_type, COMMON | sizes | fields)
    with pytest.raises(UnsupportedModelError, match=message):
        probe(model)


ORIGINAL_LENGTH = 64
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [8.0] * 4,
    "original_max_position_embeddings": ORIGINAL_LENGTH,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": ORIGINAL_LENGTH}),
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": ORIGINAL_LENGTH}),
    ],
)
def test_a_rotary_embedding_that_changes_with_length(model_type: str, fields: dict[str, Any]) -> None:
    fields = COMMON | {"max_position_embeddings": 1024, "sliding_window": None} | fields
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(UnsupportedModelError, match=r"how far the longest sequence .*--max-model-len"):
            probe(build(model_type, fields).to(dtype), length=1024)
    assert len(probe(build(model_type, fields), length=ORIGINAL_LENGTH).calls) == 4


def test_attention_that_does_more_than_it_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama", COMMON)
    module = sys.modules[type(model).__module__]
    eager = module.eager_attention_forward

    def scaled_twice(*args: Any, scaling: float, **kwargs: Any) -> Any:
        return eager(*args, scaling=2 * scaling, **kwargs)

    monkeypatch.setattr(module, "eager_attention_forward", scaled_twice)
    with pytest.raises(UnsupportedModelError, match="Layer 0 computes more than scaled dot-product"):
        probe(model)


def test_a_replacement_that_computes_something_else_is_noticed() -> None:
    model = build("llama", COMMON)
    with torch.inference_mode():
        found = AttentionProbe(model, length=96, vocab_size=100)
        model.model.layers[1].self_attn.k_proj.weight.data.mul_(1.01)
        with pytest.raises(UnsupportedModelError, match="Layer 1"):
            found.check_independence()


def test_a_rank_that_refuses_leaves_no_other_waiting() -> None:
    """All ranks of a divided model run as many forwards, since they meet in each."""
    model = build("llama", COMMON)
    forwards: list[int] = []
    with torch.inference_mode():
        found = AttentionProbe(model, length=96, vocab_size=100)
        model.model.register_forward_pre_hook(lambda _module, _inputs: forwards.append(1))
        found.check_independence(is_divided=True)
        num_forwards = len(forwards)
        model.model.layers[1].self_attn.k_proj.weight.data.mul_(1.01)
        with pytest.raises(UnsupportedModelError, match=r"Layer 1 lets .* Run the model on one rank"):
            found.check_independence(is_divided=True)
    assert len(forwards) == 2 * num_forwards


def test_nothing_stays_on_the_model(tmp_path: Path) -> None:
    model = build("llama", COMMON)
    probe(model)
    for module in model.modules():
        assert "octavo_attention" not in module.__dict__
        assert not module._forward_hooks and not module._forward_pre_hooks
