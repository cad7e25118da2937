"""Weights of linear layers as they are computed with: one layer's, or those of several layers of one input together."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from octavo.attention.numba_cpu import element_of
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.numba_memory import Record
from octavo.attention.program import KernelCall
from octavo.models.modules.block_kernels import BLOCK_JOB, block_kernel
from octavo.models.modules.coded_tensor import CodedTensor
from octavo.models.modules.linear_kernels import LINEAR_JOB, ROWS_FIELDS, TILE_OUTPUTS, linear_kernel
from octavo.models.modules.panel_weight import PanelWeight
from octavo.models.modules.panels import Panels
from octavo.models.modules.row_kernels import TEAM

_ROWS = struct.Struct(f"{len(ROWS_FIELDS)}q")
_MOST_FLOAT32_ROWS = 32
"""Above it, torch's float32 product is as fast as ours."""
_MOST_ROWS_BESIDE_TILES = 8
"""Above it, oneDNN's product is faster on a CPU that multiplies whole tiles of bfloat16 (AMX)."""
_MOST_ROWS_OF_LARGE_BLOCKS = 64
_LARGE_BLOCK_BYTES = 1 << 19
"""Above so many rows oneDNN's product is faster with blocks of more bytes: our tiles read a block to its end each."""
_UNIT_ROWS = 192
"""Rows that a block is multiplied with at a time: they and the block fit a core's cache."""
_MOST_UNIT_OUTPUTS = 64
_BLOCK_ROWS = 252
_BLOCK_BYTES = 3 << 19
"""Most rows that a thread widens at a time, whole tiles, and most bytes: three quarters of a core's cache, say."""


class FewRows(Protocol):
    """A product of few rows as kernel calls, to be run alone or among the calls of a program."""

    max_rows: int

    def calls(self) -> tuple[KernelCall, ...]:
        """New jobs that together compute the product, to be run one after the other.

        Each job begins with `ROWS_FIELDS`, which whoever runs the calls sets in all of them: rows [n, inputs] and
        results [n, outputs] of the weight's dtype, n at most `max_rows`.
        """
        ...


class Weight(Protocol):
    """A weight [outputs, inputs] with its bias, in the order in memory that its kernel reads."""

    num_bytes: int
    dtype: torch.dtype
    address: int
    """Where it lies in memory."""
    few_rows: FewRows | None
    """The product as kernel calls; None where `apply` is all there is."""

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., outputs] from [..., inputs]."""
        ...

    def plain(self) -> torch.Tensor:
        """The weight in torch's order, a copy where the kernel's is another; for code that looks at a weight."""
        ...


class PackedWeight:
    """Reordered as oneDNN's bfloat16 kernels read it. Owns: the only copy of the weight.

    torch reorders a plain weight at every call, or uses a slower kernel. Reordered once, one weight serves every number
    of rows, at about twice the speed for few rows (decode) and a little more than torch's for many.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self.dtype = weight.dtype
        self._weight: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)
        self.address = int(torch.ops.mkldnn.data_ptr(self._weight))
        self._bias = None if bias is None else bias.detach()
        num_bytes = int(torch.ops.mkldnn._nbytes(self._weight))
        blocks = packed_blocks(weight.detach(), self.address, num_bytes)
        self.few_rows: FewRows | None = None
        if blocks is not None:
            shape = (weight.shape[0], weight.shape[1])
            self.few_rows = BlockRows(self.address, blocks, shape, self._weight, self._bias)
        self._calls = () if self.few_rows is None else self.few_rows.calls()
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        num_outputs, num_inputs = self._weight.shape
        num_rows = rows.numel() // num_inputs
        if self.few_rows is not None and num_rows <= self.few_rows.max_rows and rows.dtype is self.dtype:
            return run_calls(self._calls, rows.contiguous(), num_rows, num_outputs)
        result: torch.Tensor = self._multiply(rows, self._weight, self._bias, "none", [], "")
        return result

    def plain(self) -> torch.Tensor:
        return self._weight.to_dense()


class Blocks(NamedTuple):
    """How a packed weight lies: blocks of outputs, one after the other, each pair of inputs by pair of inputs."""

    block_outputs: int
    block_bytes: int


