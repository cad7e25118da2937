"""One call at a time: what is written down, and which calls are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    causal_mask_function,
    sliding_window_causal_mask_function,
)
from transformers.models.llama import modeling_llama

from octavo.errors import UnsupportedModelError
from octavo.models.attention_interface import PROBE_NAME, AttentionInput
from octavo.models.attention_recorder import Recorder
from octavo.models.mask_kind import MaskKind

TOKENS, HEADS, KV_HEADS, SIZE = 5, 4, 2, 8


def module(layer: int | None = 0, *, kind: type = modeling_llama.LlamaAttention) -> nn.Module:
    """An attention module that knows what the model's eager attention asks of it."""
    made: Any = kind.__new__(kind)
    nn.Module.__init__(made)
    made.layer_idx, made.num_key_value_groups = layer, HEADS // KV_HEADS
    return made.eval()  # type: ignore[no-any-return]


def mask_of(function: Any) -> torch.Tensor:
    return ALL_MASK_ATTENTION_FUNCTIONS[PROBE_NAME](
        batch_size=1, q_length=TOKENS, kv_length=TOKENS, mask_function=function, dtype=torch.float32
    )


def tensors(*, kv_heads: int = KV_HEADS, value_size: int = SIZE, keys: int = TOKENS) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(1, HEADS, TOKENS, SIZE),
        torch.randn(1, kv_heads, keys, SIZE),
        torch.randn(1, kv_heads, keys, value_size),
    )


def recorder() -> Recorder:
    return Recorder(num_tokens=TOKENS, mask_length=64)


def attend(
    into: Recorder, *given: torch.Tensor, layer: int = 0, mask: Any = causal_mask_function, **options: Any
) -> Any:
    return into.attend(AttentionInput(module(layer), *given, mask_of(mask), {"scaling": 0.25} | options))


def test_a_call_is_written_down() -> None:
    seen = recorder()
    attend(seen, *tensors(value_size=6), layer=3, mask=sliding_window_causal_mask_function(9))
    (call,) = seen.calls
    assert (call.layer_index, call.num_heads, call.num_kv_heads, call.head_size, call.value_size) == (3, 4, 2, 8, 6)
    assert (call.scale, call.soft_cap, call.sinks, call.mask) == (0.25, None, None, MaskKind("window", 9))


def test_the_answer_is_each_token_s_own_value() -> None:
    query, key, value = tensors()
    out = attend(recorder(), query, key, value)
    assert out.shape == (1, TOKENS, HEADS, SIZE)
    for head in range(HEADS):
        assert torch.equal(out[0, :, head], value[0, head // 2])


def test_the_default_scale_is_that_of_the_head_size() -> None:
    seen = Recorder(num_tokens=TOKENS, mask_length=None)
    seen.attend(AttentionInput(module(), *tensors(), None, {}))
    assert seen.calls[0].scale == pytest.approx(SIZE**-0.5)


def test_keys_of_an_earlier_layer_are_recognised() -> None:
    seen, (query, key, value) = recorder(), tensors()
    attend(seen, query, key, value, layer=0)
    attend(seen, *tensors(), layer=1)
    attend(seen, query, key, value, layer=2)
    assert [call.shares_with for call in seen.calls] == [None, None, 0]


def test_other_numbers_of_keys_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="over 7 keys where there are 5 tokens"):
        attend(recorder(), *tensors(keys=7))


def test_heads_that_form_no_groups_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="4 query, 3 key and 3 value heads"):
        attend(recorder(), *tensors(kv_heads=3))


def test_a_module_that_does_not_know_its_layer_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="does not know its own layer_idx"):
        recorder().attend(AttentionInput(module(None), *tensors(), mask_of(causal_mask_function), {}))


def test_a_second_call_of_one_layer_is_refused() -> None:
    seen = recorder()
    attend(seen, *tensors())
    with pytest.raises(UnsupportedModelError, match="Layer 0 computes attention more than once"):
        attend(seen, *tensors())


def test_masks_that_transformers_did_not_make_are_refused() -> None:
    foreign = torch.zeros(1, 1, TOKENS, TOKENS)
    with pytest.raises(UnsupportedModelError, match="computes its attention mask or a bias itself"):
        recorder().attend(AttentionInput(module(), *tensors(), foreign, {}))
    with pytest.raises(UnsupportedModelError, match="sees later tokens"):
        recorder().attend(AttentionInput(module(), *tensors(), None, {}))


def test_unknown_tensors_are_refused_and_harmless_ones_are_not() -> None:
    attend(recorder(), *tensors(), position_ids=torch.arange(TOKENS), dropout=0.0)
    with pytest.raises(UnsupportedModelError, match="a tensor 'position_bias' that Octavo does not know"):
        attend(recorder(), *tensors(), position_bias=torch.zeros(1))


def test_what_the_model_s_own_attention_ignores_must_not_be_promised() -> None:
    """Llama's eager attention knows no soft cap, so a module that passes one would compute something else with it."""
    with pytest.raises(UnsupportedModelError, match=r"more than scaled .* with full attention, soft cap 2"):
        attend(recorder(), *tensors(), softcap=2.0)
