"""The ranks as actors of a Ray cluster, on as many machines as that has."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from octavo.config import EngineConfig, rank_environment, read_environment
from octavo.errors import ConfigError, ExecutorError
from octavo.executor.deadline import Deadline, RankFailed
from octavo.executor.rank_calls import RankStart, decode_answers, encode_call, encode_start, is_error
from octavo.executor.ray_rank import PULSE_GROUP, ActorPlace, RayRank
from octavo.executor.remote import GRACE_S, PULSE_EVERY_S, RemoteExecutor
from octavo.messages import Rendezvous

_PLACE_S = 60.0
"""How long a cluster may take to find room for the ranks."""
_START_S = 300.0
"""How long it may take to start their processes: a busy machine has others to serve."""
_STORE_BYTES = 80 * 2**20
"""Shared memory of a local cluster. Nothing of ours lies there; Ray wants some."""
_CPUS_OF_A_RANK = 1


class RayExecutor(RemoteExecutor):
    """An actor per rank, placed as near to each other as the cluster has room; ranks of one machine are neighbours.

    The cluster is the one that `RAY_ADDRESS` names, or the one of this machine (`ray start`), or a local one that is
    started for the purpose. A machine that is lost is a rank that dies. `start` raises `ConfigError`, too, when the
    cluster cannot be reached, or has not the CPUs or GPUs for so many ranks.

    Owns: the actors, their places in the cluster, the connection to it unless there was one.
    """

    def __init__(self, config: EngineConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self._ranks: list[_RankActor] = []

    @property
    def num_ranks(self) -> int:
        return len(self._ranks)

    @contextlib.contextmanager
    def _meeting(self) -> Iterator[None]:
        held = contextlib.ExitStack()
        self._end = weakref.finalize(self, held.close)
        held.enter_context(_connected(self._config.parallel.world_size))
        self._ranks = _place_ranks(self._config, held)
        num_local = Counter(rank.place.node for rank in self._ranks)
        first = self._ranks[0].place
        self._tell_who_they_are()
        meetings = (
            Rendezvous(host=first.host, port=first.port, num_local_ranks=num_local[rank.place.node])
            for rank in self._ranks
        )
        calls = [encode_call("init_worker", (each,)) for each in meetings]
        decode_answers("init_worker", self._ask_each(calls, None))
        yield

    def _ask(self, call: bytes, timeout_s: float | None) -> list[bytes]:
        return self._ask_each([call] * len(self._ranks), timeout_s)

    def _check_ranks(self) -> None:
        for number in range(len(self._ranks)):
            self._check_silent(number)

    def shutdown(self) -> None:
        """As in the contract: ranks that answer end by themselves, the others are killed after a few seconds."""
        if self._ranks:
            calls = [rank.actor.call.remote(encode_call("shutdown", ())) for rank in self._ranks]
            with contextlib.suppress(RayError):
                ray.wait(calls, num_returns=len(calls), timeout=GRACE_S)
        self._stop()

    def _tell_who_they_are(self) -> None:
        """Give each actor its rank: global by place in the list, local by place on its machine.

        Ray lets an actor see its own GPUs alone, so there the first one is its own, and no other replica's.
        """
        parallel = msgspec.structs.replace(self._config.parallel, data_parallel_rank=0)
        config = msgspec.structs.replace(self._config, parallel=parallel)
        local: Counter[str] = Counter()
        begun = []
        for number, rank in enumerate(self._ranks):
            node = rank.place.node
            start = RankStart(
                config=config, global_rank=number, local_rank=0 if _wants_gpus(self._config) else local[node]
            )
            local[node] += 1
            begun.append(rank.actor.begin.remote(encode_start(start), self._rank_class))
        _await_start(begun)

    def _ask_each(self, calls: Sequence[bytes], timeout_s: float | None) -> list[bytes]:
        """Send each rank its call; their answers, in the order of ranks."""
        try:
            answers = [rank.actor.call.remote(call) for rank, call in zip(self._ranks, calls, strict=True)]
            try:
                first_look = PULSE_EVERY_S if timeout_s is None else min(timeout_s, PULSE_EVERY_S)
                frames: list[bytes] = ray.get(answers, timeout=first_look)
                return frames
            except (GetTimeoutError, RayActorError):
                return self._collect(answers, timeout_s)
        except RankFailed as failed:
            self._stop()
            return [failed.frame]
        except RayError as error:
            self._stop()
            raise ExecutorError(
                f"Ray did not bring the answers of the ranks: {_last_line(error)}; all ranks were stopped.",
                remedy="See Ray's logs; start the engine again.",
            ) from error
        except BaseException:
            self._stop()
            raise

    def _collect(self, answers: Sequence[Any], timeout_s: float | None) -> list[bytes]:
        """The answers; raises when a rank is gone or silent, when time is over, and when a rank failed for which the
        others wait."""
        frames = [b""] * len(answers)
        waiting = dict(zip(answers, range(len(answers)), strict=True))
        deadline = Deadline(timeout_s)
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=min(PULSE_EVERY_S, deadline.seconds_left()))
            for answer in ready:
                number = waiting.pop(answer)
                try:
                    frames[number] = frame = ray.get(answer)
                except RayActorError as error:
                    raise self._ranks[number].death(number, error) from None
                if is_error(frame):
                    deadline.shorten(frame, GRACE_S)
            if waiting and not ready:
                for number in waiting.values():
                    self._check_silent(number)
                deadline.check(min(waiting.values()))
        return frames

    def _check_silent(self, number: int) -> None:
        """Raise, and end all, when the rank is gone or has been silent for too long."""
        rank = self._ranks[number]
        try:
            silent_s = rank.seconds_without_pulse()
        except RayActorError as error:
            self._stop()
            raise rank.death(number, error) from None
        if silent_s > self._silence_s:
            self._stop()
            raise ExecutorError(
                f"Rank {number} (process {rank.place.pid} on {rank.place.host}) has given no sign of life for "
                f"{silent_s:.0f} s; all ranks were stopped.",
                remedy="See whether its machine is up and can be reached; start the engine again.",
                rank=number,
                pid=rank.place.pid,
            )

    def _stop(self) -> None:
        self._ranks = []
        if self._end is not None:
            self._end()  # once; then it does nothing


class _RankActor:
    """A started actor. Owns: the pulse that it was asked for."""

    def __init__(self, actor: Any, place: ActorPlace) -> None:
        self.actor = actor
        self.place = place
        self._pulse: Any = None
        self._asked_at = 0.0

    def seconds_without_pulse(self) -> float:
        """How long it has not answered; asks it again. Raises `RayActorError` when Ray knows that it is gone."""
        if self._pulse is not None and ray.wait([self._pulse], timeout=0)[0]:
            ray.get(self._pulse)
            self._pulse = None
        if self._pulse is None:
            self._pulse = self.actor.beat.options(concurrency_group=PULSE_GROUP).remote()
            self._asked_at = time.monotonic()
        return time.monotonic() - self._asked_at

    def death(self, number: int, error: RayActorError) -> ExecutorError:
        """What to say of rank `number`, which is gone."""
        lost_machine = "node" in str(error).partition("The actor is dead because")[2].partition(".")[0]
        what = "was lost with its machine" if lost_machine else "has ended"
        return ExecutorError(
            f"Rank {number} (process {self.place.pid} on {self.place.host}) {what}; all ranks were stopped.",
            remedy="Look at that machine and at Ray's logs there; start the engine again.",
            rank=number,
            pid=self.place.pid,
        )


@contextlib.contextmanager
def _connected(world_size: int) -> Any:
    """A connection to a cluster, closed at the end unless there was one before."""
    if ray.is_initialized():
        yield
        return
    address = read_environment().ray_address
    options: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": logging.WARNING}
    try:
        if address != "local":
            _connect_to(address, options)
        if not ray.is_initialized():
            # Its CPUs are a count and no more: ranks share those that there are, as processes would.
            ray.init(
                address="local", num_cpus=_CPUS_OF_A_RANK * world_size, object_store_memory=_STORE_BYTES, **options
            )
    except (RayError, OSError, RuntimeError, ValueError) as error:
        where = f"at {address}" if address not in ("", "local") else "on this machine"
        raise ConfigError(
            f"There is no Ray cluster {where}: {_last_line(error)}.",
            remedy="Start one with ray start --head, and name its host:port in RAY_ADDRESS.",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _connect_to(address: str, options: dict[str, Any]) -> None:
    """Connect to the cluster at `address`; where that is empty, to the one of this machine, if there is one."""
    try:
        ray.init(address=address or "auto", **{**options, "include_dashboard": None})
    except ConnectionError:
        if address:
            raise


def _wants_gpus(config: EngineConfig) -> bool:
    device = config.parallel.device
    return device == "cuda" or (device == "auto" and ray.cluster_resources().get("GPU", 0) > 0)


def _place_ranks(config: EngineConfig, held: contextlib.ExitStack) -> list[_RankActor]:
    """The actors in the order of their ranks: machine by machine, the one with most of them first. `held` ends them."""
    world_size = config.parallel.world_size
    bundle = {"CPU": float(_CPUS_OF_A_RANK)} | ({"GPU": 1.0} if _wants_gpus(config) else {})
    _check_room(bundle, world_size)
    group = placement_group([bundle] * world_size, strategy="PACK")
    held.callback(_quietly, remove_placement_group, group)
    if not group.wait(timeout_seconds=_PLACE_S):
        raise ConfigError(
            f"The Ray cluster has found no room for {_ranks_text(world_size, bundle)} within {_PLACE_S:g} s.",
            remedy="Wait until others have ended, or add machines.",
        )
    environment = rank_environment()
    make = ray.remote(concurrency_groups={PULSE_GROUP: 1})(RayRank)
    actors = []
    for index in range(world_size):
        actor = make.options(
            num_cpus=_CPUS_OF_A_RANK,
            num_gpus=bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            runtime_env={"env_vars": environment},
        ).remote("" if "OMP_NUM_THREADS" in environment else str(_CPUS_OF_A_RANK))
        held.callback(_quietly, ray.kill, actor)
        actors.append(actor)
    places: list[ActorPlace] = _await_start([actor.where.remote() for actor in actors])
    size = Counter(place.node for place in places)
    ranks = [_RankActor(actor, place) for actor, place in zip(actors, places, strict=True)]
    return sorted(ranks, key=lambda rank: (-size[rank.place.node], rank.place.node))


def _await_start(answers: Sequence[Any]) -> Any:
    """What actors answer that have just been made. Raises `ExecutorError` where one did not start."""
    try:
        return ray.get(answers, timeout=_START_S)
    except RayError as error:
        raise ExecutorError(
            f"The actors of {len(answers)} ranks did not start: {_last_line(error)}.",
            remedy="Install the same Octavo and the same Ray on every machine of the cluster; see Ray's logs.",
        ) from error


def _check_room(bundle: dict[str, float], world_size: int) -> None:
    """Raises `ConfigError` when the whole cluster, were it empty, had not room for the ranks."""
    there = ray.cluster_resources()
    if all(there.get(kind, 0) >= count * world_size for kind, count in bundle.items()):
        return
    has = ", ".join(f"{there.get(kind, 0):g} {kind}s" for kind in bundle)
    raise ConfigError(
        f"{_ranks_text(world_size, bundle)} do not fit the Ray cluster, which has {has} on {len(ray.nodes())} "
        f"machine(s).",
        remedy="Add machines, or use fewer ranks.",
        world_size=world_size,
    )


def _ranks_text(world_size: int, bundle: dict[str, float]) -> str:
    each = " and ".join(f"{count:g} {kind}" for kind, count in bundle.items())
    return f"{world_size} rank{'s' if world_size > 1 else ''} of {each}"


def _quietly(end: Any, what: Any) -> None:
    """End something of the cluster, which may be gone."""
    with contextlib.suppress(RayError, RuntimeError, ValueError):
        end(what)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")
