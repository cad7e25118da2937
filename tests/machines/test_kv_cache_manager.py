"""`KVCacheManager` beside a memory that records every write: no leak, no alias, no wrong hit, no missed hit."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from octavo.cache import block_pool, kv_cache_manager, lookup, prefix_cache
from octavo.cache import fork as fork_module
from octavo.cache.block_pool import BlockPool
from octavo.cache.chunked_local import ChunkedLocalManager
from octavo.cache.contents import BlockContents
from octavo.cache.flat_array import Ids, no_ids
from octavo.cache.fork import block_copies, fork_blocks
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.cache.prefix_cache import PrefixCache
from octavo.cache.request_blocks import ComputedBlocks, RequestBlocks
from octavo.cache.sliding_window import SlidingWindowManager
from octavo.errors import InvariantError
from octavo.kv.specs import KVCacheConfig, KVCacheGroupSpec
from octavo.request import Request, SamplingParams
from tests.machines.written_memory import WrittenMemory
from tests.strategies import cache_groups

MAX_LEN = 40
TOKENS = st.integers(0, 2)


class ManagerMachine(RuleBasedStateMachine):
    """Requests with shared prefixes come, run in chunks, are preempted, fail and end, in any order."""

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        self.specs = data.draw(cache_groups())
        self.max_chunk = data.draw(st.sampled_from([1, 3, 8, 16, 16]))
        groups = tuple(KVCacheGroupSpec(layer_names=(f"layers.{i}",), spec=s) for i, s in enumerate(self.specs))
        config = KVCacheConfig(
            num_blocks=data.draw(st.sampled_from([6, 20, 40, 80, 80])),
            groups=groups,
            tensors=(),
            max_model_len=MAX_LEN,
            max_chunk_tokens=self.max_chunk,
        )
        self.caching = data.draw(st.sampled_from([True, True, True, False]))
        self.whole_prompts = data.draw(st.booleans())
        self.manager = KVCacheManager(config, enable_caching=self.caching, admit_whole_prompt=self.whole_prompts)
        every = data.draw(st.sampled_from([None, None, 0, 1, 2]))
        if every is not None:
            self.manager = KVCacheManager(
                config,
                enable_caching=self.caching,
                retention_interval=every * self.manager.scheduler_block_size,
                admit_whole_prompt=self.whole_prompts,
            )
        self.dense = every is None
        self.memory = WrittenMemory(self.manager, self.specs)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.seen: list[list[int]] = [[]]
        self.num_requests = 0

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """A request that shares a prefix with an earlier one, or with none."""
        earlier = data.draw(st.sampled_from(self.seen))
        shared = earlier[: data.draw(st.sampled_from([len(earlier), len(earlier) // 2, len(earlier) - 1, 0]))]
        fresh = data.draw(st.lists(TOKENS, min_size=1 if shared else 8, max_size=24))
        tokens = (shared + fresh)[: MAX_LEN - 4]
        self.seen = [*self.seen[-7:], tokens]
        self.num_requests += 1
        self.waiting.append(
            Request(
                f"r{self.num_requests}",
                tokens,
                SamplingParams(),
                cache_salt=data.draw(st.sampled_from([None, None, None, None, "a"])),
                max_output_tokens=MAX_LEN,
            )
        )

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, False, True]))
    def step(self, data: st.DataObject, fails: bool) -> None:
        """Some requests compute some tokens together: all are placed, then all is written, then all is read."""
        batch: list[tuple[Request, range]] = []
        for request in [*self.running, *self.waiting]:
            num_new = data.draw(st.sampled_from([self.max_chunk, self.max_chunk, self.max_chunk, 1, 0]))
            if num_new:
                span = self._place(request, num_new)
                if span:
                    batch.append((request, span))
        for request, span in batch:
            others = [other for other in self.running if other is not request]
            self.memory.write(request, span if not fails else span[: len(span) // 2], others)
        if fails:
            for request, span in batch:
                self.manager.uncache(request, span.start)
            for request, _ in batch:
                self._end(request)
            return
        for request, span in batch:
            self.memory.read(request, span)

    def _place(self, request: Request, num_new: int) -> range | None:
        """Allocate as the scheduler does; the positions to compute, None where there was no room."""
        start = request.num_computed_tokens
        computed = ComputedBlocks(num_tokens=0, tables=tuple(no_ids() for _ in self.specs))
        if request in self.waiting:
            computed = self._look(request)
            start = computed.num_tokens
        elif start == request.num_tokens:
            if start == MAX_LEN:
                return None
            request.append_token(start % 3)
        num_new = min(num_new, request.num_tokens - start)
        needed = self.memory.blocks_needed(request, start + num_new, computed)
        before = self.manager.counts()
        blocks = self.manager.allocate_slots(request, num_new, computed if request in self.waiting else None)
        after = self.manager.counts()
        available = before.free + before.cached
        if blocks is None:
            assert needed > available or (self.whole_prompts and request in self.waiting) or after.used < before.used
            return None
        # Blocks left of a window came back on the way.
        assert before.used + needed - after.used >= 0
        assert needed <= available + max(0, before.used + needed - after.used)
        if request in self.waiting:
            self.waiting.remove(request)
            self.running.append(request)
        request.num_computed_tokens = start + num_new
        return range(start, start + num_new)

    def _look(self, request: Request) -> ComputedBlocks:
        line, counts = self.manager.line(), self.manager.counts()
        computed = self.manager.get_computed_blocks(request)
        assert (line, counts) == (self.manager.line(), self.manager.counts())
        assert computed.num_tokens < request.num_tokens
        return computed

    @precondition(lambda self: any(0 < request.num_computed_tokens < MAX_LEN - 1 for request in self.running))
    @rule(data=st.data(), fresh=st.lists(TOKENS, min_size=1, max_size=6))
    def fork(self, data: st.DataObject, fresh: list[int]) -> None:
        """A child goes on from somewhere inside a running request."""
        parents = [request for request in self.running if 0 < request.num_computed_tokens < MAX_LEN - 1]
        parent = data.draw(st.sampled_from(parents))
        settled = parent.num_computed_tokens
        num_tokens = settled if data.draw(st.booleans()) else data.draw(st.integers(1, settled))
        computed = self.manager.fork(parent.request_id, num_tokens, settled)
        assert (computed is not None) == self.memory.keeps(parent, num_tokens)
        if computed is None:
            return
        self.num_requests += 1
        child = Request(
            f"r{self.num_requests}",
            (parent.token_ids[:num_tokens].tolist() + fresh)[:MAX_LEN],
            SamplingParams(),
            cache_salt=parent.cache_salt,
            max_output_tokens=MAX_LEN,
        )
        num_new = min(self.max_chunk, child.num_tokens - num_tokens)
        needed = self.memory.blocks_needed(child, num_tokens + num_new, computed)
        counts = self.manager.counts()
        blocks = self.manager.allocate_slots(child, num_new, computed)
        if blocks is None:
            assert needed > counts.free + counts.cached or self.whole_prompts
            return
        self.memory.copy(block_copies(computed, blocks))
        self.running.append(child)
        child.num_computed_tokens = num_tokens + num_new
        span = range(num_tokens, num_tokens + num_new)
        self.memory.write(child, span, [request for request in self.running if request is not child])
        self.memory.read(child, span)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """Between steps, when all that has a key is written, the hit is the longest there is."""
        request = data.draw(st.sampled_from(self.waiting))
        hit = self._look(request).num_tokens
        assert hit == (self.memory.longest_hit(request) if self.caching else 0)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running))
        self._end(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting.append(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.seen = [*self.seen[-7:], request.token_ids.tolist()]
        self._end(request)

    def _end(self, request: Request) -> None:
        self.running.remove(request)
        self.manager.free(request)
        assert self.manager.block_ids(request.request_id) == tuple([] for _ in self.specs)

    @rule()
    def reset(self) -> None:
        assert self.manager.reset_prefix_cache() == (not self.running)

    @invariant()
    def all_adds_up(self) -> None:
        if not hasattr(self, "manager"):
            return
        manager = self.manager
        manager.check_integrity()
        counts = manager.counts()
        assert counts.free + counts.cached + counts.used + 1 == manager.num_blocks
        tables = [manager.block_ids(request.request_id) for request in self.running]
        assert counts.used == len({block for groups in tables for table in groups for block in table if block})
        assert len(manager.line()) == counts.free + counts.cached
        if not self.caching:
            assert counts.cached == 0
        for request, groups in zip(self.running, tables, strict=True):
            for spec, table in zip(self.specs, groups, strict=True):
                held = sum(1 for block in table if block)
                assert held <= spec.max_blocks(request.num_tokens, chunk_tokens=self.max_chunk)

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        for request in list(self.running):
            self._end(request)
        counts = self.manager.counts()
        assert counts.used == 0
        assert self.manager.reset_prefix_cache()
        assert self.manager.counts().free == self.manager.num_blocks - 1
        self.manager.check_integrity()


QUICK = settings(max_examples=30, stateful_step_count=20, deadline=None, database=None)
TestManager = ManagerMachine.TestCase
TestManager.settings = QUICK


@pytest.mark.slow
def test_runs_of_any_length_take_the_pass_for_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (block_pool, prefix_cache):
        monkeypatch.setattr(module, "MANY", 1)
    run_state_machine_as_test(ManagerMachine, settings=settings(QUICK, max_examples=100))


class Colliding(bytes):
    """A block's content under the weakest digest there is: all contents have the same hash."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 7


