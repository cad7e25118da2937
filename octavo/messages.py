"""Everything that crosses a process: between front end and engine core, and between engine core and ranks.

Down to a rank goes `SchedulerOutput`, up comes `ModelRunnerOutput`. Into the core goes `EngineCoreRequest`, out comes
`EngineCoreOutput`; where the core is a process of its own, what travels is one of `ToCore` and one of `FromCore`. All
are msgspec structs of plain values: they serialise to msgpack as they are.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from octavo.config import EngineConfig, ModelConfig
from octavo.error_report import ErrorReport
from octavo.kv.planner import KVCachePlan
from octavo.request import FinishReason, Request, SamplingParams


class EngineCoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate (an `n` > 1 prompt is `n` of these)."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    owner: str | None = None
    """Who shares the engine fairly with other owners."""
    eos_token_ids: tuple[int, ...] = ()
    parent_id: str | None = None
    """A request with the same leading tokens; what it has computed of them need not be computed again."""
    keep_blocks: bool = False
    """Whether its blocks outlive it, for children; they are given back when it is aborted, or when room is needed."""


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log probabilities at one place: the chosen token first, then the best ones in falling order."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """Rank of the chosen token in the vocabulary, 1 is the most likely."""


class NewRequestData(msgspec.Struct, frozen=True, kw_only=True):
    """A request the ranks do not hold yet (new, or resumed after preemption: then `token_ids` has its output too)."""

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...]
    num_computed_tokens: int
    """Tokens that the prefix cache already holds."""
    block_ids: tuple[list[int], ...]
    """The whole table, by group; 0 where no memory is needed."""

    @classmethod
    def of(cls, request: Request, *, num_computed_tokens: int, block_ids: tuple[list[int], ...]) -> NewRequestData:
        """What the ranks must know of `request`."""
        return cls(
            request_id=request.request_id,
            token_ids=request.token_ids.tolist(),
            num_prompt_tokens=request.num_prompt_tokens,
            sampling=request.sampling,
            eos_token_ids=request.eos_token_ids,
            num_computed_tokens=num_computed_tokens,
            block_ids=block_ids,
        )


class CachedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduled requests that the ranks already hold: lists, because in most steps there is nothing else to say."""

    request_ids: list[str] = []
    num_computed_tokens: list[int] = []
    """Before this step, request by request."""
    new_block_ids: dict[str, tuple[list[int], ...]] = {}
    """Ids to append to the table, by request and group; absent where there are none."""


class SchedulerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One step: who computes how many tokens, and in which blocks.

    Request r computes `num_scheduled_tokens[r]` tokens in this step, starting with token number `num_computed_tokens`.
    A rank samples for r exactly when this range ends with r's last known token.
    """

    step: int
    num_scheduled_tokens: dict[str, int]
    """Insertion order is the order of the batch."""
    new_requests: list[NewRequestData] = []
    cached_requests: CachedRequests = msgspec.field(default_factory=CachedRequests)
    finished_request_ids: list[str] = []
    """Requests (finished, aborted or preempted since the last step) that the ranks must forget before this step."""
    block_copies: list[tuple[int, int]] = []
    """(source, destination) of blocks to copy before this step writes anything: first all sources are read."""
    earlier_tokens: dict[str, int] = {}
    """What the step before this one sampled, for the ranks of a pipeline that did not sample it themselves."""
    token_masks: dict[str, bytes] = {}
    """The tokens that a request may be given next, for those that may not be given all: bit `i % 8` of byte `i // 8`,
    the lowest being bit 0, speaks of token i."""

    @property
    def num_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


class ModelRunnerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a step produced. A request that sampled nothing (its prompt is not done) is absent from `sampled`."""

    sampled: dict[str, int]
    logprobs: dict[str, TokenLogprobs] = {}
    prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
    """For the step's prompt tokens: entry i speaks of prompt token `num_computed_tokens + 1 + i`."""


class EngineCoreOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """News of one request after one step."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    last_is_text: bool = False
    """Whether it ended with `stop` because nothing can follow its last token, which belongs to the output then."""
    error: str | None = None
    """The message, when `finish_reason` is `error`."""
    error_parameter: str | None = None
    """The field of the request that is to blame; None where none is."""


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Where the engine stands after a step. free + cached + used + 1 (null) = `num_blocks`."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    """Blocks without content worth keeping."""
    num_cached_blocks: int
    """Unreferenced blocks whose content the prefix cache still knows: evicted when the free ones run out."""
    num_used_blocks: int
    num_preemptions: int
    """Since the start."""
    prefix_query_tokens: int
    prefix_hit_tokens: int
    num_parked: int = 0
    """Of those that wait: the ones whose prompt another request is computing for them, or whose grammar is being
    compiled."""
    num_prompt_preemptions: int = 0
    """Of the preemptions: those that made room for a further part of a prompt; the others did for an output token."""

    @classmethod
    def total(cls, stats: Iterable[SchedulerStats]) -> SchedulerStats:
        """The sums over several engines."""
        numbers = [msgspec.structs.astuple(each) for each in stats]
        return cls(**dict(zip(cls.__struct_fields__, map(sum, zip(*numbers, strict=True)), strict=True)))


class CacheFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What is counted of the cache now and then, because counting it looks at every block."""

    used_blocks: list[int]
    """By group: blocks that requests hold."""
    cached_blocks: list[int]
    """By group: unreferenced blocks whose content can still be found."""
    lifetimes_s: list[float] = []
    """As `cache.block_watch.BlockTimes`, since the last time; nothing where no sample is asked for."""
    idle_s: list[float] = []
    reuse_gaps_s: list[float] = []


