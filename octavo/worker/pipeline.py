"""Hidden states on their way from one pipeline stage to the next."""

from __future__ import annotations

from typing import Protocol

import torch


class Line(Protocol):
    """What a rank and those at its place in the other stages say to each other; see `octavo.models.peers.Peers`."""

    @property
    def index(self) -> int: ...

    @property
    def size(self) -> int: ...

    def send(self, tensor: torch.Tensor, target: int) -> None: ...

    def receive(self, tensor: torch.Tensor, source: int) -> torch.Tensor: ...


class Pipeline:
    """The stages before and behind a rank. Owns: nothing. Never: computes.

    Parameters:
        line: the ranks of all stages, in order; this rank's `index` in it is its stage.
    """

    def __init__(self, line: Line, *, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._line = line
        self._hidden_size, self._dtype, self._device = hidden_size, dtype, device
        self.is_first = line.index == 0
        self.is_last = line.index == line.size - 1

    def receive(self, num_tokens: int) -> torch.Tensor:
        """[num_tokens, hidden size] from the stage before, which must send as many."""
        hidden = torch.empty(num_tokens, self._hidden_size, dtype=self._dtype, device=self._device)
        return self._line.receive(hidden, self._line.index - 1)

    def send(self, hidden: torch.Tensor) -> None:
        """Let the stage behind `receive` these."""
        self._line.send(hidden.contiguous(), self._line.index + 1)
