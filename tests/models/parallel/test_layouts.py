"""Which rows each rank keeps, compared with cutting a weight whose rows are named one by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.models.parallel.layouts import Block, Field, keep, kept_rows, possible_layouts


def names(kind: str, number: int, unit: int) -> list[str]:
    return [f"{kind}{i}.{j}" for i in range(number) for j in range(unit)]


@given(each=st.integers(1, 3), unit=st.integers(1, 4), num_ranks=st.integers(1, 5))
def test_ranks_have_every_row_once_and_in_order(each: int, unit: int, num_ranks: int) -> None:
    layout = (Block("heads", each * num_ranks, unit),)
    rows = torch.cat([kept_rows(layout, rank, num_ranks) for rank in range(num_ranks)])
    assert rows.tolist() == list(range(each * num_ranks * unit))


@given(number=st.integers(1, 30), num_ranks=st.integers(1, 7))
def test_a_width_is_filled_up_with_zeros_at_its_end(number: int, num_ranks: int) -> None:
    parts = [kept_rows((Block("width", number, 1),), rank, num_ranks).tolist() for rank in range(num_ranks)]
    assert len({len(part) for part in parts}) == 1
    rows = [row for part in parts for row in part]
    assert [row for row in rows if row >= 0] == list(range(number))
    assert set(rows[number:]) <= {-1}


def test_neighbours_share_a_kv_head_when_there_are_fewer() -> None:
    layout = (Block("kv_heads", 2, 3),)
    assert [kept_rows(layout, rank, 6).tolist() for rank in range(6)] == [[0, 1, 2]] * 3 + [[3, 4, 5]] * 3


@pytest.mark.parametrize(("kv_heads", "num_ranks"), [(2, 2), (2, 4), (1, 4), (4, 2)])
def test_queries_keys_and_values_one_below_the_other(kv_heads: int, num_ranks: int) -> None:
    heads, size = 4, 3
    whole = names("q", heads, size) + names("k", kv_heads, size) + names("v", kv_heads, size)
    layout = possible_layouts(
        [Field("heads", heads, size), Field("kv_heads", kv_heads, 2 * size)], head_size=size, num_ranks=num_ranks
    )[0]
    for rank in range(num_ranks):
        own = [whole[row] for row in kept_rows(layout, rank, num_ranks)]
        count, kv_count = heads // num_ranks, max(1, kv_heads // num_ranks)
        first = rank * kv_heads // num_ranks
        assert own == [
            *(f"q{rank * count + i}.{j}" for i in range(count) for j in range(size)),
            *(f"k{first + i}.{j}" for i in range(kv_count) for j in range(size)),
            *(f"v{first + i}.{j}" for i in range(kv_count) for j in range(size)),
        ]


def test_what_may_lie_in_one_dimension() -> None:
    assert possible_layouts([Field("width", 6, 2)], 8, 2) == [
        (Block("width", 6, 1), Block("width", 6, 1)),
        (Block("width", 6, 2),),
    ]
    assert possible_layouts([Field("heads", 4, 8)], 8, 2) == [(Block("heads", 4, 8),)]
    assert possible_layouts([Field("heads", 4, 24)], 8, 2) == [(Block("heads", 4, 24),), (Block("heads", 4, 8),) * 3]
    grouped = possible_layouts([Field("heads", 4, 8), Field("kv_heads", 2, 16)], 8, 2)
    assert grouped[1] == (Block("kv_heads", 2, 32),)
    assert possible_layouts([Field("heads", 4, 8), Field("width", 6, 1)], 8, 2) == []
    assert possible_layouts([Field("heads", 4, 8), Field("kv_heads", 2, 15)], 8, 2) == []


@pytest.mark.parametrize("dim", [0, 1])
def test_rows_one_after_the_other_are_a_view_and_others_are_copied(dim: int) -> None:
    """What lies in a mapped file is not read before it is needed."""
    whole = torch.arange(24.0).view(4, 6)
    near = keep(whole, dim, torch.tensor([2, 3]))
    assert torch.equal(near, whole.narrow(dim, 2, 2))
    assert near.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    far = keep(whole, dim, torch.tensor([3, 1, -1]))
    assert torch.equal(far.select(dim, 0), whole.select(dim, 3)) and torch.equal(
        far.select(dim, 1), whole.select(dim, 1)
    )
    assert not far.select(dim, 2).any() and far.untyped_storage().nbytes() == far.nbytes
