"""Ranks that compute one thing together, as one of them sees them.

What they send each other is all here, and blocks until it is done. Nothing of `torch.distributed` is global: a rank may
be a member of several groups, and a process may hold several ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from octavo.errors import ExecutorError


class Peers:
    """A group of ranks. Owns: the connections to the others.

    Parameters:
        backend: a `torch.distributed` backend (gloo, nccl) of this group, and of nothing else.
        global_ranks: the members, in order.
        index: this rank's place among them.
    """

    def __init__(self, backend: Any, global_ranks: Sequence[int], index: int) -> None:
        self._backend = backend
        self.global_ranks = tuple(global_ranks)
        self.index = index

    @property
    def size(self) -> int:
        return len(self.global_ranks)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` (contiguous), which becomes the sum of all members' tensors, in place: the same bits on each.

        The order in which more than two are added depends on where in the tensor a number lies, so numbers of 16 bits
        are added in 32 and rounded once: a token's sum does not depend on its neighbours then.
        """
        is_wide = self.size > 2 and tensor.dtype in (torch.bfloat16, torch.float16)
        total = tensor.float() if is_wide else tensor
        with self._talking("add up"):
            self._backend.allreduce([total]).wait()
        return tensor.copy_(total) if is_wide else tensor

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """All members' tensors, in order; they have one shape and are contiguous."""
        gathered = [torch.empty_like(tensor) for _ in self.global_ranks]
        with self._talking("gather"):
            self._backend.allgather([gathered], [tensor]).wait()
        return gathered

    def broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """`tensor` (contiguous), which becomes that of the member at place `source`, in place."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        with self._talking("share"):
            self._backend.broadcast([tensor], options).wait()
        return tensor

    def send(self, tensor: torch.Tensor, target: int) -> None:
        """Send `tensor` (contiguous) to the member at place `target`, which must `receive` it."""
        with self._talking("send"):
            self._backend.send([tensor], target, 0).wait()

    def receive(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """`tensor` (contiguous), overwritten by what the member at place `source` sends."""
        with self._talking("receive"):
            self._backend.recv([tensor], source, 0).wait()
        return tensor

    def close(self) -> None:
        """Close the connections. Members that wait for this one fail."""
        self._backend.shutdown()

    @contextmanager
    def _talking(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            rank = self.global_ranks[self.index]
            raise ExecutorError(
                f"Rank {rank} could not {what} with ranks {', '.join(map(str, self.global_ranks))}: "
                f"{str(error).splitlines()[0]}.",
                remedy="One of them has ended or is stuck: look at its last lines on stderr; start the engine again.",
                rank=rank,
            ) from error
