"""Machine code for products of rows with panels of coded weights, and for the rows' own codes.

A **panel** is 16 outputs of a weight. It lies as its kernel reads it, 32 inputs at a time (a **chunk**): whole vectors
of 64 bytes, in each of which output i has four neighbouring inputs in bytes 4 i to 4 i + 3.

    8 bits        8 vectors, one after the other
    4, 5, 6 bits  4 vectors, the low nibbles of their bytes first, then the high ones: vectors 0 and 1, 2 and 3, ...;
                  then what the codes have above four bits: bit s of a byte, or bits 2 s and 2 s + 1, belong to vector s
                  (of each four)

Scales and minima are float16, 16 outputs side by side, for each group of inputs.

A row of inputs is made of **lines** of 128 bytes, 32 numbers each, which are whole numbers of 15 bits times a scale:
the int8 that are multiplied by 128, the int8 that are added to that, the scale (float32) and, of all 32, of the first
16 and of the last 16, the sum of the whole numbers (int32) and that sum times the scale (float32). The lines of
`tile_rows` rows at most lie side by side, chunk by chunk.

With int8 alone each product would be off by half a percent, more than rounding to bfloat16 costs; so it is by a
hundredth of that, and where few rows are multiplied the memory is waited for, not the second product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import typeof_impl

from octavo.attention.numba_emit import (
    FLOAT,
    FLOAT16,
    FLOAT32,
    INT16,
    INT32,
    INT64,
    Element,
    VectorPath,
    broadcast,
    call,
    constant,
    emit_fma,
    emit_load,
    emit_prefetch,
    emit_reduce,
    emit_store,
    lanes_from,
    pointer,
    raw_load,
    vector_of,
)
from octavo.attention.numba_vectors import Static, primitive
from octavo.formats.codes import Coding

INT8 = ir.IntType(8)

OUTPUTS = 16
"""Outputs of a panel."""
CHUNK = 32
"""Inputs of a chunk."""
LINE_BYTES = 128
VECTOR_BYTES = 64

_STEPS = 127 * 128
"""What the largest magnitude of a line becomes."""

_FINE, _SCALE, _SUMS, _SCALED = 32, 64, 68, 80
"""Places in a line: its second int8; its scale; three int32 sums; three float32 of scale times sum."""


@dataclass(frozen=True)
class BytePath:
    """How a CPU multiplies bytes."""

    vector: VectorPath
    dot: Literal["vnni", "madd", "plain"]
    """`vpdpbusd`; `vpmaddubsw` and `vpmaddwd`; multiplications of 32 bits."""
    dot_bits: int
    """Bits of a vector that is multiplied at once."""
    tile_rows: int
    """Most rows whose sums fit the registers: a power of two."""

    @property
    def name(self) -> str:
        return f"{self.vector.name}_{self.dot}"


@typeof_impl.register(BytePath)  # type: ignore[untyped-decorator]
@typeof_impl.register(Coding)  # type: ignore[untyped-decorator]
def _type_of_static(value: Any, context: Any) -> Static:
    return Static(value)


def chunk_bytes(coding: Coding) -> int:
    """Bytes of a panel's codes of one chunk."""
    return OUTPUTS * CHUNK * coding.bits // 8


def scale_bytes(coding: Coding) -> int:
    """Bytes of a panel's scales and minima of one group."""
    return OUTPUTS * (4 if coding.has_minimum else 2)


@primitive
def make_line(typing_context: Any, path: Any, element: Any, address: Any, count: Any, line: Any) -> Any:
    """Writes the line of the first `count` (at most 32) numbers at `address`; the others are 0.

    A number that is none makes the scale none.
    """
    vectors, kind = path.value.vector, element.value

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, count, line = arguments[2:]
        wide = replace(vectors, lanes=CHUNK)
        with builder.if_else(builder.icmp_signed(">=", count, INT64(CHUNK))) as (whole, part):
            with whole:
                _emit_line(builder, emit_load(builder, wide, kind, address, None), line)
            with part:
                _emit_line(builder, emit_load(builder, wide, kind, address, count), line)
        return context.get_dummy_value()

    return types.none(path, element, *[types.int64] * 3), emit


