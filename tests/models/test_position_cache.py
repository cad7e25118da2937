from __future__ import annotations

import torch
from torch import nn

from octavo.models.position_cache import PositionCache, PositionInput, asks_for_length


class Counting(nn.Module):
    """As attention modules count that take no positions."""

    def forward(
        self, rows: torch.Tensor, cache: PositionCache | None = None, position_ids: object = None
    ) -> torch.Tensor:
        seen = cache.get_seq_length(3) if cache is not None else 0
        return torch.arange(rows.shape[0]) + seen


class Plain(nn.Module):
    def forward(self, rows: torch.Tensor, past_key_values: object = None) -> torch.Tensor:
        return rows


def test_tokens_of_several_requests_find_their_positions() -> None:
    positions = torch.tensor([5, 6, 7, 0, 900, 901])
    assert Counting()(positions, PositionCache.at(positions)).tolist() == positions.tolist()
    assert Counting()(positions, PositionCache(4)).tolist() == [4, 5, 6, 7, 8, 9]


def test_keys_and_values_pass_through() -> None:
    key, value = torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)
    got = PositionCache(7).update(key, value, 2, kwargs={})
    assert got[0] is key
    assert got[1] is value


def test_only_a_module_that_asks_gets_a_cache() -> None:
    positions = torch.tensor([3, 4])
    assert asks_for_length(Counting())
    assert not asks_for_length(Plain())
    assert list(PositionInput.of(Counting(), [Plain()]).at(positions)) == ["position_ids"]
    assert list(PositionInput.of(Counting(), [Plain(), Counting()]).at(positions)) == ["position_ids", "cache"]
    assert list(PositionInput.of(Plain(), [Counting()]).at(positions)) == ["past_key_values"]
    assert list(PositionInput.of(Plain(), []).at(positions)) == []


class CountingBase(nn.Module):
    """As decoders count that take no positions: the whole model asks, not its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.counting, self.plain = Counting(), Plain()

    def forward(self, input_ids: torch.Tensor, attention_mask: object = None, cache: object = None) -> torch.Tensor:
        return self.counting(input_ids, cache)


def test_a_base_model_that_counts_gets_a_cache_and_no_mask_to_make() -> None:
    positions = torch.tensor([5, 6, 0])
    base = CountingBase()
    given = PositionInput.of(base, [base.plain]).at(positions)
    assert sorted(given) == ["attention_mask", "cache"]
    assert given["attention_mask"].tolist() == [[1, 1, 1]]
    assert base(positions, **given).tolist() == positions.tolist()
    assert PositionInput.of(base, []).at(positions) == {}, "whose modules were adopted needs nothing"
