"""What `KVCacheManager` may rely on, for every kind that the registry serves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.group_manager import NEVER, GroupManager
from octavo.cache.registry import make_group_manager
from octavo.kv.specs import LayerSpec
from tests.cache.build import CachedPrefix
from tests.strategies import layer_specs


def made(spec: LayerSpec, chunk: int) -> GroupManager:
    return make_group_manager(spec, max_model_len=1000, max_chunk_tokens=chunk)


def in_use(kind: GroupManager, num_computed: int, num_placed: int) -> int:
    """Blocks that a request needs with `num_computed` tokens computed and places for `num_placed`."""
    places = kind.num_table_blocks(num_placed) - kind.num_dropped_blocks(num_computed)
    # Where places are skipped, the first is read and the last written: one block, where it can move on.
    return min(places, 1 if kind.moves_on else 2) if kind.skips_places else places


@given(layer_specs(), st.integers(0, 600), st.integers(0, 600))
def test_tables_hold_their_tokens_and_dropping_stays_inside(spec: LayerSpec, first: int, second: int) -> None:
    kind = made(spec, 16)
    fewer, more = sorted((first, second))
    assert kind.num_table_tokens(kind.num_table_blocks(more)) >= more
    assert kind.num_table_blocks(fewer) <= kind.num_table_blocks(more)
    assert 0 <= kind.num_dropped_blocks(fewer) <= kind.num_dropped_blocks(more) <= kind.num_table_blocks(more)


@given(layer_specs(), st.integers(0, 600))
def test_nothing_is_dropped_before_the_threshold(spec: LayerSpec, num_computed: int) -> None:
    kind = made(spec, 16)
    dropped = kind.num_dropped_blocks(num_computed)
    threshold = kind.next_drop(dropped)
    assert threshold > num_computed
    if threshold < NEVER:
        assert kind.num_dropped_blocks(threshold - 1) == dropped


@given(layer_specs(), st.integers(1, 40), st.integers(0, 300), st.integers(1, 40))
def test_no_step_holds_more_than_the_plan_reserves(
    spec: LayerSpec, chunk: int, num_computed: int, num_new: int
) -> None:
    kind = made(spec, chunk)
    num_tokens = num_computed + min(num_new, chunk)
    held = in_use(kind, num_computed, num_tokens)
    assert held <= kind.max_blocks(num_tokens) <= spec.max_blocks(1000, chunk_tokens=chunk)


@given(layer_specs(), st.integers(0, 500), st.integers(0, 300))
def test_growth_covers_what_is_taken_step_by_step(spec: LayerSpec, start: int, more: int) -> None:
    """At any moment a request has taken and not given back at most `max_growth` more than it had."""
    kind = made(spec, 16)
    end = start + more
    held = in_use(kind, start, start)
    most = 0
    for computed in range(start, end, 16):
        now = in_use(kind, computed, min(computed + 16, end))
        most = max(most, now - held)
    assert most <= kind.max_growth(start, end)


@given(layer_specs(kinds=("full", "sliding_window", "chunked_local", "mla"), block_size=4), st.integers(0, 40))
def test_a_hit_is_aligned_within_the_limit_and_repeats_itself(spec: LayerSpec, max_tokens: int) -> None:
    kind = made(spec, 16)
    for cached in (range(10), range(3), (2, 3, 7), ()):
        prefix = CachedPrefix(10, [cached])
        hit = prefix.hit(kind, max_tokens, alignment=8)
        assert hit % 8 == 0
        assert 0 <= hit <= max_tokens
        assert prefix.hit(kind, hit, alignment=8) == hit


@given(layer_specs(kinds=("full", "sliding_window", "chunked_local", "mla"), block_size=4), st.integers(0, 9))
def test_blocks_to_cache_grow_and_are_full(spec: LayerSpec, start: int) -> None:
    for interval in (0, 4, 16):
        places = list(made(spec, 16).blocks_to_cache(start, start + 7, (12, 40), interval))
        assert places == sorted(set(places))
        assert all(start <= place < start + 7 for place in places)


def test_the_contract_cannot_be_instantiated() -> None:
    with pytest.raises(TypeError, match="abstract"):
        GroupManager(None, max_model_len=1, max_chunk_tokens=1)  # type: ignore[abstract, arg-type]
