"""Gated feed-forward layers, down(activation(gate(x)) * up(x)), with the product and the activation in one pass."""

from __future__ import annotations

import struct

import torch
from torch import nn

from octavo.attention.numba_cpu import element_of
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.numba_memory import Record
from octavo.models.modules.row_kernels import ACTIVATIONS, GATE_JOB, TEAM, gate_kernel, num_threads_for
from octavo.models.modules.trial import differs, trial_rows
from octavo.models.modules.weights import Weight

_UNIT_ROWS = 4
_STEP = struct.Struct("7q")


class GatedMLP(nn.Module):
    """In place of a gated feed-forward module. Owns: nothing but a job; shares the weights of what it replaces."""

    def __init__(self, inputs: Weight, output: nn.Module, *, size: int, activation: str, dtype: torch.dtype) -> None:
        """`inputs` makes [..., 2 * size] of the input: the gates, then what they gate."""
        super().__init__()
        self.inputs = inputs
        self.output = output
        self.size, self._dtype = size, dtype
        self.kernel = gate_kernel(vector_paths()[0], element_of(dtype))
        """Address of the kernel whose job is a `gating`."""
        self._activation = activation
        self._record = self.gating()

    def gating(self) -> Record:
        """A new job of `GATE_JOB` for rows of the joint product; where they and the results lie is left open."""
        code = ACTIVATIONS[self._activation]
        return Record(GATE_JOB, {"size": self.size, "unit_rows": _UNIT_ROWS, "activation": code})

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        joint = self.inputs.apply(rows)
        out = torch.empty((*rows.shape[:-1], self.size), dtype=self._dtype)
        start, width = joint.data_ptr(), joint.element_size()
        num_rows = out.numel() // self.size
        row_bytes = self.size * width
        _STEP.pack_into(
            self._record.bytes, 0, 0, start, start + row_bytes, 2 * row_bytes, out.data_ptr(), row_bytes, num_rows
        )
        TEAM.run(self.kernel, self._record.address, num_threads_for(num_rows, _UNIT_ROWS))
        result: torch.Tensor = self.output(out)
        return result


def faster_mlp(module: nn.Module, inputs: Weight, output: nn.Module, *, in_size: int, size: int) -> GatedMLP | None:
    """A `GatedMLP` that computes what `module` does, or None where no activation known here makes it the same.

    `module` computes with `inputs` ([2 * size, in_size]) and `output` already.
    """
    dtype = inputs.dtype
    rows = trial_rows(8, in_size, dtype, lambda rows: inputs.apply(rows)[..., :size])
    try:
        expected = module(rows)
    except Exception:  # it wants more than rows: not a module of this kind
        return None
    for activation in ACTIVATIONS:
        candidate = GatedMLP(inputs, output, size=size, activation=activation, dtype=dtype)
        if not differs(candidate(rows), expected):
            return candidate
    return None
