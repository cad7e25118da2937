"""What each group is told of a step before the model runs: where its layers write, and where they read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from octavo.attention.backend import AttentionGroup, AttentionMetadata
from octavo.attention.state import StateBatch, StateGroup, StateMetadata
from octavo.worker.block_table import BlockTable
from octavo.worker.input_batch import StepInput
from octavo.worker.state_steps import batches_of_runs, runs_of_step

ToDevice = Callable[[npt.NDArray[Any]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """One step with what all groups need of it on the device."""

    inputs: StepInput
    query_start: torch.Tensor
    """int32 [R + 1]"""
    seq_lens: torch.Tensor
    """int32 [R]"""
    max_query_len: int
    max_seq_len: int

    @staticmethod
    def of(inputs: StepInput, to_device: ToDevice) -> DeviceStep:
        return DeviceStep(
            inputs=inputs,
            query_start=to_device(inputs.query_start),
            seq_lens=to_device(inputs.seq_lens),
            max_query_len=int((inputs.query_start[1:] - inputs.query_start[:-1]).max()),
            max_seq_len=int(inputs.seq_lens.max()),
        )


class GroupStep(ABC):
    """One group's part of every step. Owns: nothing; it fills its group's metadata. Never: runs the model."""

    def __init__(self, table: BlockTable, to_device: ToDevice) -> None:
        self._table = table
        self._to_device = to_device

    @abstractmethod
    def begin(self, step: DeviceStep) -> None:
        """Let the group's layers know `step`."""


class TokenGroupStep(GroupStep):
    """For layers that keep tokens: slots to write, tables to read."""

    def __init__(self, group: AttentionGroup, table: BlockTable, to_device: ToDevice) -> None:
        super().__init__(table, to_device)
        self._group = group

    def begin(self, step: DeviceStep) -> None:
        inputs, table = step.inputs, self._table
        width = -(-step.max_seq_len // table.block_size)
        self._group.metadata = AttentionMetadata(
            query_start=step.query_start,
            seq_lens=step.seq_lens,
            block_table=self._to_device(table.take(inputs.rows, width)),
            slot_mapping=self._to_device(table.slots(inputs.token_rows, inputs.positions)),
            num_requests=len(inputs.rows),
            num_tokens=len(inputs.positions),
            max_query_len=step.max_query_len,
            max_seq_len=step.max_seq_len,
        )


class StateGroupStep(GroupStep):
    """For layers that keep states: which tokens go from which state to which."""

    def __init__(self, group: StateGroup, table: BlockTable, to_device: ToDevice) -> None:
        super().__init__(table, to_device)
        self._group = group

    def begin(self, step: DeviceStep) -> None:
        inputs, table = step.inputs, self._table
        blocks = table.take(inputs.rows, -(-step.max_seq_len // table.block_size))
        runs = runs_of_step(blocks, table.block_size, inputs.query_start, inputs.seq_lens)
        self._group.metadata = StateMetadata(
            num_tokens=len(inputs.positions),
            batches=tuple(
                StateBatch(
                    tokens=self._to_device(batch.tokens),
                    reads=None if batch.reads is None else self._to_device(batch.reads),
                    writes=self._to_device(batch.writes),
                )
                for batch in batches_of_runs(runs)
            ),
        )


def make_group_step(group: AttentionGroup | StateGroup, table: BlockTable, to_device: ToDevice) -> GroupStep:
    """The part of `group` in every step: the only place in a step that tells kinds of groups apart."""
    if isinstance(group, StateGroup):
        return StateGroupStep(group, table, to_device)
    return TokenGroupStep(group, table, to_device)
