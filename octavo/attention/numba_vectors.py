"""Vectors of float32 lanes as numba values, and what a kernel may do with them.

Numba has no vector type, and its loops over float16 or bfloat16 stay scalar. Here a `VectorType` is a numba value that
lives in a machine register; the primitives below emit LLVM vector instructions for it. LLVM legalises any width on any
CPU, so one source serves all of them; a `VectorPath` says how wide to go and which special instructions to use.

Addresses are plain integers (bytes). Nothing here checks bounds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_constant
from numba.extending import (
    intrinsic,
    models,
    overload,
    overload_attribute,
    register_jitable,
    register_model,
    typeof_impl,
)

from octavo.attention.numba_emit import (
    BFloatType,
    Element,
    VectorPath,
    broadcast,
    emit_exp2,
    emit_exp2_short,
    emit_fma,
    emit_load,
    emit_maximum,
    emit_reduce,
    emit_round,
    emit_store,
    pointer,
)

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """A function that kernels call: compiled into each kernel that uses it. Called from Python it stays Python."""
    return cast(F, register_jitable(error_model="numpy")(function))


def primitive(function: Callable[..., Any]) -> Any:
    """A function whose LLVM code is emitted by `function(typing_context, *argument types)`."""
    return intrinsic(prefer_literal=True)(function)


class Static(types.Type):  # type: ignore[misc]
    """Numba type of a `VectorPath` or an `Element`: the value is part of the type, so each is a specialisation."""

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(name=f"Static({value!r})")


class VectorType(types.Type):  # type: ignore[misc]
    """`lanes` float32 numbers (or, for the result of a comparison, booleans) in one register."""

    def __init__(self, lanes: int, kind: str) -> None:
        self.lanes = lanes
        self.kind = kind
        super().__init__(name=f"Vector({lanes} {kind})")


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector: VectorType) -> None:
        lane = ir.FloatType() if vector.kind == "float" else ir.IntType(1)
        super().__init__(manager, vector, ir.VectorType(lane, vector.lanes))


register_model(Static)(models.OpaqueModel)


@typeof_impl.register(VectorPath)  # type: ignore[untyped-decorator]
@typeof_impl.register(Element)  # type: ignore[untyped-decorator]
def _type_of_static(value: Any, context: Any) -> Static:
    return Static(value)


@lower_constant(Static)  # type: ignore[untyped-decorator]
def _lower_static(context: Any, builder: Any, static: Static, value: Any) -> Any:
    return context.get_dummy_value()


def _attribute(name: str) -> None:
    """Lets kernels read the field `name` of a `VectorPath` or an `Element`, as a constant."""

    # Numba compares the parameters of the two functions, so neither may be annotated.
    def typed(static):  # type: ignore[no-untyped-def]
        value = getattr(static.value, name)
        return lambda static: value

    overload_attribute(Static, name)(typed)


for _name in ("lanes", "num_bytes"):
    _attribute(_name)


def _floats(static: Static) -> VectorType:
    return VectorType(static.value.lanes, "float")


@primitive
def splat(typing_context: Any, path: Any, number: Any) -> Any:
    """Every lane = `number` (float32)."""
    vector = _floats(path)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number_value = context.cast(builder, arguments[1], signature.args[1], types.float32)
        return broadcast(builder, number_value, vector.lanes)

    return vector(path, number), emit


@primitive
def ramp(typing_context: Any, path: Any, start: Any) -> Any:
    """start, start + 1, ... (float32; exact below 2**24)."""
    vector = _floats(path)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = context.cast(builder, arguments[1], signature.args[1], types.float32)
        steps = ir.Constant(ir.VectorType(ir.FloatType(), vector.lanes), [float(i) for i in range(vector.lanes)])
        return builder.fadd(broadcast(builder, first, vector.lanes), steps)

    return vector(path, start), emit


@primitive
def load(typing_context: Any, path: Any, element: Any, address: Any) -> Any:
    """`path.lanes` elements from `address` on, widened to float32."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit_load(builder, path.value, element.value, arguments[2], None)

    return _floats(path)(path, element, types.int64), emit


@primitive
def load_some(typing_context: Any, path: Any, element: Any, address: Any, count: Any) -> Any:
    """The first `count` lanes from `address` on; the others are 0 and their memory is not touched."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit_load(builder, path.value, element.value, arguments[2], arguments[3])

    return _floats(path)(path, element, types.int64, types.int64), emit


@primitive
def store(typing_context: Any, path: Any, element: Any, address: Any, vector: Any) -> Any:
    """Writes all lanes to `address`, rounded to nearest even where the element is narrower."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit_store(builder, path.value, element.value, arguments[2], arguments[3], None)
        return context.get_dummy_value()

    return types.none(path, element, types.int64, vector), emit


