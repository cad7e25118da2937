"""A rank's part of a GGUF file's tensor: the rows and blocks that it needs are read where they lie, and no others.

A row of a stored matrix is a whole number of blocks, so rows can be taken one by one, and of each of them the blocks
that hold some columns. Where a conversion does more to a tensor than to order its rows, it is read whole and then cut.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from octavo.formats.dequantize import dequantize
from octavo.formats.ggml_types import GGML_TYPES
from octavo.formats.gguf import GGUFFile
from octavo.models.coded_parameters import row_order
from octavo.models.gguf_conversions import Conversion
from octavo.models.parallel.layouts import keep
from octavo.models.parallel.rank_part import RankPart

DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

EXPERT_TENSOR = re.compile(r"blk\.\d+\.ffn_(gate_up|gate|up|down)_exps\.(weight|bias)")

_TYPES = {kind.name: kind for kind in GGML_TYPES.values()}

Cuts = list[tuple[int, torch.Tensor]]
"""(dimension, rows of it)"""


def read_part(
    file: GGUFFile,
    name: str,
    parameter: str,
    part: RankPart | None,
    conversion: Conversion,
    config: Any,
    dtype: torch.dtype,
    numbers: npt.NDArray[Any] | None = None,
) -> torch.Tensor:
    """What a rank has of the tensor `name`, of which `parameter` or half of it is made, as transformers has it.

    `part` None is all of it, which `numbers` are as stored if they are given. Matrices are in `dtype`, vectors in
    float32. Raises `RuntimeError` or `IndexError` where the tensor does not fit.
    """
    cuts = [] if part is None else _cuts_of_tensor(name, parameter, part, conversion)
    if part is None or not cuts:
        return conversion.undo(name, read_tensor(file, name, dtype, numbers), config)
    shape = file.tensors[name].shape
    order = row_order(name, shape, conversion, config) if len(shape) > 1 else None
    is_stack_in_order = order is not None and (len(shape) == 2 or not order.size)
    if order is not None and is_stack_in_order and len(cuts) == 1 and _fits(shape, name, parameter, part):
        return _read_own(file, name, *cuts[0], order, dtype)
    tensor = conversion.undo(name, read_tensor(file, name, dtype), config)
    whole = part.whole_shape(parameter)
    if whole is not None and len(whole) != tensor.dim() and tensor.numel() == whole.numel():
        tensor = tensor.view(whole)
    for dim, rows in cuts:
        tensor = keep(tensor, dim, rows)
    return tensor.contiguous()


def _read_own(
    file: GGUFFile, name: str, dim: int, rows: torch.Tensor, order: npt.NDArray[np.int64], dtype: torch.dtype
) -> torch.Tensor:
    """Some rows of a dimension of a tensor whose rows lie in some `order` in the file, or as they are; -1 is zeros."""
    *outer, num_columns = file.tensors[name].shape
    if dim == len(outer):
        found = _read_columns(file, name, rows, dtype)
        return found[torch.from_numpy(order)] if order.size else found
    wanted = keep(torch.arange(math.prod(outer)).view(outer), dim, rows.clamp(min=0)).contiguous()
    lines = wanted.flatten().numpy()
    found = _read_rows(file, name, order[lines] if order.size else lines, dtype).view(*wanted.shape, num_columns)
    empty = (rows < 0).nonzero().flatten()
    return found.index_fill_(dim, empty, 0) if len(empty) else found


def read_tensor(file: GGUFFile, name: str, dtype: torch.dtype, numbers: npt.NDArray[Any] | None = None) -> torch.Tensor:
    """The tensor in `dtype`, which `numbers` are if they are given; vectors in float32."""
    info = file.tensors[name]
    exact = dtype if len(info.shape) > 1 else torch.float32
    if numbers is None:
        numbers = dequantize(np.asarray(file.raw(name)), info.type, info.shape, dtype=DTYPE_NAMES[exact])
    return _as_torch(numbers, exact)


def _as_torch(numbers: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.from_numpy(numbers)
    return tensor.view(torch.bfloat16) if dtype is torch.bfloat16 else tensor


def _fits(shape: tuple[int, ...], name: str, parameter: str, part: RankPart) -> bool:
    """Whether a tensor's dimensions are those of its parameter, so that what is cut is cut in the same place."""
    whole, expert = part.whole_shape(parameter), EXPERT_TENSOR.fullmatch(name)
    if whole is None:
        return False
    return len(whole) == len(shape) if expert is not None and expert[1] != "down" else tuple(whole) == tuple(shape)


