"""Passes over one row of logits: order, sums, selection. Compiled by numba.

Rows come as raw bits, so that bfloat16 needs no conversion by torch: int16 with `shift` 16 is bfloat16, int32 with
`shift` 0 is float32; `bits << shift`, read as float32, is the logit.

**Order.** Token a comes before token b when its logit is greater, or equal and a < b. Argmax, top-k, top-p and ranks
all use this order, so ties go to the lowest id. -0.0 equals 0.0.

**Selection.** A set of kept tokens is always the head of that order, so its last member `(value, id)` names it. Blocks
of ids whose greatest logit is below a bound are skipped; what remains is gathered and partitioned, never sorted.

Inner loops run over slices from 0 with arithmetic of one width, because LLVM vectorises exactly those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from octavo import compiling

Array = npt.NDArray[Any]
_Function = TypeVar("_Function", bound=Callable[..., Any])

compiled = compiling.compiled(nogil=True, error_model="numpy")
"""Decorator: see `octavo.compiling`."""


def _compiled_loosely(*freedoms: str) -> Callable[[_Function], _Function]:
    """As `compiled`, and LLVM may take these liberties with floats."""
    return compiling.compiled(nogil=True, error_model="numpy", fastmath=set(freedoms))


BLOCK = 256
"""Ids examined together; the last block of a vocabulary may be shorter."""

MINUS_INF = np.float32(-np.inf)

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds a float32 to a whole number
_EXP_FLOOR = np.float32(-87.0)


def _same_width(operation: str) -> Any:
    """An integer operation that stays in its operands' width, where numba would widen to 64 bits."""

    @intrinsic  # type: ignore[untyped-decorator]
    def apply(_typing: Any, left: Any, _right: Any) -> Any:
        def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, arguments: Any) -> Any:
            return getattr(builder, operation)(*arguments)

        return (left(left, left), generate) if isinstance(left, types.Integer) else None

    return apply


multiply = _same_width("mul")
xor = _same_width("xor")
shift_right = _same_width("lshr")
_subtract = _same_width("sub")
_bit_and = _same_width("and_")


@compiled
def argmax(raw: Array, infinity: int) -> int:
    """First member of the order in `raw` (int16 or int32 bits of floats), or -1 when any element is NaN.

    Bits of a float are a sign and a magnitude: negative ones are mapped to `lowest - bits`, so both zeros become 0.
    `infinity` are the bits of infinity in the row's format.
    """
    lowest = raw.dtype.type(-32768 if raw.itemsize == 2 else -2147483648)
    magnitude = raw.dtype.type(32767 if raw.itemsize == 2 else 2147483647)
    best, best_start, largest = lowest, 0, raw.dtype.type(0)
    for start in range(0, raw.shape[0], 4 * BLOCK):
        chunk = raw[start : start + 4 * BLOCK]
        peak = lowest
        for i in range(chunk.shape[0]):
            bits = chunk[i]
            peak = max(peak, _subtract(lowest, bits) if bits < 0 else bits)
            largest = max(largest, _bit_and(bits, magnitude))
        if peak > best:
            best, best_start = peak, start
    if largest > infinity:
        return -1
    chunk = raw[best_start:]
    for i in range(chunk.shape[0]):
        bits = chunk[i]
        if (_subtract(lowest, bits) if bits < 0 else bits) == best:
            return best_start + i
    return 0


@compiled
def widen(raw: Array, shift: int, bits: Array) -> bool:
    """Write the float32 bits of `raw` into `bits` (int32); whether any is NaN."""
    infinity, largest, steps = np.int32(0x7F800000), np.int32(0), np.int32(shift)
    for i in range(raw.shape[0]):
        wide = np.int32(np.int32(raw[i]) << steps)
        bits[i] = wide
        largest = max(largest, _bit_and(wide, np.int32(0x7FFFFFFF)))
    return bool(largest > infinity)


@compiled
def _maximum(values: Array) -> float:
    """The greatest of `values` (float32), none of which is NaN; minus infinity when there is none.

    As whole numbers in the order of `argmax`, because LLVM does not vectorise a maximum of floats.
    """
    lowest, peak = np.int32(-2147483648), np.int32(-2139095040)  # the latter is minus infinity
    bits = values.view(np.int32)
    for i in range(bits.shape[0]):
        peak = max(peak, _subtract(lowest, bits[i]) if bits[i] < 0 else bits[i])
    found = np.int32(_subtract(lowest, peak) if peak < 0 else peak)
    return float(found.view(np.float32))


@compiled
def block_maxima(row: Array, maxima: Array) -> float:
    """Write the greatest value of each block of `row` (float32, no NaN) into `maxima`; the greatest of all."""
    for block in range(maxima.shape[0]):
        maxima[block] = _maximum(row[block * BLOCK : (block + 1) * BLOCK])
    return _maximum(maxima)


@compiled
def first_at_least(row: Array, maxima: Array, value: float) -> int:
    """Lowest id whose value is at least `value`; -1 when there is none."""
    for block in range(maxima.shape[0]):
        if maxima[block] >= value:
            chunk = row[block * BLOCK : (block + 1) * BLOCK]
            for i in range(chunk.shape[0]):
                if chunk[i] >= value:
                    return block * BLOCK + i
    return -1


