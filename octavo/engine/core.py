"""The engine core: starts the ranks, plans and binds the cache, then turns requests into steps.

Start-up, in this order, each line a named stage (`StageReport`), with the ranks' own stages in between:

    locate_model               which files
    read_config                ModelConfig from their headers
    start_executor             ranks made, devices chosen, weights loaded
    get_kv_cache_specs         what each layer of each rank keeps
    determine_available_memory bytes of each rank
    plan_kv_cache              one KVCacheConfig per rank
    initialize_from_config     the whole list to every rank: allocate, view, bind
    warm_up                    kernels compiled
    build_scheduler            KVCacheManager and Scheduler from the same config
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from octavo.cache.block_watch import WatchedBlockPool
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.config import EngineConfig, ModelConfig, format_bytes, read_environment, resolve_engine_config
from octavo.engine.cache_count import CacheCount
from octavo.engine.foresight import refuse_too_little_memory
from octavo.engine.grammar_table import GrammarTable
from octavo.engine.intake import build_request
from octavo.engine.preparation import compiler_of_files
from octavo.errors import ConfigError, OctavoError
from octavo.executor.executor import Executor
from octavo.executor.registry import create_executor
from octavo.formats.model_config import load_model_config
from octavo.formats.source import locate
from octavo.kv.planner import KVCachePlan, PlanOptions, plan_kv_cache
from octavo.kv.specs import LayerSpec
from octavo.messages import (
    CoreState,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    MemoryReport,
    SchedulerOutput,
    SchedulerStats,
    StageReport,
)
from octavo.request import FinishReason
from octavo.sched.admission import step_limit
from octavo.sched.outcome import failure_of
from octavo.sched.scheduler import Scheduler

T = TypeVar("T")

COMPILE_WAIT_S = 0.02
"""How long a step with nothing else to do waits for a grammar."""

logger = logging.getLogger(__name__)


class EngineCore:
    """One model, one cache, one scheduler.

    Owns: the executor, the plan, the cache manager, the scheduler.
    Never: sees text; a request is token ids in, token ids out.

    Parameters:
        config: checked by `resolve_engine_config` here.
        on_stage: called with each start-up stage as it ends.
        executor: not started; None makes the one that `config.parallel.executor` names.

    Raises at start-up the `OctavoError` of the stage that failed; then nothing is left running.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_stage: Callable[[StageReport], None] | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.config = resolve_engine_config(config)
        self._stages = _Stages(on_stage)
        files = self._stages.run(
            "locate_model",
            lambda: locate(config.model, read_environment()),
            lambda files: f"{files.name} ({files.kind}): {files.path}",
        )
        self.model_config = self._stages.run("read_config", lambda: load_model_config(files), _describe_model)
        self.grammars = GrammarTable(compiler_of_files(self.config, files, self.model_config.vocab_size))
        """The forms that outputs must have."""
        is_given = executor is not None
        self._executor: Executor = self._stages.run(
            "create_executor", lambda: executor or create_executor(config), _describe_libraries
        )
        if not is_given:
            self._foresee()
        try:
            self.plan = self._start_ranks()
            self.max_model_len = self.plan.configs[0].max_model_len
            self._scheduler = self._stages.run("build_scheduler", self._build_scheduler, _describe_scheduler)
        except BaseException:
            self._executor.shutdown()
            raise
        self._num_requests = 0
        self._sampled: dict[str, int] = {}
        """What the last step sampled."""

    def _foresee(self) -> None:
        options = self._plan_options(_wanted_length(self.config, self.model_config))
        refuse_too_little_memory(self.config, self.model_config, options)

    def _start_ranks(self) -> KVCachePlan:
        executor = self._executor
        run = partial(self._stages.run, executor=executor)
        length = _wanted_length(self.config, self.model_config)
        run("start_executor", executor.start, lambda _: _describe_executor(self.config))
        specs = run("get_kv_cache_specs", executor.get_kv_cache_specs, _describe_specs)
        shared = executor.get_shared_layers()
        available = run("determine_available_memory", executor.determine_available_memory, _describe_memory)
        options = self._plan_options(length)
        plan: KVCachePlan = run(
            "plan_kv_cache",
            lambda: plan_kv_cache(specs, available, options, shared_layers_by_rank=shared),
            _describe_plan,
        )
        configs = list(plan.configs)
        run("initialize_from_config", lambda: executor.initialize_from_config(configs), lambda _: _describe_cache(plan))
        run("warm_up", executor.warm_up, lambda _: "ranks ready")
        return plan

    def _plan_options(self, length: int) -> PlanOptions:
        scheduler, cache = self.config.scheduler, self.config.cache
        return PlanOptions(
            max_model_len=length,
            auto_fit=self.config.model.max_model_len == -1,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_chunk_tokens=scheduler.max_chunk_tokens if scheduler.enable_chunked_prefill else step_limit(scheduler),
            max_overlapping_steps=self.config.parallel.pipeline_parallel_size,
            enable_prefix_caching=cache.enable_prefix_caching,
            num_blocks_override=cache.num_blocks_override,
        )

    def _build_scheduler(self) -> Scheduler:
        cache, scheduler = self.config.cache, self.config.scheduler
        num_blocks, share = self.plan.configs[0].num_blocks, cache.metrics_sample
        pool = None if share is None else WatchedBlockPool(num_blocks, share=share)
        manager = KVCacheManager(
            self.plan.configs[0],
            pool=pool,
            enable_caching=cache.enable_prefix_caching,
            retention_interval=cache.retention_interval,
            admit_whole_prompt=scheduler.admit_whole_prompt,
        )
        self._count = CacheCount(manager, pool)
        return Scheduler(scheduler, manager, max_model_len=self.max_model_len)

    # -- requests -------------------------------------------------------------------------------------------------

    def add_request(self, request: EngineCoreRequest) -> None:
        """Put a request into the line.

        Raises `RequestError` when it is refused: empty or over-long prompt, token ids outside the vocabulary, more
        tokens or blocks than there can be, an id in use. Then nothing of it is kept.
        """
        self._num_requests += 1
        built = build_request(
            request,
            vocab_size=self.model_config.vocab_size,
            max_model_len=self.max_model_len,
            arrival=self._num_requests,
        )
        form = built.sampling.structured_outputs
        self.grammars.check_id(built.request_id)
        if form is None:
            self._scheduler.add_request(built)
        else:
            self._scheduler.check_request(built)
            self.grammars.add(built, form)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Forget these requests and free their blocks; unknown and finished ids are skipped. No output follows."""
        for request_id in request_ids:
            self._scheduler.abort_request(request_id)
        self.grammars.discard(request_ids)

    def has_unfinished_requests(self) -> bool:
        return self._scheduler.has_unfinished_requests() or self.grammars.num_waiting > 0

    def step(self) -> EngineCoreOutputs:
        """Run one step; its news. Nothing happens when there is nothing to run.

        When the ranks fail, the requests of this step end with `FinishReason.ERROR` and the message, and the others go
        on. An interrupt (such as Ctrl-C) ends them in the same way and is raised again.
        """
        refused = self._admit_compiled()
        if not self._scheduler.has_unfinished_requests():
            return EngineCoreOutputs(outputs=refused, stats=self.stats(), cache=self._count.figures(is_idle=True))
        step = self._scheduler.schedule()
        num_step_blocks = self._scheduler.manager.counts().used
        try:
            output = self._executor.execute_model(self._for_ranks(self.grammars.masked(step)))
            self._sampled = output.sampled
            outputs = self._scheduler.update_from_output(step, output, self.grammars.follow(output.sampled))
            admitted = [request.request_id for request in step.new_requests]
            self._settle_grammars(outputs, refused)
            return msgspec.structs.replace(
                outputs,
                stats=self._with_compiling(outputs.stats),
                num_step_blocks=num_step_blocks,
                admitted=admitted,
                cache=self._count.figures(is_idle=not outputs.stats.num_running),
            )
        except BaseException as error:
            outputs = self._scheduler.fail_step(step, _failure_message(step.step, error))
            if not isinstance(error, Exception):
                raise
            is_plain = isinstance(error, OctavoError) and error.__cause__ is None
            what = f"Step {step.step} failed, and its {len(outputs.outputs)} requests end: {error}"
            logger.error("%s", what, exc_info=None if is_plain else error)
            self._settle_grammars(outputs, refused)
            return outputs

    def check_ranks(self) -> None:
        """Raise `ExecutorError` when the ranks are gone, so that nothing can run any more."""
        self._executor.check_health()

    def _for_ranks(self, step: SchedulerOutput) -> SchedulerOutput:
        """`step`, which in a pipeline tells the stages that do not sample what the last one did."""
        if self.config.parallel.pipeline_parallel_size == 1:
            return step
        sampled, self._sampled = self._sampled, {}
        return msgspec.structs.replace(step, earlier_tokens=sampled)

    def _admit_compiled(self) -> list[EngineCoreOutput]:
        """Put the requests into the line whose grammars have been compiled; the last news of those that cannot run."""
        refused: list[EngineCoreOutput] = []
        if self.grammars.num_waiting:
            is_idle = not self._scheduler.has_unfinished_requests()
            for request, error in self.grammars.take_ready(COMPILE_WAIT_S if is_idle else 0.0):
                try:
                    if error is not None:
                        raise error
                    self._scheduler.add_request(request)
                except OctavoError as reason:
                    self.grammars.discard([request.request_id])
                    refused.append(failure_of(request, str(reason)))
        return refused

    def _settle_grammars(self, outputs: EngineCoreOutputs, refused: list[EngineCoreOutput]) -> None:
        """End the requests whose grammars can go no further, and forget those that have ended."""
        news, broken = outputs.outputs, self.grammars.take_broken()
        for index, output in enumerate(news):
            if output.request_id in broken:
                message = broken[output.request_id]
                self._scheduler.abort_request(output.request_id)
                news[index] = msgspec.structs.replace(
                    output, finish_reason=FinishReason.ERROR, error=message, error_parameter="structured_outputs"
                )
        self.grammars.discard(output.request_id for output in news if output.finish_reason is not None)
        news.extend(refused)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing changed, while a request holds blocks."""
        return self._scheduler.reset_prefix_cache()

    def stats(self) -> SchedulerStats:
        return self._with_compiling(self._scheduler.stats())

    def _with_compiling(self, stats: SchedulerStats) -> SchedulerStats:
        """`stats`, in which those that wait for a grammar wait, too."""
        num_more = self.grammars.num_waiting
        if not num_more:
            return stats
        num_waiting, num_parked = stats.num_waiting + num_more, stats.num_parked + num_more
        return msgspec.structs.replace(stats, num_waiting=num_waiting, num_parked=num_parked)

    def state(self) -> CoreState:
        """What there is and who is first. Changes nothing."""
        state = self._scheduler.state()
        return msgspec.structs.replace(
            state, stats=self._with_compiling(state.stats), num_compiling=self.grammars.num_waiting
        )

    def report_memory(self) -> list[MemoryReport]:
        """What each rank's cache really takes, in the order of ranks. Changes nothing."""
        reports: list[MemoryReport] = self._executor.collective_rpc("report_memory")
        return reports

    def write_cache(self) -> list[int]:
        """Write zeros over every rank's whole cache; the bytes of each rank's process that lie in memory then. Not
        after the first request."""
        resident: list[int] = self._executor.collective_rpc("write_cache")
        return resident

    def shutdown(self) -> None:
        """Stop the ranks and free their memory. May be called twice."""
        self.grammars.shutdown()
        self._executor.shutdown()