def _cuts_of_tensor(name: str, parameter: str, part: RankPart, conversion: Conversion) -> Cuts:
    """The cuts of the parameter, as they are of a tensor that is half of it or holds both halves one after another."""
    cuts, whole, expert = part.cuts_of(parameter), part.whole_shape(parameter), EXPERT_TENSOR.fullmatch(name)
    if expert is None or expert[1] == "down" or whole is None:
        return cuts
    return [(dim, _rows_of_halves(expert[1], whole, dim, rows, conversion)) for dim, rows in cuts]


def _rows_of_halves(kind: str, whole: torch.Size, dim: int, rows: torch.Tensor, conversion: Conversion) -> torch.Tensor:
    """`rows` of a parameter that holds gates and what they gate, in numbers of the tensor that holds one or both."""

    def numbered(numbers: torch.Tensor) -> list[torch.Tensor]:
        shape = [1] * len(whole)
        shape[dim] = len(numbers)
        sizes = list(whole)
        sizes[dim] = len(numbers)
        halves = conversion.halves(numbers.view(shape).expand(sizes))
        return [half.movedim(dim, 0).flatten(1)[:, 0] for half in halves]

    found, num_before = [], 0
    for all_rows, own in zip(numbered(torch.arange(whole[dim])), numbered(rows), strict=True):
        places = torch.full((whole[dim] + 1,), -2)
        places[all_rows] = torch.arange(len(all_rows))
        places[-1] = -1
        mine = places[own]
        if bool((mine == -2).any()):
            raise RuntimeError("a rank's half is not half of its rows")
        found.append(mine.where(mine < 0, mine + num_before) if kind == "gate_up" else mine)
        num_before += len(all_rows)
    gate, up = found
    return {"gate": gate, "up": up, "gate_up": torch.cat((gate, up))}[kind]


def _read_rows(file: GGUFFile, name: str, rows: npt.NDArray[np.int64], dtype: torch.dtype) -> torch.Tensor:
    """[rows, columns]: some rows of a matrix, or of a stack of them."""
    info = file.tensors[name]
    stored = np.asarray(file.raw(name)).reshape(-1, _row_bytes(info.type, info.shape[-1]))
    first, last = int(rows[0]), int(rows[-1])
    own = stored[first : last + 1] if np.array_equal(rows, np.arange(first, last + 1)) else stored[rows]
    shape = (len(rows), info.shape[-1])
    return _as_torch(dequantize(own.reshape(-1), info.type, shape, dtype=DTYPE_NAMES[dtype]), dtype)


def _read_columns(file: GGUFFile, name: str, columns: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[..., columns]: some columns of a matrix, or of a stack of them; -1 is one of zeros."""
    info = file.tensors[name]
    kind, real = _TYPES[info.type], columns[columns >= 0]
    if not len(real):
        return torch.zeros((*info.shape[:-1], len(columns)), dtype=dtype)
    first = int(real.min()) // kind.block_elements
    last = int(real.max()) // kind.block_elements + 1
    stored = np.asarray(file.raw(name)).reshape(-1, _row_bytes(info.type, info.shape[-1]))
    own = np.ascontiguousarray(stored[:, first * kind.block_bytes : last * kind.block_bytes])
    shape = (*info.shape[:-1], (last - first) * kind.block_elements)
    found = _as_torch(dequantize(own.reshape(-1), info.type, shape, dtype=DTYPE_NAMES[dtype]), dtype)
    moved = columns.where(columns < 0, columns - first * kind.block_elements)
    return keep(found, -1, moved).contiguous()


def _row_bytes(type_name: str, num_columns: int) -> int:
    kind = _TYPES[type_name]
    return num_columns // kind.block_elements * kind.block_bytes
