from __future__ import annotations

import pytest
import torch
from torch import nn

from octavo.attention.backend import AttentionBackend, AttentionGroup, AttentionLayer, AttentionMetadata, KVCacheView
from octavo.errors import UnsupportedModelError
from octavo.kv.specs import FullAttentionSpec
from octavo.models.attention_interface import (
    PROBE_NAME,
    BoundAttention,
    attention_forward,
    clear_hook,
    mask_function_of,
    set_hook,
)
from octavo.models.transformers_api import AttentionMaskInterface

HEADS, KV_HEADS, SIZE, VALUE_SIZE, TOKENS = 4, 2, 8, 6, 5


class Spy(AttentionBackend):
    """Keeps what it is given; answers with the queries' first values."""

    name = "spy"

    def __init__(self) -> None:
        self.written: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.queries: list[torch.Tensor] = []

    def write(self, cache: KVCacheView, key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata) -> None:
        self.written.append((key, value))

    def attend(
        self, layer: AttentionLayer, cache: KVCacheView, query: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        self.queries.append(query)
        return query[:, :, :VALUE_SIZE].contiguous()


def bound_module(backend: AttentionBackend, *, sharing: str | None = None) -> tuple[nn.Module, AttentionLayer]:
    spec = FullAttentionSpec(
        block_size=4, num_kv_heads=KV_HEADS, head_size=SIZE, head_size_v=VALUE_SIZE, dtype="float32"
    )
    layer = AttentionLayer(
        "layers.1", spec=spec, num_heads=HEADS, scale=1.0, backend=backend, kv_sharing_target=sharing
    )
    layer.group = AttentionGroup(0, 4)
    layer.group.metadata = object()  # type: ignore[assignment]
    layer.kv_cache = KVCacheView(torch.empty(0), torch.empty(0))
    module = nn.Module()
    set_hook(module, BoundAttention(layer))
    return module, layer


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As modules make them: tokens before heads in memory, heads before tokens in shape."""
    shapes = ((HEADS, SIZE), (KV_HEADS, SIZE), (KV_HEADS, VALUE_SIZE))
    query, key, value = (torch.randn(1, TOKENS, *shape).transpose(1, 2) for shape in shapes)
    return query, key, value


def test_views_reach_the_layer_without_a_copy() -> None:
    backend = Spy()
    module, layer = bound_module(backend)
    query, key, value = tensors()
    out, weights = attention_forward(module, query, key, value, None, scaling=0.5, dropout=0.0)
    assert weights is None
    assert out.shape == (1, TOKENS, HEADS, VALUE_SIZE)
    torch.testing.assert_close(out[0], query[0].transpose(0, 1)[:, :, :VALUE_SIZE])
    ((written_key, written_value),) = backend.written
    for seen, given, shape in (
        (backend.queries[0], query, (TOKENS, HEADS, SIZE)),
        (written_key, key, (TOKENS, KV_HEADS, SIZE)),
        (written_value, value, (TOKENS, KV_HEADS, VALUE_SIZE)),
    ):
        assert seen.shape == shape
        assert seen.data_ptr() == given.data_ptr()
    assert layer.num_calls == 1


def test_a_sharing_layer_writes_nothing() -> None:
    backend = Spy()
    module, layer = bound_module(backend, sharing="layers.0")
    attention_forward(module, *tensors())
    assert backend.written == []
    assert layer.num_calls == 1


def test_a_module_that_was_never_seen_is_refused() -> None:
    module, _ = bound_module(Spy())
    clear_hook(module)
    with pytest.raises(UnsupportedModelError, match="A Module of the model computes attention only now and then"):
        attention_forward(module, *tensors())


def test_hooks_are_not_part_of_the_module() -> None:
    module, _ = bound_module(Spy())
    assert list(module.children()) == []
    assert module.state_dict() == {}


def test_a_mask_knows_its_function_whole_but_not_in_parts() -> None:
    """Some models slice masks by a number of tokens to keep, which may be all of them."""

    def causal(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return key <= query

    with torch.inference_mode():
        make = AttentionMaskInterface()[PROBE_NAME]
        mask = make(batch_size=1, q_length=5, kv_length=5, q_offset=0, kv_offset=0, mask_function=causal)
        whole = mask[:, :, slice(0, None), :]
        part = mask[:, :, slice(-2, None), :]
        own = mask.clone()
        assert mask_function_of(mask) is causal
        del mask
        assert mask_function_of(whole) is causal
    assert mask_function_of(part) is None
    assert mask_function_of(own) is None
    assert mask_function_of(None) is None
