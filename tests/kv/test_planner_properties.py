"""Properties that hold for every plan of every model, and remedies carried out as they are printed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octavo.errors import AutoFitError, CacheTooSmallError, LayoutError, NoCacheMemoryError, PlanError
from octavo.kv.layout import placements
from octavo.kv.planner import KVCachePlan, PlanOptions, plan_kv_cache
from octavo.kv.specs import ChunkedLocalSpec, FullAttentionSpec, KVCacheConfig, LayerSpec
from tests.strategies import models


def options(max_model_len: int, **other: Any) -> PlanOptions:
    return PlanOptions(**{"max_model_len": max_model_len} | other)


def same_for_all(specs: Sequence[Mapping[str, LayerSpec]], bytes_: int) -> list[int]:
    return [bytes_] * len(specs)


def usable_per_request(plan: KVCachePlan) -> tuple[int, int]:
    """Usable blocks, the null block not counted, and blocks of one request: their ratio is what a plan holds."""
    return plan.figures.num_blocks - 1, sum(plan.figures.blocks_per_request)


PLANS: dict[str, Any] = {
    "ranks": models(),
    "blocks": st.integers(1, 400),
    "length": st.integers(1, 3000),
    "chunk": st.integers(1, 300),
}


def budget_for(ranks: Sequence[Mapping[str, LayerSpec]], blocks: int) -> list[int]:
    """Bytes for about `blocks` blocks of the richest stage's widest sort, a little uneven from rank to rank."""
    page = max(spec.page_bytes for specs in ranks for spec in specs.values())
    return [page * blocks * max(1, len(specs)) // 2 + 7 * rank for rank, specs in enumerate(ranks)]


def check_plan(plan: KVCachePlan, ranks: Sequence[Mapping[str, LayerSpec]], available: Sequence[int]) -> None:
    """What holds for every plan of every model."""
    figures = plan.figures
    assert sum(figures.blocks_per_request) < figures.num_blocks
    assert figures.usable_blocks == figures.num_blocks - 1
    for config, specs, bytes_, rank in zip(plan.configs, ranks, available, figures.ranks, strict=True):
        check_rank(config, specs)
        assert config.num_blocks == figures.num_blocks
        assert len(config.groups) == len(plan.groups)
        assert sum(tensor.size_bytes for tensor in config.tensors) == rank.pool_bytes <= bytes_
        assert rank.unused_bytes == bytes_ - rank.pool_bytes
        assert rank.pool_bytes == config.num_blocks * rank.bytes_per_block
        assert rank.ideal_bytes == sum(spec.ideal_bytes(config.max_model_len) for spec in specs.values())
        assert rank.one_request_bytes == sum(figures.blocks_per_request) * rank.bytes_per_block
    richest = [rank for rank in figures.ranks if rank.bytes_per_block]
    assert any(rank.unused_bytes < rank.bytes_per_block for rank in richest)


def check_rank(config: KVCacheConfig, specs: Mapping[str, LayerSpec]) -> None:
    placed = placements(config)
    assert set(placed) == set(specs)
    assert sum(len(group.layer_names) for group in config.groups) == len(specs)
    assert sum(len(tensor.shared_by) for tensor in config.tensors) == len(specs)
    for tensor in config.tensors:
        groups = [placed[name].group_index for name in tensor.shared_by]
        assert len(set(groups)) == len(groups)
    for name, place in placed.items():
        spec, tensor = place.spec, config.tensors[place.tensor_index]
        assert name in tensor.shared_by
        assert spec.content_bytes <= spec.page_bytes
        assert spec.page_bytes * config.num_blocks == tensor.size_bytes
        assert type(spec) is type(specs[name]) or (
            isinstance(spec, FullAttentionSpec) and spec.compute_window == getattr(specs[name], "window", None)
        )


@given(**PLANS)
def test_plans_are_sound_or_refused(ranks: list[dict[str, LayerSpec]], blocks: int, length: int, chunk: int) -> None:
    available = budget_for(ranks, blocks)
    try:
        plan = plan_kv_cache(ranks, available, options(length, max_num_batched_tokens=chunk))
    except (CacheTooSmallError, NoCacheMemoryError):
        return
    check_plan(plan, ranks, available)


@given(**PLANS, grouping=st.sampled_from(["fewest-bytes", "vllm"]), reference=st.booleans())
def test_a_printed_remedy_works_and_less_does_not(
    ranks: list[dict[str, LayerSpec]], blocks: int, length: int, chunk: int, grouping: str, reference: bool
) -> None:
    def attempt(bytes_: Sequence[int], tokens: int) -> KVCachePlan:
        chosen = options(tokens, max_num_batched_tokens=chunk, grouping=grouping, reference=reference)
        return plan_kv_cache(ranks, bytes_, chosen)

    available = [min(budget_for(ranks, blocks // 8))] * len(ranks)
    try:
        attempt(available, length)
        return
    except (CacheTooSmallError, NoCacheMemoryError) as error:
        printed, numbers = str(error), error.numbers
    except LayoutError:
        return
    budget = re.search(r"--kv-memory to (\d+) ", printed)
    assert budget is not None, printed
    smallest = int(budget[1])
    check_plan(attempt(same_for_all(ranks, smallest), length), ranks, same_for_all(ranks, smallest))
    with pytest.raises((CacheTooSmallError, NoCacheMemoryError)):
        attempt(same_for_all(ranks, smallest - 1), length)
    shorter = re.search(r"--max-model-len to (\d+),", printed)
    if len(ranks) == 1 or not reference:
        assert (int(shorter[1]) if shorter else 0) == numbers["estimated_max_model_len"]
    if shorter is None:
        with pytest.raises((CacheTooSmallError, NoCacheMemoryError)):
            attempt(available, 1)
        return
    attempt(available, int(shorter[1]))
    with pytest.raises((CacheTooSmallError, NoCacheMemoryError)):
        attempt(available, int(shorter[1]) + 1)


@pytest.mark.slow
@given(**PLANS)
def test_fitting_finds_the_longest_length(
    ranks: list[dict[str, LayerSpec]], blocks: int, length: int, chunk: int
) -> None:
    available = budget_for(ranks, blocks // 8)
    try:
        plan = plan_kv_cache(ranks, available, options(length, max_num_batched_tokens=chunk, auto_fit=True))
    except AutoFitError as error:
        with pytest.raises((CacheTooSmallError, NoCacheMemoryError)):
            plan_kv_cache(ranks, available, options(1, max_num_batched_tokens=chunk))
        smallest = same_for_all(ranks, error.numbers["smallest_budget_bytes"])
        plan_kv_cache(ranks, smallest, options(length, max_num_batched_tokens=chunk, auto_fit=True))
        with pytest.raises(AutoFitError):
            less = [bytes_ - 1 for bytes_ in smallest]
            plan_kv_cache(ranks, less, options(length, max_num_batched_tokens=chunk, auto_fit=True))
        return
    found = plan.figures.max_model_len
    assert found <= length
    assert plan == plan_kv_cache(ranks, available, options(found, max_num_batched_tokens=chunk))
    if found < length:
        with pytest.raises(PlanError):
            plan_kv_cache(ranks, available, options(found + 1, max_num_batched_tokens=chunk))


@pytest.mark.slow
@given(**PLANS, shorter=st.integers(0, 3000))
def test_a_shorter_length_fits_where_a_longer_does(
    ranks: list[dict[str, LayerSpec]], blocks: int, length: int, chunk: int, shorter: int
) -> None:
    available = budget_for(ranks, blocks // 4)
    try:
        plan_kv_cache(ranks, available, options(length, max_num_batched_tokens=chunk))
    except PlanError:
        return
    plan_kv_cache(ranks, available, options(max(1, length - shorter), max_num_batched_tokens=chunk))


@pytest.mark.slow
@given(**PLANS, more=st.integers(1, 10**6))
def test_more_memory_never_holds_less(
    ranks: list[dict[str, LayerSpec]], blocks: int, length: int, chunk: int, more: int
) -> None:
    available = budget_for(ranks, blocks // 4)
    chosen = options(length, max_num_batched_tokens=chunk)
    try:
        less = plan_kv_cache(ranks, available, chosen)
    except PlanError:
        return
    richer = plan_kv_cache(ranks, [bytes_ + more for bytes_ in available], chosen)
    assert richer.figures.capacity_tokens >= less.figures.capacity_tokens


@pytest.mark.slow
@given(**PLANS)
def test_never_fewer_tokens_than_the_reference(
    ranks: list[dict[str, LayerSpec]], blocks: int, length: int, chunk: int
) -> None:
    """For the same bytes, the null block counted alike. What the reference accepts is accepted."""
    available = budget_for(ranks, blocks // 4)
    # Where an attention chunk is no multiple of the block, the reference reserves less than a request may touch.
    unified = max(spec.page_bytes for specs in ranks for spec in specs.values())
    for specs in ranks:
        for spec in specs.values():
            if isinstance(spec, ChunkedLocalSpec):
                grown = spec.block_size * max(1, unified // spec.page_bytes)
                assume(spec.chunk % spec.block_size == 0 and spec.chunk % grown == 0)
    try:
        theirs = plan_kv_cache(ranks, available, options(length, max_num_batched_tokens=chunk, reference=True))
    except PlanError:
        return
    ours = plan_kv_cache(ranks, available, options(length, max_num_batched_tokens=chunk))
    (usable, request), (their_usable, their_request) = usable_per_request(ours), usable_per_request(theirs)
    assert usable * their_request >= their_usable * request
