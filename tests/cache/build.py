"""Specs, configs and requests for the tests of the cache: sizes of pages do not matter there, so they are 1."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from octavo.cache.block_pool import BlockPool
from octavo.cache.contents import block_contents
from octavo.cache.flat_array import Ids, view
from octavo.cache.group_manager import GroupManager
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.cache.prefix_cache import PrefixCache
from octavo.kv.specs import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from octavo.request import Request, SamplingParams


def full(block_size: int = 4) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="float16")


def window(size: int, block_size: int = 4) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="float16", window=size)


def local(chunk: int, block_size: int = 4) -> ChunkedLocalSpec:
    return ChunkedLocalSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="float16", chunk=chunk)


def mamba(block_size: int = 64, num_speculative_blocks: int = 0) -> MambaSpec:
    return MambaSpec(
        block_size=block_size, shapes=((1,),), dtypes=("float16",), num_speculative_blocks=num_speculative_blocks
    )


def config(
    *specs: LayerSpec, num_blocks: int = 100, max_model_len: int = 256, max_chunk_tokens: int = 256
) -> KVCacheConfig:
    return KVCacheConfig(
        num_blocks=num_blocks,
        groups=tuple(KVCacheGroupSpec(layer_names=(f"layers.{i}",), spec=spec) for i, spec in enumerate(specs)),
        tensors=(),
        max_model_len=max_model_len,
        max_chunk_tokens=max_chunk_tokens,
    )


def manager(
    *specs: LayerSpec, num_blocks: int = 100, max_chunk_tokens: int = 256, retention_interval: int | None = None
) -> KVCacheManager:
    return KVCacheManager(
        config(*specs, num_blocks=num_blocks, max_chunk_tokens=max_chunk_tokens),
        enable_caching=True,
        retention_interval=retention_interval,
        admit_whole_prompt=False,
    )


def ids(numbers: Iterable[int]) -> Ids:
    return array("Q", numbers)


def request(name: str, tokens: Iterable[int], *, salt: str | None = None) -> Request:
    return Request(name, list(tokens), SamplingParams(), cache_salt=salt, max_output_tokens=100)


def place(cache: KVCacheManager, asked: Request, num_tokens: int | None = None) -> tuple[list[int], ...]:
    """Admit `asked` with its first `num_tokens` tokens (None: all), as the scheduler does; there must be room."""
    computed = cache.get_computed_blocks(asked)
    count = asked.num_tokens if num_tokens is None else num_tokens
    blocks = cache.allocate_slots(asked, count - computed.num_tokens, computed)
    assert blocks is not None
    asked.num_computed_tokens = count
    cache.check_integrity()
    return blocks


def go_on(cache: KVCacheManager, asked: Request, num_new: int) -> tuple[list[int], ...]:
    """Compute `num_new` more tokens, generated ones included; there must be room."""
    while asked.num_tokens < asked.num_computed_tokens + num_new:
        asked.append_token(asked.num_tokens % 50)
    blocks = cache.allocate_slots(asked, num_new)
    assert blocks is not None
    asked.num_computed_tokens += num_new
    return blocks


class CachedPrefix:
    """A known prefix of `num_blocks` blocks, of which some groups have some blocks cached: for tests of look-ups."""

    def __init__(self, num_blocks: int, cached: Sequence[Iterable[int]], *, block_size: int = 4) -> None:
        pool = BlockPool(200)
        self.prefixes = PrefixCache(pool, num_groups=len(cached))
        tokens = request("r", range(num_blocks * block_size)).token_ids
        root = self.prefixes.hold_root(b"")
        self.nodes = self.prefixes.extend(root, block_contents(tokens, block_size, 0, num_blocks))
        for group, places in enumerate(cached):
            nodes = ids(self.nodes[place] for place in places)
            self.prefixes.store(pool.take(len(nodes)), nodes, group)

    def hit(self, kind: GroupManager, max_tokens: int, *, alignment: int | None = None) -> int:
        groups = tuple(range(self.prefixes.num_groups))
        return kind.find_hit(self.prefixes, view(self.nodes), groups, max_tokens, alignment or kind.block_size)
