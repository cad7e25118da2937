from __future__ import annotations

from octavo.cache.group_manager import NEVER
from octavo.cache.mamba import MambaManager
from tests.cache.build import CachedPrefix, full, go_on, mamba, manager, place, request


def test_a_request_has_its_states_whatever_its_length() -> None:
    kind = MambaManager(mamba(num_speculative_blocks=2), max_model_len=256, max_chunk_tokens=16)
    assert [kind.num_table_blocks(n) for n in (0, 1, 64, 65, 256)] == [0, 3, 3, 3, 3]
    assert kind.max_blocks(256) == 3
    assert (kind.num_table_tokens(0), kind.num_table_tokens(3)) == (0, NEVER)


def test_states_are_never_shared() -> None:
    kind = MambaManager(mamba(), max_model_len=256, max_chunk_tokens=16)
    assert CachedPrefix(4, [range(4)]).hit(kind, 16) == 0
    assert not kind.caches_prefixes


def test_a_model_with_states_runs_without_prefix_caching() -> None:
    cache = manager(full(4), mamba())
    assert not cache.enable_caching
    first = request("a", range(20))
    assert [len(table) for table in place(cache, first)] == [5, 1]
    assert [go_on(cache, first, 1), go_on(cache, first, 4)] == [([7], []), ([8], [])]
    cache.free(first)
    assert cache.counts().cached == 0
    assert cache.get_computed_blocks(request("b", range(20))).num_tokens == 0
