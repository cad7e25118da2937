"""Ranks of machines that are not here: they report what a real rank of the model would, and allocate nothing.

A rank takes its layers and heads from config.json by its own place, and its budget from `budgets.json` beside that. In
a step it keeps tables of its own and checks every slot that would be written against the bytes of its plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.config import EngineConfig, layer_name, read_environment
from octavo.errors import ExecutorError
from octavo.executor.executor import Executor
from octavo.executor.rank_calls import RankStart, decode_answers, encode_call
from octavo.executor.rank_host import RankHost
from octavo.formats.kv_specs import kv_cache_specs
from octavo.formats.model_config import load_model_config
from octavo.formats.source import locate
from octavo.kv.layout import LayerPlacement, placements, slot_bytes, slot_of
from octavo.kv.specs import NULL_BLOCK, KVCacheConfig, LayerSpec
from octavo.messages import MemoryReport, ModelRunnerOutput, Rendezvous, SchedulerOutput, StageReport
from octavo.worker.rank import Rank

TOKEN = 7
"""What every request gets, again and again."""


def layers_of(global_rank: int, num_layers: int, tensor_size: int, num_stages: int) -> range:
    """The layers of a rank where stages are as equal as can be, the larger ones in front; said without the planner."""
    stage = global_rank // tensor_size
    least, more = divmod(num_layers, num_stages)
    start = stage * least + min(stage, more)
    return range(start, start + least + (stage < more))


class PlannedRank(Rank):
    """Owns: tables and numbers. Never: memory."""

    def __init__(self, config: EngineConfig, *, global_rank: int, local_rank: int) -> None:
        self._config = config
        self._number = global_rank
        self._known: dict[str, int] = {}
        self._computed: dict[str, int] = {}
        self._tables: dict[str, list[list[int]]] = {}

    def init_worker(self, rendezvous: Rendezvous) -> None:
        self._folder = Path(self._config.model.model)

    def init_device(self) -> None:
        budgets = msgspec.json.decode((self._folder / "budgets.json").read_bytes(), type=list[int])
        self._available = budgets[self._number]

    def load_model(self) -> None:
        parallel = self._config.parallel
        model = load_model_config(locate(self._config.model, read_environment()))
        specs, shared = kv_cache_specs(
            model,
            block_size=self._config.cache.block_size,
            dtype="bfloat16",
            tensor_parallel_size=parallel.tensor_parallel_size,
        )
        mine = layers_of(self._number, model.num_layers, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
        names = {layer_name(index) for index in mine}
        self._specs = {name: spec for name, spec in specs.items() if name in names}
        self._shared = {name: target for name, target in shared.items() if name in names}

    def get_kv_cache_specs(self) -> dict[str, LayerSpec]:
        return self._specs

    def get_shared_layers(self) -> dict[str, str]:
        return self._shared

    def determine_available_memory(self) -> int:
        return self._available

    def initialize_from_config(self, configs: list[KVCacheConfig]) -> None:
        self._cache = own = configs[self._number]
        self._places = placements(own)
        if self._places.keys() != self._specs.keys():
            raise ExecutorError(f"Rank {self._number} was sent layers that are not its own.")
        self._first_of_group: list[LayerPlacement] = [
            self._places[group.layer_names[0]] if group.layer_names else None for group in own.groups
        ]  # type: ignore[misc]

    def warm_up(self) -> None:
        """Nothing is compiled."""

    def write_cache(self) -> int:
        return 0

    def report_memory(self) -> MemoryReport:
        return MemoryReport(
            num_blocks=self._cache.num_blocks,
            num_views=len(self._places),
            num_storages=len(self._cache.tensors),
            storage_bytes=sum(tensor.size_bytes for tensor in self._cache.tensors),
            resident_bytes=0,
            rank=self._number,
        )

    def stage_reports(self) -> list[StageReport]:
        return [StageReport(name="load_model", seconds=0.0, result="no weights", rank=self._number)]

    def shutdown(self) -> None:
        self._tables.clear()

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        for request_id in step.finished_request_ids:
            for known in (self._known, self._computed, self._tables):
                known.pop(request_id, None)
        for new in step.new_requests:
            self._known[new.request_id] = len(new.token_ids)
            self._computed[new.request_id] = new.num_computed_tokens
            self._tables[new.request_id] = [list(table) for table in new.block_ids]
        for request_id, block_ids in step.cached_requests.new_block_ids.items():
            for table, more in zip(self._tables[request_id], block_ids, strict=True):
                table += more
        sampled, written = {}, set()
        for request_id, num_new in step.num_scheduled_tokens.items():
            self._computed[request_id] += num_new
            last = self._computed[request_id] - 1
            for group, table in enumerate(self._tables[request_id]):
                written.add(self._write(group, table, last))
            if self._computed[request_id] == self._known[request_id]:
                sampled[request_id] = TOKEN
                self._known[request_id] += 1
        if len(written) != len(step.num_scheduled_tokens) * len(self._cache.groups):
            raise ExecutorError(f"Step {step.step} writes one slot for two requests.")
        return ModelRunnerOutput(sampled=sampled)

    def _write(self, group: int, table: Sequence[int], position: int) -> int:
        """The slot of a token that this step computes; raises when it lies outside the rank's bytes."""
        slot = slot_of(table, position, self._config.cache.block_size)
        place = self._first_of_group[group]
        if slot // self._config.cache.block_size == NULL_BLOCK:
            raise ExecutorError(f"Rank {self._number} would write into the null block.")
        if place is not None and slot_bytes(place, slot)[1] > self._cache.tensors[place.tensor_index].size_bytes:
            raise ExecutorError(f"Rank {self._number} would write behind its tensor.")
        return slot


class RanksHere(Executor):
    """All ranks in this process, each behind the frames that a process would get."""

    def __init__(self, config: EngineConfig, rank_class: Any = PlannedRank) -> None:
        self._hosts = [
            RankHost(RankStart(config=config, global_rank=number, local_rank=number), rank_class)
            for number in range(config.parallel.world_size)
        ]

    def start(self) -> None:
        self.collective_rpc("init_worker", (Rendezvous(),))
        for method in ("init_device", "load_model"):
            self.collective_rpc(method)

    def collective_rpc(self, method: str, args: Sequence[Any] = (), *, timeout_s: float | None = None) -> list[Any]:
        call = encode_call(method, args)
        return decode_answers(method, [host.answer(call)[1] for host in self._hosts])

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        outputs: list[ModelRunnerOutput] = self.collective_rpc("execute_model", (step,))
        if any(output != outputs[0] for output in outputs):
            raise ExecutorError(f"The ranks disagree on step {step.step}.")
        return outputs[0]

    def check_health(self) -> None:
        """They cannot die alone."""

    def shutdown(self) -> None:
        self.collective_rpc("shutdown")
