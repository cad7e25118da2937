"""The scheduler's one door to the cache: look up a prefix, allocate, free."""

from __future__ import annotations

import math
from collections.abc import Sequence

from octavo.cache.block_pool import BlockPool
from octavo.cache.group_manager import GroupManager
from octavo.cache.prefix_cache import NO_NODE, PrefixCache, block_contents, root_content
from octavo.cache.registry import make_group_manager
from octavo.cache.request_blocks import BlockCounts, ComputedBlocks, PrefixStats, RequestBlocks
from octavo.errors import ConfigError, InvariantError
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
        enable_caching: keep full blocks for requests with the same prefix. Stays off for a model with a group that
            cannot share content (Mamba states).
        retention_interval: which full blocks of windowed groups enter the prefix cache: None every one, 0 only those
            at the replay boundary of the prompt and at junctions, n also those at every multiple of n tokens.
        admit_whole_prompt: place a new request only when all of its known tokens would fit now.

    Raises `ConfigError` for an impossible `retention_interval`.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        enable_caching: bool,
        retention_interval: int | None = None,
        admit_whole_prompt: bool = True,
    ) -> None:
        self.num_blocks = config.num_blocks
        self.max_model_len = config.max_model_len
        self.max_chunk_tokens = config.max_chunk_tokens
        self.admit_whole_prompt = admit_whole_prompt
        self.managers: tuple[GroupManager, ...] = tuple(
            make_group_manager(group.spec, max_model_len=config.max_model_len, max_chunk_tokens=config.max_chunk_tokens)
            for group in config.groups
        )
        sizes = [manager.block_size for manager in self.managers] or [1]
        self.scheduler_block_size = math.lcm(*sizes)
        """Prefix hits are multiples of this many tokens."""
        self.hash_block_size = math.gcd(*sizes)
        """Tokens of one step in the chain of prefixes."""
        if retention_interval is not None and (
            retention_interval < 0 or retention_interval % self.scheduler_block_size
        ):
            raise ConfigError(
                f"The retention interval is {retention_interval} tokens, and prefix hits are multiples of"
                f" {self.scheduler_block_size} tokens.",
                remedy="Set it to a multiple of that, to 0, or leave it out.",
            )
        self._interval = self.scheduler_block_size if retention_interval is None else retention_interval
        self.enable_caching = enable_caching and all(manager.caches_prefixes for manager in self.managers)
        self._pool = BlockPool(config.num_blocks)
        self._prefixes = PrefixCache(self._pool, num_groups=max(1, len(self.managers)))
        self._kinds = _kinds(self.managers)
        self._held: dict[str, RequestBlocks] = {}
        self._nothing: tuple[list[int], ...] = tuple([] for _ in self.managers)
        self._query_tokens = 0
        self._hit_tokens = 0

    def get_computed_blocks(self, request: Request) -> ComputedBlocks:
        """The longest prefix of `request` that is cached in every group. Changes nothing.

        The last token is never part of it: it must be computed for its logits. Over several kinds the hit is a fixed
        point: each kind may shorten the others' candidate until all agree.
        """
        if not self.enable_caching:
            return ComputedBlocks(num_tokens=0, block_ids=self._nothing)
        prefixes, step = self._prefixes, self.hash_block_size
        limit = request.num_tokens - 1
        root = prefixes.root(root_content(salt=request.cache_salt))
        nodes: list[int] = []
        if root != NO_NODE:
            nodes = prefixes.follow(root, block_contents(request.token_ids, step, 0, limit // step))
        hit, longest = self._agree(nodes, limit)
        nodes = nodes[: hit // step]
        tables = []
        for group, manager in enumerate(self.managers):
            first = manager.first_hit_block(hit)
            ratio = manager.block_size // step
            needed = nodes[ratio - 1 :: ratio][first:]
            tables.append([NULL_BLOCK] * first + prefixes.blocks(needed, group))
        return ComputedBlocks(
            num_tokens=hit,
            block_ids=tuple(tables),
            junction=longest if longest > hit else 0,
            nodes=nodes,
            generation=prefixes.generation,
        )

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
        for group, manager in enumerate(self.managers):
            place = num_tokens // manager.block_size
            self._pool.forget(held.tables[group][place:])
            held.num_cached[group] = min(held.num_cached[group], place)
        held.quiet_until = 0

    def block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The request's tables by group, 0 where nothing is kept; empty lists when it holds nothing. To read only."""
        held = self._held.get(request_id)
        return self._nothing if held is None else tuple(held.tables)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. False, and nothing is changed, while a request holds blocks."""
        return self._pool.reset()

    def counts(self) -> BlockCounts:
        pool = self._pool
        return BlockCounts(free=pool.num_plain, cached=pool.num_cached, used=pool.num_used)

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
        references: dict[int, int] = {}
        for held in self._held.values():
            for table in held.tables:
                for block in table:
                    references[block] = references.get(block, 0) + 1
        references.pop(NULL_BLOCK, None)
        for block in range(1, self.num_blocks):
            if references.get(block, 0) != self._pool.references(block):
                raise InvariantError(
                    f"block {block} stands in {references.get(block, 0)} tables and counts"
                    f" {self._pool.references(block)} references"
                )

    def _agree(self, nodes: Sequence[int], limit: int) -> tuple[int, int]:
        """(tokens of the longest hit on which all kinds agree, tokens of the longest hit that one kind alone had)."""
        step, alignment = self.hash_block_size, self.scheduler_block_size
        length = limit
        longest = 0
        num_agreed = 0
        while num_agreed < len(self._kinds):
            for manager, groups in self._kinds:
                ratio = manager.block_size // step
                hit = manager.find_hit(self._prefixes, nodes[ratio - 1 :: ratio], groups, length, alignment)
                longest = max(longest, hit)
                num_agreed = num_agreed + 1 if hit == length else 1
                length = hit
                if num_agreed >= len(self._kinds):
                    break
        return length, longest

    def _admit(
        self, request: Request, num_new_tokens: int, computed: ComputedBlocks | None, leave_free: int
    ) -> tuple[list[int], ...] | None:
        """First allocation of a request: adopt the hit, then take blocks for the new tokens."""
        if computed is None:
            computed = ComputedBlocks(num_tokens=0, block_ids=self._nothing)
        elif computed.num_tokens and computed.generation != self._prefixes.generation:
            raise InvariantError(f"the hit of request {request.request_id} is stale: look it up again")
        num_tokens = computed.num_tokens + num_new_tokens
        pool, managers = self._pool, self.managers
        num_revived = sum(pool.count_unreferenced(table) for table in computed.block_ids)
        missing = [
            max(0, manager.num_table_blocks(num_tokens) - len(table))
            for manager, table in zip(managers, computed.block_ids, strict=True)
        ]
        available = pool.num_available - num_revived
        if sum(missing) > available - leave_free:
            return None
        if self.admit_whole_prompt and self._whole_prompt_blocks(request, computed) > available:
            return None
        held = self._hold(request, computed)
        for table in held.tables:
            pool.touch(table)
        for table, count in zip(held.tables, missing, strict=True):
            table += pool.take(count)
        self._settle(request, held, num_tokens)
        return tuple([table.copy() for table in held.tables])

    def _hold(self, request: Request, computed: ComputedBlocks) -> RequestBlocks:
        """Remember an admitted request, so far with its hit alone."""
        prefixes = self._prefixes
        nodes = computed.nodes
        tip = NO_NODE
        if self.enable_caching:
            if nodes:
                tip = nodes[-1]
                prefixes.hold(tip)
            else:
                tip = prefixes.hold_root(root_content(salt=request.cache_salt))
            if request.num_preemptions == 0:
                self._query_tokens += request.num_tokens
                self._hit_tokens += computed.num_tokens
        dropped = [manager.first_hit_block(computed.num_tokens) for manager in self.managers]
        held = RequestBlocks([table.copy() for table in computed.block_ids], dropped, nodes.copy(), tip)
        replay = (request.num_prompt_tokens - 1) // self.scheduler_block_size * self.scheduler_block_size
        held.boundaries = (replay, computed.junction)
        self._held[request.request_id] = held
        return held

    def _grow(
        self, request: Request, held: RequestBlocks, num_tokens: int, leave_free: int
    ) -> tuple[list[int], ...] | None:
        """A later allocation: drop what the windows left behind, then take blocks up to `num_tokens`."""
        pool = self._pool
        num_computed = request.num_computed_tokens
        missing = []
        for group, manager in enumerate(self.managers):
            table = held.tables[group]
            first = held.num_dropped[group]
            stop = min(manager.num_dropped_blocks(num_computed), len(table))
            if stop > first:
                pool.free(table[first:stop][::-1])
                table[first:stop] = [NULL_BLOCK] * (stop - first)
                held.num_dropped[group] = stop
            missing.append(max(0, manager.num_table_blocks(num_tokens) - len(table)))
        needed = sum(missing)
        if needed and needed > pool.num_available - leave_free:
            return None
        new = tuple([pool.take(count) for count in missing])
        for table, blocks in zip(held.tables, new, strict=True):
            table += blocks
        self._settle(request, held, num_tokens)
        return new

    def _settle(self, request: Request, held: RequestBlocks, num_tokens: int) -> None:
        """Offer full blocks to the prefix cache, then say until when there is nothing to do."""
        if self.enable_caching:
            known = min(num_tokens, request.num_tokens)
            self._cache_full_blocks(request, held, known - known % self.scheduler_block_size)
        quiet = 2**62
        for group, manager in enumerate(self.managers):
            size = manager.block_size
            quiet = min(
                quiet, manager.num_table_tokens(len(held.tables[group])), manager.next_drop(held.num_dropped[group])
            )
            if self.enable_caching:
                quiet = min(quiet, (held.num_cached[group] + 1) * size - 1)
        held.quiet_until = quiet

    def _cache_full_blocks(self, request: Request, held: RequestBlocks, num_tokens: int) -> None:
        """Let the blocks that `num_tokens` known tokens fill be found by later requests."""
        prefixes, step = self._prefixes, self.hash_block_size
        nodes = held.nodes
        num_known = num_tokens // step
        if num_known > len(nodes):
            nodes += prefixes.extend(held.tip, block_contents(request.token_ids, step, len(nodes), num_known))
            held.tip = nodes[-1]
        for group, manager in enumerate(self.managers):
            first = held.num_cached[group]
            stop = num_tokens // manager.block_size
            if stop <= first:
                continue
            held.num_cached[group] = stop
            ratio = manager.block_size // step
            table = held.tables[group]
            places = [
                place
                for place in manager.blocks_to_cache(first, stop, held.boundaries, self._interval)
                if table[place] != NULL_BLOCK
            ]
            prefixes.store(
                [table[place] for place in places], [nodes[(place + 1) * ratio - 1] for place in places], group
            )

    def _whole_prompt_blocks(self, request: Request, computed: ComputedBlocks) -> int:
        """Blocks that the known tokens of `request` still need, beside those of the hit."""
        total = min(request.num_tokens, self.max_model_len)
        return sum(
            max(0, min(manager.num_table_blocks(total), manager.max_blocks(self.max_model_len)) - len(table))
            for manager, table in zip(self.managers, computed.block_ids, strict=True)
        )


def _kinds(managers: Sequence[GroupManager]) -> list[tuple[GroupManager, tuple[int, ...]]]:
    """Groups of equal spec under one manager each; those that read the whole prefix come first."""
    kinds: list[tuple[GroupManager, list[int]]] = []
    for group, manager in enumerate(managers):
        for known, groups in kinds:
            if known.spec == manager.spec:
                groups.append(group)
                break
        else:
            kinds.append((manager, [group]))
    kinds.sort(key=lambda kind: not kind[0].reads_whole_prefix)
    return [(manager, tuple(groups)) for manager, groups in kinds]
