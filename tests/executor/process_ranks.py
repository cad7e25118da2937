"""Ranks without a model for executors that make them in another process, by name; some of them misbehave."""

from __future__ import annotations

import os
import signal
import time

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.kv.specs import FullAttentionSpec, LayerSpec, SlidingWindowSpec
from octavo.messages import ModelRunnerOutput, Rendezvous, SchedulerOutput, StageReport
from tests.null_executor import NullRank

SPECS: dict[str, LayerSpec] = {
    "layers.0": FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=2, dtype="float32"),
    "layers.1": SlidingWindowSpec(block_size=4, num_kv_heads=1, head_size=2, dtype="float32", window=6),
}

CULPRIT = 1
"""The rank that misbehaves."""


class Null(NullRank):
    """Does what is asked of it."""

    def __init__(self, config: EngineConfig, *, global_rank: int, local_rank: int) -> None:
        super().__init__(SPECS, global_rank=global_rank, vocab_size=64, available_bytes=1 << 20)

    def misbehave(self) -> None:
        """What the culprit does instead of a step."""

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        if self.global_rank == CULPRIT:
            self.misbehave()
        return super().execute_model(step) if step.num_scheduled_tokens else ModelRunnerOutput(sampled={})


class Dying(Null):
    def misbehave(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Leaving(Null):
    def misbehave(self) -> None:
        os._exit(7)


class Stopped(Null):
    def misbehave(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class Busy(Null):
    """Takes long, and lives."""

    def misbehave(self) -> None:
        time.sleep(3)


class Failing(Null):
    def misbehave(self) -> None:
        raise OSError(5, "bad")


class FailingAlone(Null):
    """Fails where the others wait for it."""

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        if self.global_rank != CULPRIT:
            time.sleep(3600)
        raise ConfigError("A mistake of the user.", remedy="Mend it.", number=3)


class Refusing(Null):
    def load_model(self) -> None:
        if self.global_rank == CULPRIT:
            raise ConfigError("This rank cannot load.", remedy="Give it more memory.", rank=self.global_rank)


class Unmakeable(Null):
    def __init__(self, config: EngineConfig, *, global_rank: int, local_rank: int) -> None:
        raise RuntimeError("no rank today")


class Telling(Null):
    """Tells what it was told."""

    def __init__(self, config: EngineConfig, *, global_rank: int, local_rank: int) -> None:
        super().__init__(config, global_rank=global_rank, local_rank=local_rank)
        self.facts: dict[str, str | int] = {
            "local_rank": local_rank,
            "backend": os.environ.get("OCTAVO_ATTENTION_BACKEND", ""),
            "threads": os.environ.get("OMP_NUM_THREADS", ""),
        }

    def init_worker(self, rendezvous: Rendezvous) -> None:
        super().init_worker(rendezvous)
        self.facts["num_local_ranks"] = rendezvous.num_local_ranks
        self.facts["meeting"] = f"{rendezvous.host}:{rendezvous.port}"

    def stage_reports(self) -> list[StageReport]:
        return [StageReport(name="told", seconds=0.0, result="", rank=self.global_rank, facts=self.facts)]