def in_blocks(weight: torch.Tensor, block_outputs: int, block_inputs: int) -> torch.Tensor:
    """[blocks, pairs of inputs, block_outputs, 2] of a weight, with zeros up to whole blocks of outputs and inputs."""
    num_outputs, num_inputs = weight.shape
    padding = (0, -num_inputs % block_inputs, 0, -num_outputs % block_outputs)
    padded = nn.functional.pad(weight, padding)
    shape = (-1, block_outputs, padded.shape[1] // 2, 2)
    return padded.reshape(shape).transpose(1, 2).contiguous()


def packed_blocks(weight: torch.Tensor, address: int, num_bytes: int) -> Blocks | None:
    """How `weight`, packed into `num_bytes` at `address`, lies there, if it is one of the ways known here.

    oneDNN documents no name for what it chooses, so the bytes themselves are compared.
    """
    num_outputs, num_inputs = weight.shape
    if weight.dtype != torch.bfloat16 or num_inputs % 2:
        return None
    found = torch.frombuffer((ctypes.c_int16 * (num_bytes // 2)).from_address(address), dtype=torch.int16)
    for block_outputs in (64, 48, 32, 16):
        num_blocks = -(-num_outputs // block_outputs)
        for block_inputs in (64, 32, 16, 2):
            block_bytes = 2 * block_outputs * -(-num_inputs // block_inputs) * block_inputs
            if num_blocks * block_bytes != num_bytes:
                continue
            # Some blocks tell: of random numbers, no two orders look the same.
            numbers = sorted({0, num_blocks // 2, num_blocks - 1})
            parts = [weight[number * block_outputs : (number + 1) * block_outputs] for number in numbers]
            expected = [in_blocks(part, block_outputs, block_inputs).view(torch.int16).flatten() for part in parts]
            lying = found.view(num_blocks, -1)
            if all(torch.equal(lying[number], part) for number, part in zip(numbers, expected, strict=True)):
                return Blocks(block_outputs, block_bytes)
    return None


class BlockRows:
    """The product with a weight that oneDNN packed into blocks."""

    def __init__(
        self,
        address: int,
        blocks: Blocks,
        shape: tuple[int, int],
        packed: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        """`packed` holds a weight of [outputs, inputs] = `shape` at `address`."""
        self.max_rows = sys.maxsize
        if blocks.block_bytes > _LARGE_BLOCK_BYTES:
            self.max_rows = _MOST_ROWS_OF_LARGE_BLOCKS
        if vector_paths()[0].has_tiles:
            self.max_rows = _MOST_ROWS_BESIDE_TILES
        self._tensors = packed, bias
        self._kernel = block_kernel(vector_paths()[0], blocks.block_outputs)
        self._fields: dict[str, float] = {
            "weight": address,
            "block_outputs": blocks.block_outputs,
            "block_bytes": blocks.block_bytes,
            "bias": 0 if bias is None else bias.data_ptr(),
            "num_outputs": shape[0],
            "num_inputs": shape[1],
            "unit_rows": _UNIT_ROWS,
        }

    def calls(self) -> tuple[KernelCall, ...]:
        record = Record(BLOCK_JOB, self._fields)
        record.keep(*self._tensors)
        return (KernelCall(self._kernel, record),)


def block_rows(num_inputs: int) -> int:
    """Rows of so many inputs to be widened at a time: a multiple of 12, the rows of the largest tile."""
    return min(max(_BLOCK_BYTES // (4 * num_inputs) // 12, 5) * 12, _BLOCK_ROWS)


class PlainRows:
    """The product with a weight that lies row by row."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._tensors = weight, bias
        self.max_rows = _MOST_FLOAT32_ROWS if weight.dtype == torch.float32 else sys.maxsize
        self._kernel = linear_kernel(vector_paths()[0], element_of(weight.dtype))
        num_outputs = weight.shape[0]
        units = min(max(num_outputs // 32, TILE_OUTPUTS), _MOST_UNIT_OUTPUTS)
        self._fields: dict[str, float] = {
            "weight": weight.data_ptr(),
            "weight_bytes": weight.stride(0) * weight.element_size(),
            "bias": 0 if bias is None else bias.data_ptr(),
            "num_outputs": num_outputs,
            "num_inputs": weight.shape[1],
            "unit_outputs": units // TILE_OUTPUTS * TILE_OUTPUTS,
            "block_rows": block_rows(weight.shape[1]),
        }

    def calls(self) -> tuple[KernelCall, ...]:
        record = Record(LINEAR_JOB, self._fields)
        record.keep(*self._tensors)
        return (KernelCall(self._kernel, record),)


class PlainWeight:
    """In torch's own order, where no other is faster. Owns: the weight, which others may share."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self.dtype = weight.dtype
        self._weight = weight.detach().contiguous()
        self.address = self._weight.data_ptr()
        self._bias = None if bias is None else bias.detach()
        self.few_rows: FewRows | None = PlainRows(self._weight, self._bias)
        self._max_rows = self.few_rows.max_rows
        self._calls = self.few_rows.calls()

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        num_outputs, num_inputs = self._weight.shape
        num_rows = rows.numel() // num_inputs
        if num_rows > self._max_rows or rows.dtype is not self.dtype or rows.requires_grad:
            return nn.functional.linear(rows, self._weight, self._bias)
        return run_calls(self._calls, rows.contiguous(), num_rows, num_outputs)

    def plain(self) -> torch.Tensor:
        return self._weight


def run_calls(calls: Sequence[KernelCall], rows: torch.Tensor, num_rows: int, num_outputs: int) -> torch.Tensor:
    """[..., outputs] of contiguous rows [..., inputs], `num_rows` in all, by `FewRows.calls` on torch's threads."""
    shape = rows.shape
    out = rows.new_empty((*shape[:-1], num_outputs))
    width = rows.element_size()
    num_threads = torch.get_num_threads()
    numbers = (0, rows.data_ptr(), shape[-1] * width, num_rows, out.data_ptr(), num_outputs * width)
    for call in calls:
        _ROWS.pack_into(call.record.bytes, 0, *numbers)
        TEAM.run(call.kernel, call.record.address, num_threads)
    return out


def ask_ahead(calls: Sequence[KernelCall]) -> None:
    """Tell each product among `calls` where the weight of the next one lies, so that it is asked for in time."""
    for place, next_place in (("weight", "next_weight"), ("parts", "next_parts")):
        records = [call.record for call in calls if next_place in (call.record.array.dtype.names or ())]
        for record, following in pairwise(records):
            record.fill({next_place: int(following.array[place][0])})


def bytes_by_format(weights: Iterable[Weight], tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """Bytes of all of them by how numbers are kept: a dtype, or the name of a coding. What is shared counts once."""
    found: Counter[str] = Counter()
    panels: dict[int, Panels] = {}
    held: set[int] = set()
    for tensor in tensors:
        if isinstance(tensor, CodedTensor):
            panels[id(tensor.panels)] = tensor.panels
        else:
            found[_name(tensor.dtype)] += tensor.nbytes
            held.add(tensor.untyped_storage().data_ptr())
    for weight in weights:
        if isinstance(weight, PanelWeight):
            panels |= {id(part): part for part in weight.panels}
            found[_name(weight.dtype)] += weight.bias_bytes
        elif weight.address not in held:  # an embedding may hold a tied head's
            found[_name(weight.dtype)] += weight.num_bytes
    for part in panels.values():
        found[part.name] += part.num_bytes
    return {name: num_bytes for name, num_bytes in found.most_common() if num_bytes}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def is_coded(linear: nn.Linear) -> bool:
    """Whether its weight stays coded."""
    return isinstance(linear.weight, CodedTensor)


def is_plain_linear(module: nn.Module) -> bool:
    """Whether `module` is a linear layer on the CPU and nothing else: no subclass, no hook."""
    return (
        type(module) is nn.Linear
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and module.weight.device.type == "cpu"
        and module.weight.dtype in (torch.bfloat16, torch.float32)
        and (module.bias is None or module.bias.dtype == module.weight.dtype)
    )


def can_pack(dtype: torch.dtype) -> bool:
    """Whether weights of `dtype` are faster when packed, on this machine.

    Without instructions for bfloat16 oneDNN computes three times slower than our kernel, for any number of rows.
    """
    return (
        dtype == torch.bfloat16
        and vector_paths()[0].has_dot
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def weight_of(linears: Sequence[nn.Linear]) -> Weight:
    """The weights of `linears`, one below the other; all have a bias or none has, all are coded or none is."""
    if is_coded(linears[0]):
        coded: list[Any] = [linear.weight for linear in linears]
        return PanelWeight([weight.panels for weight in coded], _joint_bias(linears), coded[0].dtype)
    kind = PackedWeight if can_pack(linears[0].weight.dtype) else PlainWeight
    if len(linears) == 1:
        return kind(linears[0].weight, linears[0].bias)
    return kind(torch.cat([linear.weight.detach() for linear in linears]), _joint_bias(linears))


def _joint_bias(linears: Sequence[nn.Linear]) -> torch.Tensor | None:
    biases: list[Any] = [linear.bias for linear in linears]
    return None if biases[0] is None else torch.cat(biases)
