"""Modules whose ranks each have a part: what they exchange is here, and nowhere else in a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from octavo.models.peers import Peers


class RowParallelLinear(nn.Module):
    """A linear layer of which each rank has some inputs: the results are added up. Owns: this rank's part.

    The bias is rank 0's: on the others it is zero.
    """

    def __init__(self, linear: nn.Linear, peers: Peers) -> None:
        super().__init__()
        self.linear = linear
        self.__dict__["_peers"] = peers

    @property
    def weight(self) -> torch.Tensor:
        return self.linear.weight

    @property
    def bias(self) -> Any:
        return self.linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        partial: torch.Tensor = self.linear(rows)
        peers: Peers | None = self.__dict__["_peers"]
        return partial if peers is None else peers.all_reduce(partial.contiguous())


class GatheredLinear(nn.Module):
    """A linear layer of which each rank has some outputs, and every rank gets all. Owns: this rank's part.

    Parameters:
        size: outputs of the whole; those beyond it that the last ranks have are cut off.
    """

    def __init__(self, linear: nn.Linear, peers: Peers, size: int) -> None:
        super().__init__()
        self.linear = linear
        self.size = size
        self.__dict__["_peers"] = peers

    @property
    def weight(self) -> torch.Tensor:
        return self.linear.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        part: torch.Tensor = self.linear(rows)
        return torch.cat(self.__dict__["_peers"].all_gather(part.contiguous()), dim=-1)[..., : self.size]


class VocabularyEmbedding(nn.Module):
    """An embedding of which each rank has some tokens' vectors. Owns: this rank's part.

    Parameters:
        first, count: the tokens of this rank.
    """

    def __init__(self, embedding: nn.Module, peers: Peers, first: int, count: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.first = first
        self.count = count
        self.__dict__["_peers"] = peers

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("embedding"), name)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        own = token_ids - self.first
        elsewhere = (own < 0) | (own >= self.count)
        vectors: torch.Tensor = self.embedding(own.masked_fill(elsewhere, 0))
        vectors = vectors.masked_fill(elsewhere[..., None], 0)
        return self.__dict__["_peers"].all_reduce(vectors.contiguous())  # type: ignore[no-any-return]


class GatheredModule(nn.Module):
    """A module, such as a norm over all heads, that needs the whole of what ranks have parts of. Owns: the whole one.

    Parameters:
        sources: int64, for each place of the whole its place in the parts one after the other.
        own: int64, the places of the whole that this rank keeps.
    """

    sources: torch.Tensor
    own: torch.Tensor

    def __init__(self, module: nn.Module, peers: Peers, sources: torch.Tensor, own: torch.Tensor) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("sources", sources, persistent=False)
        self.register_buffer("own", own, persistent=False)
        self.__dict__["_peers"] = peers

    def forward(self, part: torch.Tensor) -> torch.Tensor:
        parts = torch.cat(self.__dict__["_peers"].all_gather(part.contiguous()), dim=-1)
        whole: torch.Tensor = self.module(parts.index_select(-1, self.sources))
        return whole.index_select(-1, self.own)


def is_divided(model: nn.Module) -> bool:
    """Whether any module of `model` adds up what ranks have parts of: a program has no place for that."""
    return any(isinstance(module, RowParallelLinear) for module in model.modules())


@contextmanager
def each_rank_alone(model: nn.Module) -> Iterator[None]:
    """Inside this no linear layer of `model` adds up: a rank may compare modules without the others doing the same."""
    layers = [module for module in model.modules() if isinstance(module, RowParallelLinear)]
    peers = [layer.__dict__["_peers"] for layer in layers]
    for layer in layers:
        layer.__dict__["_peers"] = None
    try:
        yield
    finally:
        for layer, own in zip(layers, peers, strict=True):
            layer.__dict__["_peers"] = own


def add_up_results(module: nn.Module, peers: Peers) -> None:
    """Let what `module` returns be the sum over ranks: each computes with its part of every expert."""

    def add_up(_module: nn.Module, _given: Any, result: Any) -> Any:
        if isinstance(result, tuple):
            return (peers.all_reduce(result[0].contiguous()), *result[1:])
        return peers.all_reduce(result.contiguous())

    module.register_forward_hook(add_up)
