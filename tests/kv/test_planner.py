from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from octavo.errors import (
    BlocksOverrideError,
    CacheTooSmallError,
    ConfigError,
    LayoutError,
    NoCacheMemoryError,
)
from octavo.kv.layout import placements, slot_bytes, slot_of
from octavo.kv.planner import KVCachePlan, PlanOptions, plan_kv_cache
from octavo.kv.specs import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowSpec,
)

MIB = 2**20

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", window=32)
SEED = {"layers.0": FULL, "layers.1": WINDOW, "layers.2": FULL, "layers.3": WINDOW}


def options(max_model_len: int, **other: Any) -> PlanOptions:
    return PlanOptions(**{"max_model_len": max_model_len, "max_num_batched_tokens": 64} | other)


def usable_per_request(plan: KVCachePlan) -> tuple[int, int]:
    """Usable blocks, the null block not counted, and blocks of one request: their ratio is what a plan holds."""
    return plan.figures.num_blocks - 1, sum(plan.figures.blocks_per_request)


# The worked example.


def test_the_seed_example_is_planned_as_described() -> None:
    config = plan_kv_cache([SEED], [MIB], options(256)).configs[0]
    assert [group.layer_names for group in config.groups] == [("layers.0", "layers.2"), ("layers.1", "layers.3")]
    assert [tensor.shared_by for tensor in config.tensors] == [("layers.0", "layers.1"), ("layers.2", "layers.3")]
    assert config.num_blocks == 64
    assert [tensor.size_bytes for tensor in config.tensors] == [64 * 8192] * 2
    place = placements(config)["layers.0"]
    assert (place.group_index, place.slot_index, place.tensor_index) == (0, 0, 0)
    slot = slot_of([37, 5, 21], 7, 16)
    assert slot == 599
    # A token is 2 heads x (64 + 64) x 2 bytes; its block's page starts at 37 x 8192.
    assert slot_bytes(place, slot) == (37 * 8192 + 7 * 512, 37 * 8192 + 8 * 512)


def test_every_rank_has_its_layers_of_the_same_groups() -> None:
    stages: list[dict[str, LayerSpec]] = [
        {"layers.0": FULL, "layers.1": WINDOW, "layers.2": WINDOW},
        {"layers.3": FULL, "layers.4": FULL, "layers.5": WINDOW},
    ]
    plan = plan_kv_cache(stages, [MIB, 2 * MIB], options(256, reference=True))
    names = [[group.layer_names for group in config.groups] for config in plan.configs]
    assert names == [
        [("layers.0",), ("layers.1", "layers.2")],
        [("layers.3", "layers.4"), ("layers.5",)],
    ]
    assert plan.groups[0].layer_names == ("layers.0", "layers.3", "layers.4")
    assert {config.num_blocks for config in plan.configs} == {plan.figures.num_blocks} == {64}


def test_a_stage_without_cached_layers_costs_and_limits_nothing() -> None:
    plan = plan_kv_cache([SEED, {}], [MIB, 0], options(256))
    assert plan.figures.num_blocks == 64
    assert plan.configs[1].tensors == ()
    assert [group.layer_names for group in plan.configs[1].groups] == [(), ()]
    assert plan.figures.ranks[1].pool_bytes == 0
    assert plan.configs[0] == plan_kv_cache([SEED], [MIB], options(256)).configs[0]


def test_a_model_that_caches_nothing_gets_the_null_block_alone() -> None:
    plan = plan_kv_cache([{}, {}], [0, 0], options(256))
    assert [(config.num_blocks, config.groups, config.tensors) for config in plan.configs] == [(1, (), ())] * 2
    assert (plan.figures.capacity_tokens, plan.figures.max_concurrency) == (0, 0.0)


def test_sharing_layers_cost_nothing_and_are_handed_on() -> None:
    alone = plan_kv_cache([SEED], [MIB], options(256))
    shared = plan_kv_cache([SEED], [MIB], options(256), [{"layers.4": "layers.2"}])
    assert shared.configs[0].shared_layers == {"layers.4": "layers.2"}
    assert msgspec.structs.replace(shared.configs[0], shared_layers={}) == alone.configs[0]
    with pytest.raises(LayoutError, match=r"layers\.4 reads the cache of layers\.9, which has none"):
        plan_kv_cache([SEED], [MIB], options(256), [{"layers.4": "layers.9"}])


# The three choices.


def test_null_accounting_is_a_choice_of_figures_alone() -> None:
    own = plan_kv_cache([SEED], [MIB], options(256))
    counted = plan_kv_cache([SEED], [MIB], options(256, count_null_block=True))
    assert own.configs == counted.configs
    assert own.figures.max_concurrency == 63 / 23
    assert own.figures.capacity_tokens == 63 * 256 // 23
    assert counted.figures.max_concurrency == 64 / 23
    assert counted.figures.capacity_tokens == int(64 / 23 * 256)