@primitive
def store_some(typing_context: Any, path: Any, element: Any, address: Any, vector: Any, count: Any) -> Any:
    """Writes the first `count` lanes to `address` and touches no memory behind them."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit_store(builder, path.value, element.value, arguments[2], arguments[3], arguments[4])
        return context.get_dummy_value()

    return types.none(path, element, types.int64, vector, types.int64), emit


def _binary(emit_lanes: Callable[[Any, Any, Any], Any], kind: str) -> Any:
    """A primitive of two vectors, lane by lane."""

    def typed(typing_context: Any, left: Any, right: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return emit_lanes(builder, arguments[0], arguments[1])

        return VectorType(left.lanes, kind)(left, right), emit

    return primitive(typed)


_add = _binary(lambda builder, a, b: builder.fadd(a, b), "float")
_subtract = _binary(lambda builder, a, b: builder.fsub(a, b), "float")
_multiply = _binary(lambda builder, a, b: builder.fmul(a, b), "float")
_divide = _binary(lambda builder, a, b: builder.fdiv(a, b), "float")
_less = _binary(lambda builder, a, b: builder.fcmp_ordered("<", a, b), "mask")
maximum = _binary(emit_maximum, "float")
"""The larger of each pair of lanes; the second one where they cannot be compared."""


def _operator(function: Any, lanes: Any) -> None:
    def typed(left, right):  # type: ignore[no-untyped-def]
        if isinstance(left, VectorType) and isinstance(right, VectorType):
            return lambda left, right: lanes(left, right)
        return None

    overload(function)(typed)


_operator(operator.add, _add)
_operator(operator.sub, _subtract)
_operator(operator.mul, _multiply)
_operator(operator.truediv, _divide)
_operator(operator.lt, _less)


@primitive
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once where the CPU can."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit_fma(builder, *arguments)

    return a(a, b, c), emit


@primitive
def rounded(typing_context: Any, element: Any, vector: Any) -> Any:
    """What is left of each lane in `element` (float32 or bfloat16), as float32."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit_round(builder, element.value, arguments[1])

    return vector(element, vector), emit


@primitive
def choose(typing_context: Any, mask: Any, a: Any, b: Any) -> Any:
    """Lanes of `a` where `mask` holds, of `b` elsewhere."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(*arguments)

    return a(mask, a, b), emit


@primitive
def exp2(typing_context: Any, x: Any) -> Any:
    """2 ** x for x <= 127; exactly 1 at 0 and exactly 0 below -126, minus infinity included."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit_exp2(builder, arguments[0])

    return x(x), emit


@primitive
def exp2_short(typing_context: Any, path: Any, x: Any) -> Any:
    """2 ** x for x <= 0 with a relative error of 3e-6, on AVX-512 alone; exactly 1 at 0."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit_exp2_short(builder, arguments[1])

    return x(path, x), emit


@primitive
def store_weights(typing_context: Any, path: Any, address: Any, vector: Any) -> Any:
    """Writes all lanes as bfloat16 by the CPU's own instruction, which rounds subnormal numbers to 0."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        narrow = builder.fptrunc(arguments[2], ir.VectorType(BFloatType(), vector.lanes))
        builder.store(narrow, pointer(builder, arguments[1]), align=2)
        return context.get_dummy_value()

    return types.none(path, types.int64, vector), emit


@primitive
def first_of(typing_context: Any, vector: Any) -> Any:
    """The first lane."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.extract_element(arguments[0], ir.IntType(32)(0))

    return types.float32(vector), emit


def _reduction(combine: Callable[[Any, Any, Any], Any]) -> Any:
    def typed(typing_context: Any, vector: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return emit_reduce(builder, arguments[0], combine)

        return types.float32(vector), emit

    return primitive(typed)


sum_of = _reduction(lambda builder, a, b: builder.fadd(a, b))
"""The sum of all lanes, by halves: always in the same order."""
maximum_of = _reduction(emit_maximum)
"""The largest lane."""


@primitive
def fetch_add(typing_context: Any, address: Any, amount: Any) -> Any:
    """Adds `amount` to the int64 at `address` as one step that no other thread can split; returns what was there."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", pointer(builder, arguments[0]), arguments[1], "acq_rel")

    return types.int64(types.int64, types.int64), emit


@primitive
def address_of(typing_context: Any, where: Any) -> Any:
    """The address that a pointer, or the handle of a record, holds."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if isinstance(where, types.CPointer):
            return builder.ptrtoint(arguments[0], ir.IntType(64))
        return arguments[0]

    return types.int64(where), emit
