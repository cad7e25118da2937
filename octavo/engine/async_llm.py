"""`AsyncLLM`: the engine for an event loop, its core in a process of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec

from octavo.engine.data_parallel_client import make_core_client
from octavo.engine.engine_args import EngineOptions, engine_config_from
from octavo.engine.engine_state import EngineState
from octavo.engine.input_processor import InputProcessor, Prompt, PromptRequest
from octavo.engine.intake import check_requests
from octavo.engine.mailbox import Mailbox, grown
from octavo.engine.observer import EngineObserver, GuardedObserver, NoObserver
from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.engine.post_office import PostOffice
from octavo.engine.preparation import OnStage, prepare
from octavo.engine.restarts import Restarts
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import EngineDeadError, OctavoError, RequestError
from octavo.kv.planner import KVCachePlan
from octavo.messages import CoreReady, CoreState, EngineCoreOutputs, MemoryReport, SchedulerStats, StageReport
from octavo.request import SamplingParams

LONG_TEXT = 4096
"""Characters from which on a prompt is tokenised in a thread: the event loop has others to serve."""

logger = logging.getLogger(__name__)


class AsyncLLM:
    """A model with its KV cache, for many callers in one event loop.

    Owns: the process of the engine core, the tokenizer, every unfinished request. Never: blocks the event loop.

    Parameters:
        model: `demo`, `demo-smollm2`, a folder, a `.gguf` file, or a hub id.
        on_stage: called with each finished step of the start-up.
        observer: told of requests and steps.
        max_restarts: how often in a row a core that died is started again.
        options: as those of `LLM`.

    Use it as an async context manager, or call `start()` and `shutdown()`. Raises `ConfigError` at once; what only the
    start can tell, `start()` raises.
    """

    def __init__(
        self,
        model: str,
        *,
        on_stage: OnStage | None = None,
        observer: EngineObserver | None = None,
        max_restarts: int = 3,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.config = engine_config_from({"model": model, **options})
        self._on_stage = on_stage or _silent
        self._observer: EngineObserver = GuardedObserver(observer or NoObserver())
        self._max_restarts = max_restarts
        self._restarts = Restarts("engine core", max_restarts)
        self._restarting: asyncio.Task[None] | None = None
        self._stats: dict[int, SchedulerStats] = {}
        """By number of the core."""
        self._lost: EngineDeadError | None = None
        """How a core ended that was ready before all of the start was."""
        self.state = EngineState.NEW

    # -- start and end --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model; nothing happens when it is running. Raises as `LLM(...)`, and `EngineDeadError` when the
        process of the core died."""
        if self.state is not EngineState.NEW:
            return
        self.state = EngineState.STARTING
        self._lost = None
        try:
            # Side by side: what is read here needs nothing of the core. The first that fails ends the other.
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(asyncio.to_thread(prepare, self.config, self._on_stage))
                starting = group.create_task(self._start_core())
        except BaseExceptionGroup as errors:
            await self._give_up_start(starting)
            raise errors.exceptions[0] from None
        except BaseException:
            await self._give_up_start(starting)
            raise
        self._check_alive()
        self._tokenizer = reading.result().tokenizer
        self.sampling_defaults = reading.result().sampling_defaults
        self._post = PostOffice(self._tokenizer, self._observer)
        self._take_over(starting.result())

    def _check_alive(self) -> None:
        if self._lost is not None:
            self.state = EngineState.NEW
            raise self._lost

    async def _give_up_start(self, starting: asyncio.Task[CoreReady]) -> None:
        self.state = EngineState.NEW
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            await self._client.shutdown()

    async def shutdown(self) -> None:
        """End the core; requests under way fail. May be called twice."""
        was, self.state = self.state, EngineState.STOPPED
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        if was not in (EngineState.NEW, EngineState.STOPPED):
            self._post.fail_all(EngineDeadError("This engine was shut down.", remedy="Start another one."))
            await self._client.shutdown()

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until no request is under way, at most `timeout_s`; whether that came about."""
        try:
            await asyncio.wait_for(self._post.wait_empty(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def plan(self) -> KVCachePlan:
        """What the KV cache is made of, and what it holds."""
        return self._ready.plan

    @property
    def model_name(self) -> str:
        """The model's name, for people."""
        return self._ready.model_config.name

    @property
    def max_model_len(self) -> int:
        """Longest prompt + output in tokens."""
        return self._ready.max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids that the model has."""
        return self._ready.model_config.vocab_size

    @property
    def max_num_seqs(self) -> int:
        """Sequences that may run at once, over all cores."""
        return self.config.scheduler.max_num_seqs * self.config.parallel.data_parallel_size

    @property
    def num_unfinished(self) -> int:
        """Requests under way."""
        return len(self._post)

    @property
    def core_pid(self) -> int:
        """Process id of the engine core, the first one where there are several."""
        return self._client.pid

    def get_default_sampling_params(self) -> SamplingParams:
        """As `LLM.get_default_sampling_params`."""
        return SamplingParams(**self.sampling_defaults)

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer that prompts go through."""
        return self._tokenizer

    def stats(self) -> SchedulerStats | None:
        """Where the core stood after its last step, or the sum over several; None before the first."""
        return SchedulerStats.total(self._stats.values()) if self._stats else None

    def check_health(self) -> None:
        """Raises `EngineDeadError` unless requests can be served."""
        self.state.check(self._restarts.in_a_row)

    # -- requests -------------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **more: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Complete `prompt`: the whole output so far, each time there is more. Parameters as `stream`.

        Closing the iterator, or cancelling the task that reads it, ends the request and frees its blocks.
        """
        so_far: dict[int, CompletionOutput] = {}
        prompt_logprobs = None
        async for piece in self.stream(prompt, sampling_params, request_id, **more):
            prompt_logprobs = prompt_logprobs or piece.prompt_logprobs
            for output in piece.outputs:
                so_far[output.index] = grown(so_far.get(output.index), output)
            outputs = [so_far[index] for index in sorted(so_far)]
            yield msgspec.structs.replace(piece, outputs=outputs, prompt_logprobs=prompt_logprobs)

    async def stream(
        self,
        prompt: Prompt | PromptRequest,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
    ) -> AsyncIterator[RequestOutput]:
        """Complete `prompt`: what is new, each time there is anything; the last piece is `finished`.

        Parameters:
            prompt: a text, token ids, a dict as `LLM.generate` takes them, or what `prepare` made of one.
            request_id: how outputs and `abort` call it; None takes a number.
            priority: smaller runs first under the priority policy.
            cache_salt: share cached prefixes only under the same salt.

        A reader that is slow finds larger pieces, and slows nobody down. Closing the iterator, or cancelling the task
        that reads it, ends the request. Raises `RequestError` when it is refused or given up, `EngineDeadError` when
        the core is not there, or died meanwhile.
        """
        request = await self._request(prompt, sampling_params, priority, cache_salt, add_special_tokens)
        name = request.request_id if request_id is None else request_id
        mailbox = self._hand_in(request, name)
        try:
            while True:
                piece = await mailbox.take()
                yield piece if name == piece.request_id else msgspec.structs.replace(piece, request_id=name)
                if piece.finished:
                    return
        finally:
            self._abort(self._post.give_up(mailbox))

    async def complete(self, request: PromptRequest) -> RequestOutput:
        """The whole output of a request that `prepare` made. Raises and is cancelled as `stream`."""
        mailbox = self._hand_in(request, request.request_id)
        try:
            return await mailbox.whole()
        finally:
            self._abort(self._post.give_up(mailbox))

    async def prepare(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        add_special_tokens: bool = True,
    ) -> list[PromptRequest]:
        """Checked requests for `stream` and `complete`; a thread tokenises long texts and compiles grammars.

        Raises `RequestError` that names the first prompt that cannot run, and `EngineDeadError` as `check_health`.
        """
        self.check_health()

        def process() -> list[PromptRequest]:
            requests = self._inputs.process(
                prompts, sampling_params, priority=priority, add_special_tokens=add_special_tokens
            )
            # Ids that there are not must not even reach the detokenizer here.
            check_requests(requests, vocab_size=self.vocab_size, max_model_len=self.max_model_len)
            return requests

        has_form = getattr(sampling_params, "structured_outputs", None) is not None
        in_thread = has_form or _num_characters(prompts) >= LONG_TEXT
        return await asyncio.to_thread(process) if in_thread else process()

    async def abort(self, request_id: str) -> None:
        """End a request and free its blocks; its reader gets a `RequestError`. Unknown ids are passed over."""
        mailbox = self._post.find(request_id)
        if mailbox is not None:
            self._abort(self._post.fail(mailbox.request.request_id, RequestError(f"{request_id!r} was aborted.")))

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False when blocks are in use: then nothing changes."""
        self.check_health()
        return await self._client.reset_prefix_cache()

    async def report_memory(self) -> list[MemoryReport]:
        """What each rank's cache really takes, as its live tensors tell. Changes nothing."""
        self.check_health()
        return await self._client.report_memory()

    async def report_states(self, timeout_s: float) -> list[CoreState]:
        """What each core has and who is first, of the cores that say so in time. Changes nothing; a core that says
        nothing writes to its log what its threads are doing."""
        self.check_health()
        return await self._client.report_states(timeout_s)

    async def _request(
        self,
        prompt: Prompt | PromptRequest,
        sampling: SamplingParams | None,
        priority: int,
        cache_salt: str | None,
        special: bool,  # noqa: FBT001
    ) -> PromptRequest:
        self.check_health()
        if isinstance(prompt, PromptRequest):
            return prompt
        (request,) = await self.prepare([prompt], sampling, priority=priority, add_special_tokens=special)
        return request if cache_salt is None else msgspec.structs.replace(request, cache_salt=cache_salt)

    def _hand_in(self, request: PromptRequest, name: str) -> Mailbox:
        self.check_health()
        mailbox, sequences = self._post.open(request, name)
        try:
            self._client.add_requests(sequences)
        except (ValueError, OverflowError) as error:  # half a surrogate pair, a number of more than 64 bits
            self._post.give_up(mailbox)
            raise RequestError(f"The request holds what cannot be sent to the engine core: {error}.") from None
        return mailbox

    def _abort(self, sequence_ids: Sequence[str]) -> None:
        if sequence_ids and self.state is EngineState.RUNNING:
            self._client.abort_requests(sequence_ids)

    # -- the core -------------------------------------------------------------------------------------------------

    async def _start_core(self) -> CoreReady:
        self._client = make_core_client(self.config, self, max_restarts=self._max_restarts)
        return await self._client.start(self._on_stage)

    def _take_over(self, ready: CoreReady) -> None:
        """A core is ready: what comes now is for it."""
        self._ready = ready
        self._restarts.note_start()
        self._inputs = InputProcessor(
            self._tokenizer,
            max_model_len=self.max_model_len,
            max_position=ready.model_config.max_position,
            vocab_size=self.vocab_size,
            defaults=self.sampling_defaults,
        )
        self.state = EngineState.RUNNING

    def take_ready(self, ready: CoreReady) -> None:
        """A core has started, one of several or the only one."""
        self._stats.pop(ready.engine, None)
        self._observer.engine_ready(ready)

    def take_outputs(self, outputs: EngineCoreOutputs) -> None:
        """News of one step, from the core."""
        self._stats[outputs.engine] = outputs.stats
        self._abort(self._post.deliver(outputs))

    def take_refusal(self, request_id: str, error: OctavoError) -> None:
        """A sequence was refused by the core, and with it its request."""
        self._abort(self._post.fail(request_id, error))

    def take_stall(self, state: CoreState) -> None:
        """Nobody can run in a core: its death is on its way."""
        self._observer.engine_stalled(state)

    def take_death(self, error: EngineDeadError) -> None:
        """The core has died: its requests fail, and another one is started."""
        if self.state is EngineState.STARTING:
            self._lost = error
            return
        logger.error("%s", error)
        self.state = EngineState.RESTARTING
        self._post.fail_all(error)
        self._restarts.note_death()
        self._restarting = asyncio.get_running_loop().create_task(self._restart(), name="core-restart")

    async def _restart(self) -> None:
        ready = await self._restarts.attempt(self._start_core)
        if ready is None:
            self.state = EngineState.DEAD
        else:
            self._take_over(ready)


def _num_characters(prompts: Prompt | Sequence[Prompt]) -> int:
    """About how much text there is to tokenise."""
    if isinstance(prompts, str):
        return len(prompts)
    if isinstance(prompts, dict):
        return len(prompts.get("prompt") or "")
    return sum(_num_characters(prompt) for prompt in prompts if isinstance(prompt, str | dict))


def _silent(report: StageReport) -> None:
    """Nobody watches the start-up."""
