"""What a fork shares and what it copies, worked out by hand; tests/machines tries all the rest."""

from __future__ import annotations

from octavo.cache.fork import block_copies
from tests.cache.build import full, go_on, local, mamba, manager, place, request, window


def test_full_blocks_are_shared_and_the_last_one_is_copied() -> None:
    cache = manager(full(4))
    own = place(cache, request("a", range(14)))[0]
    computed = cache.fork("a", 14, 14)
    assert computed is not None
    assert (computed.num_tokens, computed.block_ids, computed.copied) == (14, (own[:3],), ([own[3]],))
    child = request("b", [*range(14), 7])
    blocks = cache.allocate_slots(child, 1, computed)
    assert blocks is not None
    assert blocks[0][:3] == own[:3]
    assert block_copies(computed, blocks) == [(own[3], blocks[0][3])]
    assert blocks[0][3] not in own
    cache.check_integrity()
    assert cache.counts().used == 5


def test_n_children_hold_the_prompt_once() -> None:
    cache = manager(full(4))
    parent = request("a", range(17))
    place(cache, parent)
    for number in range(5):
        computed = cache.fork("a", 16, 17)
        assert computed is not None
        assert computed.copied == ([],)
        assert cache.allocate_slots(request(f"b{number}", range(17)), 1, computed) is not None
    assert cache.counts().used == 4 + 6, "four full blocks of the prompt, one of its own for each of the six"
    assert [cache._pool.references(block) for block in cache.block_ids("a")[0]] == [6, 6, 6, 6, 1]


def test_a_fork_needs_no_prefix_cache() -> None:
    cache = manager(full(4))
    cache.enable_caching = False
    own = place(cache, request("a", range(10)))[0]
    computed = cache.fork("a", 9, 10)
    assert computed is not None
    assert (computed.block_ids, computed.copied, computed.nodes.tolist()) == ((own[:2],), ([own[2]],), [])
    assert cache.allocate_slots(request("b", [*range(9), 5]), 1, computed) is not None
    cache.check_integrity()


def test_nothing_left_of_a_window_is_shared_or_copied() -> None:
    cache = manager(full(4), window(6))
    asked = request("a", range(18))
    place(cache, asked)
    go_on(cache, asked, 1)
    tables = cache.block_ids("a")
    computed = cache.fork("a", 18, 19)
    assert computed is not None
    # Position 18 reads 13 to 18: block 3 and block 4, which is not full.
    assert computed.block_ids == (tables[0][:4], [0, 0, 0, tables[1][3]])
    assert computed.copied == ([tables[0][4]], [tables[1][4]])


def test_what_the_window_left_behind_cannot_be_forked() -> None:
    cache = manager(window(4))
    asked = request("a", range(8))
    place(cache, asked)
    go_on(cache, asked, 4)
    go_on(cache, asked, 1)
    assert cache.fork("a", 12, 13) is not None
    assert cache.fork("a", 6, 13) is None, "position 6 reads block 0, which is gone"


def test_a_finished_chunk_is_not_needed() -> None:
    cache = manager(local(8))
    asked = request("a", range(10))
    place(cache, asked)
    computed = cache.fork("a", 10, 10)
    assert computed is not None
    table = cache.block_ids("a")[0]
    assert (computed.block_ids, computed.copied) == (([0, 0],), ([table[2]],))


def test_blocks_of_unlike_sizes_are_shared_to_a_common_border() -> None:
    cache = manager(full(4), full(6))
    place(cache, request("a", range(23)))
    computed = cache.fork("a", 23, 23)
    assert computed is not None
    assert [len(table) for table in computed.block_ids] == [3, 2]
    assert [len(table) for table in computed.copied] == [3, 2]
    assert cache.allocate_slots(request("b", [*range(23), 1, 2]), 2, computed) is not None
    cache.check_integrity()


def test_a_state_is_copied_where_it_stands_and_never_shared() -> None:
    cache = manager(full(4), mamba())
    asked = request("a", range(9))
    place(cache, asked)
    assert cache.fork("a", 8, 9) is None, "the state has gone on"
    computed = cache.fork("a", 9, 9)
    assert computed is not None
    tables = cache.block_ids("a")
    assert (computed.block_ids[1], computed.copied[1]) == ([], tables[1])


def test_nobody_can_fork_from_a_request_that_holds_nothing() -> None:
    assert manager(full(4)).fork("a", 3, 3) is None
