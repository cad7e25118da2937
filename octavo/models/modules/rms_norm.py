"""RMSNorm in one pass: y = x / sqrt(mean(x**2) + eps) * weight, per row.

transformers computes it as half a dozen operators over the whole tensor. Its variants differ in what the weight is
added to (0, or 1 in Gemma) and in whether x / sqrt(...) is rounded to the input's dtype before it is multiplied (as in
Llama) or after (as in OLMo 2 and Gemma). Sums and products are float32 in all of them, as here.
"""

from __future__ import annotations

import ctypes
import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from numba import carray, types
from torch import nn

from octavo.compiling import c_function

_Function = TypeVar("_Function", bound=Callable[..., Any])

_reordering = cast(
    Callable[[_Function], _Function], numba.njit(fastmath={"reassoc", "contract"}, error_model="numpy", nogil=True)
)
"""Sums may be taken in any order: that is what lets them be vectorised."""

_compiled = cast(Callable[[_Function], _Function], numba.njit(error_model="numpy", nogil=True))


@_reordering
def _sum_of_squares(row: Any) -> Any:
    total = np.float32(0)
    for i in range(row.size):
        total += row[i] * row[i]
    return total


@_compiled
def _widen(row: Any, bits: Any) -> None:
    for i in range(row.size):
        bits[i] = np.uint32(row[i]) << np.uint32(16)


