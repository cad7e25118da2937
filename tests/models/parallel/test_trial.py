"""The comparison of a part with the whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from octavo.models.attention_interface import AttentionInput
from octavo.models.parallel.trial import _differ, _first_difference, is_vector_module
from octavo.models.peers import Peers


def given(query: torch.Tensor, key: torch.Tensor, **options: Any) -> AttentionInput:
    return AttentionInput(nn.Identity(), query, key, key, None, options)


def peers(index: int, size: int) -> Peers:
    return cast("Peers", SimpleNamespace(index=index, size=size))


WHOLE = given(torch.randn(1, 4, 12, 3), torch.randn(1, 2, 12, 3), scaling=0.5, s_aux=torch.arange(4.0))


def own(rank: int, **changes: Any) -> AttentionInput:
    heads, kv_heads = slice(2 * rank, 2 * rank + 2), slice(rank, rank + 1)
    options = {"scaling": 0.5, "s_aux": WHOLE.options["s_aux"][heads]} | changes.pop("options", {})
    made = given(WHOLE.query[:, heads], WHOLE.key[:, kv_heads], **options)
    return made._replace(**changes)


def test_a_part_that_is_the_wholes() -> None:
    assert [_first_difference(own(rank), WHOLE, peers(rank, 2)) for rank in range(2)] == [None, None]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"query": WHOLE.query[:, [1, 0]]}, "queries", id="order"),
        pytest.param({"key": WHOLE.key[:, 1:]}, "keys", id="another head"),
        pytest.param({"key": WHOLE.key}, "numbers of keys", id="all heads"),
        pytest.param({"options": {"scaling": 0.25}}, "scaling", id="scale"),
        pytest.param({"options": {"s_aux": torch.tensor([2.0, 3.0])}}, "s_aux", id="sinks"),
        pytest.param({"options": {"s_aux": None}}, "s_aux", id="no sinks"),
    ],
)
def test_a_part_that_is_not(changes: dict[str, Any], expected: str) -> None:
    assert _first_difference(own(0, **changes), WHOLE, peers(0, 2)) == expected


def test_ranks_that_share_a_kv_head() -> None:
    for rank in range(4):
        part = given(WHOLE.query[:, rank : rank + 1], WHOLE.key[:, rank // 2 : rank // 2 + 1], scaling=0.5)
        whole = WHOLE._replace(options={"scaling": 0.5})
        assert _first_difference(part, whole, peers(rank, 4)) is None
        wrong = part._replace(key=WHOLE.key[:, 1 - rank // 2 :][:, :1])
        assert _first_difference(wrong, whole, peers(rank, 4)) == "keys"


def test_rounding_is_no_difference_and_in_16_bits_one_token_in_four_may_go_to_another_expert() -> None:
    rows = torch.randn(1, 12, 8)
    assert not _differ(rows * (1 + 1e-5), rows)
    assert _differ(rows * 1.01, rows)
    few, many = rows.bfloat16(), rows.bfloat16()
    few[:, :3] += 1
    many[:, :4] += 1
    assert not _differ(few, rows.bfloat16()) and _differ(many, rows.bfloat16())
    assert _differ(rows[:, :6], rows)


def test_modules_that_have_vectors_and_nothing_else() -> None:
    assert is_vector_module(nn.LayerNorm(4))
    assert not is_vector_module(nn.Linear(4, 4)) and not is_vector_module(nn.Identity())
    assert not is_vector_module(nn.Sequential(nn.LayerNorm(4)))
