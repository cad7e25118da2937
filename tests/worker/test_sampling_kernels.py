"""Draws and restrictions by themselves, against the definition: the arg max of x_i - log(E_i).

The kernels have no entry from Python, so each test compiles one; what requests see of them is in test_sampler.py.
"""

from __future__ import annotations

import numba
import numpy as np
import pytest

from octavo.worker import sampling_kernels as kernels
from octavo.worker.row_kernels import BLOCK, block_maxima
from octavo.worker.sampling_table import OPTIONS

pytestmark = pytest.mark.slow


@numba.njit
def waiting_times(count, key_1, key_2):
    return np.array([kernels._waiting_time(i, np.uint32(key_1), np.uint32(key_2)) for i in range(count)])


@numba.njit
def drawn(row, maxima, first, temperature, key):
    return kernels.draw(row, maxima, first, temperature, key)


@numba.njit
def restricted(row, maxima, peak, options, values, ids):
    kernels.restrict(row, maxima, peak, options[0], values, ids)


def maxima_of(row: np.ndarray) -> np.ndarray:
    maxima = np.empty(-(-len(row) // BLOCK), dtype=np.float32)
    block_maxima(row, maxima)
    return maxima


def test_waiting_times_are_exponential_and_independent_over_keys() -> None:
    count = 50_000
    times = [waiting_times(count, key, 77 * key + 5) for key in (0, 1, 2, 2**31)]
    for found in times:
        ordered = np.sort(1 - np.exp(-found))
        distance = np.abs(ordered - (np.arange(count) + 0.5) / count).max()
        assert distance < 1.95 / np.sqrt(count), "Kolmogorov-Smirnov, one in a thousand"
        assert found.min() > 0
    correlations = np.corrcoef(np.array(times))[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(count)
    neighbours = np.corrcoef(times[1][:-1], times[1][1:])[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(count)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 6.0])
def test_skipping_blocks_never_changes_who_is_drawn(scale: float, temperature: float) -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        row = (generator.standard_normal(1300) * scale).astype(np.float32)
        row[generator.integers(0, 1300, 100)] = -np.inf
        key = int(generator.integers(0, 2**63))
        times = waiting_times(1300, key & 0xFFFFFFFF, key >> 32)
        scores = (row.astype(np.float64) - row.max()) / temperature - np.log(times)
        found = drawn(row, maxima_of(row), int(row.argmax()), temperature, np.uint64(key))
        assert found == scores.argmax()


def kept_by(row: np.ndarray, **options: float) -> np.ndarray:
    """Ids that are still there after `restrict`."""
    record = np.zeros(1, dtype=OPTIONS)
    for name, value in {"temperature": 1.0, "top_p": 1.0, **options}.items():
        record[name] = value
    work, maxima = row.copy(), maxima_of(row)
    values, ids = np.empty(len(row), np.float32), np.empty(len(row), np.int32)
    restricted(work, maxima, float(row.max()), record, values, ids)
    left_out = np.isinf(work) | np.isinf(np.repeat(maxima, BLOCK)[: len(row)])
    return np.flatnonzero(~left_out)


def directly_kept(row: np.ndarray, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0):
    order = np.lexsort((np.arange(len(row)), -row))
    scaled = (row[order].astype(np.float64) - row.max()) / temperature
    order = order[np.exp(scaled) >= min_p]
    order = order[: top_k or None]
    weights = np.exp((row[order].astype(np.float64) - row.max()) / temperature)
    before = np.cumsum(weights) - weights
    return np.sort(order[before < top_p * weights.sum()])


@pytest.mark.parametrize("num_distinct", [4, 100_000])
@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1},
        {"top_k": 17},
        {"top_k": 900},
        {"top_p": 0.3},
        {"top_p": 0.9},
        {"top_p": 0.999, "temperature": 8.0},
        {"top_p": 0.6, "temperature": 20.0},
        {"min_p": 0.05},
        {"min_p": 1.0},
        {"min_p": 0.001, "top_p": 0.8},
        {"top_k": 300, "top_p": 0.7, "min_p": 0.01, "temperature": 2.0},
        {"top_k": 3, "top_p": 0.99},
        {"top_k": 5000},
    ],
    ids=str,
)
def test_what_is_kept_is_the_head_of_the_order(options: dict[str, float], num_distinct: int) -> None:
    """With few distinct values the end of the head lies within a tie, which ids break."""
    generator = np.random.default_rng(5)
    for _ in range(10):
        row = (generator.standard_normal(1300) * 4).astype(np.float32)
        if num_distinct < 1300:
            row = np.round(row / 8).clip(-2, 2).astype(np.float32)
        found, expected = kept_by(row, **options), directly_kept(row, **options)
        difference = np.setxor1d(found, expected)
        assert len(difference) <= 1, "only a rounding difference at the very end of the head is excused"
        weights = np.exp((row.astype(np.float64) - row.max()) / options.get("temperature", 1.0))
        assert weights[difference].sum() <= 1e-2 * weights[expected].sum()


@pytest.mark.parametrize("top_p", [0.5, 0.7, 0.9, 0.99, 0.99999])
@pytest.mark.parametrize("depth", [8.5, 9.0, 100.0])
def test_top_p_that_ends_far_below_the_peak(depth: float, top_p: float) -> None:
    """One token stands out, and much of the probability lies in a plateau more than 8 below it."""
    generator = np.random.default_rng(7)
    for num_distinct in (1, 40, 10**6):
        row = (generator.standard_normal(9000) * 0.3).round(6)
        if num_distinct < 10**6:
            row = row.round(1) if num_distinct > 1 else row * 0
        row = (row - depth).astype(np.float32)
        row[17] = 0.0
        found, expected = kept_by(row, top_p=top_p), directly_kept(row, top_p=top_p)
        assert 17 in found
        assert abs(len(found) - len(expected)) <= 0.001 * len(expected), "rounding moves the end by a hair"
        assert set(found) <= set(expected) or set(expected) <= set(found)
