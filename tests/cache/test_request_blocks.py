from __future__ import annotations

import pytest

from octavo.cache.request_blocks import BlockCounts, ComputedBlocks, RequestBlocks
from tests.cache.build import ids


def test_what_passes_the_door_cannot_be_changed() -> None:
    for struct, name in (
        (BlockCounts(free=1, cached=2, used=3), "free"),
        (ComputedBlocks(num_tokens=4, tables=(ids([1]),)), "num_tokens"),
    ):
        with pytest.raises(AttributeError):
            setattr(struct, name, 9)


def test_two_requests_share_no_list() -> None:
    first, second = (RequestBlocks(tables=[ids([])], num_dropped=[0], num_cached_tokens=0, tip=0) for _ in range(2))
    first.nodes.append(1)
    first.tables[0].append(2)
    assert (len(second.nodes), len(second.tables[0])) == (0, 0)


def test_a_misspelt_field_is_refused() -> None:
    held = RequestBlocks(tables=[ids([])], num_dropped=[0], num_cached_tokens=0, tip=0)
    with pytest.raises(AttributeError):
        held.num_cached = 3  # type: ignore[attr-defined]
