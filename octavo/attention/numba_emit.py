"""LLVM code for rows of numbers: loads that widen to float32, stores that round, exponentials, reductions.

The functions here take an llvmlite builder and LLVM values; `numba_vectors.py` wraps them for kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

FLOAT = ir.FloatType()
INT16 = ir.IntType(16)
INT32 = ir.IntType(32)
INT64 = ir.IntType(64)
LINE = 64
"""Bytes of a cache line."""


class BFloatType(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not know."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloatType)

    def __hash__(self) -> int:
        return hash(BFloatType)


@dataclass(frozen=True)
class Element:
    """A type of numbers in memory: `float32`, `bfloat16` or `float16`."""

    name: str
    num_bytes: int


FLOAT32 = Element("float32", 4)
BFLOAT16 = Element("bfloat16", 2)
FLOAT16 = Element("float16", 2)


@dataclass(frozen=True)
class VectorPath:
    """What the kernels may use of a CPU."""

    name: str
    lanes: int
    """float32 numbers in a vector."""
    has_half: bool = False
    """Converts between float16 and float32 in one instruction."""
    has_dot: bool = False
    """Multiplies pairs of bfloat16 and adds them to a float32 (AVX512-BF16 `vdpbf16ps`)."""
    has_tiles: bool = False
    """Multiplies tiles of bfloat16 (AMX)."""


def pointer(builder: Any, address: Any) -> Any:
    """The LLVM pointer of an integer address."""
    return builder.inttoptr(address, ir.PointerType())


def vector_of(lane: Any, lanes: int) -> Any:
    """The LLVM type of `lanes` numbers of type `lane`."""
    return ir.VectorType(lane, lanes)


def constant(lane: Any, lanes: int, value: float) -> Any:
    """A vector of `lanes` times `value`."""
    return ir.Constant(vector_of(lane, lanes), [value] * lanes)


def call(builder: Any, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    """A call of the LLVM intrinsic `name`, declared on first use."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, arguments)


