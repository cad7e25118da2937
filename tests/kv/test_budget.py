from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.kv.budget import Budget, Reservation, longest_length, smallest_budget
from octavo.kv.grouping import Fold, Stages, foldings
from octavo.kv.specs import FullAttentionSpec, LayerSpec, SlidingWindowSpec

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", window=32)
EXACT = Reservation(exact=True, chunk_tokens=64, in_flight_tokens=64)
REFERENCE = Reservation(exact=False, chunk_tokens=64, in_flight_tokens=64)
PAGE = 8192


def fold_of(*stages: dict[str, LayerSpec]) -> tuple[Fold, tuple[int, ...]]:
    layers = {name: spec for specs in stages for name, spec in specs.items()}
    found = Stages.of(stages)
    return foldings(layers, found, hybrid=True, reference=True)[0], found.of_rank


def test_the_scarcest_rank_gives_the_number_of_blocks() -> None:
    fold, ranks = fold_of({"a": FULL, "b": FULL}, {"c": FULL}, {})
    budget = Budget((20 * PAGE, 9 * PAGE, 0), ranks, None)
    assert [budget.block_bytes(fold, rank) for rank in range(3)] == [2 * PAGE, PAGE, 0]
    assert [budget.blocks_of_rank(fold, rank) for rank in range(3)] == [10, 9, None]
    assert (budget.scarcest(fold), budget.num_blocks(fold)) == (1, 9)
    assert budget._replace(override=33).num_blocks(fold) == 33


def test_a_request_fits_beside_the_null_block() -> None:
    fold, ranks = fold_of({"a": FULL})
    budget = Budget((5 * PAGE,), ranks, None)
    assert budget.fits(fold, EXACT, 64)
    assert not budget.fits(fold, EXACT, 65)


def test_reservations_differ_for_windows_only() -> None:
    fold, _ = fold_of({"a": FULL, "b": WINDOW})
    assert EXACT.blocks(fold, 1000) == 63 + 7
    assert REFERENCE.blocks(fold, 1000) == 63 + 6 + 1
    assert EXACT.blocks(fold, 90) == 6 + 6
    assert REFERENCE.blocks(fold, 90) == 6 + 7


@given(st.integers(0, 300), st.integers(1, 4000), st.booleans())
def test_borders_are_the_borders_of_fitting(num_blocks: int, ceiling: int, exact: bool) -> None:
    fold, ranks = fold_of({"a": FULL, "b": WINDOW, "c": FULL})
    reservation = EXACT if exact else REFERENCE
    longest = longest_length(fold, reservation, num_blocks=num_blocks, ceiling=ceiling)
    budget = Budget((num_blocks * max(fold.bytes_per_block),), ranks, None)
    assert longest == 0 or budget.fits(fold, reservation, longest)
    assert longest == ceiling or not budget.fits(fold, reservation, longest + 1)
    needed = smallest_budget(fold, reservation.blocks(fold, ceiling) + 1)
    assert Budget((needed,), ranks, None).fits(fold, reservation, ceiling)
    assert not Budget((needed - 1,), ranks, None).fits(fold, reservation, ceiling)
