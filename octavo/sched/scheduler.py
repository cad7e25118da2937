"""Who runs next.

There are no phases: a step is `{request: num_tokens}` under a token budget. A request is always asked for the same
thing, the tokens it has but the cache has not; that is many for a new prompt and one for a request that generates.

One step:

    1. Running requests, best first, each up to `max_chunk_tokens` and leaving one token of the budget for each
       running request behind it, as blocks are free; so many as the plan has reserved for are sure. One that finds no
       blocks for those takes them from the worst running request, which is **preempted**: it loses its blocks and goes
       back to the line, where its key puts it ahead of later ones. When nobody worse is left, the request **stalls**:
       it keeps what it has and waits for the next step.
    2. Waiting requests, best first, as long as they fit. None in a step that preempted or stalled.

Why every request ends (given that it was admitted by `check_request`, so it fits the empty pool alone):

  - Preempted requests are worse than the one that needed their blocks. So while nobody is protected (below), the best
    running request gets tokens in every step.
  - A request is preempted at most `len(admission_spare)` times. After k times (a new one: 0) it is admitted only when
    that leaves `admission_spare[k]` blocks per growing group and request; after the last time it is **protected**: it
    comes back only when the pool holds all that it may still take, and the others leave that untouched until it ends.
    At most one request is protected. It never lacks blocks, so it gets tokens in every step in which all better ones
    stall.

So every step gives at least one token to somebody, and n requests that need t tokens in all end within
`(len(admission_spare) + 1) * t` steps, whatever comes before whom.
"""

from __future__ import annotations

from operator import attrgetter

from octavo.cache.fork import block_copies
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.config import SchedulerConfig
from octavo.errors import InvariantError
from octavo.messages import (
    CoreState,
    EngineCoreOutput,
    EngineCoreOutputs,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    SchedulerStats,
)
from octavo.request import FinishReason, Request, RequestStatus
from octavo.sched.admission import check_request, id_in_use, step_limit
from octavo.sched.forks import Forks
from octavo.sched.inspection import state_of, stats_of, stuck
from octavo.sched.outcome import failure_of, find_finish, news_of, plain_news
from octavo.sched.queue import POLICIES, Entry, RequestQueue
from octavo.sched.running import ADMISSION_SPARE, RunningList
from octavo.sched.shares import FairShares