def _emit_line(builder: Any, numbers: Any, line: Any) -> None:
    words = vector_of(INT32, CHUNK)
    magnitudes = builder.and_(builder.bitcast(numbers, words), constant(INT32, CHUNK, 0x7FFFFFFF))

    def larger(builder: Any, a: Any, b: Any) -> Any:
        return builder.select(builder.icmp_signed(">", a, b), a, b)  # as whole numbers, NaN is above all others

    largest = builder.bitcast(emit_reduce(builder, magnitudes, larger), FLOAT)
    scale = builder.fmul(largest, ir.Constant(FLOAT, 1.0 / _STEPS))
    some = builder.fcmp_ordered(">", largest, ir.Constant(FLOAT, 0.0))
    inverse = builder.select(some, builder.fdiv(ir.Constant(FLOAT, float(_STEPS)), largest), ir.Constant(FLOAT, 0.0))
    steps = builder.fmul(numbers, broadcast(builder, inverse, CHUNK))
    steps = call(builder, f"llvm.rint.v{CHUNK}f32", steps.type, [steps])
    steps = builder.select(builder.fcmp_ordered("ord", steps, steps), steps, constant(FLOAT, CHUNK, 0.0))
    wide = builder.fptosi(steps, words)
    coarse = builder.ashr(builder.add(wide, constant(INT32, CHUNK, 64)), constant(INT32, CHUNK, 7))
    fine = builder.sub(wide, builder.shl(coarse, constant(INT32, CHUNK, 7)))
    for offset, part in ((0, coarse), (_FINE, fine)):
        at = pointer(builder, builder.add(line, INT64(offset)))
        builder.store(builder.trunc(part, vector_of(INT8, CHUNK)), at, align=32)

    def put(offset: int, value: Any) -> None:
        builder.store(value, pointer(builder, builder.add(line, INT64(offset))), align=4)

    def add(builder: Any, a: Any, b: Any) -> Any:
        return builder.add(a, b)

    halves = [emit_reduce(builder, lanes_from(builder, wide, start, CHUNK // 2), add) for start in (0, CHUNK // 2)]
    put(_SCALE, scale)
    for place, total in enumerate((builder.add(*halves), *halves)):
        put(_SUMS + 4 * place, total)
        put(_SCALED + 4 * place, builder.fmul(builder.sitofp(total, FLOAT), scale))


@primitive
def multiply_panel(
    typing_context: Any,
    path: Any,
    coding: Any,
    element: Any,
    tile_rows: Any,
    lines: Any,
    codes: Any,
    scales: Any,
    ahead_codes: Any,
    ahead_scales: Any,
    num_chunks: Any,
    num_rows: Any,
    num_outputs: Any,
    bias: Any,
    out: Any,
    out_bytes: Any,
) -> Any:
    """Results of a tile of `tile_rows` (a power of two) rows with a panel, of which `num_rows` and `num_outputs` exist.

    `bias` is float32 [16], or 0 where there is none; results go to `out`, rows `out_bytes` apart, as `element`. As much
    as is read of codes and scales is asked for at `ahead_codes` and `ahead_scales`.
    """
    kinds = path.value, coding.value, element.value

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        size = 1
        while size <= path.value.tile_rows:
            with builder.if_then(builder.icmp_signed("==", arguments[3], INT64(size))):
                _Panel(builder, *kinds, size, *arguments[4:10]).store(*arguments[10:])
            size *= 2
        return context.get_dummy_value()

    return types.none(path, coding, element, *[types.int64] * 12), emit


class _Panel:
    """The loop over a panel's chunks, emitted when made. Owns: the registers that it adds to."""

    def __init__(
        self,
        builder: Any,
        path: BytePath,
        coding: Coding,
        element: Element,
        size: int,
        lines: Any,
        codes: Any,
        scales: Any,
        ahead_codes: Any,
        ahead_scales: Any,
        num_chunks: Any,
    ) -> None:
        self.builder, self.path, self.coding, self.element, self.size = builder, path, coding, element, size
        self.wide = replace(path.vector, lanes=OUTPUTS)
        zero = constant(FLOAT, OUTPUTS, 0.0)
        self.totals = [cgutils.alloca_once(builder, zero.type) for _ in range(size)]
        for total in self.totals:
            builder.store(zero, total)
        with cgutils.for_range(builder, num_chunks, intp=INT64) as loop:
            code_offset = builder.mul(loop.index, INT64(chunk_bytes(coding)))
            scale_offset = builder.mul(loop.index, INT64(scale_bytes(coding) * CHUNK // coding.group))
            for line in range(0, chunk_bytes(coding), VECTOR_BYTES):
                emit_prefetch(builder, builder.add(builder.add(ahead_codes, code_offset), INT64(line)))
            emit_prefetch(builder, builder.add(ahead_scales, scale_offset))
            self._chunk(
                builder.add(lines, builder.mul(loop.index, INT64(size * LINE_BYTES))),
                builder.add(codes, code_offset),
                builder.add(scales, scale_offset),
            )

    def _chunk(self, lines: Any, codes: Any, scales: Any) -> None:
        builder, coding = self.builder, self.coding
        vectors_of_group = coding.group // 4
        vectors = _vectors(builder, coding, codes)
        for group in range(CHUNK // coding.group):
            place = 0 if coding.group == CHUNK else 1 + group
            line_at = [builder.add(lines, INT64(row * LINE_BYTES)) for row in range(self.size)]
            coarse = [constant(INT32, OUTPUTS, 0)] * self.size
            fine = [self._first_sum(at, place) for at in line_at]
            for vector in range(group * vectors_of_group, (group + 1) * vectors_of_group):
                code = vectors(vector)
                for sums, offset in ((coarse, 0), (fine, _FINE)):
                    for row, at in enumerate(line_at):
                        four = self._word(INT32, at, offset + 4 * vector)
                        sums[row] = _dot(builder, self.path, coding, sums[row], code, four)
            seven = constant(INT32, OUTPUTS, 7)
            sums = [builder.add(builder.shl(high, seven), low) for high, low in zip(coarse, fine, strict=True)]
            self._add_scaled(sums, line_at, place, builder.add(scales, INT64(group * scale_bytes(coding))))

    def _first_sum(self, line: Any, place: int) -> Any:
        """What the sum of a group begins with: less `zero` times the sum of the row's numbers."""
        builder = self.builder
        if self.coding.zero == 0:
            return constant(INT32, OUTPUTS, 0)
        total = self._word(INT32, line, _SUMS + 4 * place)
        return broadcast(builder, builder.mul(total, INT32(-self.coding.zero)), OUTPUTS)

    def _add_scaled(self, sums: list[Any], lines: list[Any], place: int, scales: Any) -> None:
        builder = self.builder
        scale = emit_load(builder, self.wide, FLOAT16, scales, None)
        minimum = None
        if self.coding.has_minimum:
            minimum = emit_load(builder, self.wide, FLOAT16, builder.add(scales, INT64(2 * OUTPUTS)), None)
        for row, at in enumerate(lines):
            factor = builder.fmul(scale, broadcast(builder, self._word(FLOAT, at, _SCALE), OUTPUTS))
            total = builder.load(self.totals[row])
            total = emit_fma(builder, builder.sitofp(sums[row], scale.type), factor, total)
            if minimum is not None:
                scaled = broadcast(builder, self._word(FLOAT, at, _SCALED + 4 * place), OUTPUTS)
                total = emit_fma(builder, minimum, scaled, total)
            builder.store(total, self.totals[row])

    def _word(self, kind: Any, address: Any, offset: int) -> Any:
        return self.builder.load(pointer(self.builder, self.builder.add(address, INT64(offset))), typ=kind, align=4)

    def store(self, num_rows: Any, num_outputs: Any, bias: Any, out: Any, out_bytes: Any) -> None:
        """Writes the results that exist, `bias` added."""
        builder = self.builder
        with builder.if_then(builder.icmp_signed("!=", bias, INT64(0))):
            added = emit_load(builder, self.wide, FLOAT32, bias, None)
            for total in self.totals:
                builder.store(builder.fadd(builder.load(total), added), total)
        is_whole = builder.icmp_signed(">=", num_outputs, INT64(OUTPUTS))
        for row, total in enumerate(self.totals):
            at = builder.add(out, builder.mul(out_bytes, INT64(row)))
            is_there = builder.icmp_signed("<", INT64(row), num_rows)
            with builder.if_then(builder.and_(is_there, is_whole)):
                emit_store(builder, self.wide, self.element, at, builder.load(total), None)
            with builder.if_then(builder.and_(is_there, builder.not_(is_whole))):
                emit_store(builder, self.wide, self.element, at, builder.load(total), num_outputs)


def _vectors(builder: Any, coding: Coding, codes: Any) -> Callable[[int], Any]:
    """What gives vector 0 to 7 of a chunk's codes; each byte of memory is loaded once."""
    loaded: dict[int, Any] = {}

    def load(number: int) -> Any:
        if number not in loaded:
            at = builder.add(codes, INT64(VECTOR_BYTES * number))
            loaded[number] = raw_load(builder, INT32, OUTPUTS, at, None)
        return loaded[number]

    def some_bits(vector: Any, shift: int, mask: int) -> Any:
        """(vector >> shift) & mask, byte by byte; the mask keeps neighbours' bits out."""
        if shift > 0:
            vector = builder.lshr(vector, constant(INT32, OUTPUTS, shift))
        elif shift < 0:
            vector = builder.shl(vector, constant(INT32, OUTPUTS, -shift))
        return builder.and_(vector, constant(INT32, OUTPUTS, mask * 0x01010101))

    def vector(number: int) -> Any:
        if coding.bits == 8:
            return load(number)
        code = some_bits(load(number // 2), 4 * (number % 2), 0x0F)
        above = coding.bits - 4
        if above:
            per_plane = 8 // above
            plane = load(CHUNK // 8 + number // per_plane)
            code = builder.or_(code, some_bits(plane, above * (number % per_plane) - 4, (2**above - 1) << 4))
        return code

    return vector


def _dot(builder: Any, path: BytePath, coding: Coding, total: Any, codes: Any, four: Any) -> Any:
    """total[i] += codes[4 i : 4 i + 4] . the four int8 of `four`"""
    if path.dot == "plain":
        for byte in range(4):
            code = builder.and_(builder.lshr(codes, constant(INT32, OUTPUTS, 8 * byte)), constant(INT32, OUTPUTS, 255))
            number = builder.ashr(builder.shl(four, INT32(24 - 8 * byte)), INT32(24))
            total = builder.add(total, builder.mul(code, broadcast(builder, number, OUTPUTS)))
        return total
    lanes = path.dot_bits // 32
    numbers = broadcast(builder, four, lanes)
    parts = []
    for start in range(0, OUTPUTS, lanes):
        part, some = (lanes_from(builder, vector, start, lanes) for vector in (total, codes))
        parts.append(
            call(builder, f"llvm.x86.avx512.vpdpbusd.{path.dot_bits}", part.type, [part, some, numbers])
            if path.dot == "vnni"
            else builder.add(part, _madd(builder, path.dot_bits, coding, some, numbers))
        )
    if len(parts) == 1:
        return parts[0]
    return builder.shuffle_vector(parts[0], parts[1], ir.Constant(vector_of(INT32, OUTPUTS), list(range(OUTPUTS))))


def _madd(builder: Any, bits: int, coding: Coding, codes: Any, numbers: Any) -> Any:
    """Sums of four products. Those of two small codes fit 16 bits; others are widened, even bytes and odd ones."""
    lanes = bits // 32
    halves = vector_of(INT16, 2 * lanes)
    pairs = f"llvm.x86.avx512.pmaddw.d.{bits}" if bits == 512 else "llvm.x86.avx2.pmadd.wd"
    if coding.bits < 8:
        name = f"llvm.x86.avx512.pmaddubs.w.{bits}" if bits == 512 else "llvm.x86.avx2.pmadd.ub.sw"
        kind = vector_of(INT8, 4 * lanes)
        two = call(builder, name, halves, [builder.bitcast(codes, kind), builder.bitcast(numbers, kind)])
        return call(builder, pairs, codes.type, [two, constant(INT16, 2 * lanes, 1)])
    codes, numbers = builder.bitcast(codes, halves), builder.bitcast(numbers, halves)
    eight = constant(INT16, 2 * lanes, 8)
    even = builder.and_(codes, constant(INT16, 2 * lanes, 255)), builder.ashr(builder.shl(numbers, eight), eight)
    odd = builder.lshr(codes, eight), builder.ashr(numbers, eight)
    kind = vector_of(INT32, lanes)
    return builder.add(*(call(builder, pairs, kind, [left, right]) for left, right in (even, odd)))