@_compiled
def _narrow(bits: Any, row: Any) -> None:
    """To nearest bfloat16, ties to even."""
    for i in range(row.size):
        row[i] = np.uint16((bits[i] + np.uint32(0x7FFF) + ((bits[i] >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@_compiled
def _round(bits: Any) -> None:
    """To nearest bfloat16, kept as float32."""
    for i in range(bits.size):
        half = np.uint32(0x7FFF) + ((bits[i] >> np.uint32(16)) & np.uint32(1))
        bits[i] = (bits[i] + half) & np.uint32(0xFFFF0000)


@_compiled
def _scale(row: Any, factor: Any) -> None:
    for i in range(row.size):
        row[i] *= factor


@_compiled
def _multiply(row: Any, weight: Any) -> None:
    for i in range(row.size):
        row[i] *= weight[i]


@_compiled
def _norm_row(row: Any, epsilon: Any) -> None:
    """Divide `row` (float32) by its root mean square."""
    mean = _sum_of_squares(row) / np.float32(row.size)
    _scale(row, np.float32(1) / np.sqrt(mean + epsilon))


def _norm_bfloat16(rows: Any, out: Any, weights: Any, shape: Any, epsilon: Any) -> None:
    size = shape[2]
    weight = carray(weights, (size,))
    values = np.empty(size, dtype=np.float32)
    bits = values.view(np.uint32)
    source = carray(rows, (shape[0] * shape[3] + shape[1] * shape[4] + size,))
    target = carray(out, (shape[0] * shape[5] + shape[1] * shape[6] + size,))
    for i in range(shape[0]):
        for j in range(shape[1]):
            start = i * shape[3] + j * shape[4]
            _widen(source[start : start + size], bits)
            _norm_row(values, epsilon)
            if shape[7]:
                _round(bits)
            _multiply(values, weight)
            start = i * shape[5] + j * shape[6]
            _narrow(bits, target[start : start + size])


def _norm_float32(rows: Any, out: Any, weights: Any, shape: Any, epsilon: Any) -> None:
    size = shape[2]
    weight = carray(weights, (size,))
    source = carray(rows, (shape[0] * shape[3] + shape[1] * shape[4] + size,))
    target = carray(out, (shape[0] * shape[5] + shape[1] * shape[6] + size,))
    for i in range(shape[0]):
        for j in range(shape[1]):
            row = source[i * shape[3] + j * shape[4] :][:size]
            result = target[i * shape[5] + j * shape[6] :][:size]
            result[:] = row
            _norm_row(result, epsilon)
            _multiply(result, weight)


_ELEMENTS = {torch.bfloat16: (_norm_bfloat16, types.uint16), torch.float32: (_norm_float32, types.float32)}


@cache
def _kernel(dtype: torch.dtype) -> Any:
    """The C function for rows of `dtype`: (rows, out, weights, shape, epsilon), the first four addresses.

    shape: int64 [8] = counts of the two leading dimensions, row size, strides of the rows' leading dimensions, strides
    of the result's, whether to round before multiplying. Strides count elements.
    """
    function, element = _ELEMENTS[dtype]
    pointer, weights, numbers = types.CPointer(element), types.CPointer(types.float32), types.CPointer(types.int64)

    signature = types.void(pointer, pointer, weights, numbers, types.float32)
    compiled = c_function(signature, function)
    _kept.append(compiled)
    return _PROTOTYPE(compiled.address)


_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float)
_kept: list[Any] = []
"""Compiled functions whose addresses are in use."""


class FastRMSNorm(nn.Module):
    """In place of an RMSNorm module. Owns: the factors, and the numbers of the shape seen last.

    Rows of another dtype than the weight's go to the module that it replaces, whose result may be of either dtype.
    """

    def __init__(self, plain: nn.Module, factors: torch.Tensor, epsilon: float, *, rounds_first: bool) -> None:
        """`factors` is what rows are multiplied by: whatever `plain` adds to its weight is in it already."""
        super().__init__()
        dtype = plain.get_parameter("weight").dtype
        self.register_buffer("factors", factors.detach().float().contiguous(), persistent=False)
        self.epsilon = epsilon
        self.rounds_first = rounds_first
        self._plain = (plain,)  # in a tuple, so that it is no submodule
        self._size = factors.numel()
        self._dtype = dtype
        self._kernel = _kernel(dtype)
        self._numbers = np.array([0, 0, self._size, 0, 0, 0, 0, rounds_first], dtype=np.int64)
        self._addresses = (self.get_buffer("factors").data_ptr(), self._numbers.ctypes.data)
        self._shape: torch.Size | None = None
        self._strides: tuple[int, ...] = ()
        self._heads_first = False

    @property
    def weight(self) -> torch.Tensor:
        """That of the module it replaces, for code that looks at it."""
        return self._plain[0].get_parameter("weight")

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.dtype is not self._dtype:
            plain_result: torch.Tensor = self._plain[0](rows)
            return plain_result
        if rows.shape != self._shape or rows.stride() != self._strides:
            rows = self._plan(rows)
        if self._heads_first:
            one, num_heads, num_tokens, size = rows.shape
            out = torch.empty((one, num_tokens, num_heads, size), dtype=self._dtype).transpose(1, 2)
        else:
            out = torch.empty(rows.shape, dtype=self._dtype)
        weights, numbers = self._addresses
        self._kernel(rows.data_ptr(), out.data_ptr(), weights, numbers, self.epsilon)
        return out

    def _plan(self, rows: torch.Tensor) -> torch.Tensor:
        """Set the numbers for the shape and strides of `rows`, which is copied when they do not fit two dimensions."""
        if rows.shape[-1] != self._size or rows.device.type != "cpu":
            raise RuntimeError(f"rows {list(rows.shape)} on {rows.device} for an RMSNorm of {self._size} on the CPU")
        dimensions = _leading_dimensions(rows)
        if len(dimensions) > 2 or rows.stride(-1) != 1:
            rows = rows.contiguous()
            dimensions = _leading_dimensions(rows)
        counts_and_strides = [(1, 0)] * (2 - len(dimensions)) + dimensions
        (outer, outer_stride), (inner, inner_stride) = counts_and_strides
        size = rows.shape[-1]
        # Heads before tokens, as transformers' modules have them after a transpose: keep the order in memory.
        self._heads_first = rows.dim() == 4 and rows.shape[0] == 1 and outer > 1 and outer_stride < inner_stride
        out_strides = (size, outer * size) if self._heads_first else (inner * size, size)
        self._numbers[:7] = [outer, inner, size, outer_stride, inner_stride, *out_strides]
        self._shape, self._strides = rows.shape, rows.stride()
        return rows


def _leading_dimensions(rows: torch.Tensor) -> list[tuple[int, int]]:
    """(count, stride) of the dimensions before the last, those of one element left out, mergeable ones merged."""
    merged: list[tuple[int, int]] = []
    for count, stride in zip(rows.shape[:-1], rows.stride()[:-1], strict=True):
        if count == 1:
            continue
        if merged and merged[-1][1] == count * stride:
            merged[-1] = (merged[-1][0] * count, stride)
        else:
            merged.append((count, stride))
    return merged or [(1, 0)]


class RMSNormKinds:
    """Knows RMSNorm modules by their tensors (one parameter, the vector `weight`), their one argument, and by what they
    make of random rows.

    Owns: which variant each module class turned out to be, so that its next instance is tried as that first.
    """

    def __init__(self) -> None:
        self._variants: dict[type, list[tuple[int, bool]]] = {}

    def faster(self, module: nn.Module) -> FastRMSNorm | None:
        """A faster module that computes what `module` does, or None when `module` is no RMSNorm known here."""
        weight = getattr(module, "weight", None)
        tensors = [*module.parameters(), *module.buffers()]
        if len(tensors) != 1 or tensors[0] is not weight or weight.dim() != 1 or list(module.children()):
            return None
        if not isinstance(weight, nn.Parameter):
            return None  # Ones that stand for no weight: rows may be of another size.
        if len(inspect.signature(module.forward).parameters) != 1:
            return None  # It may be given more than rows, a gate for instance.
        epsilons = [value for value in vars(module).values() if isinstance(value, float) and 0 < value < 1e-2]
        if weight.device.type != "cpu" or weight.dtype not in _ELEMENTS or len(epsilons) != 1:
            return None
        rows = _trial_rows(weight.numel(), epsilons[0]).to(weight.dtype)
        with torch.no_grad():
            expected = module(rows)
        variants = self._variants.setdefault(type(module), [(0, True), (0, False), (1, True), (1, False)])
        for offset, rounds_first in variants:
            factors = weight.detach().float() + offset
            candidate = FastRMSNorm(module, factors, epsilons[0], rounds_first=rounds_first)
            if _equal(candidate(rows), expected):
                variants.sort(key=lambda variant: variant != (offset, rounds_first))
                return candidate
        return None


@cache
def _trial_rows(size: int, epsilon: float) -> torch.Tensor:
    """[1, 5, size], one row so small that epsilon counts."""
    rows = 3 * torch.randn(1, 5, size, generator=torch.Generator().manual_seed(0))
    rows[0, 1] *= math.sqrt(epsilon)
    return rows


def _equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two results differ by no more than the order of a float32 sum explains."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype == torch.float32:
        return torch.allclose(found, expected, rtol=2e-6, atol=1e-7)
    same = float((found == expected).float().mean())
    return same > 0.98 and torch.allclose(found.float(), expected.float(), rtol=1e-2, atol=1e-5)
