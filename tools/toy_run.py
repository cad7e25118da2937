"""One request on a toy hybrid model, with everything that crosses between the houses written down.

The model has the four layers of DESIGN's worked example: layers 0 and 2 attend to everything, 1 and 3 through a window.
Its weights are random; which tokens it makes does not matter here, only where they are kept.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch

from octavo.config import CacheConfig, EngineConfig, ModelConfig, ModelSource, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.executor.inproc import InprocExecutor
from octavo.kv.planner import KVCachePlan
from octavo.kv.specs import KVCacheConfig, LayerSpec
from octavo.messages import EngineCoreRequest, ModelRunnerOutput, SchedulerOutput, StageReport
from octavo.request import SamplingParams
from octavo.worker.model_runner import ModelRunner
from tests.parity.tiny import HYBRID, build_model

BLOCK_SIZE = 16
WINDOW = 20
KV_MEMORY_BYTES = 2**20
NUM_PROMPT_TOKENS = 40
NUM_OUTPUT_TOKENS = 3
FOLLOWED = NUM_PROMPT_TOKENS
"""Position of the token that walk B follows: the first generated one."""
NEIGHBOUR = "earlier"
FOLLOWED_REQUEST = "r"

TOY = {
    **HYBRID,
    "num_hidden_layers": 4,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "sliding_window": WINDOW,
}


@dataclass
class ToyRun:
    """What happened. Filled in by `toy_run`."""

    model_config: ModelConfig
    specs: dict[str, LayerSpec]
    available_bytes: int
    plan: KVCachePlan
    sent: list[KVCacheConfig]
    """The configs as the executor sent them to all ranks."""
    views: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]]
    """Layer -> shape and strides of K (elements), bytes from its tensor's start to K's and to V's first element."""
    tensors: list[torch.Tensor]
    stages: list[StageReport] = field(default_factory=list)
    steps: list[SchedulerOutput] = field(default_factory=list)
    answers: list[ModelRunnerOutput] = field(default_factory=list)
    tables: dict[str, tuple[list[int], ...]] = field(default_factory=dict)
    """Request -> its block tables by group, while it holds them."""


class _Recorder(InprocExecutor):
    """Runs one rank, and writes down what passes."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.sent: list[KVCacheConfig] = []
        self.steps: list[SchedulerOutput] = []
        self.answers: list[ModelRunnerOutput] = []

    def initialize_from_config(self, configs: list[KVCacheConfig]) -> None:
        self.sent = configs
        super().initialize_from_config(configs)

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        answer = super().execute_model(step)
        self.steps.append(step)
        self.answers.append(answer)
        return answer

    def runner(self) -> tuple[ModelRunner, list[torch.Tensor]]:
        worker = self._workers[0]._worker
        assert worker is not None
        assert worker._runner is not None
        return worker._runner, worker._tensors


def toy_run() -> ToyRun:
    """Start the engine, run a neighbour and then the followed request up to the step of token `FOLLOWED` and beyond."""
    with tempfile.TemporaryDirectory() as folder:
        build_model(Path(folder), TOY)
        config = EngineConfig(
            model=ModelSource(model=folder, dtype="float32", max_model_len=256),
            cache=CacheConfig(block_size=BLOCK_SIZE, kv_memory_bytes=KV_MEMORY_BYTES),
            scheduler=SchedulerConfig(max_num_batched_tokens=64),
        )
        executor = _Recorder(config)
        stages: list[StageReport] = []
        core = EngineCore(config, on_stage=stages.append, executor=executor)
        try:
            return _follow(core, executor, stages)
        finally:
            core.shutdown()


def _follow(core: EngineCore, executor: _Recorder, stages: list[StageReport]) -> ToyRun:
    runner, tensors = executor.runner()
    views = {}
    for name, view in runner.kv_caches.items():
        tensor = next(t for t in tensors if t.data_ptr() <= view.key.data_ptr() < t.data_ptr() + t.nbytes)
        starts = view.key.data_ptr() - tensor.data_ptr(), view.value.data_ptr() - tensor.data_ptr()
        views[name] = (tuple(view.key.shape), tuple(view.key.stride()), *starts)
    run = ToyRun(
        model_config=core.model_config,
        specs=executor.get_kv_cache_specs()[0],
        available_bytes=executor.determine_available_memory()[0],
        plan=core.plan,
        sent=executor.sent,
        views=views,
        tensors=tensors,
        stages=stages,
        steps=executor.steps,
        answers=executor.answers,
    )
    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=NUM_OUTPUT_TOKENS)
    for name, first in ((NEIGHBOUR, 100), (FOLLOWED_REQUEST, 3)):
        prompt = [first + 7 * position % 150 for position in range(NUM_PROMPT_TOKENS)]
        core.add_request(EngineCoreRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))
    while core.has_unfinished_requests():
        core.step()
        manager = core._scheduler.manager
        held = {name: tuple(map(list, manager.block_ids(name))) for name in manager.request_ids()}
        run.tables.update(held)
    run.tensors = [tensor.clone() for tensor in tensors]
    return run