class _Stages:
    """Runs the stages of a start-up and reports each.

    Owns: how many of each rank's reports were passed on.
    """

    def __init__(self, on_stage: Callable[[StageReport], None] | None) -> None:
        self._on_stage = on_stage
        self._num_relayed: dict[int, int] = {}

    def run(
        self, name: str, action: Callable[[], T], describe: Callable[[T], str], *, executor: Executor | None = None
    ) -> T:
        """The result of `action`, which is reported as stage `name`, after what the executor's ranks did in it."""
        start = time.perf_counter()
        result = action()
        seconds = time.perf_counter() - start
        if self._on_stage is not None:
            if executor is not None:
                self._relay(executor, self._on_stage)
            self._on_stage(StageReport(name=name, seconds=seconds, result=describe(result)))
        return result

    def _relay(self, executor: Executor, on_stage: Callable[[StageReport], None]) -> None:
        """Pass on what the ranks have reported since the last time."""
        for rank, reports in enumerate(executor.collective_rpc("stage_reports")):
            for report in reports[self._num_relayed.get(rank, 0) :]:
                on_stage(report)
            self._num_relayed[rank] = len(reports)


def _describe_libraries(executor: Executor) -> str:
    return f"{type(executor).__name__}, and the libraries that its ranks compute with"


