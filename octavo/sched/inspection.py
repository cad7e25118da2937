"""Where a scheduler stands, for whoever looks into it. Looks, and changes nothing."""

from __future__ import annotations

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.config import SchedulerConfig
from octavo.errors import StuckError
from octavo.kv.specs import NULL_BLOCK
from octavo.messages import CoreState, RequestState, SchedulerStats
from octavo.sched.admission import step_limit
from octavo.sched.forks import Forks
from octavo.sched.queue import Entry, RequestQueue
from octavo.sched.running import RunningList

NUM_SHOWN = 8
"""Running requests in a state: the best ones."""


def stats_of(
    manager: KVCacheManager,
    running: RunningList,
    waiting: RequestQueue,
    forks: Forks,
    preemptions: tuple[int, int],
) -> SchedulerStats:
    """The counts after a step. `preemptions`: of all, and of those for a prompt."""
    counts, prefixes = manager.counts(), manager.prefix_stats()
    return SchedulerStats(
        num_running=len(running),
        num_waiting=len(waiting) + forks.num_parked,
        num_blocks=manager.num_blocks,
        num_free_blocks=counts.free,
        num_cached_blocks=counts.cached,
        num_used_blocks=counts.used,
        num_preemptions=preemptions[0],
        num_prompt_preemptions=preemptions[1],
        prefix_query_tokens=prefixes.query_tokens,
        prefix_hit_tokens=prefixes.hit_tokens,
        num_parked=forks.num_parked,
    )


def state_of(
    stats: SchedulerStats,
    config: SchedulerConfig,
    manager: KVCacheManager,
    running: RunningList,
    head: Entry | None,
    *,
    num_steps: int,
) -> CoreState:
    """What there is, and who is first: of those that run, and in the line, whose head is `head`."""

    def show(entry: Entry) -> RequestState:
        return _request_state(entry, manager, running, step_limit(config))

    return CoreState(
        stats=stats,
        num_steps=num_steps,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        running=[show(entry) for entry in running.entries[:NUM_SHOWN]],
        waiting=[] if head is None else [show(head)],
    )


def _request_state(entry: Entry, manager: KVCacheManager, running: RunningList, limit: int) -> RequestState:
    request = entry.request
    num_after = request.num_computed_tokens + min(request.num_tokens - request.num_computed_tokens, limit)
    tables = manager.block_ids(request.request_id)
    return RequestState(
        request_id=request.request_id,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        num_computed_tokens=request.num_computed_tokens,
        num_preemptions=request.num_preemptions,
        num_blocks=sum(block != NULL_BLOCK for table in tables for block in table),
        num_wanted_blocks=manager.max_growth(request.num_computed_tokens, num_after),
        num_spare_blocks=running.blocks_to_leave(entry, num_after) if entry.is_waiting else 0,
        is_held_back=entry.is_waiting and not running.may_admit(entry),
    )


def stuck(state: CoreState) -> StuckError:
    """The error of a step in which nobody can run."""
    stats = state.stats
    available = stats.num_free_blocks + stats.num_cached_blocks
    fact = (
        f"No request can run: {stats.num_running} run, {stats.num_waiting} wait, and {available} of "
        f"{stats.num_blocks - 1} blocks are free."
    )
    for first in (*state.waiting, *state.running)[:1]:
        fact += (
            f" The first is {first.request_id} with {first.num_prompt_tokens} prompt and {first.num_output_tokens} "
            f"output tokens, preempted {first.num_preemptions} times, which needs {first.num_wanted_blocks} blocks and "
            f"must leave {first.num_spare_blocks}"
        )
        fact += " and may not run beside a protected one." if first.is_held_back else "."
    return StuckError(fact, state)
