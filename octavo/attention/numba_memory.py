"""Memory as kernels see it: jobs with named fields, single numbers at addresses, calls of kernels.

Addresses are plain integers (bytes). Nothing here checks bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import models, register_model

from octavo.attention.numba_emit import emit_prefetch, pointer
from octavo.attention.numba_vectors import primitive


class JobType(types.Type):  # type: ignore[misc]
    """Numba type of a record in memory, handed over by its address; kernels read its fields as attributes."""

    def __init__(self, name: str, record: np.dtype[Any]) -> None:
        self.fields: dict[str, Any] = dict(record.fields or {})
        super().__init__(name=name)


class _JobModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, record: JobType) -> None:
        super().__init__(manager, record, ir.IntType(64))


register_model(JobType)(_JobModel)


@infer_getattr
class _JobFields(AttributeTemplate):  # type: ignore[misc]
    key = JobType

    def generic_resolve(self, record: JobType, name: str) -> Any:
        return from_dtype(record.fields[name][0]) if name in record.fields else None


@lower_getattr_generic(JobType)  # type: ignore[untyped-decorator]
def _lower_field(context: Any, builder: Any, record: JobType, address: Any, name: str) -> Any:
    """Nobody changes a field while a kernel runs, so the load may be moved anywhere."""
    field, offset = record.fields[name][:2]
    llvm = ir.DoubleType() if field.kind == "f" else ir.IntType(64)
    number = builder.load(pointer(builder, builder.add(address, ir.IntType(64)(offset))), typ=llvm)
    number.set_metadata("invariant.load", builder.module.add_metadata([]))
    return number


@primitive
def call_kernel(typing_context: Any, kernel: Any, job: Any, unit: Any) -> Any:
    """Calls the C function at an address with two addresses."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64), ir.IntType(64)])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        builder.call(function, arguments[1:])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), emit


@primitive
def call_job(typing_context: Any, kernel: Any, job: Any) -> Any:
    """Calls the C function at an address with one address."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), emit


@primitive
def call_plain(typing_context: Any, function: Any) -> Any:
    """Calls the C function at an address with nothing."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.call(builder.inttoptr(arguments[0], ir.FunctionType(ir.VoidType(), []).as_pointer()), [])
        return context.get_dummy_value()

    return types.none(types.int64), emit


@primitive
def get_shared(typing_context: Any, address: Any) -> Any:
    """The int64 at `address` as other threads left it, with all that they wrote before."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(pointer(builder, arguments[0]), "acquire", 8, typ=ir.IntType(64))

    return types.int64(types.int64), emit


@primitive
def swap_if(typing_context: Any, address: Any, expected: Any, value: Any) -> Any:
    """Writes `value` to the int64 at `address` if `expected` is there, in one step; whether it was."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        where, *numbers = arguments
        numbers = [
            context.cast(builder, number, kind, types.int64)
            for number, kind in zip(numbers, signature.args[1:], strict=True)
        ]
        pair = builder.cmpxchg(pointer(builder, where), *numbers, "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, expected, value), emit


def _scalar(number: Any, llvm: Any) -> tuple[Any, Any]:
    """Primitives that read and write one number of numba type `number` at an address."""

    def typed_load(typing_context: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load(pointer(builder, arguments[0]), typ=llvm)

        return number(types.int64), emit

    def typed_store(typing_context: Any, address: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(
                context.cast(builder, arguments[1], signature.args[1], number), pointer(builder, arguments[0])
            )
            return context.get_dummy_value()

        return types.none(types.int64, value), emit

    return primitive(typed_load), primitive(typed_store)


get_int8, put_int8 = _scalar(types.int8, ir.IntType(8))
get_int32, put_int32 = _scalar(types.int32, ir.IntType(32))
get_int64, put_int64 = _scalar(types.int64, ir.IntType(64))
get_float32, put_float32 = _scalar(types.float32, ir.FloatType())


@primitive
def prefetch(typing_context: Any, address: Any) -> Any:
    """Asks for the cache line of `address`; harmless for any address."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit_prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.none(types.int64), emit


class Record:
    """The argument of a kernel. Owns: its memory, which stays where it is, since kernels read it in place."""

    def __init__(self, kind: np.dtype[Any], fields: dict[str, float]) -> None:
        self.array = np.zeros(1, kind)
        self.fill(fields)
        self._kept: tuple[object, ...] = ()
        self.address = self.array.ctypes.data
        self.bytes = self.array.data.cast("B")

    def fill(self, fields: dict[str, float]) -> None:
        """Set these fields."""
        for name, value in fields.items():
            self.array[name] = value

    def keep(self, *owners: object) -> None:
        """Keep what owns memory that fields point to as long as the record itself."""
        self._kept += owners
