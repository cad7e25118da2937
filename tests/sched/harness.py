"""A scheduler on a null rank, driven step by step, with everything checked after each step."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.config import MAX_STEP_TOKENS, SchedulerConfig
from octavo.kv.specs import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    LayerSpec,
    SlidingWindowSpec,
)
from octavo.messages import EngineCoreOutputs, NewRequestData, SchedulerOutput
from octavo.request import FinishReason, Request, RequestStatus, SamplingParams
from octavo.sched.admission import step_limit
from octavo.sched.running import ADMISSION_SPARE
from octavo.sched.scheduler import Scheduler
from tests.null_executor import NullRank, extend_hash, generate_alone

VOCAB_SIZE = 64


def full(block_size: int = 4) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="float32")


def sliding(window: int, block_size: int = 4) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="float32", window=window)


def chunked(chunk: int, block_size: int = 4) -> ChunkedLocalSpec:
    return ChunkedLocalSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="float32", chunk=chunk)


def cache_config(
    specs: Sequence[LayerSpec], *, num_blocks: int, max_model_len: int, max_chunk_tokens: int
) -> KVCacheConfig:
    """One group per spec, one layer per group."""
    groups = tuple(KVCacheGroupSpec(layer_names=(f"layers.{i}",), spec=spec) for i, spec in enumerate(specs))
    size_bytes = num_blocks * max(spec.page_bytes for spec in specs)
    names = tuple(f"layers.{i}" for i in range(len(specs)))
    return KVCacheConfig(
        num_blocks=num_blocks,
        groups=groups,
        tensors=(KVCacheTensor(size_bytes=size_bytes, shared_by=names),),
        max_model_len=max_model_len,
        max_chunk_tokens=max_chunk_tokens,
    )


def make_request(
    request_id: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 4,
    priority: int = 0,
    salt: str | None = None,
    eos: tuple[int, ...] = (),
    sampling: SamplingParams | None = None,
    parent_id: str | None = None,
    keep_blocks: bool = False,
    owner: str | None = None,
) -> Request:
    return Request(
        request_id,
        list(prompt),
        SamplingParams(max_tokens=max_tokens) if sampling is None else sampling,
        priority=priority,
        cache_salt=salt,
        owner=owner,
        eos_token_ids=eos,
        max_output_tokens=max_tokens,
        parent_id=parent_id,
        keep_blocks=keep_blocks,
    )


class Bench:
    """Drives a `Scheduler` over one `NullRank`.

    Owns: what came out for each request, how much work there is, who computed which prefix.
    """

    def __init__(
        self,
        specs: Sequence[LayerSpec] = (),
        *,
        num_blocks: int = 32,
        max_model_len: int = 64,
        config: SchedulerConfig | None = None,
        enable_caching: bool = True,
        retention_interval: int | None = None,
        admission_spare: tuple[int, ...] = ADMISSION_SPARE,
        sure_chunk_tokens: int | None = None,
        rank_class: type[NullRank] = NullRank,
    ) -> None:
        self.config = SchedulerConfig(max_num_batched_tokens=16) if config is None else config
        plan = cache_config(
            specs or (full(),),
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            max_chunk_tokens=min(sure_chunk_tokens or MAX_STEP_TOKENS, step_limit(self.config)),
        )
        self.manager = KVCacheManager(
            plan,
            enable_caching=enable_caching,
            retention_interval=retention_interval,
            admit_whole_prompt=self.config.admit_whole_prompt,
        )
        self.scheduler = Scheduler(
            self.config, self.manager, max_model_len=max_model_len, admission_spare=admission_spare
        )
        self.max_preemptions = len(admission_spare)
        self.rank = rank_class({}, global_rank=0, vocab_size=VOCAB_SIZE, available_bytes=0)
        self.rank.initialize_from_config([plan])
        self.requests: dict[str, Request] = {}
        """All that were accepted, finished ones too."""
        self.outputs: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}
        self.num_steps = 0
        self.num_tokens_of_work = 0
        self.computed_prefixes: set[tuple[str | None, int]] = set()

    def add(self, request: Request) -> None:
        self.scheduler.add_request(request)
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []
        self.num_tokens_of_work += request.num_prompt_tokens + request.max_output_tokens - 1

    def abort(self, request_id: str) -> None:
        assert self.scheduler.abort_request(request_id) != (request_id in self.reasons)
        self.reasons.setdefault(request_id, FinishReason.ABORT)

    def step(self) -> tuple[SchedulerOutput, EngineCoreOutputs]:
        """One step, executed and checked."""
        step = self.scheduler.schedule()
        self.check_step(step)
        news = self.scheduler.update_from_output(step, self.rank.execute_model(step))
        self.take(news)
        self.check()
        return step, news

    def fail_step(self) -> tuple[SchedulerOutput, EngineCoreOutputs]:
        """A step in which the rank writes garbage where it would have written, and forgets nobody."""
        known = self.computed_prefixes.copy()
        step = self.scheduler.schedule()
        self.check_step(step)
        self.computed_prefixes = known
        for new in step.new_requests:
            self.rank.sequences.pop(new.request_id, None)
        self.rank.spoil(step)
        news = self.scheduler.fail_step(step, "planted")
        self.take(news)
        self.check()
        return step, news

    def run(self) -> None:
        """Step until nobody is left; fails when that takes more steps than the scheduler promises."""
        while self.scheduler.has_unfinished_requests():
            self.step()
            assert self.num_steps <= (self.max_preemptions + 1) * self.num_tokens_of_work

    def take(self, news: EngineCoreOutputs) -> None:
        self.num_steps += 1
        for output in news.outputs:
            self.outputs[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                assert output.request_id not in self.reasons
                self.reasons[output.request_id] = output.finish_reason

    def check_step(self, step: SchedulerOutput) -> None:
        """The step keeps its limits, and hits only what requests of the same salt computed."""
        config = self.config
        assert 0 < step.num_tokens <= config.max_num_batched_tokens
        assert len(step.num_scheduled_tokens) <= config.max_num_seqs
        assert all(0 < count <= step_limit(config) for count in step.num_scheduled_tokens.values())
        starts = {new.request_id: new for new in step.new_requests}
        for request_id, count in step.num_scheduled_tokens.items():
            request = self.requests[request_id]
            salt = request.cache_salt
            hashes = prefix_hashes(request.token_ids[: request.num_computed_tokens])
            new = starts.get(request_id)
            if new is not None:
                assert new.token_ids == request.token_ids.tolist()
                assert new.num_computed_tokens + count == request.num_computed_tokens
                if self.adopts_blocks(new):
                    assert self.manager.enable_caching or request.parent_id is not None
                    assert (salt, hashes[new.num_computed_tokens - 1]) in self.computed_prefixes
                if not config.enable_chunked_prefill and request.num_preemptions == 0:
                    assert request.num_computed_tokens == request.num_tokens
            self.computed_prefixes.update((salt, prefix_hash) for prefix_hash in hashes)

    def adopts_blocks(self, new: NewRequestData) -> bool:
        """Whether the hit needs blocks that others filled; at the start of a local chunk it may need none."""
        return any(
            any(table[: new.num_computed_tokens // manager.block_size])
            for manager, table in zip(self.manager.managers, new.block_ids, strict=True)
        )

    def check(self) -> None:
        """No leak, no alias, and the counts add up."""
        self.manager.check_integrity()
        stats = self.scheduler.stats()
        assert stats.num_free_blocks + stats.num_cached_blocks + stats.num_used_blocks + 1 == stats.num_blocks
        running = [request for request in self.requests.values() if request.status is RequestStatus.RUNNING]
        kept = set(self.scheduler.forks.kept_ids())
        held: set[int] = set()
        for request_id in kept.union(request.request_id for request in running):
            tables = self.manager.block_ids(request_id)
            held.update(block for table in tables for block in table)
        held.discard(0)
        assert stats.num_used_blocks == len(held)
        assert stats.num_running == len(running)
        assert stats.num_waiting == sum(
            request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED) for request in self.requests.values()
        )
        for request in self.requests.values():
            assert request.num_preemptions <= self.max_preemptions
            if request.status is not RequestStatus.RUNNING and request.request_id not in kept:
                assert not any(self.manager.block_ids(request.request_id))

    def check_results(self) -> None:
        """Every request that was neither aborted nor failed came out as if it had run alone, and nothing is held but
        what was asked to be kept, which can be given back."""
        for request_id in self.scheduler.forks.kept_ids():
            assert self.requests[request_id].keep_blocks
            assert self.scheduler.abort_request(request_id)
        for request_id, request in self.requests.items():
            expected, reason, stop_reason = generate_alone(
                request.token_ids[: request.num_prompt_tokens],
                request.sampling,
                vocab_size=VOCAB_SIZE,
                max_output_tokens=request.max_output_tokens,
                eos_token_ids=request.eos_token_ids,
            )
            output = self.outputs[request_id]
            if self.reasons[request_id] in (FinishReason.ABORT, FinishReason.ERROR):
                assert output == expected[: len(output)]
            else:
                assert (output, self.reasons[request_id], request.stop_reason) == (expected, reason, stop_reason)
        stats = self.scheduler.stats()
        assert (stats.num_used_blocks, stats.num_running, stats.num_waiting) == (0, 0, 0)


def prefix_hashes(token_ids: Sequence[int]) -> list[int]:
    hashes: list[int] = []
    prefix_hash = 0
    for token_id in token_ids:
        prefix_hash = extend_hash(prefix_hash, token_id)
        hashes.append(prefix_hash)
    return hashes
