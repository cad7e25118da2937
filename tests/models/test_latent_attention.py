"""A module's latents: taken apart exactly, or refused by what it does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from octavo.attention.backend import AttentionGroup, AttentionLayer, AttentionMetadata, KVCacheView
from octavo.attention.torch_reference import TorchReference
from octavo.errors import UnsupportedModelError
from octavo.kv.specs import MLASpec
from octavo.models.attention_interface import PROBE_NAME, attention_forward, set_hook
from octavo.models.attention_probe import AttentionProbe
from octavo.models.attention_recorder import AttentionCall
from octavo.models.latent_attention import BoundLatentAttention, find_projection, take_projection, with_latents
from octavo.models.zoo import find_model
from tests.models.architectures import ARCHITECTURES, LATENT

TOKENS, HEADS, NOPE, ROTARY, VALUE = 9, 4, 12, 8, 10


def probed(dtype: torch.dtype = torch.float32, *, change: Callable[[nn.Module], None] | None = None) -> AttentionCall:
    """The first layer's call of a random model, after `change` to its attention module."""
    config, model_class = find_model({"model_type": "youtu", **ARCHITECTURES["youtu"].fields})
    torch.manual_seed(0)
    model = model_class._from_config(config, dtype=dtype, attn_implementation=PROBE_NAME).eval()
    if change is not None:
        change(model.model.layers[0].self_attn)
    with torch.inference_mode():
        return AttentionProbe(model, length=32, vocab_size=100).calls[0]


def test_a_call_over_latents_is_seen_and_becomes_one_head() -> None:
    call = probed()
    assert (call.latent_sizes, call.num_kv_heads, call.head_size, call.value_size) == (
        (LATENT, ROTARY), HEADS, NOPE + ROTARY, VALUE,
    )  # fmt: skip
    (changed,), projections = with_latents([call], [0])
    assert (changed.num_kv_heads, changed.head_size, changed.value_size) == (1, LATENT + ROTARY, LATENT)
    assert (changed.num_heads, changed.scale) == (HEADS, call.scale)
    assert list(projections) == [0]
    assert with_latents([call], []) == ([call], {})


