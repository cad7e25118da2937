from __future__ import annotations

from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.kv.specs import CrossAttentionSpec, FullAttentionSpec, LayerSpec, MambaSpec
from octavo.kv.state_plan import plan_states

ATTENTION = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
"""512 bytes a token, pages of 8,192 bytes."""

STATE = MambaSpec(block_size=16, shapes=((3, 512), (8, 64, 64)), dtypes=("bfloat16", "float32"), cache_mode="auto")
"""3,072 + 131,072 = 134,144 bytes."""

LAYERS: dict[str, LayerSpec] = {"layers.0": STATE, "layers.1": ATTENTION, "layers.2": STATE}


def planned(layers: dict[str, LayerSpec], *, caching: bool = True, reference: bool = False) -> dict[str, LayerSpec]:
    return dict(plan_states([layers], reference=reference, enable_prefix_caching=caching)[0])


def test_blocks_of_tokens_grow_until_their_page_holds_a_state() -> None:
    specs = planned(LAYERS)
    # 134,144 / 8,192 = 16.4, so 17 blocks of 16 tokens become one.
    assert specs["layers.1"].block_size == 17 * 16
    state = specs["layers.0"]
    assert isinstance(state, MambaSpec)
    assert (state.block_size, state.cache_mode, state.page_bytes) == (272, "align", 134_144)


def test_without_prefix_caching_a_request_has_one_state() -> None:
    state = planned(LAYERS, caching=False)["layers.0"]
    assert isinstance(state, MambaSpec)
    assert (state.cache_mode, state.max_blocks(100_000, chunk_tokens=2048)) == ("none", 1)


def test_a_layer_that_cannot_be_shared_forbids_it_to_all() -> None:
    cross = CrossAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", max_encoder_tokens=32)
    state = planned(LAYERS | {"layers.3": cross})["layers.0"]
    assert isinstance(state, MambaSpec)
    assert state.cache_mode == "none"


def test_a_model_of_states_alone_keeps_its_block_size() -> None:
    state = planned({"layers.0": STATE})["layers.0"]
    assert (state.block_size, state.page_bytes) == (16, 134_144)


def test_a_page_holds_whole_elements() -> None:
    odd = MambaSpec(block_size=16, shapes=((3, 5), (2, 4)), dtypes=("bfloat16", "float32"), cache_mode="auto")
    assert planned({"layers.0": odd})["layers.0"].page_bytes == 64


def test_the_reference_and_explicit_modes_stay_as_they_are() -> None:
    state = planned(LAYERS, reference=True)["layers.0"]
    assert isinstance(state, MambaSpec)
    assert (state.cache_mode, state.block_size) == ("none", 16)
    explicit: dict[str, LayerSpec] = {
        "a": MambaSpec(block_size=16, shapes=((3, 5),), dtypes=("bfloat16",)), "b": ATTENTION
    }  # fmt: skip
    assert planned(explicit) == explicit


def test_the_plan_is_right_to_the_byte() -> None:
    options = PlanOptions(max_model_len=4096, max_num_batched_tokens=512)
    plan = plan_kv_cache([LAYERS], [1 << 24], options)
    # Three groups of one layer each; a page is 17 * 8,192 bytes, to which the states are padded.
    page = 17 * 8192
    assert [group.spec.page_bytes for group in plan.groups] == [page] * len(plan.groups)
    assert plan.figures.num_blocks == (1 << 24) // (page * len(plan.configs[0].tensors))
    # 16 blocks of 272 tokens, and for each group of states the running one.
    assert sorted(plan.figures.blocks_per_request) == sorted([16] + [1] * (len(plan.groups) - 1))
    assert plan.figures.scheduler_block_size == 272
    config = plan.configs[0]
    assert sum(tensor.size_bytes for tensor in config.tensors) == plan.figures.ranks[0].pool_bytes
