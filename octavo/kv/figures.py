"""What a plan holds: the figures beside the configs, for people, dashboards and the scheduler's limits.

*ideal* is exactly the tokens that each layer still reads; *reserved* is what the scheduler must be able to give one
request (blocks times page bytes). For L at or above the largest window one request's ideal is `a + b * L`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from octavo.kv.specs import KVCacheGroupSpec, LayerSpec, MambaSpec


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One group on one rank, for one request."""

    num_layers: int
    fixed_bytes: int
    """a: what the group's layers read whatever the length, once it has reached their window."""
    bytes_per_token: int
    """b: what they read more for every further token."""
    ideal_bytes: int
    """What they read at `max_model_len`."""
    reserved_bytes: int
    """Blocks that the group may need at once, times the bytes of a block."""
    held_bytes: int
    """The same for the blocks that it holds while a request of `max_model_len` tokens generates its last ones."""
    padding_bytes: int
    """What of `reserved_bytes` no layer of the group can fill: the group is narrower than the widest, or its pages are
    padded."""


class RankFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's memory. `pool_bytes + unused_bytes == available_bytes`, except where the block count is given."""

    available_bytes: int
    bytes_per_block: int
    """Bytes of one block on this rank: also what the null block takes."""
    pool_bytes: int
    """What is allocated: `num_blocks * bytes_per_block`."""
    unused_bytes: int
    """What is left of the budget: less than a block, or more where another rank has less memory."""
    one_request_bytes: int
    """Reserved for one request of `max_model_len` tokens."""
    held_bytes: int
    """What such a request holds while it generates its last tokens."""
    padding_bytes: int
    """What of `one_request_bytes` no layer can fill."""
    ideal_bytes: int
    """What such a request's layers really read."""
    fixed_bytes: int
    """a of `a + b * L`, over all groups."""
    bytes_per_token: int
    """b of `a + b * L`, over all groups."""
    groups: tuple[GroupFigures, ...]


class PlanFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan holds. Counts are of the whole engine, bytes are by rank."""

    num_blocks: int
    """Null block included."""
    usable_blocks: int
    """Blocks that can be handed out."""
    max_model_len: int
    """As asked for, or as fitted."""
    max_chunk_tokens: int
    blocks_per_request: tuple[int, ...]
    """By group: the most blocks one request of `max_model_len` holds at once."""
    max_concurrency: float
    """Requests of `max_model_len` that fit at once; 0 where nothing is cached."""
    capacity_tokens: int
    """`max_concurrency * max_model_len`, rounded down."""
    scheduler_block_size: int
    """Tokens at whose multiples every group has a block boundary."""
    hash_block_size: int
    """Tokens that one link of the prefix hash chain covers."""
    ranks: tuple[RankFigures, ...]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The whole-engine numbers from which figures follow."""

    num_blocks: int
    max_model_len: int
    max_chunk_tokens: int
    blocks_per_request: tuple[int, ...]
    count_null_block: bool
    """The reference's habit: reckon with the null block as if it could be handed out."""


def plan_figures(
    counts: Counts,
    groups: Sequence[KVCacheGroupSpec],
    *,
    specs_by_rank: Sequence[Mapping[str, LayerSpec]],
    available_bytes: Sequence[int],
    block_bytes: Sequence[int],
    scheduler_block_size: int,
    hash_block_size: int,
) -> PlanFigures:
    """Figures of a plan whose groups over all ranks are `groups` and whose blocks take `block_bytes` on each rank."""
    per_request = sum(counts.blocks_per_request)
    usable = max(counts.num_blocks - 1, 0)
    concurrency, capacity = 0.0, 0
    if per_request and counts.count_null_block:
        concurrency = counts.num_blocks / per_request
        capacity = int(concurrency * counts.max_model_len)
    elif per_request:
        concurrency = usable / per_request
        capacity = usable * counts.max_model_len // per_request
    return PlanFigures(
        num_blocks=counts.num_blocks,
        usable_blocks=usable,
        max_model_len=counts.max_model_len,
        max_chunk_tokens=counts.max_chunk_tokens,
        blocks_per_request=counts.blocks_per_request,
        max_concurrency=concurrency,
        capacity_tokens=capacity,
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        ranks=tuple(
            _rank_figures(counts, groups, specs=specs, available=available, block_bytes=cost)
            for specs, available, cost in zip(specs_by_rank, available_bytes, block_bytes, strict=True)
        ),
    )


def block_sizes(
    groups: Sequence[KVCacheGroupSpec], *, enable_prefix_caching: bool, context_parallel_size: int
) -> tuple[int, int]:
    """(scheduler block, hash block): least common multiple and greatest common divisor of the groups' block sizes.

    Both are the least common multiple where no prefix is looked up: caching is off, or a group keeps only a running
    state. Groups whose blocks cannot be shared do not count for the hash block. A block whose tokens are spread over
    ranks covers that many times its size; a single group's always does.
    """
    spread = [context_parallel_size if len(groups) == 1 else group.spec.context_parallel_size for group in groups]
    sizes = [group.spec.block_size * ranks for group, ranks in zip(groups, spread, strict=True)]
    scheduler = math.lcm(*sizes)
    running_state = any(isinstance(group.spec, MambaSpec) and group.spec.cache_mode != "align" for group in groups)
    if not enable_prefix_caching or running_state:
        return scheduler, scheduler
    hashed = [size for group, size in zip(groups, sizes, strict=True) if group.spec.prefix_cacheable]
    return scheduler, math.gcd(*(hashed or sizes))


def _rank_figures(
    counts: Counts,
    groups: Sequence[KVCacheGroupSpec],
    *,
    specs: Mapping[str, LayerSpec],
    available: int,
    block_bytes: int,
) -> RankFigures:
    by_group = []
    for group, blocks in zip(groups, counts.blocks_per_request, strict=True):
        own = [specs[name] for name in group.layer_names if name in specs]
        held = group.spec.max_blocks(counts.max_model_len, chunk_tokens=1)
        content = _block_content(group, specs)
        by_group.append(
            GroupFigures(
                num_layers=len(own),
                fixed_bytes=sum(spec.fixed_bytes for spec in own),
                bytes_per_token=sum(spec.bytes_per_token for spec in own),
                ideal_bytes=sum(spec.ideal_bytes(counts.max_model_len) for spec in own),
                reserved_bytes=blocks * block_bytes,
                held_bytes=held * block_bytes,
                padding_bytes=blocks * (block_bytes - content),
            )
        )
    pool = counts.num_blocks * block_bytes
    return RankFigures(
        available_bytes=available,
        bytes_per_block=block_bytes,
        pool_bytes=pool,
        unused_bytes=available - pool,
        one_request_bytes=sum(figures.reserved_bytes for figures in by_group),
        held_bytes=sum(figures.held_bytes for figures in by_group),
        padding_bytes=sum(figures.padding_bytes for figures in by_group),
        ideal_bytes=sum(figures.ideal_bytes for figures in by_group),
        fixed_bytes=sum(figures.fixed_bytes for figures in by_group),
        bytes_per_token=sum(figures.bytes_per_token for figures in by_group),
        groups=tuple(by_group),
    )


def _block_content(group: KVCacheGroupSpec, specs: Mapping[str, LayerSpec]) -> int:
    """Bytes of one block of `group` that its layers on this rank can fill."""
    planned = group.layer_specs or (group.spec,) * len(group.layer_names)
    return sum(spec.content_bytes for name, spec in zip(group.layer_names, planned, strict=True) if name in specs)
