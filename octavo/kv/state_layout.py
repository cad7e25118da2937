"""Where the states of a layer lie in its page: one behind the other, those of larger elements first.

So every state begins at a whole element of its dtype, whatever the sizes of the others.
"""

from __future__ import annotations

import math

import msgspec

from octavo.errors import LayoutError
from octavo.kv.base import dtype_bytes
from octavo.kv.specs import MambaSpec


class StridedState(msgspec.Struct, frozen=True, kw_only=True):
    """Shape, strides and storage offset of one state in its layer's tensor, in elements of `dtype`."""

    dtype: str
    shape: tuple[int, ...]
    """[num_blocks, *shape of the state]"""
    strides: tuple[int, ...]
    offset: int


def strided_states(spec: MambaSpec, num_blocks: int) -> tuple[StridedState, ...]:
    """The states of a layer as views of its tensor, in the order of the spec's shapes.

    Raises `LayoutError` for pages that do not hold whole elements.
    """
    sizes = [dtype_bytes(dtype) for dtype in spec.dtypes]
    if any(spec.page_bytes % size for size in sizes):
        raise LayoutError(
            f"A page of {spec.page_bytes} bytes does not hold whole elements of {', '.join(spec.dtypes)}.",
            remedy=f"Pad pages to a multiple of {max(sizes)} bytes.",
        )
    starts: dict[int, int] = {}
    start = 0
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        starts[index] = start
        start += math.prod(spec.shapes[index]) * sizes[index]
    return tuple(
        StridedState(
            dtype=dtype,
            shape=(num_blocks, *shape),
            strides=(spec.page_bytes // size, *(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))),
            offset=starts[index] // size,
        )
        for index, (dtype, shape, size) in enumerate(zip(spec.dtypes, spec.shapes, sizes, strict=True))
    )
