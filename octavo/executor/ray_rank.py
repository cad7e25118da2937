"""The rank's side of an actor of Ray: a rank that answers the same frames as one in a process of its own."""

from __future__ import annotations

import os
import socket
from typing import Any

import msgspec
import ray

from octavo.config import EngineConfig, drop_thread_limit
from octavo.executor.rank_calls import decode_start
from octavo.executor.rank_host import RankHost, find_rank_class

PULSE_GROUP = "pulse"
"""Ray's name for the thread that answers `beat` while a call is under way."""


class ActorPlace(msgspec.Struct, frozen=True):
    """Where an actor is."""

    node: str
    """Ray's id of its machine."""
    host: str
    """The machine's address."""
    port: int
    """One that was free there."""
    pid: int


class RayRank:
    """One rank as an actor. Calls come one at a time.

    Owns: the rank, once it was told who it is.

    Parameters:
        thread_limit: what Ray puts into `OMP_NUM_THREADS` on its own account, to be forgotten; empty for nothing.
    """

    def __init__(self, thread_limit: str) -> None:
        drop_thread_limit(thread_limit)
        self._host: RankHost

    def where(self) -> ActorPlace:
        """Where this actor is."""
        host = ray.util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
            port = probe.getsockname()[1]
        return ActorPlace(node=ray.get_runtime_context().get_node_id(), host=host, port=port, pid=os.getpid())

    def begin(self, start: bytes, rank_class: str) -> None:
        """Who this rank is: what `encode_start` made, and the `module:Class` that answers."""

        def make(config: EngineConfig, *, global_rank: int, local_rank: int) -> Any:
            # At the first call: to import what ranks compute with takes long, and pulses are answered meanwhile.
            return find_rank_class(rank_class)(config, global_rank=global_rank, local_rank=local_rank)

        self._host = RankHost(decode_start(start), make)

    def call(self, frame: bytes) -> bytes:
        """Answer a frame of `encode_call`."""
        return self._host.answer(frame)[1]

    def beat(self) -> None:
        """Alive."""