@pytest.mark.slow
def test_a_deliberately_weak_digest_changes_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "span_key", lambda before, head: (before, Colliding(head)))
    run_state_machine_as_test(ManagerMachine, settings=settings(QUICK, max_examples=100))


# -- planted bugs: the machine must find each of them --------------------------------------------------------------

Bug = Callable[[pytest.MonkeyPatch], None]


def _drop_a_window_block_early(patch: pytest.MonkeyPatch) -> None:
    right = SlidingWindowManager.num_dropped_blocks
    patch.setattr(SlidingWindowManager, "num_dropped_blocks", lambda self, n: right(self, n + 1))


def _drop_a_chunk_early(patch: pytest.MonkeyPatch) -> None:
    right = ChunkedLocalManager.num_dropped_blocks
    patch.setattr(ChunkedLocalManager, "num_dropped_blocks", lambda self, n: right(self, n + 1))


def _never_drop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVCacheManager, "_drop", lambda self, held, num_computed: None)


def _share_a_writable_block(patch: pytest.MonkeyPatch) -> None:
    """Cache the block that is still being filled, as if its tokens were all known."""
    right = KVCacheManager._cache_full_blocks

    def early(self: KVCacheManager, request: Request, held: RequestBlocks, num_tokens: int) -> None:
        padded = -(-num_tokens // self.scheduler_block_size) * self.scheduler_block_size
        places = [len(table) * manager.block_size for table, manager in zip(held.tables, self.managers, strict=True)]
        whole = Request(
            request.request_id,
            (request.token_ids.tolist() + [0] * padded)[:padded],
            request.sampling,
            cache_salt=request.cache_salt,
            max_output_tokens=1,
        )
        right(self, whole if padded <= min(places) else request, held, padded if padded <= min(places) else num_tokens)

    patch.setattr(KVCacheManager, "_cache_full_blocks", early)


def _ignore_salts(patch: pytest.MonkeyPatch) -> None:
    for module in (kv_cache_manager, lookup):
        patch.setattr(module, "root_content", lambda **_: b"")


def _ignore_the_parent(patch: pytest.MonkeyPatch) -> None:
    """Take a block for the same whenever its own tokens are the same."""

    def follow(self: PrefixCache, node: int, contents: BlockContents) -> Ids:
        by_content = {}
        for span in self._found.values():
            size = len(span.tokens) // len(span.nodes)
            for place, other in enumerate(span.nodes):
                by_content[bytes(span.tokens[place * size : (place + 1) * size])] = other
        nodes = no_ids()
        for place in range(len(contents)):
            if contents.block(place) not in by_content:
                break
            nodes.append(by_content[contents.block(place)])
        return nodes

    patch.setattr(PrefixCache, "follow", follow)


def _follow_a_span_beyond_the_fork(patch: pytest.MonkeyPatch) -> None:
    """Take the first block that differs for the same, too."""

    def follow(self: PrefixCache, node: int, contents: BlockContents) -> Ids:
        nodes, span, place = self._walk(node, contents)
        return nodes + span.nodes[place : place + 1] if len(nodes) < len(contents) else nodes

    patch.setattr(PrefixCache, "follow", follow)


def _hit_the_last_token(patch: pytest.MonkeyPatch) -> None:
    right = lookup.PrefixLookup._agree
    patch.setattr(lookup.PrefixLookup, "_agree", lambda self, nodes, limit: right(self, nodes, limit + 1))


def _adopt_without_a_reference(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "touch", lambda self, blocks: None)


def _keep_the_last_group(patch: pytest.MonkeyPatch) -> None:
    right = KVCacheManager.free

    def free(self: KVCacheManager, request: Request) -> None:
        held = self._held.get(request.request_id)
        if held is not None:
            held.tables.pop()
        right(self, request)

    patch.setattr(KVCacheManager, "free", free)


def _believe_failed_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVCacheManager, "uncache", lambda self, request, num_tokens: None)