class EngineCoreOutputs(msgspec.Struct, frozen=True, kw_only=True, tag="outputs"):
    """News of all requests after one step."""

    outputs: list[EngineCoreOutput]
    stats: SchedulerStats
    num_prompt_tokens: int = 0
    """Prompt tokens computed in this step."""
    num_step_blocks: int = 0
    """Blocks in use while the step ran: `stats` counts what is left when its finished requests have gone."""
    admitted: list[str] = []
    """Requests that this step took out of the line, those that come back after a preemption included."""
    step_s: float = 0.0
    """Seconds that the step took, where the core is a process of its own."""
    engine: int = 0
    """Number of the core among data-parallel ones."""
    cache: CacheFigures | None = None
    """In some steps only, among them each after which nobody runs."""


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """Where one unfinished request stands, for people who look into a core."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_preemptions: int
    num_blocks: int
    """Blocks in its tables."""
    num_wanted_blocks: int
    """Most blocks that its next step takes from the pool."""
    num_spare_blocks: int = 0
    """Blocks that must stay free beside those when it is admitted."""
    is_held_back: bool = False
    """Whether it may not run beside a request that must not lose its blocks again."""


class CoreState(msgspec.Struct, frozen=True, kw_only=True):
    """What a core has, and who is first: what to look at when nothing moves."""

    stats: SchedulerStats
    num_steps: int
    max_num_seqs: int
    max_num_batched_tokens: int
    running: list[RequestState]
    """The best ones; `stats` has the number of all."""
    waiting: list[RequestState]
    """The head of the line, or nobody."""
    num_compiling: int = 0
    """Requests that wait for a grammar, before they come into the line; `stats` counts them as waiting."""
    engine: int = 0
    """Number of the core among data-parallel ones."""

    @property
    def is_stuck(self) -> bool:
        """Whether somebody waits and nobody runs, though there are free blocks."""
        stats = self.stats
        num_free = stats.num_free_blocks + stats.num_cached_blocks
        return stats.num_waiting > 0 and not stats.num_running and num_free > 0


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """Where ranks find each other. One rank needs none: then all of this is left as it is."""

    path: str = ""
    """A file of all ranks' machine, in a folder that nobody else can enter; it need not exist yet."""
    host: str = ""
    """Or else the address at which global rank 0 listens, which the other ranks' machines must reach."""
    port: int = 0
    num_local_ranks: int = 1
    """Ranks of this rank's machine, among which its cores and its memory are divided."""
    timeout_s: float = 120.0
    """How long to wait for ranks that have not come."""


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank's cache takes, as its live tensors tell."""

    num_blocks: int
    """Null block included."""
    num_views: int
    """Tensors that the layers are bound to."""
    num_storages: int
    """Distinct memory behind them."""
    storage_bytes: int
    """Of that memory, each address counted once."""
    resident_bytes: int
    """Of the rank's process; 0 where the system does not tell."""
    rank: int
    engine: int = 0
    """The core's number where there are several."""


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """A named step of the start-up: how long it took and what came out."""

    name: str
    seconds: float
    result: str
    """One line for people, e.g. `18 layers, 340 MiB of weights`."""
    rank: int | None = None
    """The rank that did it; None for the engine core itself."""
    facts: dict[str, str | int] = {}
    """What was chosen or found, by name, for programs, e.g. `{"num_threads": 2}`."""


class StartCore(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """The first message to a core: what to run."""

    config: EngineConfig


class AddRequests(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """Put these into the line, in this order. One that is refused is answered by `RequestRefused`."""

    requests: list[EngineCoreRequest]


class AbortRequests(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Forget these; unknown and finished ids are skipped."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, frozen=True, kw_only=True, tag="reset"):
    """Forget all cached prefixes; answered by `PrefixCacheReset` with the same number."""

    number: int


class AskMemory(msgspec.Struct, frozen=True, kw_only=True, tag="ask_memory"):
    """What do the ranks' caches take? Answered by `MemoryTold` with the same number."""

    number: int


class AskState(msgspec.Struct, frozen=True, kw_only=True, tag="ask_state"):
    """Tell what the core has and who is first."""

    number: int


class StopCore(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """End after the step under way."""


ToCore = StartCore | AddRequests | AbortRequests | ResetPrefixCache | AskMemory | AskState | StopCore
"""What a front end sends to a core in a process of its own."""


class StageEnded(msgspec.Struct, frozen=True, kw_only=True, tag="stage"):
    """A step of the start-up is over."""

    report: StageReport


class CoreReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The start-up is over: requests can come."""

    plan: KVCachePlan
    model_config: ModelConfig
    max_model_len: int
    engine: int = 0
    """Number of the core among data-parallel ones."""


class CoreFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The core's last message: it could not start, or found itself broken."""

    error: ErrorReport
    state: CoreState | None = None
    """What it had, where it broke because nobody could run."""


class RequestRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """A request was not put into the line; nothing of it was kept."""

    request_id: str
    error: ErrorReport


class PrefixCacheReset(msgspec.Struct, frozen=True, kw_only=True, tag="was_reset"):
    """Whether the prefixes were forgotten: not while a request holds blocks."""

    number: int
    is_done: bool


class MemoryTold(msgspec.Struct, frozen=True, kw_only=True, tag="memory"):
    """One report for each rank."""

    number: int
    reports: list[MemoryReport]


class StateTold(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """What the core has and who is first."""

    number: int
    state: CoreState


FromCore = (
    StageEnded | CoreReady | CoreFailed | RequestRefused | PrefixCacheReset | MemoryTold | StateTold | EngineCoreOutputs
)
"""What a core in a process of its own sends. A step's news is one message."""
