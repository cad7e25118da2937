"""Allocate, view, bind: on plans of any mix, and every refusal."""

from __future__ import annotations

import msgspec
import psutil
import pytest
import torch

from octavo.attention.backend import AttentionLayer
from octavo.attention.torch_reference import TorchReference
from octavo.config import layer_name
from octavo.errors import BindError, ConfigError, InvariantError, LayoutError
from octavo.kv.layout import placements, slot_bytes
from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.kv.specs import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    LayerSpec,
    MLASpec,
    SlidingWindowSpec,
)
from octavo.worker.kv_memory import allocate, bind, copy_blocks, view

CPU = torch.device("cpu")


def full(**changes: object) -> FullAttentionSpec:
    return FullAttentionSpec(**{"block_size": 8, "num_kv_heads": 2, "head_size": 4, "dtype": "float32", **changes})


def sliding(**changes: object) -> SlidingWindowSpec:
    fields = {"block_size": 8, "num_kv_heads": 2, "head_size": 4, "dtype": "float32", "window": 16, **changes}
    return SlidingWindowSpec(**fields)


def plan(specs: list[LayerSpec], shared: dict[str, str] | None = None) -> KVCacheConfig:
    named = {layer_name(i): spec for i, spec in enumerate(specs)}
    options = PlanOptions(max_model_len=32, max_num_batched_tokens=32)
    return plan_kv_cache([named], [200_000], options, shared_layers_by_rank=[shared or {}]).configs[0]


def layers_of(config: KVCacheConfig) -> dict[str, AttentionLayer]:
    made = {}
    for name, place in placements(config).items():
        assert isinstance(place.spec, AttentionSpec | MLASpec)
        made[name] = layer(name, place.spec)
    for name, target in config.shared_layers.items():
        made[name] = layer(name, made[target].spec, target)
    return made


def layer(name: str, spec: AttentionSpec | MLASpec, target: str | None = None) -> AttentionLayer:
    return AttentionLayer(
        name,
        spec=spec,
        num_heads=2,
        scale=1.0,
        backend=TorchReference(),
        window=getattr(spec, "window", None),
        kv_sharing_target=target,
    )


MIXES: dict[str, list[LayerSpec]] = {
    "one kind": [full()] * 3,
    "hybrid": [full(), sliding(), sliding(), full(), sliding()],
    "bfloat16": [full(dtype="bfloat16"), sliding(dtype="bfloat16")],
    "float16": [full(dtype="float16")],
    "values of another size": [full(head_size_v=6), full(head_size_v=6)],
    "heads of differing number": [full(), full(num_kv_heads=4), full(head_size=8)],
    "latents": [MLASpec(block_size=8, latent_size=24, value_size=16, dtype="float32")] * 2,
    "latents and windows": [
        MLASpec(block_size=8, latent_size=24, value_size=16, dtype="bfloat16"),
        sliding(dtype="bfloat16"),
    ],
    "padded pages": [full(page_size_padded=1024), full(page_size_padded=1024)],
}