def test_the_projection_takes_the_place_of_the_linear_layer_and_expands_as_it_did() -> None:
    call = probed()
    linear: Any = call.module.kv_b_proj
    given = torch.randn(2, 3, LATENT)
    expected, num_bytes = linear(given), linear.weight.nbytes
    projection = take_projection(call)
    assert call.module.kv_b_proj is projection
    assert linear.weight is None, "its weight is not kept twice"
    assert sum(parameter.nbytes for parameter in projection.parameters()) == num_bytes
    torch.testing.assert_close(projection(given), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_over_latents_is_attention_over_what_they_expand_to(dtype: torch.dtype) -> None:
    call = probed(dtype)
    projection = take_projection(call)
    spec = MLASpec(block_size=4, latent_size=LATENT + ROTARY, value_size=LATENT, dtype="float32")
    layer = AttentionLayer("layers.0", spec=spec, num_heads=HEADS, scale=call.scale, backend=TorchReference())
    pages = torch.full((4, 4, 1, LATENT + ROTARY), torch.nan)
    layer.kv_cache = KVCacheView(pages, pages[..., :LATENT])
    layer.group = AttentionGroup(0, 4)
    layer.group.metadata = AttentionMetadata(
        query_start=torch.tensor([0, TOKENS], dtype=torch.int32),
        seq_lens=torch.tensor([TOKENS], dtype=torch.int32),
        block_table=torch.tensor([[2, 3, 1]], dtype=torch.int32),
        slot_mapping=torch.tensor([8, 9, 10, 11, 12, 13, 14, 15, 4]),
        num_requests=1, num_tokens=TOKENS, max_query_len=TOKENS, max_seq_len=TOKENS,
    )  # fmt: skip
    query, latent, rotary = (
        torch.randn(1, heads, TOKENS, size).to(dtype)
        for heads, size in ((HEADS, NOPE + ROTARY), (1, LATENT), (1, ROTARY))
    )
    with torch.inference_mode():
        key, value = call.module.expand_kv(latent, rotary)
        set_hook(call.module, BoundLatentAttention(layer, projection))
        out, _ = attention_forward(call.module, query, *call.module.expand_kv(latent, rotary))
    expected = nn.functional.scaled_dot_product_attention(
        query.float(), key.float(), value.float(), is_causal=True, scale=call.scale
    ).transpose(1, 2)
    assert out.shape == (1, TOKENS, HEADS, VALUE) and out.dtype == dtype
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (1e-5 if dtype == torch.float32 else 0.02)
    stored = pages.flatten(0, 1)[layer.group.metadata.slot_mapping, 0]
    assert torch.equal(stored, torch.cat([latent, rotary], 3)[0, 0].float()), "the cache holds latents, each once"


def _with_step(change: Callable[[torch.Tensor, torch.Tensor, Any], Any]) -> Callable[[nn.Module], None]:
    """Gives the module a class of its own whose step from latents to K and V ends in `change`."""

    def apply(module: nn.Module) -> None:
        original = type(module).expand_kv

        def expand_kv(self: Any, latent: torch.Tensor, rotary: torch.Tensor) -> Any:
            return change(latent, rotary, original(self, latent, rotary))

        module.__class__ = type(
            "Changed", (type(module),), {"expand_kv": expand_kv, "__module__": type(module).__module__}
        )

    return apply


def _with_bias(module: Any) -> None:
    module.kv_b_proj.bias = nn.Parameter(torch.randn(module.kv_b_proj.out_features))


def _with_a_second_part(module: Any) -> None:
    module.kv_b_proj = nn.Sequential(module.kv_b_proj, nn.Identity())


def _with_changed_keys(module: Any) -> None:
    """What goes to attention is no longer what the step made."""
    norm = nn.LayerNorm(NOPE + ROTARY)
    original = type(module).forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        expand = self.__dict__.pop("expand_kv")
        self.__dict__["expand_kv"] = lambda *given: (norm((made := expand(*given))[0]), made[1])
        try:
            return original(self, *args, **kwargs)
        finally:
            self.__dict__["expand_kv"] = expand

    module.__class__ = type("Changed", (type(module),), {"forward": forward, "__module__": type(module).__module__})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_with_bias, "makes its keys of more than its latent"),
        (_with_a_second_part, "expands its latent by something else than one plain matrix of 88 rows"),
        (_with_step(lambda latent, rotary, made: (made[0] * 1.01, made[1])), "makes its keys of more than"),
        (_with_step(lambda latent, rotary, made: (made[0], made[1].tanh())), "makes its values of more than"),
        (_with_step(lambda latent, rotary, made: (made[0].roll(1, 3), made[1])), "makes its keys of more than"),
        (_with_changed_keys, "attends to other K and V than a step of their own makes of its latent"),
    ],
    ids=["bias", "two parts", "scaled keys", "values through tanh", "rotary part elsewhere", "keys changed afterwards"],
)
def test_a_module_that_does_more_with_its_latents_is_refused(change: Callable[[nn.Module], None], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"Layer 0 has latent attention, but {message}"):
        find_projection(probed(change=change))


def test_a_module_without_such_a_step_is_refused() -> None:
    config, model_class = find_model({"model_type": "llama", **ARCHITECTURES["llama"].fields})
    model = model_class._from_config(config, dtype=torch.float32, attn_implementation=PROBE_NAME).eval()
    with torch.inference_mode():
        calls = AttentionProbe(model, length=32, vocab_size=100).calls
    assert {call.latent_sizes for call in calls} == {None}
    with pytest.raises(UnsupportedModelError, match="Layer 2 has latent attention, but attends to other K and V"):
        with_latents(calls, [2])