def test_the_exact_reservation_is_the_span_of_window_and_chunk() -> None:
    """A window of 33 and 64 tokens are 96 positions: they touch at most 7 blocks, not 6 + 1 on top of a full step."""
    layers = {"a": FULL, "b": msgspec.structs.replace(WINDOW, window=33)}
    for chunk, exact in ((64, 7), (48, 6), (1, 3)):
        plan = plan_kv_cache([layers], [4 * MIB], options(4096, max_chunk_tokens=chunk))
        assert plan.figures.blocks_per_request == (256, exact)
        assert plan.configs[0].max_chunk_tokens == chunk
    reference = plan_kv_cache([layers], [4 * MIB], options(4096, max_chunk_tokens=1, reservation="vllm"))
    assert reference.figures.blocks_per_request == (256, 7)
    twice = plan_kv_cache([layers], [4 * MIB], options(4096, max_overlapping_steps=2))
    assert twice.figures.blocks_per_request == (256, (32 + 128 - 2) // 16 + 2)


def test_grouping_by_the_heuristic_may_pad() -> None:
    layers: dict[str, LayerSpec] = {f"f{i}": FULL for i in range(20)} | {f"w{i}": WINDOW for i in range(30)}
    wide = plan_kv_cache([layers], [64 * MIB], options(256, grouping="vllm"))
    assert [len(group.layer_names) for group in wide.groups] == [20, 15, 15]
    thrifty = plan_kv_cache([layers], [64 * MIB], options(256))
    assert [len(group.layer_names) for group in thrifty.groups] == [10] * 5
    used, asked = (plan.figures.ranks[0].one_request_bytes for plan in (thrifty, wide))
    assert used < asked


def pipeline(text: str, *cuts: int) -> list[dict[str, LayerSpec]]:
    """One layer for each letter, f or w, cut into stages."""
    kinds = {"f": FULL, "w": WINDOW}
    borders = [0, *cuts, len(text)]
    return [{str(i): kinds[text[i]] for i in range(start, stop)} for start, stop in pairwise(borders)]


def test_in_a_pipeline_narrow_groups_may_hold_less() -> None:
    """By ones there are most blocks, but a request needs a block of every group on every stage."""
    plan = plan_kv_cache(pipeline("fwfff", 4), [400 * 8192] * 2, options(300))
    assert [len(group.layer_names) for group in plan.groups] == [4, 1]
    assert plan.figures.num_blocks == 133


def test_of_groupings_that_hold_the_same_the_one_with_fewest_groups_is_taken() -> None:
    ranks = pipeline("wwfwfw", 1)
    plan = plan_kv_cache(ranks, [81 * 8192] * 2, options(16))
    assert len(plan.groups) == 2
    assert usable_per_request(plan) == (26, 2)


def test_reference_sets_all_three_choices() -> None:
    layers: dict[str, LayerSpec] = {f"f{i}": FULL for i in range(20)} | {f"w{i}": WINDOW for i in range(30)}
    whole = plan_kv_cache([layers], [64 * MIB], options(256, reference=True))
    each = plan_kv_cache([layers], [64 * MIB], options(256, grouping="vllm", reservation="vllm", count_null_block=True))
    assert whole == each


# Kinds and options.


def test_layers_of_full_attention_with_other_heads_share_a_group_without_padding() -> None:
    wide = msgspec.structs.replace(FULL, head_size=128)
    plan = plan_kv_cache([{"a": FULL, "b": wide, "c": FULL}], [MIB], options(256))
    config = plan.configs[0]
    assert [group.layer_names for group in config.groups] == [("a", "b", "c")]
    assert plan.figures.ranks[0].bytes_per_block == 8192 + 16384 + 8192
    assert [tensor.shared_by for tensor in config.tensors] == [("a",), ("b",), ("c",)]
    assert [place.tensor_index for place in placements(config).values()] == [0, 1, 2]
    sides = plan_kv_cache([{"a": FULL, "b": wide, "c": FULL}], [MIB], options(256, reference=True)).configs[0]
    assert [tensor.shared_by for tensor in sides.tensors] == [("a",), ("c",), ("b",)]
    assert [place.tensor_index for place in placements(sides).values()] == [0, 2, 1]


def test_smaller_pages_that_divide_get_larger_blocks() -> None:
    half = msgspec.structs.replace(WINDOW, head_size=32)
    plan = plan_kv_cache([{"a": FULL, "b": half}], [MIB], options(256))
    assert [(group.spec.block_size, group.spec.page_bytes) for group in plan.groups] == [(16, 8192), (32, 8192)]
    assert (plan.figures.scheduler_block_size, plan.figures.hash_block_size) == (32, 16)
    assert placements(plan.configs[0])["b"].spec.block_size == 32


def test_pages_that_do_not_divide_are_padded() -> None:
    odd = msgspec.structs.replace(WINDOW, head_size=48)
    plan = plan_kv_cache([{"a": FULL, "b": odd}], [4 * MIB], options(4096))
    assert [group.spec.page_bytes for group in plan.groups] == [8192, 8192]
    assert plan.groups[1].spec.content_bytes == 6144
    assert slot_bytes(placements(plan.configs[0])["b"], 17) == (8192 + 384, 8192 + 768)


def test_latent_attention_is_padded_only_by_octavo() -> None:
    latent = MLASpec(block_size=16, latent_size=576, dtype="bfloat16")
    window = SlidingWindowSpec(block_size=16, num_kv_heads=3, head_size=128, dtype="bfloat16", window=32)
    long = options(65536)
    theirs = plan_kv_cache([{"a": latent, "b": window}], [999 * MIB], options(65536, reference=True))
    assert [group.layer_names for group in theirs.groups] == [("a", "b")]
    assert theirs.groups[0].layer_specs is not None
    ours = plan_kv_cache([{"a": latent, "b": window}], [999 * MIB], long)
    assert [group.spec.page_bytes for group in ours.groups] == [24576, 24576]
    chunked = ChunkedLocalSpec(block_size=16, num_kv_heads=3, head_size=128, dtype="bfloat16", chunk=64)
    with pytest.raises(LayoutError, match="latent attention do not divide"):
        plan_kv_cache([{"a": latent, "b": chunked}], [999 * MIB], options(65536, reference=True))
    assert len(plan_kv_cache([{"a": latent, "b": chunked}], [999 * MIB], long).groups) == 2


def test_states_take_one_page_whatever_the_length() -> None:
    state = MambaSpec(block_size=4096, shapes=((4, 256), (2, 16)), dtypes=("bfloat16", "float32"))
    layers = {"a": state, "b": state, "c": FULL}
    plan = plan_kv_cache([layers], [4 * MIB], options(4096, enable_prefix_caching=False))
    assert [group.spec.page_bytes for group in plan.groups] == [8192] * 3
    assert plan.figures.blocks_per_request == (1, 1, 256)
    assert plan.figures.scheduler_block_size == 4096
    aligned = msgspec.structs.replace(state, cache_mode="align", num_speculative_blocks=1)
    plan = plan_kv_cache([{"a": aligned, "c": FULL}], [4 * MIB], options(4096))
    assert plan.figures.blocks_per_request == (2, 256)
    plan = plan_kv_cache([{"a": aligned, "c": FULL}], [8 * MIB], options(4097))
    assert plan.figures.blocks_per_request == (2, 257)


def test_cross_attention_is_bounded_by_the_encoder() -> None:
    cross = CrossAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", max_encoder_tokens=100)
    plan = plan_kv_cache([{"a": FULL, "b": cross}], [4 * MIB], options(4096))
    assert plan.figures.blocks_per_request == (256, 7)
    assert plan.figures.ranks[0].fixed_bytes == 100 * 512


def test_hybrid_off_plans_windows_as_full_layers() -> None:
    plan = plan_kv_cache([SEED], [MIB], options(128, hybrid=False))
    assert [group.layer_names for group in plan.groups] == [tuple(SEED)]
    spec = plan.groups[0].spec
    assert isinstance(spec, FullAttentionSpec)
    assert spec.compute_window == 32
    assert plan.figures.ranks[0].ideal_bytes == (2 * 128 + 2 * 32) * 512
    state = MambaSpec(block_size=16, shapes=((4, 256),), dtypes=("bfloat16",))
    with pytest.raises(LayoutError, match="full, mamba do not fit one group"):
        plan_kv_cache([SEED | {"m": state} | {"f": FULL}], [MIB], options(128, hybrid=False))


def test_context_parallel_ranks_share_the_tokens() -> None:
    plan = plan_kv_cache([{"a": FULL}] * 2, [MIB] * 2, options(1000, context_parallel_size=2))
    assert plan.figures.blocks_per_request == (32,)
    assert plan.figures.scheduler_block_size == plan.figures.hash_block_size == 32
    assert plan.figures.ranks[0].ideal_bytes == 500 * 512


def test_layouts() -> None:
    wide = msgspec.structs.replace(FULL, head_size=128)
    plan_kv_cache([SEED], [MIB], options(128, layout="LHBNC", reference=True))
    with pytest.raises(LayoutError, match="cannot hold pages of 8192, 16384 bytes"):
        plan_kv_cache([{"a": FULL, "b": wide}], [MIB], options(128, layout="LHBNC", reference=True))
    for layout in ("LHBNC", "BLHNC", "x"):
        with pytest.raises(LayoutError, match=f"does not plan the memory layout '{layout}'"):
            plan_kv_cache([SEED], [MIB], options(128, layout=layout))


def test_ranks_must_agree_about_a_layer() -> None:
    with pytest.raises(LayoutError, match="Layer a caches something else on rank 1"):
        plan_kv_cache([{"a": FULL}, {"a": WINDOW}], [MIB, MIB], options(128))


# An overriding number of blocks.


def test_an_override_is_taken_literally() -> None:
    plan = plan_kv_cache([SEED], [MIB], options(256, num_blocks_override=24))
    assert plan.configs[0].num_blocks == 24
    assert plan.figures.ranks[0].unused_bytes == 40 * 16384


def test_an_override_does_not_change_the_grouping() -> None:
    layers: dict[str, LayerSpec] = {f"f{i}": FULL for i in range(4)} | {f"w{i}": WINDOW for i in range(6)}
    free = plan_kv_cache([layers], [4 * MIB], options(256))
    overridden = plan_kv_cache([layers], [4 * MIB], options(256, num_blocks_override=90))
    assert [group.layer_names for group in overridden.groups] == [group.layer_names for group in free.groups]
    assert len(free.groups) == 5


def test_an_override_above_the_budget_is_refused_in_every_mode() -> None:
    for reference in (False, True):
        with pytest.raises(BlocksOverrideError, match=r"--num-blocks-override 65 needs 1,064,960 bytes") as caught:
            plan_kv_cache([SEED], [MIB], options(256, num_blocks_override=65, reference=reference))
        assert f"Lower --num-blocks-override to 64, or raise --kv-memory to {65 * 16384}" in str(caught.value)
        plan_kv_cache([SEED], [MIB], options(256, num_blocks_override=64, reference=reference))
        plan_kv_cache([SEED], [65 * 16384], options(256, num_blocks_override=65, reference=reference))
        with pytest.raises(BlocksOverrideError):
            plan_kv_cache([SEED], [65 * 16384 - 1], options(256, num_blocks_override=65, reference=reference))


def test_an_override_too_small_names_one_that_works() -> None:
    with pytest.raises(CacheTooSmallError) as caught:
        plan_kv_cache([SEED], [MIB], options(256, num_blocks_override=23))
    assert f"--num-blocks-override to 24, which takes --kv-memory of at least {24 * 16384}" in str(caught.value)
    plan_kv_cache([SEED], [MIB], options(256, num_blocks_override=24))
    length = caught.value.numbers["estimated_max_model_len"]
    plan_kv_cache([SEED], [MIB], options(length, num_blocks_override=23))
    with pytest.raises(CacheTooSmallError):
        plan_kv_cache([SEED], [MIB], options(length + 1, num_blocks_override=23))
    with pytest.raises(NoCacheMemoryError):
        plan_kv_cache([SEED], [MIB], options(256, num_blocks_override=1))


def test_an_override_that_no_budget_here_holds_only_asks_for_more() -> None:
    with pytest.raises(BlocksOverrideError) as caught:
        plan_kv_cache([SEED], [10 * 16384], options(256, num_blocks_override=24))
    assert "Lower" not in str(caught.value)
    assert f"Raise --kv-memory to {24 * 16384}" in str(caught.value)


# Arguments.


@pytest.mark.parametrize(
    "name",
    ["max_model_len", "max_num_batched_tokens", "max_chunk_tokens", "num_blocks_override", "context_parallel_size"],
)
def test_impossible_numbers_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        plan_kv_cache([SEED], [MIB], options(**{"max_model_len": 128} | {name: 0}))


def test_ranks_and_bytes_must_match() -> None:
    with pytest.raises(ConfigError, match="there are 1 and 2"):
        plan_kv_cache([SEED], [MIB, MIB], options(128))


def test_overlapping_steps_share_what_a_window_is_sure_of() -> None:
    layers = {"layers.0": SlidingWindowSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16", window=100)}
    for steps, sure in ((1, 256), (2, 128), (4, 64), (1000, 1)):
        options = PlanOptions(max_model_len=10_000, max_overlapping_steps=steps)
        figures = plan_kv_cache([layers], [2**24], options).figures
        assert figures.max_chunk_tokens == sure
        assert figures.blocks_per_request == (-(-(100 - 1 + sure * steps + 15) // 16),)