def _give_groups_the_same_blocks(patch: pytest.MonkeyPatch) -> None:
    right = KVCacheManager._lengthen

    def lengthen(self: KVCacheManager, held: RequestBlocks, *others: Any) -> Any:
        new = right(self, held, *others)
        if len(new) > 1 and new[0] and new[1]:
            held.tables[1][-1] = held.tables[0][-1]
        return new

    patch.setattr(KVCacheManager, "_lengthen", lengthen)


def _miss_the_longest_hit(patch: pytest.MonkeyPatch) -> None:
    right = lookup.PrefixLookup._agree

    def agree(self: lookup.PrefixLookup, nodes: Sequence[int], limit: int) -> tuple[int, int]:
        hit, longest = right(self, nodes, limit)
        return max(0, hit - self.scheduler_block_size), longest

    patch.setattr(lookup.PrefixLookup, "_agree", agree)


def _trust_one_kind(patch: pytest.MonkeyPatch) -> None:
    """Take what the last kind says, without asking the others again."""

    def agree(self: lookup.PrefixLookup, nodes: Sequence[int], limit: int) -> tuple[int, int]:
        manager, groups = self._kinds[-1]
        ratio = manager.block_size // self.hash_block_size
        own = nodes[ratio - 1 :: ratio]
        hit = manager.find_hit(self._prefixes, own, groups, limit, self.scheduler_block_size)
        return hit, hit

    patch.setattr(lookup.PrefixLookup, "_agree", agree)