@pytest.mark.parametrize("specs", MIXES.values(), ids=MIXES.keys())
def test_every_slot_is_viewed_at_the_bytes_that_the_layout_says(specs: list[LayerSpec]) -> None:
    config = plan(specs)
    tensors = allocate(config, CPU)
    views = view(config, tensors)
    assert list(views) == list(placements(config))
    assert [tensor.numel() for tensor in tensors] == [tensor.size_bytes for tensor in config.tensors]
    assert all(tensor.dtype is torch.int8 and tensor.dim() == 1 for tensor in tensors)
    for name, place in placements(config).items():
        tensor = tensors[place.tensor_index]
        slot = place.spec.block_size * (config.num_blocks // 2) + 3
        block, offset = divmod(slot, place.spec.block_size)
        tensor.zero_()
        views[name].key[block, offset] = 1
        views[name].value[block, offset] = 1
        start, stop = slot_bytes(place, slot)
        token = tensor[start:stop].view(views[name].key.dtype)
        assert (token == 1).all(), "the slot's bytes are its K and V"
        tensor[start:stop] = 0
        assert not tensor.any(), "and nothing else is"


def test_fresh_memory_is_zero_and_costs_nothing_before_it_is_written() -> None:
    config = plan([full()])
    before = psutil.Process().memory_info().rss
    (tensor,) = allocate(msgspec.structs.replace(config, tensors=(resized(config, 2**31),)), CPU)
    assert tensor.numel() == 2**31
    assert not tensor[:4096].any()
    assert not tensor[-4096:].any()
    assert psutil.Process().memory_info().rss - before < 2**26


def test_memory_is_freed_with_the_last_view_of_it() -> None:
    config = plan([full()])
    tensors = allocate(config, CPU)
    views = view(config, tensors)
    views[layer_name(0)].key[1] = 3.0
    key = views[layer_name(0)].key
    del tensors, views
    assert (key[1] == 3.0).all(), "a view keeps its tensor's memory"


def resized(config: KVCacheConfig, size_bytes: int):
    return msgspec.structs.replace(config.tensors[0], size_bytes=size_bytes)


def test_memory_that_the_system_refuses_is_an_error_with_a_remedy() -> None:
    config = plan([full()])
    with pytest.raises(ConfigError, match=r"Tensor 0 of the KV cache, .* cannot be allocated on cpu") as caught:
        allocate(msgspec.structs.replace(config, tensors=(resized(config, 2**62),)), CPU)
    assert "--kv-memory" in caught.value.remedy
    assert caught.value.numbers["size_bytes"] == 2**62


def test_an_empty_plan_allocates_and_binds_nothing() -> None:
    config = plan([])
    assert allocate(config, CPU) == []
    assert view(config, []) == {}
    assert bind(config, {}, {}) == []


def test_a_view_that_would_leave_its_tensor_is_a_bug() -> None:
    config = plan([full()])
    with pytest.raises(InvariantError, match=r"the view of layers\.0 ends at element"):
        view(config, [torch.zeros(config.tensors[0].size_bytes - 4, dtype=torch.int8)])


def test_addresses_that_differ_from_the_layout_are_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    config = plan([full()])
    monkeypatch.setattr("octavo.worker.kv_memory.slot_bytes", lambda place, slot: (slot, slot + 1))
    with pytest.raises(InvariantError, match=r"slot \d+ of layers\.0 is viewed at bytes"):
        view(config, allocate(config, CPU))


def test_a_layer_without_plain_keys_and_values_is_refused() -> None:
    packed = FullAttentionSpec(block_size=8, num_kv_heads=1, head_size=4, dtype="int8", packed_head_bytes=12)
    config = plan([packed])
    with pytest.raises(LayoutError, match="K and V"):
        view(config, allocate(config, CPU))


# -- bind -------------------------------------------------------------------------------------------------------------


def bound(config: KVCacheConfig, layers: dict[str, AttentionLayer]):
    return bind(config, view(config, allocate(config, CPU)), layers)


def test_sharing_layers_get_their_targets_view_and_group() -> None:
    config = plan([full(), sliding()], shared={layer_name(2): layer_name(1)})
    layers = layers_of(config)
    groups = bound(config, layers)
    sharing, target = layers[layer_name(2)], layers[layer_name(1)]
    assert sharing.kv_cache is target.kv_cache is not None
    assert sharing.group is target.group is groups[placements(config)[layer_name(1)].group_index]
    assert layers[layer_name(0)].kv_cache is not target.kv_cache


def assert_refused(config: KVCacheConfig, layers: dict[str, AttentionLayer], message: str) -> None:
    with pytest.raises(BindError, match=message) as caught:
        bound(config, layers)
    assert caught.value.remedy == "Plan again from the model that is loaded."
    assert all(layer.kv_cache is None and layer.group is None for layer in layers.values()), "nothing was bound"


def test_a_missing_layer_is_refused_by_name() -> None:
    config = plan([full(), full()])
    layers = layers_of(config)
    del layers[layer_name(1)]
    assert_refused(config, layers, r"the plan has layers\.1 and the model does not")


def test_an_extra_layer_is_refused_by_name() -> None:
    config = plan([full()])
    layers = {**layers_of(config), layer_name(7): layer(layer_name(7), full())}
    assert_refused(config, layers, r"the model has layers\.7 and the plan does not")


def test_missing_and_extra_layers_are_named_together() -> None:
    config = plan([full()])
    assert_refused(
        config,
        {layer_name(7): layer(layer_name(7), full())},
        r"the plan has layers\.0 and the model does not; the model has layers\.7 and the plan does not",
    )


@pytest.mark.parametrize(
    "change", [{"num_kv_heads": 1}, {"head_size": 8}, {"head_size_v": 2}, {"dtype": "bfloat16"}, {"block_size": 3}]
)
def test_a_misshapen_layer_is_refused_with_both_shapes(change: dict[str, object]) -> None:
    config = plan([full(), full()])
    layers = layers_of(config)
    layers[layer_name(1)] = layer(layer_name(1), full(**change))
    assert_refused(config, layers, r"Attention layer layers\.1 needs K .* and V .*, and its view has K .* and V ")


def test_a_latent_is_not_taken_for_k_and_v_of_its_sizes() -> None:
    latent = MLASpec(block_size=8, latent_size=24, value_size=16, dtype="float32")
    config = plan([full(num_kv_heads=1, head_size=24, head_size_v=16)])
    layers = {layer_name(0): layer(layer_name(0), latent)}
    assert_refused(config, layers, r"V 0 elements behind K, and its view has .*, V 24 behind K")


def test_another_window_than_the_plans_is_refused() -> None:
    config = plan([sliding(window=16)])
    layers = {layer_name(0): layer(layer_name(0), sliding(window=24))}
    assert_refused(config, layers, r"has a window of 24 tokens in the model and of 16 in the plan")


def test_a_windowed_layer_may_be_planned_as_full() -> None:
    config = plan([full()])
    layers = {layer_name(0): layer(layer_name(0), sliding())}
    bound(config, layers)
    assert layers[layer_name(0)].kv_cache is not None


def test_another_sharing_target_is_refused() -> None:
    config = plan([full(), full()], shared={layer_name(2): layer_name(1)})
    layers = layers_of(config)
    layers[layer_name(2)] = layer(layer_name(2), full(), layer_name(0))
    assert_refused(config, layers, r"layers\.2 reads the cache of layers\.0 in the model, and of layers\.1 in the plan")
    layers[layer_name(2)] = layer(layer_name(2), full())
    assert_refused(config, layers, r"layers\.2 reads the cache of its own in the model, and of layers\.1 in the plan")


def test_sharing_the_cache_of_a_layer_that_keeps_none_is_refused() -> None:
    config = plan([full()])
    config = msgspec.structs.replace(config, shared_layers={layer_name(1): layer_name(2), layer_name(2): layer_name(0)})
    layers = {
        layer_name(0): layer(layer_name(0), full()),
        layer_name(1): layer(layer_name(1), full(), layer_name(2)),
        layer_name(2): layer(layer_name(2), full(), layer_name(0)),
    }
    assert_refused(config, layers, r"layers\.1 reads the cache of layers\.2, which keeps none")


def test_layers_with_heads_of_half_the_size_are_bound_to_blocks_of_twice_the_tokens() -> None:
    """The planner makes pages equal by longer blocks; a loaded layer reports the block size that was asked for."""
    loaded: list[LayerSpec] = [full(head_size=8), sliding(), full(head_size=8), sliding()]
    config = plan(loaded)
    planned = {name: place.spec.block_size for name, place in placements(config).items()}
    assert planned == {"layers.0": 8, "layers.1": 16, "layers.2": 8, "layers.3": 16}
    layers = {layer_name(i): layer(layer_name(i), spec) for i, spec in enumerate(loaded)}  # type: ignore[arg-type]
    groups = bind(config, view(config, allocate(config, CPU)), layers)
    assert sorted({group.block_size for group in groups}) == [8, 16]
    for name, bound in layers.items():
        assert bound.group is not None
        assert bound.group.block_size == planned[name]
        assert bound.kv_cache is not None
        assert bound.kv_cache.key.shape[1] == planned[name]


def test_blocks_are_copied_in_every_tensor_after_all_sources_are_read() -> None:
    tensors = [torch.arange(24, dtype=torch.int8).clone(), torch.arange(12, dtype=torch.int8) + 50]
    copy_blocks(tensors, 6, [(1, 2), (2, 3), (5, 1)])
    assert tensors[0].view(6, 4)[:, 0].tolist() == [0, 20, 4, 8, 16, 20]
    assert tensors[1].view(6, 2)[:, 1].tolist() == [51, 61, 53, 55, 59, 61]
    copy_blocks([], 6, [])


def test_a_view_sees_the_copied_block_whole() -> None:
    config = plan([full(), sliding(), full(head_size=8)])
    tensors = allocate(config, CPU)
    views = view(config, tensors)
    for found in views.values():
        found.key[2].normal_()
        found.value[2].normal_()
    copy_blocks(tensors, config.num_blocks, [(2, 3)])
    for found in views.values():
        assert torch.equal(found.key[3], found.key[2])
        assert torch.equal(found.value[3], found.value[2])
        assert found.value[3].count_nonzero() == found.value[3].numel()
