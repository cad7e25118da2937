from __future__ import annotations

import numpy as np
import torch

from octavo.attention.backend import AttentionGroup
from octavo.attention.state import StateGroup
from octavo.worker.block_table import BlockTable
from octavo.worker.group_steps import DeviceStep, StateGroupStep, TokenGroupStep, make_group_step
from octavo.worker.input_batch import StepInput

INPUTS = StepInput(
    rows=np.array([0, 1]),
    query_start=np.array([0, 3, 4], dtype=np.int32),
    seq_lens=np.array([3, 9], dtype=np.int32),
    token_rows=np.array([0, 0, 0, 1]),
    positions=np.array([0, 1, 2, 8]),
    token_ids=np.array([5, 6, 7, 8]),
    samplers=np.array([0, 1]),
)


def table() -> BlockTable:
    blocks = BlockTable(num_rows=2, block_size=4, max_blocks=4)
    blocks.set_row(0, [2])
    blocks.set_row(1, [0, 5, 6])
    return blocks


def test_layers_that_keep_tokens_are_told_slots_and_tables() -> None:
    group = AttentionGroup(0, 4)
    step = make_group_step(group, table(), torch.from_numpy)
    assert isinstance(step, TokenGroupStep)
    step.begin(DeviceStep.of(INPUTS, torch.from_numpy))
    metadata = group.metadata
    assert metadata is not None
    assert metadata.slot_mapping.tolist() == [8, 9, 10, 24]
    assert metadata.block_table.shape == (2, 3)
    assert (metadata.num_requests, metadata.num_tokens, metadata.max_query_len, metadata.max_seq_len) == (2, 4, 3, 9)


def test_layers_that_keep_states_are_told_runs() -> None:
    group = StateGroup(0, 4)
    step = make_group_step(group, table(), torch.from_numpy)
    assert isinstance(step, StateGroupStep)
    step.begin(DeviceStep.of(INPUTS, torch.from_numpy))
    metadata = group.metadata
    assert metadata is not None
    going_on, beginning = metadata.batches
    assert going_on.reads is not None
    assert (going_on.tokens.tolist(), going_on.reads.tolist(), going_on.writes.tolist()) == ([[3]], [5], [6])
    assert (beginning.tokens.tolist(), beginning.reads, beginning.writes.tolist()) == ([[0, 1, 2]], None, [2])