def _share_what_a_fork_must_copy(patch: pytest.MonkeyPatch) -> None:
    def fork(*args: Any, **numbers: Any) -> ComputedBlocks | None:
        computed = fork_blocks(*args, **numbers)
        if computed is None:
            return None
        tables = tuple(shared + array("Q", own) for shared, own in zip(computed.tables, computed.copied, strict=True))
        return msgspec.structs.replace(computed, tables=tables, copied=tuple([] for _ in tables))

    patch.setattr(kv_cache_manager, "fork_blocks", fork)


def _copy_the_wrong_blocks(patch: pytest.MonkeyPatch) -> None:
    def fork(*args: Any, **numbers: Any) -> ComputedBlocks | None:
        computed = fork_blocks(*args, **numbers)
        if computed is None:
            return None
        return msgspec.structs.replace(computed, copied=tuple([block - 1 for block in own] for own in computed.copied))

    patch.setattr(kv_cache_manager, "fork_blocks", fork)


def _fork_what_was_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fork_module, "_are_kept", lambda blocks, count: True)


BUGS: list[Bug] = [
    _share_what_a_fork_must_copy,
    _copy_the_wrong_blocks,
    _fork_what_was_dropped,
    _drop_a_window_block_early,
    _drop_a_chunk_early,
    _never_drop,
    _share_a_writable_block,
    _ignore_salts,
    _ignore_the_parent,
    _follow_a_span_beyond_the_fork,
    _hit_the_last_token,
    _adopt_without_a_reference,
    _keep_the_last_group,
    _believe_failed_steps,
    _give_groups_the_same_blocks,
    _miss_the_longest_hit,
    _trust_one_kind,
]


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=[bug.__name__.strip("_") for bug in BUGS])
def test_the_machine_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    bug(monkeypatch)
    hunt = settings(
        QUICK,
        max_examples=3000,
        print_blob=False,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        derandomize=True,
    )
    with pytest.raises((AssertionError, InvariantError, IndexError)):
        run_state_machine_as_test(ManagerMachine, settings=hunt)


@pytest.mark.long
def test_long_histories() -> None:
    run_state_machine_as_test(ManagerMachine, settings=settings(QUICK, max_examples=3000, stateful_step_count=50))
