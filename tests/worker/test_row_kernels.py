"""Passes over a row, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octavo.worker import row_kernels as kernels

INFINITY = {np.float32: 0x7F800000, np.float16: 0x7C00}

FEW = settings(max_examples=30)

FEW_VALUES = st.sampled_from([-np.inf, -3.5, -1.0, -0.0, 0.0, 0.25, 1.0, 7.0])
"""Few, so that ties are many."""
ROWS = st.one_of(
    hnp.arrays(np.float32, st.integers(1, 1500), elements=FEW_VALUES),
    hnp.arrays(np.float32, st.integers(1, 700), elements=st.floats(-100, 100, width=32)),
)


def bits_of(row: np.ndarray) -> np.ndarray:
    return row.view(np.int16 if row.itemsize == 2 else np.int32)


def order_of(row: np.ndarray) -> np.ndarray:
    """Token ids in the order: greater first, equal by id."""
    return np.lexsort((np.arange(len(row)), -row.astype(np.float64)))


def maxima_of(row: np.ndarray) -> np.ndarray:
    maxima = np.empty(-(-len(row) // kernels.BLOCK), dtype=np.float32)
    kernels.block_maxima(row, maxima)
    return maxima


def gathered(row: np.ndarray, bound: float) -> tuple[np.ndarray, np.ndarray]:
    values, ids = np.empty(len(row), np.float32), np.empty(len(row), np.int32)
    count = kernels.gather_at_least(row, maxima_of(row), bound, values, ids)
    return values[:count], ids[:count]


@FEW
@given(row=ROWS)
def test_argmax_is_numpys(row) -> None:
    assert kernels.argmax(bits_of(row), INFINITY[np.float32]) == np.argmax(row)


@FEW
@given(row=hnp.arrays(np.float16, st.integers(1, 3000), elements=st.floats(-8, 8, width=16)))
def test_argmax_of_half_precision_is_numpys(row) -> None:
    assert kernels.argmax(bits_of(row), INFINITY[np.float16]) == np.argmax(row)


def test_argmax_of_a_row_of_minus_infinity_is_the_lowest_id() -> None:
    assert kernels.argmax(bits_of(np.full(300, -np.inf, dtype=np.float32)), INFINITY[np.float32]) == 0


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("place", [0, 5, 2999])
def test_argmax_reports_nan_of_either_sign(place: int, sign: int) -> None:
    row = np.zeros(3000, dtype=np.float32)
    row[place] = np.copysign(np.float32(np.nan), sign)
    assert kernels.argmax(bits_of(row), INFINITY[np.float32]) == -1
    assert kernels.widen(bits_of(row), 0, np.empty(3000, np.int32))


@FEW
@given(row=ROWS)
def test_widening_bfloat16_gives_its_exact_value(row) -> None:
    narrow = (row.view(np.int32) >> 16).astype(np.int16)
    wide = np.empty(len(row), dtype=np.int32)
    assert not kernels.widen(narrow, 16, wide)
    assert np.array_equal(wide, row.view(np.int32) & np.int32(-65536))


@FEW
@given(row=ROWS)
def test_block_maxima(row) -> None:
    maxima = np.empty(-(-len(row) // kernels.BLOCK), dtype=np.float32)
    assert kernels.block_maxima(row, maxima) == row.max()
    assert maxima.tolist() == [row[i : i + kernels.BLOCK].max() for i in range(0, len(row), kernels.BLOCK)]


@FEW
@given(row=ROWS)
def test_the_first_token_of_the_greatest_value_is_the_arg_max(row) -> None:
    assert kernels.first_at_least(row, maxima_of(row), float(row.max())) == np.argmax(row)
    assert kernels.first_at_least(row, maxima_of(row), float("inf")) == -1


def test_exp_is_exact_to_1e_7() -> None:
    x = np.concatenate([np.linspace(-86.9, 0, 20001), [-1e-8, -1e-3]]).astype(np.float32)
    found = np.array([kernels.exp32(value) for value in x])
    assert np.abs(found / np.exp(x.astype(np.float64)) - 1).max() < 2e-7
    assert kernels.exp32(np.float32(-np.inf)) == kernels.exp32(np.float32(-87.5)) == 0.0


@FEW
@given(row=ROWS, temperature=st.floats(0.05, 20))
def test_sum_exp(row, temperature) -> None:
    if np.isinf(row.max()):
        return
    expected = np.exp((row.astype(np.float64) - row.max()) / temperature).sum()
    assert kernels.sum_exp(row, float(row.max()), 1 / temperature) == pytest.approx(expected, rel=2e-6)


@FEW
@given(row=ROWS, data=st.data())
def test_rank_in_the_order(row, data) -> None:
    token = data.draw(st.integers(0, len(row) - 1))
    assert kernels.count_before(row, token) == order_of(row).tolist().index(token)


@FEW
@given(row=ROWS, bound=st.one_of(FEW_VALUES, st.floats(-100, 100, width=32)))
def test_gathering_finds_every_token_at_or_above_a_bound(row, bound) -> None:
    values, ids = gathered(row, bound)
    assert ids.tolist() == np.flatnonzero(row >= bound).tolist()
    assert np.array_equal(values, row[ids])


@FEW
@given(row=ROWS, data=st.data())
def test_selecting_by_count_leaves_the_first_of_the_order_in_front(row, data) -> None:
    values, ids = gathered(row, -np.inf)
    wanted = data.draw(st.integers(1, len(row)))
    last = kernels.select_head(values, ids, len(row), float(wanted), 0.0, 0.0)
    expected = order_of(row)[:wanted]
    assert last == wanted - 1
    assert sorted(ids[:wanted].tolist()) == sorted(expected.tolist())
    assert ids[last] == expected[-1], "the last of the head is at its end"
    assert np.array_equal(values, row[ids]), "values move with their ids"


@FEW
@given(row=ROWS, share=st.floats(0.01, 0.999))
def test_selecting_by_weight_ends_with_the_shortest_head_that_weighs_enough(row, share) -> None:
    if np.isinf(row.max()):
        return
    weights = np.exp(row.astype(np.float64) - row.max())
    target = share * weights.sum()
    values, ids = gathered(row, -np.inf)
    last = kernels.select_head(values, ids, len(row), target, float(row.max()), 1.0)
    head = ids[: last + 1]
    assert sorted(head.tolist()) == sorted(order_of(row)[: len(head)].tolist())
    slack = 1e-5 * weights.sum()
    assert weights[head].sum() >= target - slack
    assert weights[head].sum() - weights[ids[last]] < target + slack
