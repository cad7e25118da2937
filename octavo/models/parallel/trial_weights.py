"""Weights for a trial: numbers that take the memory of one matrix, whatever the size of the model.

Which order things have in a weight follows from a class and its config, not from the numbers in it. So a model is tried
on numbers that are made up: every matrix is a piece of one line of random numbers, and begins at a place of its own.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import nn

_NUM_PLACES = 1 << 12
"""Places at which a matrix may begin, as far apart as kernels want them."""

_APART = 16

_STACK_STRIDE = 960
"""Numbers from a matrix to the next of its stack; kernels for stacks want some power of two in it."""

NUM_TOKENS = 96
"""Words of a model while it is tried."""


class TrialWeights:
    """Owns: lines of random numbers, one for each size that they are to have."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lines: dict[int, torch.Tensor] = {}

    def fill(self, model: Any) -> None:
        """Give every parameter of `model`, and every buffer that has no values, numbers that follow from its name, and
        move other buffers to the device. What is one tensor stays one."""
        made: dict[int, torch.Tensor] = {}
        for path, module in model.named_modules():
            for kept in (module._parameters, module._buffers):
                for name, tensor in kept.items():
                    if tensor is None:
                        continue
                    if id(tensor) not in made:
                        is_parameter = isinstance(tensor, nn.Parameter)
                        is_made = is_parameter or tensor.is_meta
                        values = self._values(f"{path}.{name}", tensor) if is_made else tensor.to(self._device)
                        made[id(tensor)] = nn.Parameter(values, requires_grad=False) if is_parameter else values
                    kept[name] = made[id(tensor)]

    def _values(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        shape = tensor.shape
        if not tensor.is_floating_point():
            return torch.zeros(shape, dtype=tensor.dtype, device=self._device)
        seed = zlib.crc32(name.encode())
        if len(shape) < 2:
            generator = torch.Generator().manual_seed(seed)
            return (0.75 + 0.25 * torch.randn(shape, generator=generator)).to(self._device)
        strides = (*(_STACK_STRIDE * (index + 1) for index in range(len(shape) - 2)), shape[-1], 1)
        length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        line = self._line(round(math.log2(max(shape[-1], 1)) / 2), _NUM_PLACES * _APART + length)
        return line.as_strided(shape, strides, seed % _NUM_PLACES * _APART)

    def _line(self, halvings: int, length: int) -> torch.Tensor:
        """At least `length` numbers of the size 2 ** -halvings."""
        line = self._lines.get(halvings)
        if line is None or len(line) < length:
            generator = torch.Generator().manual_seed(halvings)
            line = (torch.randn(length, generator=generator) * 2.0**-halvings).to(self._device)
            self._lines[halvings] = line
        return line


def with_few_tokens(model: Any) -> Any:
    """`model` without values, of whose vocabulary `NUM_TOKENS` words are left where it is as usual."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if isinstance(embedding, nn.Embedding) and isinstance(head, nn.Linear):
        for module, names in ((embedding, ("weight",)), (head, ("weight", "bias"))):
            for name in names:
                tensor = getattr(module, name)
                if tensor is not None and len(tensor) > NUM_TOKENS:
                    setattr(module, name, nn.Parameter(tensor.data[:NUM_TOKENS], requires_grad=False))
    return model
