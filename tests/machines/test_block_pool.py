"""`BlockPool` beside the obvious pool: a list, and dicts of lists. After every operation both must answer alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from octavo.cache import block_pool
from octavo.cache.block_pool import BlockPool
from octavo.cache.flat_array import Ids
from octavo.errors import InvariantError
from tests.cache.build import ids

NUM_BLOCKS = 24
KEYS = st.integers(1, 12)


class ObviousPool:
    """What `BlockPool` promises, written down as plainly as possible."""

    def __init__(self, num_blocks: int) -> None:
        self.line = list(range(1, num_blocks))
        self.refs = dict.fromkeys(self.line, 0)
        self.key: dict[int, int] = {}
        self.holders: dict[int, list[int]] = {}
        self.vacant: list[int] = []

    def _lose_key(self, block: int) -> None:
        key = self.key.pop(block, None)
        if key is not None:
            self.holders[key].remove(block)
            if not self.holders[key]:
                del self.holders[key]
                self.vacant.append(key)

    def take(self, count: int) -> list[int]:
        taken, self.line = self.line[:count], self.line[count:]
        for block in taken:
            self._lose_key(block)
            self.refs[block] = 1
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self.refs[block] == 0:
                self.line.remove(block)
            self.refs[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.refs[block] -= 1
        idle = [block for block in blocks if self.refs[block] == 0]
        self.line = [b for b in idle if b not in self.key] + self.line + [b for b in idle if b in self.key]

    def insert(self, blocks: Sequence[int], keys: Sequence[int]) -> list[int]:
        new = [key for key in keys if key not in self.holders]
        for block, key in zip(blocks, keys, strict=True):
            self.key[block] = key
            self.holders.setdefault(key, []).append(block)
        return new

    def forget(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._lose_key(block)

    def reset(self) -> bool:
        if any(self.refs.values()):
            return False
        self.forget(list(self.key))
        return True


class PoolMachine(RuleBasedStateMachine):
    """Any history of takes, hits, frees and keys."""

    bulk = block_pool.MANY

    def __init__(self) -> None:
        super().__init__()
        self._bulk = block_pool.MANY
        block_pool.MANY = self.bulk
        self.real = BlockPool(NUM_BLOCKS)
        self.vacant: list[int] = []
        self.real.on_vacant = self.vacant.extend
        self.obvious = ObviousPool(NUM_BLOCKS)

    def teardown(self) -> None:
        block_pool.MANY = self._bulk

    @property
    def used(self) -> list[int]:
        return [block for block, count in self.obvious.refs.items() if count]

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.obvious.line)))
        assert self.real.take(count).tolist() == self.obvious.take(count)

    @precondition(lambda self: self.obvious.key)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.obvious.key)), unique=True))
        idle = sum(1 for block in blocks if not self.obvious.refs[block])
        assert self.real.count_unreferenced(ids([0, *blocks])) == idle
        self.real.touch(ids([0, *blocks, 0]))
        self.obvious.touch(blocks)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.used), unique=True, min_size=1))
        self.real.free(ids([0, *blocks]))
        self.obvious.free(blocks)

    @precondition(lambda self: any(block not in self.obvious.key for block in self.used))
    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        bare = [block for block in self.used if block not in self.obvious.key]
        blocks = data.draw(st.lists(st.sampled_from(bare), unique=True, min_size=1))
        keys = (
            data.draw(st.lists(KEYS, unique=True, min_size=len(blocks), max_size=len(blocks)).filter(bool))
            if (len(blocks) <= 12)
            else list(range(1, len(blocks) + 1))
        )
        assert list(self.real.insert(ids(blocks), keys)) == self.obvious.insert(blocks, keys)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.used), unique=True, min_size=1))
        self.real.forget(ids([0, *blocks]))
        self.obvious.forget(blocks)

    @rule()
    def reset(self) -> None:
        assert self.real.reset() == self.obvious.reset()

    @invariant()
    def both_agree(self) -> None:
        real, obvious = self.real, self.obvious
        real.check_integrity()
        assert real.line() == obvious.line
        assert {block: real.references(block) for block in obvious.refs} == obvious.refs
        assert {b: real.key_of(b) for b in obvious.refs if real.key_of(b)} == obvious.key
        assert [real.find(key) for key in range(64)] == [obvious.holders.get(key, [0])[0] for key in range(64)]
        num_cached = sum(1 for block in obvious.line if block in obvious.key)
        counts = (real.num_plain, real.num_cached, real.num_used)
        assert counts == (len(obvious.line) - num_cached, num_cached, len(self.used))
        assert sum(counts) + 1 == NUM_BLOCKS
        assert sorted(self.vacant) == sorted(obvious.vacant)
        self.vacant.clear()
        obvious.vacant.clear()


class BulkPoolMachine(PoolMachine):
    """The same with the pass for long runs taken from two blocks on."""

    bulk = 2


QUICK = settings(max_examples=25, stateful_step_count=20, deadline=None, database=None)
TestPool = PoolMachine.TestCase
TestPool.settings = QUICK
TestBulkPool = BulkPoolMachine.TestCase
TestBulkPool.settings = QUICK


# -- planted bugs: the machine must find each of them --------------------------------------------------------------


def _cached_to_the_front(pool: BlockPool, blocks: Ids) -> None:
    """Treat freed content as worthless."""
    for block in blocks:
        if block and pool._refs[block] == 1:
            pool.forget(ids([block]))
    FREE(pool, blocks)


def _free_in_reverse(pool: BlockPool, blocks: Ids) -> None:
    FREE(pool, blocks[::-1])


def _free_once_for_all(pool: BlockPool, blocks: Ids) -> None:
    """Ignore other holders of a shared block."""
    for block in blocks:
        if block:
            pool._refs[block] = 1
    FREE(pool, blocks)


def _touch_without_unlinking(pool: BlockPool, blocks: Ids) -> None:
    for block in blocks:
        if block:
            pool._refs[block] += 1


def _take_keeps_keys(pool: BlockPool, count: int) -> Ids:
    pool._drop_keys = lambda blocks: None  # type: ignore[method-assign]
    return TAKE(pool, count)


def _newest_is_found(pool: BlockPool, blocks: Ids, keys: Sequence[int]) -> Sequence[int]:
    new = INSERT(pool, blocks, keys)
    for block, key in zip(blocks, keys, strict=True):
        first = pool._first[key]
        if first != block:
            pool._others[key] = {b: None for b in (first, *pool._others[key]) if b != block}
            pool._first[key] = block
    return new


FREE, TAKE, INSERT = BlockPool.free, BlockPool.take, BlockPool.insert
BUGS = [
    ("free", _cached_to_the_front),
    ("free", _free_in_reverse),
    ("free", _free_once_for_all),
    ("touch", _touch_without_unlinking),
    ("take", _take_keeps_keys),
    ("insert", _newest_is_found),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "bug"), BUGS, ids=[bug.__name__ for _, bug in BUGS])
def test_the_machine_finds_a_planted_bug(
    monkeypatch: pytest.MonkeyPatch, method: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(BlockPool, method, bug)
    hunt = settings(
        QUICK, max_examples=300, print_blob=False, report_multiple_bugs=False, phases=[Phase.generate], derandomize=True
    )
    with pytest.raises((AssertionError, InvariantError)):
        run_state_machine_as_test(PoolMachine, settings=hunt)


@pytest.mark.long
@pytest.mark.parametrize("machine", [PoolMachine, BulkPoolMachine])
def test_long_histories(machine: type[PoolMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=500, stateful_step_count=60, deadline=None, database=None)
    )