def broadcast(builder: Any, value: Any, lanes: int) -> Any:
    """A vector whose lanes all are `value`."""
    undefined = ir.Constant(vector_of(value.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, value, INT32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(vector_of(INT32, lanes), [0] * lanes))


def first_lanes(builder: Any, lanes: int, count: Any) -> Any:
    """A mask of the first `count` (an int64) lanes."""
    numbers = ir.Constant(vector_of(INT32, lanes), list(range(lanes)))
    return builder.icmp_signed("<", numbers, broadcast(builder, builder.trunc(count, INT32), lanes))


def raw_load(builder: Any, lane: Any, lanes: int, address: Any, mask: Any) -> Any:
    """`lanes` numbers of LLVM type `lane`; lanes outside `mask` (None: all are inside) are 0 and not touched."""
    kind, where = vector_of(lane, lanes), pointer(builder, address)
    size = lane.width // 8 if isinstance(lane, ir.IntType) else 4
    if mask is None:
        return builder.load(where, typ=kind, align=size)
    suffix = f"i{size * 8}" if isinstance(lane, ir.IntType) else "f32"
    zero = constant(lane, lanes, 0)
    return call(builder, f"llvm.masked.load.v{lanes}{suffix}.p0", kind, [where, INT32(size), mask, zero])


def raw_store(builder: Any, value: Any, address: Any, mask: Any) -> None:
    """The lanes of `value` inside `mask` (None: all)."""
    lane, lanes, where = value.type.element, value.type.count, pointer(builder, address)
    size = lane.width // 8 if isinstance(lane, ir.IntType) else 4
    if mask is None:
        builder.store(value, where, align=size)
        return
    suffix = f"i{size * 8}" if isinstance(lane, ir.IntType) else "f32"
    call(builder, f"llvm.masked.store.v{lanes}{suffix}.p0", ir.VoidType(), [value, where, INT32(size), mask])


def emit_load(builder: Any, path: VectorPath, element: Element, address: Any, count: Any) -> Any:
    """`path.lanes` float32 numbers from `address`; only the first `count` lanes where that is not None."""
    mask = None if count is None else first_lanes(builder, path.lanes, count)
    if element == FLOAT32:
        return raw_load(builder, FLOAT, path.lanes, address, mask)
    bits = raw_load(builder, INT16, path.lanes, address, mask)
    if element == BFLOAT16:
        wide = builder.zext(bits, vector_of(INT32, path.lanes))
        shifted = builder.shl(wide, constant(INT32, path.lanes, 16))
        return builder.bitcast(shifted, vector_of(FLOAT, path.lanes))
    if path.has_half:
        halves = builder.bitcast(bits, vector_of(ir.HalfType(), path.lanes))
        return builder.fpext(halves, vector_of(FLOAT, path.lanes))
    return _widen_half(builder, bits)


def emit_store(builder: Any, path: VectorPath, element: Element, address: Any, value: Any, count: Any) -> None:
    """Stores float32 lanes as `element`, rounded to nearest even; only the first `count` where that is not None."""
    mask = None if count is None else first_lanes(builder, path.lanes, count)
    if element == BFLOAT16:
        value = _narrow_bfloat(builder, value)
    elif element == FLOAT16 and path.has_half:
        halves = builder.fptrunc(value, vector_of(ir.HalfType(), path.lanes))
        value = builder.bitcast(halves, vector_of(INT16, path.lanes))
    elif element == FLOAT16:
        value = _narrow_half(builder, value)
    raw_store(builder, value, address, mask)


def emit_round(builder: Any, element: Element, value: Any) -> Any:
    """float32 lanes rounded to what `element` (float32 or bfloat16) can hold, as float32."""
    if element == FLOAT32:
        return value
    lanes = value.type.count
    wide = builder.zext(_narrow_bfloat(builder, value), vector_of(INT32, lanes))
    return builder.bitcast(builder.shl(wide, constant(INT32, lanes, 16)), value.type)


def _narrow_bfloat(builder: Any, value: Any) -> Any:
    """The upper halves of float32 numbers, rounded; a NaN stays one."""
    lanes = value.type.count
    bits = builder.bitcast(value, vector_of(INT32, lanes))
    odd = builder.and_(builder.lshr(bits, constant(INT32, lanes, 16)), constant(INT32, lanes, 1))
    rounded = builder.add(builder.add(bits, constant(INT32, lanes, 0x7FFF)), odd)
    upper = builder.lshr(rounded, constant(INT32, lanes, 16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, constant(INT32, lanes, 0x7FC0), upper), vector_of(INT16, lanes))


def _widen_half(builder: Any, bits: Any) -> Any:
    """float16 to float32 by integer arithmetic, for CPUs without the instruction."""
    lanes = bits.type.count
    wide = builder.zext(bits, vector_of(INT32, lanes))
    magnitude = builder.shl(builder.and_(wide, constant(INT32, lanes, 0x7FFF)), constant(INT32, lanes, 13))
    exponent = builder.and_(magnitude, constant(INT32, lanes, 0x7C00 << 13))
    normal = builder.add(magnitude, constant(INT32, lanes, (127 - 15) << 23))
    infinite = builder.add(normal, constant(INT32, lanes, (128 - 16) << 23))
    # A subnormal number: give it the smallest normal exponent, and take that away again as a float.
    smallest = constant(INT32, lanes, 113 << 23)
    raised = builder.bitcast(builder.add(normal, constant(INT32, lanes, 1 << 23)), vector_of(FLOAT, lanes))
    subnormal = builder.fsub(raised, builder.bitcast(smallest, vector_of(FLOAT, lanes)))
    result = builder.select(
        builder.icmp_signed("==", exponent, constant(INT32, lanes, 0)),
        builder.bitcast(subnormal, vector_of(INT32, lanes)),
        builder.select(builder.icmp_signed("==", exponent, constant(INT32, lanes, 0x7C00 << 13)), infinite, normal),
    )
    sign = builder.shl(builder.and_(wide, constant(INT32, lanes, 0x8000)), constant(INT32, lanes, 16))
    return builder.bitcast(builder.or_(result, sign), vector_of(FLOAT, lanes))


def _narrow_half(builder: Any, value: Any) -> Any:
    """float32 to float16, rounded to nearest even, by integer arithmetic, for CPUs without the instruction."""
    lanes = value.type.count
    bits = builder.bitcast(value, vector_of(INT32, lanes))
    sign = builder.and_(builder.lshr(bits, constant(INT32, lanes, 16)), constant(INT32, lanes, 0x8000))
    magnitude = builder.and_(bits, constant(INT32, lanes, 0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, constant(INT32, lanes, 13)), constant(INT32, lanes, 1))
    shifted = builder.sub(magnitude, constant(INT32, lanes, (112 << 23) - 0xFFF))
    normal = builder.lshr(builder.add(shifted, odd), constant(INT32, lanes, 13))
    # A subnormal result: adding 0.5 makes the float unit round at the right bit.
    half = constant(FLOAT, lanes, 0.5)
    raised = builder.fadd(builder.bitcast(magnitude, vector_of(FLOAT, lanes)), half)
    subnormal = builder.sub(builder.bitcast(raised, vector_of(INT32, lanes)), constant(INT32, lanes, 0x3F000000))
    is_nan = builder.icmp_unsigned(">", magnitude, constant(INT32, lanes, 0x7F800000))
    infinite = builder.select(is_nan, constant(INT32, lanes, 0x7E00), constant(INT32, lanes, 0x7C00))
    small = builder.icmp_unsigned("<", magnitude, constant(INT32, lanes, 113 << 23))
    large = builder.icmp_unsigned(">=", magnitude, constant(INT32, lanes, 143 << 23))
    result = builder.select(large, infinite, builder.select(small, subnormal, normal))
    return builder.trunc(builder.or_(result, sign), vector_of(INT16, lanes))


def emit_fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, fused where the CPU can (a plain multiplication and addition elsewhere, never a library call)."""
    return call(builder, f"llvm.fmuladd.v{a.type.count}f32", a.type, [a, b, c])


def emit_maximum(builder: Any, a: Any, b: Any) -> Any:
    """The larger of each pair of lanes; the second one where they cannot be compared."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


_EXP2_COEFFICIENTS = (
    1.0,
    0.6931472028550983,
    0.24022647913624112,
    0.05550332471074252,
    0.009618437357986304,
    0.0013398874430461173,
    0.00015353361863942451,
)
"""Least largest relative error (2e-9) of 2 ** x on [-0.5, 0.5] with the first coefficient held at 1."""


def emit_exp2(builder: Any, x: Any) -> Any:
    """2 ** x: a polynomial around the nearest integer, whose own power goes into the exponent's bits.

    The argument is clamped first, so that no lane leaves the range of the bits; below -126 the result is 0.
    """
    lanes = x.type.count
    low, high = constant(FLOAT, lanes, -126.0), constant(FLOAT, lanes, 127.0)
    clamped = emit_maximum(builder, x, low)
    clamped = builder.select(builder.fcmp_ordered("<", clamped, high), clamped, high)
    whole = call(builder, f"llvm.rint.v{lanes}f32", x.type, [clamped])
    rest = builder.fsub(clamped, whole)
    result = constant(FLOAT, lanes, _EXP2_COEFFICIENTS[-1])
    for coefficient in reversed(_EXP2_COEFFICIENTS[:-1]):
        result = emit_fma(builder, result, rest, constant(FLOAT, lanes, coefficient))
    power = builder.shl(builder.fptosi(whole, vector_of(INT32, lanes)), constant(INT32, lanes, 23))
    scaled = builder.add(builder.bitcast(result, vector_of(INT32, lanes)), power)
    in_range = builder.fcmp_ordered(">=", x, low)
    return builder.select(in_range, builder.bitcast(scaled, x.type), constant(FLOAT, lanes, 0.0))


_SHORT_EXP2_COEFFICIENTS = (1.0, 0.6931241933801485, 0.2402409861427373, 0.05590642480552463, 0.009582852948717482)
"""The same with a relative error of 3e-6."""


def emit_exp2_short(builder: Any, x: Any) -> Any:
    """2 ** x for x <= 0 with a relative error of 3e-6, on AVX-512; exactly 1 at 0, and 0 far below."""
    lanes = x.type.count
    clamped = emit_maximum(builder, x, constant(FLOAT, lanes, -1000.0))
    whole = call(builder, f"llvm.rint.v{lanes}f32", x.type, [clamped])
    rest = builder.fsub(clamped, whole)
    result = constant(FLOAT, lanes, _SHORT_EXP2_COEFFICIENTS[-1])
    for coefficient in reversed(_SHORT_EXP2_COEFFICIENTS[:-1]):
        result = emit_fma(builder, result, rest, constant(FLOAT, lanes, coefficient))
    everywhere, as_set = ir.Constant(ir.IntType(16), -1), INT32(4)
    name = f"llvm.x86.avx512.mask.scalef.ps.{32 * lanes}"
    return call(builder, name, x.type, [result, whole, result, everywhere, as_set])


def emit_prefetch(builder: Any, address: Any) -> None:
    """Asks for the cache line of `address`; harmless for any address."""
    call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer(builder, address), INT32(0), INT32(2), INT32(1)])


def lanes_from(builder: Any, vector: Any, start: int, count: int) -> Any:
    """Lanes `start` to `start + count - 1` as a shorter vector."""
    undefined = ir.Constant(vector.type, ir.Undefined)
    numbers = ir.Constant(vector_of(INT32, count), list(range(start, start + count)))
    return builder.shuffle_vector(vector, undefined, numbers)


def emit_reduce(builder: Any, vector: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    """All lanes combined, by halves."""
    while vector.type.count > 1:
        half = vector.type.count // 2
        if half == 1:
            return combine(builder, *(builder.extract_element(vector, INT32(lane)) for lane in (0, 1)))
        vector = combine(builder, lanes_from(builder, vector, 0, half), lanes_from(builder, vector, half, half))
    return builder.extract_element(vector, INT32(0))
