"""A rank among the others: where it stands, and its connections to those that it computes with.

    global rank = stage * tensor_parallel_size + place in the stage

Ranks of one stage divide each layer (tensor parallel); ranks of one place in their stages divide the layers (pipeline
parallel). They find each other through a `torch.distributed` store: a file where all are on one machine, which may go
once they have met, else a server of global rank 0. What they say afterwards goes by gloo on CPUs and nccl on GPUs.
Nobody is authenticated: on one machine everything stays on its loopback interface and begins in a folder that only this
user can enter; a network of several machines must be one that can be trusted.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed

from octavo.config import ParallelConfig
from octavo.errors import ConfigError, ExecutorError
from octavo.messages import Rendezvous
from octavo.models.peers import Peers

c10d: Any = torch.distributed  # whose names of classes in C++ its annotations leave out

_LOOPBACK = "127.0.0.1"

_MOST_SILENT = timedelta(minutes=30)
"""A peer may take so long for its part of a step, or to compile its kernels; one that died is noticed at once."""

_LOOK_EVERY_S = 0.02


class Place(NamedTuple):
    """Where a rank stands."""

    stage: int
    """Pipeline stage, from 0."""
    tensor_rank: int
    """Place among the ranks of its stage, from 0."""

    @classmethod
    def of(cls, global_rank: int, parallel: ParallelConfig) -> Place:
        return cls(*divmod(global_rank, parallel.tensor_parallel_size))


class RankGroup:
    """This rank's place and its peers.

    Owns: the connections, and on rank 0 of several machines the server at which all met.
    """

    def __init__(self, place: Place, tensor: Peers | None, pipeline: Peers | None, store: Any = None) -> None:
        self.place = place
        self.tensor = tensor
        """The ranks of this stage; None when it is one. This rank's `index` in it is `place.tensor_rank`."""
        self.pipeline = pipeline
        """The ranks at this place of all stages, in their order; None when there is one stage. `index` is the stage."""
        self._store = store

    def close(self) -> None:
        """Close all connections. May be called twice."""
        for peers in (self.tensor, self.pipeline):
            if peers is not None:
                peers.close()
        self.tensor = self.pipeline = self._store = None


def join_ranks(
    parallel: ParallelConfig, rendezvous: Rendezvous, *, global_rank: int, device: torch.device
) -> RankGroup:
    """Meet the other ranks; returns when all have come, and at once where there is one.

    Raises `ExecutorError` when some have not come after `rendezvous.timeout_s`, naming them, or cannot be reached;
    `ConfigError` when nobody said where to meet.
    """
    place, world_size = Place.of(global_rank, parallel), parallel.world_size
    if world_size == 1:
        return RankGroup(place, None, None)
    store = _open_store(rendezvous, global_rank, world_size)
    _await_all(store, global_rank, world_size, rendezvous.timeout_s)
    address = _own_address(rendezvous)
    size = parallel.tensor_parallel_size
    stage = range(place.stage * size, (place.stage + 1) * size)
    line = range(place.tensor_rank, world_size, size)
    try:
        tensor = _connect(store, f"stage {place.stage}", stage, global_rank, address, device)
        pipeline = _connect(store, f"line {place.tensor_rank}", line, global_rank, address, device)
    except RuntimeError as error:
        raise ExecutorError(
            f"Rank {global_rank} cannot connect to the other {world_size - 1} ranks from {address}: "
            f"{str(error).splitlines()[0]}.",
            remedy="Let the ranks' machines reach each other on any port.",
            rank=global_rank,
        ) from error
    return RankGroup(place, tensor, pipeline, store)


def _open_store(rendezvous: Rendezvous, global_rank: int, world_size: int) -> Any:
    """The store where ranks meet."""
    if rendezvous.path:
        return c10d.FileStore(rendezvous.path, world_size)
    if not rendezvous.host:
        raise ConfigError(
            f"There are {world_size} ranks, and rank {global_rank} was not told where to meet the others.",
            remedy="Use an executor for several ranks: --distributed-executor-backend mp.",
            world_size=world_size,
        )
    where = f"{rendezvous.host}:{rendezvous.port}"
    listener = None
    try:
        if global_rank == 0:
            family = socket.AF_INET6 if ":" in rendezvous.host else socket.AF_INET
            listener = socket.create_server((rendezvous.host, rendezvous.port), family=family)
        return c10d.TCPStore(
            rendezvous.host,
            rendezvous.port,
            world_size,
            is_master=listener is not None,
            timeout=timedelta(seconds=rendezvous.timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach() if listener is not None else None,
        )
    except (RuntimeError, OSError) as error:
        does = "listen at" if global_rank == 0 else "reach rank 0 at"
        raise ExecutorError(
            f"Rank {global_rank} cannot {does} {where}: {str(error).splitlines()[0]}.",
            remedy="Let the ranks' machines reach each other, or name another address or port.",
            rank=global_rank,
        ) from error


def _await_all(store: Any, global_rank: int, world_size: int, timeout_s: float) -> None:
    """Say that this rank is here, and wait until all have said so."""
    store.set(_here(global_rank), b"")
    missing = [rank for rank in range(world_size) if rank != global_rank]
    deadline = time.monotonic() + timeout_s
    while missing:
        missing = [rank for rank in missing if not store.check([_here(rank)])]
        if missing and time.monotonic() > deadline:
            raise ExecutorError(
                f"Rank {global_rank} waited {timeout_s:g} s for the other {world_size - 1} ranks, and "
                f"{_listed(missing)} did not come.",
                remedy="See on stderr whether they failed; a loaded machine may need more time to start so many.",
                rank=global_rank,
                missing=missing,
            )
        if missing:
            time.sleep(_LOOK_EVERY_S)


def _here(rank: int) -> str:
    return f"rank {rank} is here"


def _listed(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def _own_address(rendezvous: Rendezvous) -> str:
    """The address of this machine at which the other ranks can reach it."""
    if rendezvous.path:
        return _LOOPBACK
    family = socket.AF_INET6 if ":" in rendezvous.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Nothing is sent: the system only chooses the interface that leads there.
        probe.connect((rendezvous.host, rendezvous.port))
        address: str = probe.getsockname()[0]
        return address


def _connect(
    store: Any, name: str, members: Sequence[int], global_rank: int, address: str, device: torch.device
) -> Peers | None:
    """Connections to the other members; None where there is no other. Raises `RuntimeError`."""
    if len(members) == 1:
        return None
    index = members.index(global_rank)
    part = c10d.PrefixStore(name, store)
    if device.type == "cuda":
        options: Any = c10d.ProcessGroupNCCL.Options()
        options._timeout = _MOST_SILENT
        backend: Any = c10d.ProcessGroupNCCL(part, index, len(members), options)
    else:
        options = c10d.ProcessGroupGloo._Options()
        options._devices = [c10d.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = _MOST_SILENT
        options._threads = 1
        backend = c10d.ProcessGroupGloo(part, index, len(members), options)
    return Peers(backend, members, index)
