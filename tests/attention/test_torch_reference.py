"""The definition, checked by hand and against torch's own attention."""

from __future__ import annotations

import math

import pytest
import torch

from octavo.attention.torch_reference import first_position
from tests.attention.cases import REFERENCE, Case, Step


@pytest.mark.parametrize(
    ("position", "window", "chunk", "first"),
    [
        (0, None, None, 0),
        (9, None, None, 0),
        (9, 1, None, 9),
        (9, 10, None, 0),
        (9, 9, None, 1),
        (9, None, 5, 5),
        (10, None, 5, 10),
        (9, 3, 5, 7),
        (11, 5, 5, 10),
    ],
)
def test_first_position(position: int, window: int | None, chunk: int | None, first: int) -> None:
    assert first_position(position, window, chunk) == first


def test_one_query_over_two_keys_by_hand() -> None:
    step = Step(Case(requests=((2, 1),), num_kv_heads=1, group_size=1, head_size=1, value_size=1, block_size=2))
    block = int(step.table[0, 0])
    step.cache.key[block, 0], step.cache.value[block, 0] = 3.0, 10.0
    step.query[0], step.key[0], step.value[0] = 2.0, 5.0, 20.0
    out, _ = step.run(REFERENCE)
    first, second = math.exp(6), math.exp(10)
    assert out.item() == pytest.approx((10 * first + 20 * second) / (first + second))


def test_a_sink_takes_weight_and_gives_no_value() -> None:
    step = Step(Case(requests=((1, 1),), num_kv_heads=1, group_size=2, head_size=1, value_size=1, has_sinks=True))
    step.query[0], step.key[0], step.value[0] = 1.0, 0.0, 8.0
    step.sinks = torch.tensor([0.0, -math.inf])
    out, _ = step.run(REFERENCE)
    assert out.flatten().tolist() == [4.0, 8.0]


def test_a_soft_cap_bounds_scores() -> None:
    step = Step(Case(requests=((2, 1),), num_kv_heads=1, group_size=1, head_size=1, value_size=1, soft_cap=2.0))
    block = int(step.table[0, 0])
    step.cache.key[block, 0], step.cache.value[block, 0] = 1000.0, 1.0
    step.query[0], step.key[0], step.value[0] = 1.0, 0.0, 0.0
    out, _ = step.run(REFERENCE)
    assert out.item() == pytest.approx(math.exp(2) / (math.exp(2) + 1))


def test_a_slope_takes_from_the_scores_of_far_keys() -> None:
    step = Step(
        Case(requests=((3, 1),), num_kv_heads=1, group_size=1, head_size=1, value_size=1, block_size=4, has_slopes=True)
    )
    step.slopes = torch.tensor([2.0])
    block = int(step.table[0, 0])
    step.cache.key[block, :2], step.cache.value[block, :2] = 0.0, torch.tensor([1.0, 10.0]).view(2, 1, 1)
    step.query[0], step.key[0], step.value[0] = 1.0, 0.0, 100.0
    out, _ = step.run(REFERENCE)
    weights = [math.exp(-4), math.exp(-2), 1.0]
    assert out.item() == pytest.approx(sum(w * v for w, v in zip(weights, (1, 10, 100), strict=True)) / sum(weights))


@pytest.mark.parametrize("group_size", [1, 4])
def test_a_whole_prompt_equals_torch(group_size: int) -> None:
    step = Step(Case(requests=((50, 50),), group_size=group_size))
    out, _ = step.run(REFERENCE)
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (step.query, step.key, step.value))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    assert torch.allclose(out, expected[0].transpose(0, 1), atol=1e-6)


def test_a_layer_that_shares_another_layers_cache_writes_nothing() -> None:
    step = Step(Case())
    layer = step.layer(REFERENCE)
    layer.kv_cache = step.cache
    expected = layer.forward(step.query, step.key, step.value)
    memory = step.memory.clone()
    sharing = step.layer(REFERENCE)
    sharing.kv_cache = step.cache
    assert torch.equal(sharing.forward(step.query, None, None), expected)
    assert torch.equal(step.memory.view(torch.uint8), memory.view(torch.uint8))
    assert sharing.num_calls == 1
