"""Hidden states between stages."""

from __future__ import annotations

from collections import deque

import torch

from octavo.worker.pipeline import Pipeline
from tests.parity.staged import QueuedLine


def pipelines(num_stages: int) -> list[Pipeline]:
    queues: list[deque[torch.Tensor]] = [deque() for _ in range(num_stages)]
    return [
        Pipeline(QueuedLine(queues, index), hidden_size=3, dtype=torch.float16, device=torch.device("cpu"))
        for index in range(num_stages)
    ]


def test_hidden_states_go_from_stage_to_stage() -> None:
    first, middle, last = pipelines(3)
    ends = [(stage.is_first, stage.is_last) for stage in (first, middle, last)]
    assert ends == [(True, False), (False, False), (False, True)]
    hidden = torch.arange(12, dtype=torch.float16).view(4, 3).t().contiguous().t()
    first.send(hidden)
    received = middle.receive(4)
    assert torch.equal(received, hidden)
    middle.send(received + 1)
    assert torch.equal(last.receive(4), hidden + 1)
