"""Parameters that stay coded: those that a GGUF file brings so, and those that are coded while a model is loaded.

transformers builds a model from tensors of the right shape and dtype. It is given stand-ins without memory, and once
the model is built the parameters that came of them become `CodedTensor`s. Matrices are coded where a linear layer or an
embedding owns them and a row of the file is a row of the parameter, whatever the order of the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from octavo.formats.codes import CODINGS, INT8, GroupCodes, make_codes
from octavo.formats.gguf import TensorInfo
from octavo.models.gguf_conversions import Conversion
from octavo.models.modules.coded_tensor import CodedTensor, code_parameter
from octavo.models.modules.mapped_weights import MappedFiles, give_back_freed
from octavo.models.modules.panels import Panels
from octavo.models.panel_reading import fill_panels, read_panels

Bytes = npt.NDArray[np.uint8]


class CodedParameters:
    """The coded parameters of a model that is being loaded. Owns: their panels until the model has them."""

    def __init__(self, shapes: dict[str, torch.Size], dtype: torch.dtype) -> None:
        """`shapes` are those of the parameters that may stay coded, by name."""
        self._shapes = shapes
        self._dtype = dtype
        self._panels: dict[int, tuple[torch.Tensor, Panels]] = {}

    def take(
        self,
        parameter: str,
        name: str,
        info: TensorInfo,
        raw: Bytes,
        conversion: Conversion,
        config: Any,
        ready: Panels | None = None,
    ) -> torch.Tensor | None:
        """A stand-in for the parameter whose coded numbers are `raw`, or None where it cannot stay coded.

        `ready` are the panels of those numbers, their rows in the file's order, if somebody made them.
        """
        if info.type not in CODINGS or self._shapes.get(parameter) != torch.Size(info.shape):
            return None
        order = row_order(name, info.shape, conversion, config)
        if order is None:
            return None
        if order.size:
            return self._stand_in(read_panels(raw, info, order, num_threads=torch.get_num_threads()))
        return self._stand_in(ready or read_panels(raw, info, num_threads=torch.get_num_threads()))

    def _stand_in(self, panels: Panels) -> torch.Tensor:
        one = torch.zeros(1, dtype=self._dtype)
        self._panels[one.data_ptr()] = one, panels
        return one.expand(panels.num_outputs, panels.num_inputs)

    def install(self, model: nn.Module) -> None:
        """Put the coded parameters into the places where their stand-ins are."""
        made: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                place = parameter.data_ptr()
                if place in self._panels:
                    made.setdefault(place, code_parameter(self._panels[place][1], self._dtype))
                    module.register_parameter(name, made[place])
        self._panels.clear()


def row_order(name: str, shape: tuple[int, ...], conversion: Conversion, config: Any) -> npt.NDArray[np.int64] | None:
    """Which row of the file each row of the parameter is: empty where all are in order, None where rows are not rows.

    Found by undoing the conversion of a matrix whose numbers are their row's.
    """
    rows = torch.arange(shape[0])[:, None]
    given = torch.cat((rows, rows + shape[0]), dim=1)
    try:
        undone = conversion.undo(name, given, config)
    except (RuntimeError, IndexError, ZeroDivisionError):
        return None
    if undone is given:
        return np.empty(0, np.int64)
    if undone.shape != given.shape or undone.dtype != given.dtype:
        return None
    found = undone[:, 0]
    if not torch.equal(undone[:, 1], found + shape[0]) or not torch.equal(found.sort().values, rows[:, 0]):
        return None
    return (found if not torch.equal(found, rows[:, 0]) else found[:0]).numpy()


def code_linears(model: nn.Module) -> None:
    """Code the weights of the model's linear layers as int8, and those of embeddings that are the same parameters.

    Each plain weight is let go of before the next is coded, and what lies in a file row by row.
    """
    mapped = MappedFiles()
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((module, name))
    for linear in [module for module in model.modules() if type(module) is nn.Linear]:
        if isinstance(linear.weight, CodedTensor):
            continue
        owners, plain = places[id(linear.weight)], linear.weight.detach()
        coded = code_parameter(_int8(plain, mapped), plain.dtype)
        for owner, name in owners:
            owner.register_parameter(name, coded)
        del plain
        give_back_freed()


def _int8(weight: torch.Tensor, mapped: MappedFiles) -> Panels:
    num_outputs, num_inputs = weight.shape
    panels = Panels(num_outputs, num_inputs, INT8, "int8")
    filled = -num_inputs % INT8.group

    def read(first: int, last: int) -> GroupCodes:
        rows = weight[first:last]
        codes = make_codes(nn.functional.pad(rows.float(), (0, filled)).numpy())
        mapped.let_go(rows)
        return codes

    fill_panels(panels, read, num_threads=torch.get_num_threads())
    return panels
