from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from octavo.models.score_stand_in import ScoreHook, masks_recorded, masks_stood_in
from octavo.models.transformers_api import MASK_FUNCTIONS

HEADS, TOKENS, SIZE = 3, 5, 4
Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def by_operators(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = query @ key.transpose(-1, -2)
    scores /= 2.0
    scores = 1.0 * scores + torch.zeros(TOKENS)
    return functional.softmax(scores.float(), dim=-1).to(value.dtype) @ value


def by_merged_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = torch.bmm(query[0], key[0].transpose(1, 2)) * 0.5
    assert tuple(scores.size()) == (HEADS, TOKENS, TOKENS)
    scores = scores.view(1, HEADS, TOKENS, -1) + torch.zeros(1, 1, TOKENS, TOKENS)
    scores = torch.max(scores, torch.tensor(torch.finfo(scores.dtype).min))
    weights = functional.dropout(torch.softmax(scores, dim=-1), p=0.0).view(HEADS, TOKENS, TOKENS)
    return torch.bmm(weights, value[0])[None]


def by_a_sum(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = torch.zeros(HEADS, 1, TOKENS).baddbmm(batch1=query[0], batch2=key[0].transpose(1, 2), beta=1.0, alpha=0.5)
    return torch.matmul(scores.view(1, HEADS, TOKENS, TOKENS).softmax(dim=-1), value)


def by_masking(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(query, key.transpose(-1, -2)) * 0.5
    scores = torch.where(torch.ones(TOKENS, TOKENS, dtype=torch.bool), scores, torch.tensor(-1e9))
    return torch.matmul(torch.softmax(scores.masked_fill(torch.zeros(1, dtype=torch.bool), 0.0), -1), value)


def by_torch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize("way", [by_operators, by_merged_heads, by_a_sum, by_masking, by_torch])
@pytest.mark.parametrize("num_tokens", [TOKENS, 1])
def test_attention_is_handed_over(way: Way, num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "TOKENS", num_tokens)
    query, key, value = (torch.randn(1, HEADS, num_tokens, SIZE) for _ in range(3))
    seen = []

    def attend(*given: torch.Tensor) -> torch.Tensor:
        seen.append(given)
        return functional.scaled_dot_product_attention(*given).transpose(1, 2)

    expected = way(query, key, value)
    with ScoreHook(attend):
        got = way(query, key, value)
    torch.testing.assert_close(got, expected)
    ((theirs_query, theirs_key, theirs_value),) = seen
    assert torch.equal(theirs_query, query)
    assert torch.equal(theirs_key, key)
    assert torch.equal(theirs_value, value)


def test_a_second_product_is_refused() -> None:
    query = torch.randn(1, HEADS, TOKENS, SIZE)
    with ScoreHook(lambda *given: given[2]), pytest.raises(ValueError, match="twice"):
        by_operators(query, query, query)
        by_operators(query, query, query)


def test_scores_as_a_right_factor_are_refused() -> None:
    query = torch.randn(1, HEADS, TOKENS, SIZE)
    with ScoreHook(lambda *given: given[2]), pytest.raises(ValueError, match="something else than values"):
        torch.matmul(query.transpose(-1, -2), query @ query.transpose(-1, -2))


def test_masks_are_stood_in_for_and_come_back() -> None:
    arguments = {"batch_size": 1, "q_length": 4, "kv_length": 4, "dtype": torch.float32}
    before = {name: MASK_FUNCTIONS[name] for name in ("eager", "sdpa")}
    with masks_stood_in():
        mask = MASK_FUNCTIONS["eager"](**arguments)
        assert tuple(mask.size()) == (1, 1, 4, 4)
        assert mask.to(torch.bool) is mask
        assert torch.masked_fill(torch.zeros(4), mask < -1, 3.0) is mask
        scores = torch.zeros(2)
        assert (scores + mask) is mask
    with masks_recorded() as found:
        MASK_FUNCTIONS["eager"](**arguments, mask_function=lambda b, h, q, k: k <= q)
    assert len(found) == 1
    assert {name: MASK_FUNCTIONS[name] for name in before} == before