@_compiled_loosely("contract")
def exp32(x: float) -> float:
    """exp(x) in float32 for x <= 0, to 1e-7 relative; 0 at -87 and below. Vectorises.

    x = n * ln 2 + r with |r| <= ln 2 / 2, and Cephes' polynomial (expf.c) for exp(r).
    """
    clamped = max(np.float32(x), _EXP_FLOOR)
    whole = (clamped * _LOG2_E + _ROUND) - _ROUND
    rest = clamped - whole * _LN2_HIGH
    rest = rest - whole * _LN2_LOW
    poly = np.float32(1.9875691500e-4)
    poly = poly * rest + np.float32(1.3981999507e-3)
    poly = poly * rest + np.float32(8.3334519073e-3)
    poly = poly * rest + np.float32(4.1665795894e-2)
    poly = poly * rest + np.float32(1.6666665459e-1)
    poly = poly * rest + np.float32(5.0000001201e-1)
    poly = poly * rest * rest + rest + np.float32(1.0)
    power = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
    return poly * power if x > _EXP_FLOOR else np.float32(0.0)  # type: ignore[return-value]


@_compiled_loosely("reassoc", "nsz")
def _sum(values: Array) -> float:
    """Sum in float32, in whatever order is fast; for a block, so that rounding stays at 1e-7."""
    total = np.float32(0.0)
    for i in range(values.shape[0]):
        total += values[i]
    return total  # type: ignore[return-value]


@compiled
def sum_exp(row: Array, peak: float, inverse_temperature: float) -> float:
    """Sum of exp((x - peak) * inverse_temperature) over `row`, by blocks, in float64."""
    buffer = np.empty(BLOCK, dtype=np.float32)
    top, factor = np.float32(peak), np.float32(inverse_temperature)
    total = 0.0
    for start in range(0, row.shape[0], BLOCK):
        chunk = row[start : start + BLOCK]
        for i in range(chunk.shape[0]):
            buffer[i] = exp32((chunk[i] - top) * factor)
        total += _sum(buffer[: chunk.shape[0]])
    return total


@compiled
def count_before(row: Array, token: int) -> int:
    """How many tokens come before `token` in the order."""
    value = row[token]
    greater, equal = np.int32(0), np.int32(0)
    for i in range(row.shape[0]):
        greater += np.int32(row[i] > value)
    head = row[:token]
    for i in range(head.shape[0]):
        equal += np.int32(head[i] == value)
    return int(greater) + int(equal)


@compiled
def gather_at_least(row: Array, maxima: Array, bound: float, values: Array, ids: Array) -> int:
    """Write the tokens of value `bound` (as float32) or more into `values` and `ids`, in order of id; how many."""
    count, least = 0, np.float32(bound)
    for block in range(maxima.shape[0]):
        if maxima[block] >= least:
            start = block * BLOCK
            chunk = row[start : start + BLOCK]
            for i in range(chunk.shape[0]):
                # Writing always and counting sometimes: no branch to mispredict. There is room for every token.
                values[count] = chunk[i]
                ids[count] = start + i
                count += chunk[i] >= least
    return count


@compiled
def _comes_before(value: float, token: int, other_value: float, other: int) -> bool:
    return (value > other_value) | ((value == other_value) & (token < other))


@compiled
def _partition(values: Array, ids: Array, low: int, high: int) -> int:
    """Partition `low:high` around its median of three: members before the pivot lie left of the returned index."""
    middle = (low + high) // 2
    for a, b in ((low, middle), (low, high - 1), (middle, high - 1)):
        if _comes_before(values[b], ids[b], values[a], ids[a]):
            values[a], values[b] = values[b], values[a]
            ids[a], ids[b] = ids[b], ids[a]
    last = high - 1
    values[middle], values[last] = values[last], values[middle]
    ids[middle], ids[last] = ids[last], ids[middle]
    pivot_value, pivot = values[last], ids[last]
    place = low
    for i in range(low, last):
        # Swapping always and counting sometimes: half of all branches here would be mispredicted.
        value, token = values[i], ids[i]
        values[i], ids[i] = values[place], ids[place]
        values[place], ids[place] = value, token
        place += _comes_before(value, token, pivot_value, pivot)
    values[last], values[place] = values[place], values[last]
    ids[last], ids[place] = ids[place], ids[last]
    return place


@compiled
def select_head(values: Array, ids: Array, count: int, target: float, peak: float, inverse_temperature: float) -> int:
    """Reorder the first `count` entries so that the shortest head of the order with weight `target` lies in front.

    The weight of a token is exp((value - peak) * inverse_temperature), or 1 when `inverse_temperature` is 0, which
    makes `target` a number of tokens. Returns the index of the head's last member; the last entry when all weigh too
    little. Expected time is linear (quickselect on weights).
    """
    top, factor = np.float32(peak), np.float32(inverse_temperature)
    low, high, weight = 0, count, 0.0
    while high - low > 1:
        place = _partition(values, ids, low, high)
        left, own = float(place - low), 1.0
        if inverse_temperature > 0.0:
            left = sum_exp(values[low:place], peak, inverse_temperature)
            own = float(exp32((values[place] - top) * factor))
        if weight + left >= target and place > low:
            high = place
        elif weight + left + own >= target:
            return place
        else:
            weight += left + own
            low = place + 1
    return min(low, count - 1)
