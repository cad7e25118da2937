"""The running list: order, protection, what must be left to whom."""

from __future__ import annotations

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.kv.specs import MambaSpec
from octavo.sched.queue import Entry
from octavo.sched.running import RunningList
from tests.sched.harness import cache_config, full, make_request, sliding


def manager(*specs) -> KVCacheManager:
    config = cache_config(specs or (full(),), num_blocks=100, max_model_len=400, max_chunk_tokens=4)
    return KVCacheManager(config, enable_caching=True)


def entry(order: int, *, num_preemptions: int = 0, num_computed: int = 8, max_tokens: int = 21) -> Entry:
    request = make_request(f"r{order}", range(20), max_tokens=max_tokens)
    request.num_preemptions = num_preemptions
    request.num_computed_tokens = num_computed
    return Entry(request, (0, 0, 0, order))


def test_the_best_comes_first_however_they_were_admitted() -> None:
    running = RunningList(manager(), (0, 1))
    entries = [entry(order) for order in range(4)]
    for order in (2, 0, 3, 1):
        running.add(entries[order])
    assert running.entries == entries
    running.discard({entries[1], entries[2]})
    assert running.entries == [entries[0], entries[3]]


def test_the_worst_is_taken_but_never_one_before_the_given_place() -> None:
    running = RunningList(manager(), (0, 1))
    entries = [entry(order) for order in range(3)]
    for item in entries:
        running.add(item)
    assert running.pop_worst(1) is entries[2]
    assert running.pop_worst(1) is entries[1]
    assert running.pop_worst(1) is None
    assert running.entries == entries[:1]


def test_a_protected_request_is_never_taken() -> None:
    running = RunningList(manager(), (0, 1))
    entries = [entry(0), entry(1), entry(2, num_preemptions=2)]
    for item in entries:
        running.add(item)
    assert running.protected is entries[2]
    assert running.pop_worst(1) is entries[1]
    assert running.pop_worst(1) is None
    assert not running.may_admit(entry(3, num_preemptions=2))
    assert running.may_admit(entry(3, num_preemptions=1))
    running.discard({entries[2]})
    assert running.protected is None
    assert running.may_admit(entry(3, num_preemptions=2))


def test_what_the_protected_request_may_still_take_is_reserved() -> None:
    running = RunningList(manager(full(4), sliding(6, 4)), (0,))
    assert running.reserved_blocks() == 0
    running.add(entry(0, num_preemptions=1, num_computed=8))
    # 40 tokens = 10 full blocks, 2 of them held. A step of the window touches 6 - 1 + 4 = 9 positions: 3 blocks.
    assert running.reserved_blocks() == (10 - 2) + 3


def test_what_an_admission_must_leave() -> None:
    running = RunningList(manager(full(4), sliding(6, 4)), (0, 3))
    assert running.blocks_to_leave(entry(0, num_preemptions=2), 8) == 0, "nobody else runs"
    running.add(entry(0))
    assert running.blocks_to_leave(entry(1), 8) == 0
    assert running.blocks_to_leave(entry(1, num_preemptions=1), 8) == 3 * 1 * 2
    assert running.blocks_to_leave(entry(1, num_preemptions=2), 8) == (10 - 2) + 3
    running.add(entry(1, num_preemptions=2))
    assert running.blocks_to_leave(entry(2, num_preemptions=1), 8) == 11 + 3 * 2 * 2


def test_nothing_is_left_to_who_needs_no_more_blocks_nor_for_states_which_move_on() -> None:
    state = MambaSpec(block_size=4, shapes=((1,),), dtypes=("float32",), cache_mode="align")
    running = RunningList(manager(full(4), state, state), (3,))
    running.add(entry(0, num_computed=20))
    assert running.blocks_to_leave(entry(1), 8) == 3, "the states have their block, and move on in it"
    running.add(entry(1, num_computed=37))  # of 40: the tenth block of tokens is there
    assert running.blocks_to_leave(entry(2), 8) == 3
    alone = RunningList(manager(state, state), (3,))
    alone.add(entry(0, num_computed=20))
    assert alone.blocks_to_leave(entry(1), 8) == 0
