"""An executor without a model: it computes pseudo-tokens, and it models the memory that a real rank would use.

A rank keeps its own tables, built from `SchedulerOutput` alone. Every token of a step is stamped into its slot with
the hash of the sequence up to it; then every position that a layer would read must carry the stamp of the request's
own prefix. Aliased blocks, stale prefix hits, blocks freed too early and writes to the wrong slot all end in a
`MemoryFault`. All groups share one memory, as their tensors do: block b of one group overlays block b of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from octavo.errors import ExecutorError
from octavo.executor.executor import Executor
from octavo.kv.specs import (
    NULL_BLOCK,
    ChunkedLocalSpec,
    FullAttentionSpec,
    KVCacheConfig,
    LayerSpec,
    MLASpec,
    SlidingWindowSpec,
)
from octavo.messages import MemoryReport, ModelRunnerOutput, Rendezvous, SchedulerOutput, StageReport
from octavo.request import FinishReason, SamplingParams
from octavo.worker.rank import Rank

_MASK = (1 << 63) - 1
_NOTHING = -1


class MemoryFault(AssertionError):
    """A rank would have read or written what it must not."""


def extend_hash(prefix_hash: int, token_id: int) -> int:
    """Hash of a sequence, from the hash of all but its last token and that token."""
    return ((prefix_hash ^ (token_id + 1)) * 6364136223846793005 + 1442695040888963407) & _MASK


def next_token(prefix_hash: int, vocab_size: int) -> int:
    """The token that the null model puts after a sequence."""
    return (prefix_hash >> 23) % vocab_size


def masked_token(token_id: int, mask: bytes | None) -> int:
    """The token that the null model takes where a mask leaves only some."""
    if mask is None:
        return token_id
    allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little"))
    return int(allowed[token_id % len(allowed)])


def generate_alone(
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    vocab_size: int,
    max_output_tokens: int,
    eos_token_ids: Sequence[int] = (),
) -> tuple[list[int], FinishReason, int | None]:
    """What a request must come to, said without cache, scheduler or steps: (output, reason, stop reason)."""
    prefix_hash = 0
    for token_id in prompt:
        prefix_hash = extend_hash(prefix_hash, token_id)
    output: list[int] = []
    while True:
        token_id = next_token(prefix_hash, vocab_size)
        prefix_hash = extend_hash(prefix_hash, token_id)
        output.append(token_id)
        may_stop = len(output) >= sampling.min_tokens
        if may_stop and not sampling.ignore_eos and token_id in eos_token_ids:
            return output, FinishReason.STOP, None
        if may_stop and token_id in sampling.stop_token_ids:
            return output, FinishReason.STOP, token_id
        if len(output) == max_output_tokens:
            return output, FinishReason.LENGTH, None


def first_position_read(spec: LayerSpec, position: int) -> int:
    """First position that a query at `position` reads."""
    match spec:
        case SlidingWindowSpec():
            return max(0, position - spec.window + 1)
        case ChunkedLocalSpec():
            return position // spec.chunk * spec.chunk
        case FullAttentionSpec() | MLASpec():
            return 0
        case _:
            raise NotImplementedError(type(spec).__name__)


class _Sequence:
    """A request as a rank holds it: tokens, prefix hashes (one per token), one table per group."""

    def __init__(self, token_ids: Sequence[int], num_computed: int, tables: Sequence[Sequence[int]]) -> None:
        self.hashes: list[int] = []
        for token_id in token_ids:
            self.append(token_id)
        self.num_computed = num_computed
        self.tables = [list(table) for table in tables]

    def append(self, token_id: int) -> None:
        self.hashes.append(extend_hash(self.hashes[-1] if self.hashes else 0, token_id))


class NullRank(Rank):
    """One rank: the methods that executors call on a `WorkerWrapper`, without torch.

    Owns: the model of its memory, the sequences it was told of.
    """

    def __init__(self, specs: dict[str, LayerSpec], *, global_rank: int, vocab_size: int, available_bytes: int) -> None:
        self.specs = specs
        self.global_rank = global_rank
        self.vocab_size = vocab_size
        self.available_bytes = available_bytes
        self.sequences: dict[str, _Sequence] = {}
        self.calls: list[str] = []

    def init_worker(self, rendezvous: Rendezvous) -> None:
        self.calls.append("init_worker")

    def init_device(self) -> None:
        self.calls.append("init_device")

    def load_model(self) -> None:
        self.calls.append("load_model")

    def get_kv_cache_specs(self) -> dict[str, LayerSpec]:
        self.calls.append("get_kv_cache_specs")
        return self.specs

    def get_shared_layers(self) -> dict[str, str]:
        self.calls.append("get_shared_layers")
        return {}

    def determine_available_memory(self) -> int:
        self.calls.append("determine_available_memory")
        return self.available_bytes

    def initialize_from_config(self, configs: list[KVCacheConfig]) -> None:
        self.calls.append("initialize_from_config")
        config = configs[self.global_rank]
        self.group_specs = [group.spec for group in config.groups]
        self.num_blocks = config.num_blocks
        width = max((spec.block_size for spec in self.group_specs), default=1)
        self.stamps = np.full((config.num_blocks, width), _NOTHING, dtype=np.int64)

    def warm_up(self) -> None:
        self.calls.append("warm_up")

    def report_memory(self) -> MemoryReport:
        self.calls.append("report_memory")
        return MemoryReport(
            num_blocks=self.num_blocks,
            num_views=0,
            num_storages=0,
            storage_bytes=0,
            resident_bytes=0,
            rank=self.global_rank,
        )

    def write_cache(self) -> int:
        self.calls.append("write_cache")
        return 0

    def stage_reports(self) -> list[StageReport]:
        return [StageReport(name="load_model", seconds=0.0, result="no weights", rank=self.global_rank)]

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Write every token of the step, check every read, then sample."""
        self.take_in(step)
        self.copy_blocks(step)
        for group, spec in enumerate(self.group_specs):
            self.write(step, group, spec)
        for group, spec in enumerate(self.group_specs):
            self.read(step, group, spec)
        sampled: dict[str, int] = {}
        for request_id, num_new in step.num_scheduled_tokens.items():
            sequence = self.sequences[request_id]
            sequence.num_computed += num_new
            if sequence.num_computed == len(sequence.hashes):
                token = next_token(sequence.hashes[-1], self.vocab_size)
                sampled[request_id] = masked_token(token, step.token_masks.get(request_id))
                sequence.append(sampled[request_id])
        return ModelRunnerOutput(sampled=sampled)

    def copy_blocks(self, step: SchedulerOutput) -> None:
        """Copy what forked requests go on from, as the step begins."""
        if step.block_copies:
            sources, targets = np.array(step.block_copies).T
            if (targets == NULL_BLOCK).any() or len(np.unique(targets)) != len(targets):
                raise MemoryFault(f"blocks are copied to {targets.tolist()}")
            self.stamps[targets] = self.stamps[sources]

    def spoil(self, step: SchedulerOutput) -> None:
        """Write garbage wherever the step would have written: a step that failed half-way, at its worst."""
        tables = {new.request_id: (new.block_ids, new.num_computed_tokens) for new in step.new_requests}
        cached = step.cached_requests
        for request_id, num_computed in zip(cached.request_ids, cached.num_computed_tokens, strict=True):
            known = self.sequences[request_id].tables
            news = cached.new_block_ids.get(request_id, [[] for _ in known])
            tables[request_id] = (tuple(old + new for old, new in zip(known, news, strict=True)), num_computed)
        for request_id, num_new in step.num_scheduled_tokens.items():
            block_ids, start = tables[request_id]
            for spec, table in zip(self.group_specs, block_ids, strict=True):
                for position in range(start, start + num_new):
                    self.stamps[table[position // spec.block_size], position % spec.block_size] = _NOTHING

    def take_in(self, step: SchedulerOutput) -> None:
        """Update the tables from the step's news."""
        for request_id in step.finished_request_ids:
            self.sequences.pop(request_id, None)
        told: list[str] = []
        for new in step.new_requests:
            if new.request_id in self.sequences:
                raise MemoryFault(f"{new.request_id} is new, but the rank holds it already")
            self.sequences[new.request_id] = _Sequence(new.token_ids, new.num_computed_tokens, new.block_ids)
            told.append(new.request_id)
        cached = step.cached_requests
        for request_id, num_computed in zip(cached.request_ids, cached.num_computed_tokens, strict=True):
            sequence = self.sequences.get(request_id)
            if sequence is None or sequence.num_computed != num_computed:
                raise MemoryFault(f"{request_id} does not stand where the scheduler says")
            if request_id in cached.new_block_ids:
                for table, block_ids in zip(sequence.tables, cached.new_block_ids[request_id], strict=True):
                    table.extend(block_ids)
            told.append(request_id)
        if not cached.new_block_ids.keys() <= set(cached.request_ids):
            raise MemoryFault("blocks are told of for requests that are not scheduled")
        if sorted(told) != sorted(step.num_scheduled_tokens):
            raise MemoryFault("the scheduled requests are not the ones the step tells of")

    def slots(self, sequence: _Sequence, group: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """(blocks, offsets) of positions start ... stop - 1."""
        block_size = self.group_specs[group].block_size
        positions = np.arange(start, stop)
        table = np.array(sequence.tables[group], dtype=np.int64)
        if stop > len(table) * block_size:
            raise MemoryFault(f"a table of {len(table)} blocks does not reach position {stop - 1}")
        blocks = table[positions // block_size]
        if np.any(blocks == NULL_BLOCK) or np.any(blocks >= self.num_blocks) or np.any(blocks < 0):
            raise MemoryFault(f"group {group}: positions {start}..{stop - 1} need blocks {blocks.tolist()}")
        return blocks, positions % block_size

    def stamps_of(self, sequence: _Sequence, group: int, start: int, stop: int) -> np.ndarray:
        """What the slots of these positions must hold; different in each group."""
        return np.array(sequence.hashes[start:stop], dtype=np.int64) ^ (group * 0x9E3779B97F4A7C1 & _MASK)

    def write(self, step: SchedulerOutput, group: int, spec: LayerSpec) -> None:
        written: list[np.ndarray] = []
        for request_id, num_new in step.num_scheduled_tokens.items():
            sequence = self.sequences[request_id]
            start, stop = sequence.num_computed, sequence.num_computed + num_new
            if num_new < 1 or stop > len(sequence.hashes):
                raise MemoryFault(f"{request_id} is given {num_new} tokens from {start} on of {len(sequence.hashes)}")
            blocks, offsets = self.slots(sequence, group, start, stop)
            self.stamps[blocks, offsets] = self.stamps_of(sequence, group, start, stop)
            written.append(blocks * spec.block_size + offsets)
        slots = np.concatenate(written) if written else np.zeros(0, dtype=np.int64)
        if len(np.unique(slots)) != len(slots):
            raise MemoryFault(f"group {group}: one slot is written twice in step {step.step}")

    def read(self, step: SchedulerOutput, group: int, spec: LayerSpec) -> None:
        for request_id, num_new in step.num_scheduled_tokens.items():
            sequence = self.sequences[request_id]
            start = first_position_read(spec, sequence.num_computed)
            stop = sequence.num_computed + num_new
            blocks, offsets = self.slots(sequence, group, start, stop)
            wrong = np.flatnonzero(self.stamps[blocks, offsets] != self.stamps_of(sequence, group, start, stop))
            if len(wrong):
                raise MemoryFault(
                    f"step {step.step}: {request_id} reads something else than its own tokens in group {group} at "
                    f"positions {(wrong + start).tolist()}"
                )


class NullExecutor(Executor):
    """Ranks without a model, in this process; every rank must sample the same.

    `before_step` is called with each step before the ranks run it, and `after_step` after: what they raise, the step
    raises. So a test can let a step fail with nothing or with everything written.
    """

    def __init__(
        self,
        specs_by_rank: Sequence[dict[str, LayerSpec]],
        *,
        vocab_size: int = 64,
        available_bytes: int = 1 << 20,
        rank_class: type[NullRank] = NullRank,
    ) -> None:
        self.ranks = [
            rank_class(specs, global_rank=index, vocab_size=vocab_size, available_bytes=available_bytes)
            for index, specs in enumerate(specs_by_rank)
        ]
        self.before_step: Callable[[SchedulerOutput], None] = lambda step: None
        self.after_step: Callable[[SchedulerOutput], None] = lambda step: None
        self.is_running = False

    def start(self) -> None:
        self.is_running = True
        self.collective_rpc("init_worker", (Rendezvous(),))
        for method in ("init_device", "load_model"):
            self.collective_rpc(method)

    def collective_rpc(self, method: str, args: Sequence[Any] = (), *, timeout_s: float | None = None) -> list[Any]:
        self.check_health()
        return [getattr(rank, method)(*args) for rank in self.ranks]

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        self.before_step(step)
        outputs = self.collective_rpc("execute_model", (step,))
        self.after_step(step)
        if any(output != outputs[0] for output in outputs):
            raise MemoryFault("the ranks disagree")
        return outputs[0]

    def check_health(self) -> None:
        if not self.is_running:
            raise ExecutorError("The executor is not running.", remedy="Call start first.")

    def shutdown(self) -> None:
        if self.is_running:
            self.collective_rpc("shutdown")
        self.is_running = False
