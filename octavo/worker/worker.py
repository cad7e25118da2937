"""One rank: its device, its part of the model, its share of the cache.

    init_device -> load_model -> determine_available_memory -> initialize_from_config -> warm_up -> execute_model ...

The worker arranges resources; what happens to memory is in `kv_memory`, what happens in a step in `model_runner`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

from octavo.attention.registry import get_backend
from octavo.config import EngineConfig, format_bytes, read_environment
from octavo.errors import InvariantError
from octavo.kv.specs import KVCacheConfig, LayerSpec
from octavo.messages import MemoryReport, ModelRunnerOutput, Rendezvous, SchedulerOutput, StageReport
from octavo.models.hf_adapter import LoadedModel
from octavo.models.load_clock import watch_parts
from octavo.models.opening import open_model
from octavo.models.stage import PipelinePlace
from octavo.worker import kv_memory
from octavo.worker.device import check_cache_dtype, choose_device, choose_dtype, choose_num_threads
from octavo.worker.memory_budget import cpu_budget, cuda_budget
from octavo.worker.memory_report import report_memory, resident_bytes
from octavo.worker.model_runner import ModelRunner
from octavo.worker.pipeline import Pipeline
from octavo.worker.rank_group import RankGroup, join_ranks
from octavo.worker.trial_steps import run_largest, run_warm_up, trial_config

T = TypeVar("T")

_ALONE = Rendezvous()


class Worker:
    """One rank.

    Owns: the device, the loaded model, the cache tensors, the model runner.
    Never: plans, schedules, or knows of other ranks' configs.
    """

    def __init__(
        self, config: EngineConfig, *, global_rank: int, local_rank: int, rendezvous: Rendezvous = _ALONE
    ) -> None:
        self.global_rank = global_rank
        self.local_rank = local_rank
        self.reports: list[StageReport] = []
        """What this rank has done since its start, in order."""
        self.num_blocks = 0
        """Blocks of the cache, null block included; 0 until `initialize_from_config`."""
        self._config = config
        self._rendezvous = rendezvous
        self._num_local_ranks = rendezvous.num_local_ranks * config.parallel.data_parallel_size
        """That share this machine, those of other replicas included."""
        self._ranks: RankGroup | None = None
        self._environment = read_environment()
        self._num_threads = 1
        self._device = torch.device("cpu")
        self._dtype = torch.float32
        self._model: LoadedModel | None = None
        self._tensors: list[torch.Tensor] = []
        self._runner: ModelRunner | None = None

    def init_device(self) -> None:
        """Choose device (by local rank), dtype and number of threads, and meet the other ranks.

        Raises `ConfigError` when there is none such, and as `rank_group.join_ranks`.
        """

        def choose() -> None:
            check_cache_dtype(self._config.cache.kv_cache_dtype)
            parallel = self._config.parallel
            number = parallel.data_parallel_rank * self._rendezvous.num_local_ranks + self.local_rank
            self._device = choose_device(parallel.device, number)
            self._dtype = choose_dtype(self._config.model.dtype, self._device)
            self._num_threads = choose_num_threads(self._environment.num_threads, self._num_local_ranks)
            torch.set_num_threads(self._num_threads)
            self._ranks = join_ranks(
                self._config.parallel, self._rendezvous, global_rank=self.global_rank, device=self._device
            )

        self._stage(
            "init_device",
            choose,
            lambda _: f"{self._device}, {_name(self._dtype)}, {self._num_threads} threads",
            lambda _: {
                "device": self._device.type,
                "dtype": _name(self._dtype),
                "num_threads": self._num_threads,
            },
        )

    def load_model(self) -> None:
        """Load this rank's part of the model onto the device; errors as of `models.opening.open_model`."""
        environment = self._environment
        backend = get_backend(
            environment.attention_backend, self._device.type, self._num_threads, environment.cache_dir
        )

        def load() -> LoadedModel:
            with watch_parts() as parts:
                model = open_model(
                    self._config.model,
                    environment,
                    device=self._device,
                    dtype=self._dtype,
                    backend=backend,
                    block_size=self._config.cache.block_size,
                    kv_cache_dtype=self._config.cache.kv_cache_dtype,
                    place=self._pipeline_place(),
                    peers=None if self._ranks is None else self._ranks.tensor,
                )[1]
            self.reports += [
                StageReport(name=name, seconds=seconds, result="of load_model", rank=self.global_rank)
                for name, seconds in parts
            ]
            return model

        self._model = self._stage(
            "load_model",
            load,
            lambda model: (
                f"{len(model.attention_layers)} attention layers on {backend.name}, {_states(model)}"
                f"{format_bytes(model.weight_bytes)} of weights{_formats(model)}"
            ),
            lambda model: {
                "attention_backend": backend.name,
                "weight_bytes": model.weight_bytes,
                **{f"weight_bytes_{name}": num_bytes for name, num_bytes in model.weight_formats.items()},
            },
        )

    def get_kv_cache_specs(self) -> dict[str, LayerSpec]:
        """What each cached layer of this rank keeps, by layer name, in the order of layers."""
        return self._loaded().kv_cache_specs()

    def get_shared_layers(self) -> dict[str, str]:
        """Layer that keeps no cache of its own -> the layer whose cache it reads."""
        return dict(self._loaded().shared_layers)

    def determine_available_memory(self) -> int:
        """Bytes that this rank's cache may take. Raises `ConfigError` when what was asked for is not there."""

        def measure() -> tuple[int, str]:
            cache = self._config.cache_of(self.global_rank)
            if self._device.type == "cpu":
                return cpu_budget(cache, self._num_local_ranks)
            return cuda_budget(cache, self._device, self._profile())

        return self._stage("determine_available_memory", measure, lambda found: found[1])[0]

    def initialize_from_config(self, config: KVCacheConfig) -> None:
        """Allocate the cache, view it, bind it to the model; errors as of `kv_memory`."""
        self.num_blocks = config.num_blocks
        self._runner, self._tensors = self._make_runner(config)

    def warm_up(self) -> None:
        """Compile every kernel and run the first steps."""
        runner, model = self._ready(), self._loaded()

        def compile_attention() -> int:
            for layer in model.attention_layers.values():
                layer.backend.warm_up(layer, self._dtype)
            return len(model.attention_layers)

        self._stage("compile_attention", compile_attention, lambda count: f"{count} layers")
        self._stage("first_steps", lambda: run_warm_up(runner), lambda count: f"{count} steps")
        for layer in model.cache_layers.values():
            layer.num_calls = 0

    def report_memory(self) -> MemoryReport:
        """What the cache really takes."""
        return report_memory(self._ready().kv_caches, num_blocks=self.num_blocks, rank=self.global_rank)

    def write_cache(self) -> int:
        """Write zeros over the whole cache; what the process takes then. Not while a request runs."""
        for tensor in self._tensors:
            tensor.zero_()
        return resident_bytes()

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; errors as of `ModelRunner.execute_model`."""
        return self._ready().execute_model(step)

    def shutdown(self) -> None:
        """Let go of model and cache. May be called twice."""
        if self._model is not None:
            for layer in self._model.cache_layers.values():
                layer.kv_cache, layer.group = None, None
        self._runner, self._model = None, None
        self._tensors = []
        if self._ranks is not None:
            self._ranks.close()

    def _make_runner(self, config: KVCacheConfig) -> tuple[ModelRunner, list[torch.Tensor]]:
        model = self._loaded()
        tensors = self._stage(
            "allocate_kv_cache",
            lambda: kv_memory.allocate(config, self._device),
            lambda made: f"{len(made)} tensors, {format_bytes(sum(tensor.nbytes for tensor in made))}",
        )
        views = self._stage(
            "view_kv_cache",
            lambda: kv_memory.view(config, tensors),
            lambda made: f"{len(made)} layers of {config.num_blocks} blocks, no copy",
        )
        groups = self._stage(
            "bind_kv_cache",
            lambda: kv_memory.bind(config, views, model.cache_layers),
            lambda made: f"{len(model.cache_layers)} layers in {len(made)} groups",
        )
        runner = ModelRunner(
            model,
            config,
            tensors=tensors,
            views=views,
            groups=groups,
            device=self._device,
            max_num_seqs=self._config.scheduler.max_num_seqs,
            num_threads=self._num_threads,
            seed=self._config.model.seed,
            pipeline=self._pipeline(),
        )
        return runner, tensors

    def _pipeline_place(self) -> PipelinePlace:
        parallel = self._config.parallel
        stage = 0 if self._ranks is None else self._ranks.place.stage
        return PipelinePlace(stage, parallel.pipeline_parallel_size, parallel.pipeline_layers)

    def _pipeline(self) -> Pipeline | None:
        """The way to the other stages; None where there are none."""
        line = None if self._ranks is None else self._ranks.pipeline
        if line is None:
            return None
        return Pipeline(line, hidden_size=self._loaded().hidden_size, dtype=self._dtype, device=self._device)

    def _profile(self) -> int:
        """Bytes that the largest step needs at its peak beside weights and cache, found by running it in a small cache
        that is then let go."""
        scheduler = self._config.scheduler
        num_tokens = scheduler.max_num_batched_tokens
        config = trial_config(self.get_kv_cache_specs(), self.get_shared_layers(), num_tokens)
        runner, tensors = self._make_runner(config)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        run_largest(runner, num_tokens=num_tokens, num_requests=scheduler.max_num_seqs)
        needed = torch.cuda.max_memory_allocated(self._device) - before
        del runner, tensors
        for layer in self._loaded().cache_layers.values():
            layer.kv_cache, layer.group = None, None
        torch.cuda.empty_cache()
        return needed

    def _stage(
        self,
        name: str,
        action: Callable[[], T],
        describe: Callable[[T], str],
        find_facts: Callable[[T], dict[str, str | int]] = lambda _: {},
    ) -> T:
        """The result of `action`, which is reported as stage `name` of this rank."""
        start = time.perf_counter()
        result = action()
        self.reports.append(
            StageReport(
                name=name,
                seconds=time.perf_counter() - start,
                result=describe(result),
                rank=self.global_rank,
                facts=find_facts(result),
            )
        )
        return result

    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise InvariantError(f"rank {self.global_rank} was asked for its model before load_model")
        return self._model

    def _ready(self) -> ModelRunner:
        if self._runner is None:
            raise InvariantError(f"rank {self.global_rank} was asked to run before initialize_from_config")
        return self._runner


def _formats(model: LoadedModel) -> str:
    """How they are kept, where that is more than one way."""
    if len(model.weight_formats) < 2:
        return ""
    return " (" + ", ".join(f"{name} {format_bytes(size)}" for name, size in model.weight_formats.items()) + ")"


def _states(model: LoadedModel) -> str:
    return f"{len(model.state_layers)} layers with a state, " if model.state_layers else ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
