"""One rank's part of a model: which rows of each weight it has, and what it exchanges with the other ranks.

shape     a model of the rank's config, without values, gets the shapes that its weights have on the rank
keep      what the rank has of a whole weight; `cuts_of` says it in numbers of rows, for who can read those alone
connect   the model, with its weights, adds up and gathers what ranks have parts of
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import nn

from octavo.models.construction import after_construction
from octavo.models.parallel.layouts import Block, Layout, keep, kept_rows
from octavo.models.parallel.rank_modules import (
    GatheredLinear,
    GatheredModule,
    RowParallelLinear,
    VocabularyEmbedding,
    add_up_results,
)
from octavo.models.peers import Peers


class Cut(NamedTuple):
    """A dimension of a weight that ranks divide."""

    name: str
    dim: int
    key: tuple[Any, ...]
    """Weights with the same key have the same layout."""
    layouts: list[Layout]


class RankPart:
    """This rank's part of a model. Owns: a model without values, for its shapes. Never: keeps weights.

    Parameters:
        whole: the model without values that its class builds for `whole.config`.
        config: the rank's config.
        cuts: what ranks divide; `layouts` says how, by the cuts' keys.
        behind: norms that are given the whole result of a linear layer, and which one that is.
    """

    def __init__(
        self,
        whole: Any,
        config: Any,
        cuts: Sequence[Cut],
        layouts: Mapping[tuple[Any, ...], Layout],
        behind: Mapping[str, str],
        peers: Peers,
    ) -> None:
        self.config = config
        self.peers = peers
        self._whole = whole
        self._shapes = {name: tensor.shape for name, tensor in tensors_of(whole)}
        self._layouts = layouts
        self._cuts: dict[str, list[Cut]] = {}
        for cut in cuts:
            self._cuts.setdefault(cut.name, []).append(cut)
        self._gathered = {
            path: found
            for path, module in whole.named_modules()
            if is_vector_module(module) and (found := self._cut_of_vectors(path, module, behind.get(path))) is not None
        }
        """Norms that each rank has whole, and what divides what they are given."""
        self._vocabulary = set(_vocabulary(whole))

    def constructing(self, model_class: Any) -> AbstractContextManager[None]:
        """Models of this class constructed inside have the rank's shapes as soon as they are."""
        return after_construction(model_class, self.shape)

    def shape(self, model: Any) -> None:
        """Give the parameters of a model of the rank's config, which has no values, the rank's shapes."""
        for path in self._gathered:
            _put(model, path, copy.deepcopy(self._whole.get_submodule(path)))
        kept: dict[int, nn.Parameter] = {}
        for name in _vocabulary(model):
            module, attribute = _owner(model, name)
            tensor = getattr(module, attribute)
            if id(tensor) not in kept:
                (dim, rows), shape = self.cuts_of(name)[0], list(tensor.shape)
                shape[dim] = len(rows)
                kept[id(tensor)] = nn.Parameter(tensor.data.new_empty(shape), requires_grad=False)
            setattr(module, attribute, kept[id(tensor)])

    def whole_shape(self, name: str) -> torch.Size | None:
        """The shape of a weight of the whole model; None for a name that it has not."""
        return self._shapes.get(name)

    def cuts_of(self, name: str) -> list[tuple[int, torch.Tensor]]:
        """(dimension, rows that the rank has of it) of each divided dimension of a weight; rows of -1 are zeros."""
        if name in self._vocabulary:
            block = Block("width", self._shapes[name][0], 1)
            return [(0, kept_rows((block,), self.peers.index, self.peers.size))]
        module = name.rpartition(".")[0]
        if module in self._gathered:
            return []
        return [(cut.dim, self._rows(cut, self.peers.index)) for cut in self._cuts.get(name, ())]

    def layout_of(self, name: str, dim: int) -> Layout | None:
        """How the dimension of a weight is divided; None where it is not by the config's fields."""
        return next((self._layouts[cut.key] for cut in self._cuts.get(name, ()) if cut.dim == dim), None)

    def keep(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What the rank has of a whole weight or buffer: a view where that is possible."""
        for dim, rows in self.cuts_of(name):
            tensor = keep(tensor, dim, rows)
        return tensor

    def keep_if_whole(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, or what the rank has of it where it is the whole weight, as a tensor of its own."""
        if tensor.shape != self.whole_shape(name) or not self.cuts_of(name):
            return tensor
        return self.keep(name, tensor).clone(memory_format=torch.contiguous_format)

    def settle(self, model: Any) -> None:
        """Make the rank's tensors of a model that transformers has built of its weights lie in memory as new ones, and
        give it its part of what the class computes for all heads and no file has."""
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                if not parameter.is_contiguous():
                    parameter.data = parameter.data.contiguous()
        stored = model.state_dict()
        for name, whole in self._whole.named_buffers():
            if self.cuts_of(name) and name not in stored and not whole.is_meta:
                module, attribute = _owner(model, name)
                module._buffers[attribute] = self.keep(name, whole).clone()

    def fill(self, model: Any, sources: Mapping[str, torch.Tensor], *, copied: bool) -> None:
        """Give `model`, which has the rank's shapes, its part of the whole model's tensors `sources`.

        `copied`: views are not enough, so that the whole tensors can be let go of.
        """
        kept: dict[int, torch.Tensor] = {}
        for name, _ in list(tensors_of(model)):
            tensor = sources[name]
            if id(tensor) not in kept:
                own = self.keep(name, tensor.data)
                own = own.clone(memory_format=torch.contiguous_format) if copied else own
                is_parameter = isinstance(tensor, nn.Parameter)
                kept[id(tensor)] = nn.Parameter(own, requires_grad=False) if is_parameter else own
            module, attribute = _owner(model, name)
            place = module._parameters if attribute in module._parameters else module._buffers
            place[attribute] = kept[id(tensor)]  # type: ignore[assignment]

    def connect(self, model: Any) -> Any:
        """`model`, which has its weights, with what ranks exchange put in."""
        for path, module in list(model.named_modules()):
            self._add_up(model, path, module)
        for path, cut in self._gathered.items():
            parts = [self._rows(cut, rank) for rank in range(self.peers.size)]
            everywhere = torch.cat(parts)
            sources = torch.zeros(int(everywhere.max()) + 1, dtype=torch.int64)
            sources[everywhere] = torch.arange(len(everywhere))
            norm = model.get_submodule(path)
            device = next(norm.parameters()).device
            gathered = GatheredModule(norm, self.peers, sources.to(device), parts[self.peers.index].to(device))
            _put(model, path, gathered)
        self._divide_vocabulary(model)
        return model.eval()

    def _rows(self, cut: Cut, rank: int) -> torch.Tensor:
        return kept_rows(self._layouts[cut.key], rank, self.peers.size)

    def _cut_of_vectors(self, path: str, module: nn.Module, source: str | None) -> Cut | None:
        """What divides what a norm over all heads is given, be its own vector shorter for fewer heads or not."""
        for name, _ in module.named_parameters():
            for cut in self._cuts.get(f"{path}.{name}", ()):
                return cut
        if source is None:
            return None
        size, weight = max(len(parameter) for parameter in module.parameters()), f"{source}.weight"
        whole_result = self._shapes[weight][0] == size
        return next((cut for cut in self._cuts.get(weight, ()) if cut.dim == 0 and whole_result), None)

    def _add_up(self, model: Any, path: str, module: nn.Module) -> None:
        """Put in what adds up the results of a module that has parts of its inputs."""
        own = {name: self._cuts.get(f"{path}.{name}", []) for name, _ in module.named_parameters(recurse=False)}
        matrices = {name: cuts for name, cuts in own.items() if getattr(module, name).dim() > 1}
        whole_ones = [name for name, cuts in own.items() if not cuts]
        if isinstance(module, nn.Linear):
            if own["weight"] and own["weight"][0].dim == 1:
                _keep_on_first(module, whole_ones, self.peers)
                _put(model, path, RowParallelLinear(module, self.peers))
        elif sum(map(bool, matrices.values())) > 1:
            _keep_on_first(module, whole_ones, self.peers)
            add_up_results(module, self.peers)

    def _divide_vocabulary(self, model: Any) -> None:
        """Let the embedding of tokens and the head be of some tokens each; a head that is the embedding stays it."""
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        paths = {module: path for path, module in model.named_modules()}
        if isinstance(embedding, nn.Embedding):
            count = len(embedding.weight)
            part = VocabularyEmbedding(embedding, self.peers, self.peers.index * count, count)
            _put(model, paths[embedding], part)
        if isinstance(head, nn.Linear):
            size = self._shapes[f"{paths[head]}.weight"][0]
            _put(model, paths[head], GatheredLinear(head, self.peers, size))


def tensors_of(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, those that are the same as another included."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def owner_pattern(name: str) -> str:
    """What the weights of one kind of module have in common: the path of their owner without numbers."""
    return re.sub(r"\d+", "*", name.rpartition(".")[0])


def is_vector_module(module: nn.Module) -> bool:
    """Whether a module has vectors and nothing else, as norms have."""
    own = list(module.parameters())
    return bool(own) and all(parameter.dim() == 1 for parameter in own) and not list(module.children())


def _vocabulary(model: Any) -> list[str]:
    """Names of the weights of the embedding of tokens and of the head, which are divided by the vocabulary."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    paths = {module: path for path, module in model.named_modules()}
    names = [f"{paths[embedding]}.weight"] if isinstance(embedding, nn.Embedding) else []
    if isinstance(head, nn.Linear):
        names += [f"{paths[head]}.{name}" for name, _ in head.named_parameters(recurse=False)]
    return names


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return model.get_submodule(path), attribute


def _keep_on_first(module: nn.Module, names: list[str], peers: Peers) -> None:
    """What is added to a sum of all ranks is added by rank 0 alone."""
    for name in names:
        tensor = getattr(module, name)
        if peers.index and tensor is not None:
            setattr(module, name, nn.Parameter(torch.zeros_like(tensor), requires_grad=False))


def _put(model: Any, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
