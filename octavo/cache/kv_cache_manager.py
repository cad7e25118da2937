"""The scheduler's one door to the cache: look up a prefix, allocate, free."""

from __future__ import annotations

from collections.abc import KeysView, Sequence

from octavo.cache.block_pool import NO_KEY, BlockPool
from octavo.cache.contents import root_content
from octavo.cache.flat_array import no_ids, repeated
from octavo.cache.fork import fork_blocks
from octavo.cache.group_manager import NEVER, GroupManager, check_retention
from octavo.cache.lookup import PrefixLookup
from octavo.cache.places import blocks_to_come, check_references, dense_blocks, lengthened, movable_groups
from octavo.cache.prefix_cache import NO_NODE, PrefixCache
from octavo.cache.prefix_writer import PrefixWriter
from octavo.cache.registry import make_group_manager
from octavo.cache.request_blocks import BlockCounts, ComputedBlocks, PrefixStats, RequestBlocks
from octavo.cache.usage import GroupBlocks, blocks_by_group
from octavo.errors import InvariantError
from octavo.kv.specs import NULL_BLOCK, KVCacheConfig
from octavo.request import Request


class KVCacheManager:
    """Decides which block holds which token, for all groups at once.

    Look, count, commit: `get_computed_blocks` changes nothing, `allocate_slots` compares the needs of all groups with
    the pool before it takes the first block, so there is nothing to roll back.

    Owns: the pool, the prefix cache, every request's block tables.
    Never: chooses which request runs, touches the bytes of a block.

    Parameters:
        config: a rank's plan; all ranks have equal groups and `num_blocks`, so any rank's does.
        enable_caching: keep full blocks for requests with the same prefix; stays off where a group cannot share them.
        retention_interval: which full blocks of windowed groups enter the prefix cache: None every one, 0 only those
            at the replay boundary of the prompt and at junctions, n also those at every multiple of n tokens.
        admit_whole_prompt: place a new request only when all of its known tokens would fit now.
        pool: a fresh one of `config.num_blocks`; None makes it.

    Raises `ConfigError` for an impossible `retention_interval`.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        enable_caching: bool,
        retention_interval: int | None = None,
        admit_whole_prompt: bool = True,
        pool: BlockPool | None = None,
    ) -> None:
        self.num_blocks = config.num_blocks
        self.max_model_len = config.max_model_len
        self.max_chunk_tokens = config.max_chunk_tokens
        self.admit_whole_prompt = admit_whole_prompt
        self.managers: tuple[GroupManager, ...] = tuple(
            make_group_manager(group.spec, max_model_len=config.max_model_len, max_chunk_tokens=config.max_chunk_tokens)
            for group in config.groups
        )
        self._pool = pool or BlockPool(config.num_blocks)
        self._prefixes = PrefixCache(self._pool, num_groups=max(1, len(self.managers)))
        self._lookup = PrefixLookup(self.managers, self._prefixes)
        self.scheduler_block_size = self._lookup.scheduler_block_size
        """Prefix hits are multiples of this many tokens."""
        self.hash_block_size = self._lookup.hash_block_size
        """Tokens of one step in the chain of prefixes."""
        can_cache = bool(self.managers) and all(manager.caches_prefixes for manager in self.managers)
        self.enable_caching = enable_caching and can_cache
        wanted = retention_interval if self.enable_caching else None
        self._intervals = [manager.retention_interval(wanted, self.scheduler_block_size) for manager in self.managers]
        self._writer = PrefixWriter(
            self.managers,
            self._prefixes,
            intervals=self._intervals,
            scheduler_block_size=self.scheduler_block_size,
            hash_block_size=self.hash_block_size,
        )
        if self.enable_caching and retention_interval is not None:
            check_retention(retention_interval, self.scheduler_block_size)
        self._dropping = [
            (group, manager) for group, manager in enumerate(self.managers) if manager.next_drop(0) < NEVER
        ]
        self._skips_places = any(manager.skips_places for manager in self.managers)
        self._grows_evenly = all(
            manager.is_dense and manager.block_size == self.scheduler_block_size for manager in self.managers
        )
        """Whether all tables get their next block at the same token."""
        self._held: dict[str, RequestBlocks] = {}
        self._nothing: tuple[list[int], ...] = tuple([] for _ in self.managers)
        self._no_hit = ComputedBlocks(num_tokens=0, tables=tuple([no_ids() for _ in self.managers]))
        self._query_tokens = self._hit_tokens = 0

    def get_computed_blocks(self, request: Request) -> ComputedBlocks:
        """The longest prefix of `request` that is cached in every group. Changes nothing.

        The last token is never part of it: it must be computed for its logits. Over several kinds the hit is a fixed
        point: each kind may shorten the others' candidate until all agree.
        """
        if not self.enable_caching:
            return self._no_hit
        return self._lookup.find(request)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        computed: ComputedBlocks | None = None,
        *,
        leave_free: int = 0,
    ) -> tuple[list[int], ...] | None:
        """Make room for the next `num_new_tokens` tokens of `request`; None when there is none.

        There is none, too, when blocks are needed and fewer than `leave_free` would stay available.

        The tokens before them are `request.num_computed_tokens`, or on first admission the hit `computed`, as
        `get_computed_blocks` just answered. Blocks left of a window are dropped first, even if the rest fails; nothing
        else changes on failure. Blocks that become full with known tokens enter the prefix cache at once.

        Returns the ids to append to the request's table, by group (on first admission the whole table, hits included,
        0 where nothing is kept). To read only.
        """
        held = self._held.get(request.request_id)
        if held is None:
            return self._admit(request, num_new_tokens, computed, leave_free)
        num_tokens = request.num_computed_tokens + num_new_tokens
        if num_tokens <= held.quiet_until:
            return self._nothing
        return self._grow(request, held, num_tokens, leave_free)

    def quiet_until(self, request_id: str) -> int:
        """Up to so many tokens of this request `allocate_slots` need not be called: there is room for them, nothing to
        drop and nothing to cache. Holds until the next call for the request."""
        return self._held[request_id].quiet_until

    def fork(self, request_id: str, num_tokens: int, num_settled: int) -> ComputedBlocks | None:
        """What a child of request `request_id` can go on from: its first `num_tokens` tokens, of `num_settled` that are
        in the cache. To be handed to `allocate_slots` at once. None when they are gone. Changes nothing."""
        held, size = self._held.get(request_id), self.scheduler_block_size
        if held is None:
            return None
        num_shared = num_tokens - num_tokens % size
        return fork_blocks(
            held,
            self.managers,
            num_tokens=num_tokens,
            num_settled=num_settled,
            num_shared=num_shared,
            num_nodes=num_shared // self.hash_block_size,
            generation=self._prefixes.generation,
        )

    def free(self, request: Request) -> None:
        """Drop every block of `request`, the last one of each group first; its cached content stays to be found.

        A request that holds nothing is left alone.
        """
        held = self._held.pop(request.request_id, None)
        if held is None:
            return
        for table in held.tables:
            table.reverse()
            self._pool.free(table)
        if held.tip != NO_NODE:
            self._prefixes.release(held.tip)

    def uncache(self, request: Request, num_tokens: int) -> None:
        """Take out of the prefix cache what `request` entered beyond its first `num_tokens` tokens.

        For a step that failed: its blocks were entered when they were allocated, and may never have been written.
        """
        held = self._held.get(request.request_id)
        if held is None:
            return
        kept = num_tokens - num_tokens % self.scheduler_block_size
        if kept >= held.num_cached_tokens:
            return
        for manager, table in zip(self.managers, held.tables, strict=True):
            self._pool.forget(table[kept // manager.block_size : held.num_cached_tokens // manager.block_size])
        held.num_cached_tokens = kept
        held.quiet_until = 0

    def block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The request's tables by group, 0 where nothing is kept; empty lists when it holds nothing. To read only."""
        held = self._held.get(request_id)
        return self._nothing if held is None else tuple([table.tolist() for table in held.tables])

    def request_ids(self) -> KeysView[str]:
        """The requests that hold blocks."""
        return self._held.keys()

    def is_cached(self, block: int) -> bool:
        """Whether a request with the same prefix can find the content of `block`, be it in use or not."""
        return self._pool.key_of(block) != NO_KEY

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. False, and nothing is changed, while a request holds blocks."""
        return self._pool.reset()

    def counts(self) -> BlockCounts:
        pool = self._pool
        return BlockCounts(free=pool.num_plain, cached=pool.num_cached, used=pool.num_used)

    def blocks_by_group(self) -> list[GroupBlocks]:
        """The blocks of each group. Looks at every block."""
        return blocks_by_group(self._pool, [held.tables for held in self._held.values()], len(self.managers))

    @property
    def num_available_blocks(self) -> int:
        """Blocks that can be handed out now: free and cached ones."""
        return self._pool.num_available

    def prefix_stats(self) -> PrefixStats:
        return PrefixStats(query_tokens=self._query_tokens, hit_tokens=self._hit_tokens)

    @property
    def keys_stored(self) -> int:
        """Blocks that entered the prefix cache since the start."""
        return self._pool.num_keys_stored

    @property
    def keys_evicted(self) -> int:
        """Blocks that left the prefix cache to be handed out anew, since the start."""
        return self._pool.num_keys_evicted

    def line(self) -> list[int]:
        """The blocks without a reference, the one to be handed out first in front."""
        return self._pool.line()

    def max_blocks_of(self, num_tokens: int) -> int:
        """Most blocks, over all groups, that a request of `num_tokens` in all holds at once."""
        return sum(manager.max_blocks(num_tokens) for manager in self.managers)

    def max_growth(self, num_computed: int, num_tokens: int) -> int:
        """Most blocks that a request may still take from the pool on its way from `num_computed` to `num_tokens`."""
        return sum(manager.max_growth(num_computed, num_tokens) for manager in self.managers)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Whether a request of `num_tokens` in all could run alone in this pool."""
        return self.max_blocks_of(num_tokens) <= self.num_blocks - 1

    def check_integrity(self) -> None:
        """Raise `InvariantError` unless tables, reference counts, line and prefixes agree. Looks at every block."""
        self._pool.check_integrity()
        self._prefixes.check_integrity(held.tip for held in self._held.values() if held.tip != NO_NODE)
        check_references(self._pool, [table for held in self._held.values() for table in held.tables])

    def whole_prompt_blocks(self, request: Request, computed: ComputedBlocks) -> int:
        """Most blocks that the known tokens of `request` need at once, beside the blocks of its hit."""
        known, pairs = min(request.num_tokens, self.max_model_len), zip(self.managers, computed.tables, strict=True)
        return sum(blocks_to_come(manager, table, computed.num_tokens, known) for manager, table in pairs)

    def _admit(
        self, request: Request, num_new_tokens: int, computed: ComputedBlocks | None, leave_free: int
    ) -> tuple[list[int], ...] | None:
        """First allocation of a request: adopt the hit, then take blocks for the new tokens."""
        if computed is None:
            computed = self._no_hit
        elif computed.num_tokens and computed.generation != self._prefixes.generation:
            raise InvariantError(f"the hit of request {request.request_id} is stale: look it up again")
        pool, hits = self._pool, computed.tables
        num_tokens, copied = computed.num_tokens + num_new_tokens, computed.copied or self._nothing
        needed = leave_free + sum(
            [
                manager.num_new_blocks(len(hit), num_tokens, len(sources))
                for manager, hit, sources in zip(self.managers, hits, copied, strict=True)
            ]
        )
        whole = self.whole_prompt_blocks(request, computed) if self.admit_whole_prompt else 0
        moved: list[int] = []
        # Blocks of the hit that stand in the line leave it, too. They are counted only where it matters.
        if max(needed, whole) + sum(map(len, hits)) > pool.num_available:
            spare = pool.num_available - sum(map(pool.count_unreferenced, hits))
            if needed > spare and not computed.copied:
                place = (computed.num_tokens, num_tokens)
                moved = movable_groups(self.managers, hits, *place, pool, num_own=0, most=needed - spare)
            if max(needed - len(moved), whole) > spare:
                return None
        held = self._adopt(request, computed)
        before = [table[:] for table in held.tables]
        new = self._lengthen(held, num_tokens, leave_free, copied, moved)
        self._cache_full_blocks(request, held, num_tokens)
        return tuple([[*table, *more] for table, more in zip(before, new, strict=True)])

    def _adopt(self, request: Request, computed: ComputedBlocks) -> RequestBlocks:
        """Remember an admitted request, so far with the blocks of its hit alone."""
        nodes, tip = computed.nodes, NO_NODE
        if self.enable_caching:
            if nodes:
                tip = nodes[-1]
                self._prefixes.hold(tip)
            else:
                tip = self._prefixes.hold_root(root_content(salt=request.cache_salt))
            if request.num_preemptions == 0 and computed is not self._no_hit:
                self._query_tokens += request.num_tokens
                self._hit_tokens += computed.num_tokens
        held = RequestBlocks(
            tables=[table[:] for table in computed.tables],
            num_dropped=[manager.num_dropped_blocks(computed.num_tokens) for manager in self.managers],
            num_cached_tokens=computed.num_tokens - computed.num_tokens % self.scheduler_block_size,
            tip=tip,
        )
        for table in held.tables:
            self._pool.touch(table)
        held.nodes = nodes[:]
        if self.enable_caching:
            last = request.num_prompt_tokens - 1
            held.boundaries = (last - last % self.scheduler_block_size, computed.junction)
        held.next_drop = self._next_drop(held)
        self._held[request.request_id] = held
        return held

    def _grow(
        self, request: Request, held: RequestBlocks, num_tokens: int, leave_free: int
    ) -> tuple[list[int], ...] | None:
        """A later allocation: drop what the windows left behind, then take blocks up to `num_tokens`."""
        if request.num_computed_tokens >= held.next_drop:
            self._drop(held, request.num_computed_tokens)
        new = self._nothing
        if num_tokens <= held.capacity:
            pass
        elif self._grows_evenly and num_tokens <= held.capacity + self.scheduler_block_size:
            if len(self.managers) > self._pool.num_available - leave_free:
                return None
            new = self._take_one_each(held)
        else:
            needed = sum(
                [
                    manager.num_new_blocks(len(table), num_tokens)
                    for manager, table in zip(self.managers, held.tables, strict=True)
                ]
            )
            short, place = needed - self._pool.num_available + leave_free, (request.num_computed_tokens, num_tokens)
            moved = movable_groups(self.managers, held.tables, *place, self._pool, num_own=1, most=short)
            if short > len(moved):
                return None
            new = self._lengthen(held, num_tokens, leave_free, (), moved)
        self._cache_full_blocks(request, held, num_tokens)
        return new

    def _drop(self, held: RequestBlocks, num_computed: int) -> None:
        """Give back the blocks that no token from number `num_computed` on reads, the last of each group first."""
        for group, manager in self._dropping:
            first, stop = held.num_dropped[group], manager.num_dropped_blocks(num_computed)
            if stop > first:
                table = held.tables[group]
                gone = table[first:stop]
                gone.reverse()
                self._pool.free(gone)
                table[first:stop] = repeated(NULL_BLOCK, stop - first)
                held.num_dropped[group] = stop
        held.next_drop = self._next_drop(held)

    def _next_drop(self, held: RequestBlocks) -> int:
        return min([manager.next_drop(held.num_dropped[group]) for group, manager in self._dropping], default=NEVER)

    def _lengthen(
        self, held: RequestBlocks, num_tokens: int, leave_free: int, copied: Sequence[Sequence[int]], moved: list[int]
    ) -> tuple[list[int], ...]:
        """Take blocks until the tables hold `num_tokens`; returns the new ones by group.

        Blocks that are only worth having are taken as long as `leave_free` stay available. The last blocks of the
        groups `moved` stand in both places for the device, which reads them in one and writes them in the other.
        """
        managers, tables = self.managers, held.tables
        if self._skips_places:
            spare = self._pool.num_available - leave_free
            new = lengthened(
                managers, held, num_tokens, self._intervals, self._pool, copied=copied, moved=moved, num_spare=spare
            )
        else:
            new = dense_blocks(managers, tables, num_tokens, self._pool)
        for table, taken in zip(tables, new, strict=True):
            table += taken
        held.capacity = min(
            [manager.num_table_tokens(len(table)) for manager, table in zip(managers, tables, strict=True)],
            default=NEVER,
        )
        return tuple([taken.tolist() for taken in new])

    def _take_one_each(self, held: RequestBlocks) -> tuple[list[int], ...]:
        """As `_lengthen`, for tables that grow by a block each."""
        held.capacity += self.scheduler_block_size
        new = []
        for table in held.tables:
            block = self._pool.take_one()
            table.append(block)
            new.append([block])
        return tuple(new)

    def _cache_full_blocks(self, request: Request, held: RequestBlocks, num_tokens: int) -> None:
        """Let full blocks of known tokens be found by later requests, then say until when there is nothing to do."""
        if not self.enable_caching:
            held.quiet_until = min(held.capacity, held.next_drop)
            return
        size, known = self.scheduler_block_size, min(num_tokens, len(request.token_ids))
        if known >= held.num_cached_tokens + size:
            self._writer.enter(request, held, known)
        held.quiet_until = min(held.capacity, held.next_drop, held.num_cached_tokens + size - 1)