class Scheduler:
    """Decides for each step who computes how many tokens.

    Owns: every unfinished request, the line, the running list (both in the order of the policy).
    Never: touches the pool except through `KVCacheManager`, knows what a model or a rank is.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        manager: KVCacheManager,
        *,
        max_model_len: int,
        admission_spare: tuple[int, ...] = ADMISSION_SPARE,
    ) -> None:
        self.config = config
        self.manager = manager
        self.max_model_len = max_model_len
        self._step_limit = step_limit(config)
        self._class_of = POLICIES[config.policy]
        self._entries: dict[str, Entry] = {}
        self._waiting = RequestQueue()
        self._shares = FairShares()
        self._running = RunningList(manager, admission_spare)
        self.forks = Forks(manager)
        """Children and parents; to read only."""
        self._forget: list[str] = []
        """Requests that the ranks hold and must drop before the next step."""
        self._under_way: SchedulerOutput | None = None
        self._partial: set[str] = set()
        """Requests whose last known token is not in the step under way: they sample nothing."""
        self._aborted_under_way: list[Entry] = []
        self._blocked: tuple[Entry, int, int] | None = None
        """The waiting entry that found no room, and how many blocks were available and requests running then."""
        self._num_added = self._num_steps = self._num_preemptions = self._num_prompt_preemptions = 0

    # -- requests come and go -------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Put `request` into the line. Raises as `check_request`."""
        self.check_request(request)
        self._num_added += 1
        start = self._shares.start_of(request)
        entry = Entry(request, (self._class_of(request), start, request.arrival, self._num_added))
        if not self.forks.add(entry, self._entries):
            self._waiting.push(entry)
        self._entries[request.request_id] = entry

    def check_request(self, request: Request) -> None:
        """Raises `RequestError` when it can never be served (see `sched/admission.py`) or its id is in use."""
        if request.request_id in self._entries or request.request_id in self.forks.kept_ids():
            raise id_in_use(request.request_id)
        limit = None if self.config.enable_chunked_prefill else min(self._step_limit, self.manager.max_chunk_tokens)
        check_request(request, self.manager, max_model_len=self.max_model_len, whole_prompt_limit=limit)

    def abort_request(self, request_id: str) -> bool:
        """Forget the request and free its blocks, at once or, in the middle of a step, when the step has settled.

        False when there is no such request, be it unfinished or kept for its children.
        """
        entry = self._entries.get(request_id)
        if entry is None:
            return self.forks.release(request_id)
        self._close(entry.request, FinishReason.ABORT)
        if self.forks.discard(entry):
            return True
        if entry.is_waiting:
            self._waiting.discard(entry)
            return True
        self._running.discard({entry})
        self._forget.append(request_id)
        if self._under_way is not None and request_id in self._under_way.num_scheduled_tokens:
            self._aborted_under_way.append(entry)
        else:
            self.manager.free(entry.request)
        return True

    def has_unfinished_requests(self) -> bool:
        return bool(self._entries)

    def request_ids(self) -> list[str]:
        """Ids of all unfinished requests, in order of arrival here."""
        return list(self._entries)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing changed, while a request holds blocks."""
        return self.manager.reset_prefix_cache()

    def stats(self) -> SchedulerStats:
        preemptions = (self._num_preemptions, self._num_prompt_preemptions)
        return stats_of(self.manager, self._running, self._waiting, self.forks, preemptions)

    def state(self) -> CoreState:
        """What there is and who is first. Changes nothing."""
        head = self._waiting.peek()
        return state_of(self.stats(), self.config, self.manager, self._running, head, num_steps=self._num_steps)

    # -- a step begins --------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """The next step. Must be settled by `update_from_output` or `fail_step` before the next call."""
        if self._under_way is not None:
            raise InvariantError(f"step {self._under_way.step} was not settled before the next one was asked for")
        self._num_steps += 1
        step = SchedulerOutput(step=self._num_steps, num_scheduled_tokens={})
        self._partial = set()
        budget = self.config.max_num_batched_tokens
        budget, is_disturbed = self._schedule_running(step, budget)
        if not is_disturbed:
            self._admit_waiting(step, budget)
        if self._entries and not step.num_scheduled_tokens:
            raise stuck(self.state())
        step.finished_request_ids.extend(self._forget)
        self._forget.clear()
        self._under_way = step
        return step

    def _schedule_running(self, step: SchedulerOutput, budget: int) -> tuple[int, bool]:
        """Give the running requests their tokens; the budget left, and whether somebody was preempted or stalled."""
        running, limit = self._running.entries, self._step_limit
        scheduled, cached = step.num_scheduled_tokens, step.cached_requests
        is_disturbed = False
        for position, entry in enumerate(running, start=1):
            if not budget:
                break
            request = entry.request
            request_id = request.request_id
            num_computed, num_tokens = request.num_computed_tokens, len(request.token_ids)
            num_new = num_tokens - num_computed
            # Most requests need one token, for which there is room: nothing is left to ask.
            if num_new > 1 or num_tokens > entry.quiet_until:
                if num_new > 1:
                    num_new = min(num_new, limit, max(1, budget - (len(running) - position)))
                num_new, block_ids = self._allocate(entry, num_new)
                if block_ids is None:
                    is_disturbed = True
                    block_ids = self._make_room(entry, num_new, position)
                if block_ids is None:
                    continue
                if any(block_ids):
                    cached.new_block_ids[request_id] = block_ids
                if num_computed + num_new < num_tokens:
                    self._partial.add(request_id)
            scheduled[request_id] = num_new
            cached.request_ids.append(request_id)
            cached.num_computed_tokens.append(num_computed)
            request.num_computed_tokens = num_computed + num_new
            budget -= num_new
        return budget, is_disturbed

    def _allocate(self, entry: Entry, num_new: int) -> tuple[int, tuple[list[int], ...] | None]:
        """(tokens, new blocks for them) of a running request, up to `num_new`; None when there are too few."""
        leave_free = 0 if entry is self._running.protected else self._running.reserved_blocks()
        num_new, block_ids = self._running.allocate(entry, num_new, leave_free)
        if block_ids is not None:
            entry.quiet_until = self.manager.quiet_until(entry.request.request_id)
        return num_new, block_ids

    def _make_room(self, entry: Entry, num_new: int, position: int) -> tuple[list[int], ...] | None:
        """As `_allocate`, at the cost of kept blocks, then of the running requests from `position` on."""
        for_prompt = not entry.request.num_output_tokens
        while self.forks.reclaim() or self._preempt_worst(position, for_prompt=for_prompt):
            block_ids = self._allocate(entry, num_new)[1]
            if block_ids is not None:
                return block_ids
        return None

    def _preempt_worst(self, first: int, *, for_prompt: bool) -> bool:
        """Preempt the worst unprotected request from place `first` on; False when there is none. `for_prompt`: for a
        further part of a prompt, not for an output token."""
        entry = self._running.pop_worst(first)
        if entry is None:
            return False
        request = entry.request
        self.manager.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self._num_preemptions += 1
        self._num_prompt_preemptions += for_prompt
        self._forget.append(request.request_id)
        self._waiting.push(entry)
        return True

    def _admit_waiting(self, step: SchedulerOutput, budget: int) -> None:
        """Admit waiting requests in order until one does not fit."""
        while budget and len(self._running) < self.config.max_num_seqs:
            entry = self._waiting.peek()
            if entry is None or self._is_still_blocked(entry):
                return
            num_new = self._try_to_admit(entry, step, budget)
            if num_new == 0:
                return
            budget -= num_new

    def _try_to_admit(self, entry: Entry, step: SchedulerOutput, budget: int) -> int:
        """Let the head of the line run; the number of tokens it was given, 0 when it must wait."""
        request = entry.request
        if not self._running.may_admit(entry):
            return 0
        computed = self.forks.find(request, self._entries, step.num_scheduled_tokens)
        if computed is None and request.may_skip_prefix:
            computed = self.manager.get_computed_blocks(request)
        num_hit = 0 if computed is None else computed.num_tokens
        num_missing = request.num_tokens - num_hit
        num_new = min(num_missing, self._step_limit, budget)
        if num_new < num_missing and not self.config.enable_chunked_prefill and request.num_preemptions == 0:
            return 0
        leave_free = self._running.blocks_to_leave(entry, num_hit + num_new)
        num_new, block_ids = self._running.allocate(entry, num_new, leave_free, computed)
        if block_ids is None and self.forks.reclaim():
            return self._try_to_admit(entry, step, budget)
        if block_ids is None:
            self._blocked = (entry, self.manager.num_available_blocks, len(self._running))
            return 0
        if computed is not None and computed.copied:
            step.block_copies.extend(block_copies(computed, block_ids))
        self._waiting.pop()
        self._shares.admitted(entry.key[1])
        entry.quiet_until = self.manager.quiet_until(request.request_id)
        self._running.add(entry)
        self.forks.settle(request)
        self._start(request, step, block_ids, num_hit=num_hit, num_new=num_new)
        return num_new

    def _start(
        self, request: Request, step: SchedulerOutput, block_ids: tuple[list[int], ...], *, num_hit: int, num_new: int
    ) -> None:
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_hit
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_hit + num_new
        if request.num_computed_tokens < request.num_tokens:
            self._partial.add(request.request_id)
        step.num_scheduled_tokens[request.request_id] = num_new
        step.new_requests.append(NewRequestData.of(request, num_computed_tokens=num_hit, block_ids=block_ids))

    def _is_still_blocked(self, entry: Entry) -> bool:
        """Whether `entry` found no room before and nothing has been given back since: spares a useless look-up."""
        if self._blocked is None or self._blocked[0] is not entry or not len(self._running):
            return False
        return self.manager.num_available_blocks <= self._blocked[1] and len(self._running) >= self._blocked[2]

    # -- a step settles -------------------------------------------------------------------------------------------

    def update_from_output(
        self, step: SchedulerOutput, output: ModelRunnerOutput, ended: frozenset[str] = frozenset()
    ) -> EngineCoreOutputs:
        """Take in what the ranks sampled: append tokens, finish requests (those of `ended` stop), free their blocks.

        Raises `InvariantError`, with nothing changed, when the ranks answered for other requests than had to sample.
        """
        self._check_under_way(step)
        entries, sampled, scheduled = self._entries, output.sampled, step.num_scheduled_tokens
        must_sample = scheduled.keys() - self._partial if self._partial else scheduled.keys()
        if sampled.keys() != must_sample:
            wrong = sampled.keys() ^ must_sample
            raise InvariantError(f"the ranks sampled for other requests than they had to: {sorted(wrong)[:8]}")
        outputs: list[EngineCoreOutput] = []
        num_prompt_tokens = 0
        finished: set[Entry] = set()
        has_parked, has_logprobs = self.forks.num_parked > 0, bool(output.logprobs or output.prompt_logprobs)
        for request_id, num_new in scheduled.items():
            entry = entries.get(request_id)
            if entry is None or entry.is_waiting:  # aborted in the middle of the step, its id perhaps used anew
                continue
            request = entry.request
            start = request.num_computed_tokens - num_new
            if start < request.num_prompt_tokens:
                num_prompt_tokens += min(num_new, request.num_prompt_tokens - start)
            token_id = sampled.get(request_id)
            if token_id is None:
                if request.sampling.prompt_logprobs is not None:
                    outputs.append(news_of(entry, output, None, start))
                continue
            num_tokens = request.append_token(token_id)
            if has_parked and request.num_output_tokens == 1:
                self._unpark(request_id)
            if token_id in entry.enders or num_tokens > entry.longest or request_id in ended:
                reason, stop_reason = find_finish(request, token_id, must_stop=request_id in ended)
                if reason is not None:
                    self._close(request, reason, stop_reason)
                    finished.add(entry)
            if has_logprobs or entry in finished:
                outputs.append(news_of(entry, output, token_id, start))
            else:
                outputs.append(plain_news(request, token_id))
        self._retire(finished)
        self._settle()
        return EngineCoreOutputs(outputs=outputs, stats=self.stats(), num_prompt_tokens=num_prompt_tokens)

    def fail_step(self, step: SchedulerOutput, message: str) -> EngineCoreOutputs:
        """Settle a step whose execution failed: its requests end with `FinishReason.ERROR` and `message`.

        What the step would have written is dropped from the prefix cache. Other requests lose nothing, and the ranks
        are told again whom to forget, in case they never heard of it.
        """
        self._check_under_way(step)
        found = (self._entries.get(name) for name in step.num_scheduled_tokens)
        entries = [entry for entry in found if entry is not None and not entry.is_waiting]
        for entry in (*entries, *self._aborted_under_way):
            request = entry.request
            self.manager.uncache(request, request.num_computed_tokens - step.num_scheduled_tokens[request.request_id])
        outputs: list[EngineCoreOutput] = []
        for entry in entries:
            request = entry.request
            self._close(request, FinishReason.ERROR)
            outputs.append(failure_of(request, message))
        self._retire(set(entries))
        self._forget.extend(step.finished_request_ids)
        self._settle()
        return EngineCoreOutputs(outputs=outputs, stats=self.stats())

    def _check_under_way(self, step: SchedulerOutput) -> None:
        if step is not self._under_way:
            raise InvariantError(f"step {step.step} is not under way")

    def _settle(self) -> None:
        for entry in self._aborted_under_way:
            self.manager.free(entry.request)
        self._aborted_under_way.clear()
        self._under_way = None

    def _close(self, request: Request, reason: FinishReason, stop_reason: int | None = None) -> None:
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason
        del self._entries[request.request_id]
        self._unpark(request.request_id)

    def _unpark(self, request_id: str) -> None:
        """Let the children that waited for this request's prompt join the line."""
        for child in self.forks.unpark(request_id):
            self._waiting.push(child)

    def _retire(self, finished: set[Entry]) -> None:
        """Take closed entries out of the running list and free their blocks, the worst request's first."""
        self._running.discard(finished)
        for entry in sorted(finished, key=attrgetter("key"), reverse=True):
            request = entry.request
            self._forget.append(request.request_id)
            if request.finish_reason is FinishReason.ERROR or not self.forks.keep(request):
                self.manager.free(request)
