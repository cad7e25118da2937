"""Modules in parts give what the whole gives; each rank is a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from octavo.models.parallel.rank_modules import (
    GatheredLinear,
    GatheredModule,
    RowParallelLinear,
    VocabularyEmbedding,
    add_up_results,
    each_rank_alone,
    is_divided,
)
from octavo.models.peers import Peers
from tests.models.test_peers import make_peers


def on_each(act: Callable[[Peers], torch.Tensor], size: int = 2) -> list[torch.Tensor]:
    peers = make_peers(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(act, peers))


def part_of(linear: nn.Linear, *, outputs: slice = slice(None), inputs: slice = slice(None)) -> nn.Linear:
    weight = linear.weight[outputs, inputs].detach().clone()
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=linear.bias is not None)
    made.weight = nn.Parameter(weight)
    if linear.bias is not None:
        made.bias = nn.Parameter(linear.bias[outputs].detach().clone())
    return made


@torch.no_grad()
def test_sums_of_parts_with_a_bias_added_once() -> None:
    whole, rows = nn.Linear(8, 5), torch.randn(3, 8)

    def act(peers: Peers) -> torch.Tensor:
        own = slice(4 * peers.index, 4 * peers.index + 4)
        linear = part_of(whole, inputs=own)
        if peers.index:
            linear.bias = nn.Parameter(torch.zeros(5))
        module = RowParallelLinear(linear, peers)
        assert module.weight is linear.weight and module.bias is linear.bias
        with torch.no_grad():
            return module(rows[:, own])

    for found in on_each(act):
        torch.testing.assert_close(found, whole(rows))


@torch.no_grad()
def test_outputs_of_all_ranks_without_those_that_fill_up() -> None:
    whole, rows = nn.Linear(8, 5), torch.randn(3, 8)

    def act(peers: Peers) -> torch.Tensor:
        linear = nn.Linear(8, 3)
        linear.weight = nn.Parameter(nn.functional.pad(whole.weight, (0, 0, 0, 1))[3 * peers.index :][:3].detach())
        linear.bias = nn.Parameter(nn.functional.pad(whole.bias, (0, 1))[3 * peers.index :][:3].detach())
        with torch.no_grad():
            return GatheredLinear(linear, peers, 5)(rows)

    for found in on_each(act):
        torch.testing.assert_close(found, whole(rows))


@torch.no_grad()
def test_vectors_of_tokens_of_all_ranks() -> None:
    whole, tokens = nn.Embedding(6, 4), torch.tensor([[0, 5, 2, 3, 2]])

    def act(peers: Peers) -> torch.Tensor:
        embedding = nn.Embedding(3, 4)
        embedding.weight = nn.Parameter(whole.weight[3 * peers.index :][:3].detach())
        module = VocabularyEmbedding(embedding, peers, 3 * peers.index, 3)
        assert module.embedding_dim == 4
        with torch.no_grad():
            return module(tokens)

    for found in on_each(act):
        assert torch.equal(found, whole(tokens))


@torch.no_grad()
def test_a_norm_over_everything_sees_everything() -> None:
    norm, rows = nn.LayerNorm(6), torch.randn(2, 3, 6)

    def act(peers: Peers) -> torch.Tensor:
        own = torch.arange(3) + 3 * peers.index
        module = GatheredModule(norm, peers, torch.arange(6), own)
        with torch.no_grad():
            return module(rows[..., own])

    first, second = on_each(act)
    torch.testing.assert_close(torch.cat([first, second], dim=-1), norm(rows))


@torch.no_grad()
def test_results_are_added_up_also_where_they_are_a_tuple() -> None:
    class Pair(nn.Module):
        def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, str]:
            return rows * 2, "kept"

    def act(peers: Peers) -> torch.Tensor:
        module, alone = Pair(), nn.Identity()
        add_up_results(module, peers)
        add_up_results(alone, peers)
        found, word = module(torch.full((2,), float(peers.index + 1)))
        assert word == "kept"
        return found + alone(torch.ones(2))

    assert [found.tolist() for found in on_each(act)] == [[8.0, 8.0]] * 2


@torch.no_grad()
def test_a_rank_alone_asks_nobody_and_afterwards_it_does_again() -> None:
    def act(peers: Peers) -> torch.Tensor:
        model = nn.Sequential(RowParallelLinear(nn.Linear(4, 2), peers))
        assert is_divided(model) and not is_divided(nn.Linear(4, 2))
        rows = torch.ones(1, 4)
        with torch.no_grad():
            if peers.index == 0:
                with each_rank_alone(model):
                    assert torch.equal(model(rows), model[0].linear(rows))
            return model(rows)

    first, second = on_each(act)
    assert torch.equal(first, second)