def _wanted_length(config: EngineConfig, model_config: ModelConfig) -> int:
    """The longest sequence to plan for. Raises `ConfigError` above what the model was made for."""
    wanted = config.model.max_model_len
    if wanted is None or wanted == -1:
        return model_config.max_position
    if wanted > model_config.max_position:
        raise ConfigError(
            f"--max-model-len is {wanted}, and {model_config.name} was made for sequences of at most "
            f"{model_config.max_position} tokens.",
            remedy=f"Set it to at most {model_config.max_position}, or leave it out.",
            max_model_len=wanted,
            max_position=model_config.max_position,
        )
    return wanted


def _failure_message(step: int, error: BaseException) -> str:
    if isinstance(error, OctavoError):
        return str(error)
    return f"Step {step} failed: {type(error).__name__}: {error}"


def _describe_model(model_config: ModelConfig) -> str:
    return (
        f"{model_config.architecture}, {model_config.num_layers} layers, vocabulary {model_config.vocab_size}, "
        f"up to {model_config.max_position} tokens"
    )


def _describe_executor(config: EngineConfig) -> str:
    return f"{config.parallel.world_size} rank(s) in executor {config.parallel.executor}"


def _describe_specs(specs_by_rank: Sequence[dict[str, LayerSpec]]) -> str:
    kinds = Counter(spec.kind for specs in specs_by_rank for spec in specs.values())
    layers = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"cached layers: {layers or 'none'}"


def _describe_memory(available_bytes: Sequence[int]) -> str:
    return f"{format_bytes(min(available_bytes))} per rank"


def _describe_plan(plan: KVCachePlan) -> str:
    config, figures = plan.configs[0], plan.figures
    return (
        f"{len(config.groups)} group(s), {len(config.tensors)} tensor(s), {config.num_blocks} blocks: "
        f"{figures.capacity_tokens} tokens, {figures.max_concurrency:.2f} requests of {config.max_model_len} tokens"
    )


def _describe_cache(plan: KVCachePlan) -> str:
    num_bytes = max(sum(tensor.size_bytes for tensor in config.tensors) for config in plan.configs)
    return f"{format_bytes(num_bytes)} of cache bound to the layers of each rank"


def _describe_scheduler(scheduler: Scheduler) -> str:
    config = scheduler.config
    return f"{config.policy}, up to {config.max_num_seqs} requests and {config.max_num_batched_tokens} tokens a step"
