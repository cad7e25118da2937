"""Divide a loaded model over ranks.

    whole model, loaded as for one rank  ->  the same class, built for one rank's config, with its part of the weights

Nothing here knows a class or the name of a weight. Sizes say what is divided: a weight with fewer outputs is kept in
part, one with fewer inputs makes a part of a sum. How several things lie in one dimension is tried: see `trial.py`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.models.load_clock import part
from octavo.models.parallel.layouts import Block, Field, Layout, keep, kept_rows, possible_layouts
from octavo.models.parallel.rank_config import Kind, divided_fields, rank_fields, scaled, with_fields
from octavo.models.parallel.rank_modules import (
    GatheredLinear,
    GatheredModule,
    RowParallelLinear,
    VocabularyEmbedding,
    add_up_results,
)
from octavo.models.parallel.trial import Trial, is_vector_module
from octavo.models.peers import Peers

Build = Callable[[Any], Any]
Shapes = Mapping[str, torch.Size]

_MOST_TRIALS = 24
_REMEDY = "Set --tensor-parallel-size to 1, or use --pipeline-parallel-size."


class Cut(NamedTuple):
    """A dimension of a weight that ranks divide."""

    name: str
    dim: int
    key: tuple[Any, ...]
    """Weights with the same key have the same layout."""
    layouts: list[Layout]


def divide_model(whole: Any, build: Build, peers: Peers, *, finish: Callable[[Any], None] = lambda _: None) -> Any:
    """This rank's part of `whole`, a model in the state in which loading leaves it; `whole` is spent afterwards.

    `build` makes an empty model of the same class for a config; `finish` completes a model that has its weights,
    `whole` too. Every rank must call this at the same time. Raises `UnsupportedModelError` when the class cannot be
    built for one rank, or computes something else then.
    """
    cuts = find_cuts(whole.config, build, peers.size)
    parts = _Parts(whole, build, peers, cuts)
    finish(whole)
    trial = Trial(whole)
    options = {cut.key: cut.layouts for cut in cuts}
    if math.prod(map(len, options.values())) > _MOST_TRIALS:
        raise _refusal(whole, f"has {len(options)} kinds of weights whose order is not known")
    difference = ""
    for choice in itertools.product(*options.values()):
        divided = parts.assemble(dict(zip(options, choice, strict=True)), trial.behind, finish)
        found = trial.difference(divided, peers)
        if found is None:
            return divided
        difference = difference or found
    raise _refusal(whole, difference)


def _refusal(whole: Any, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(whole).__name__} cannot be divided over ranks: divided by heads and widths, it {what}.", remedy=_REMEDY
    )


@part("divide_model")
def find_cuts(config: Any, build: Build, num_ranks: int) -> list[Cut]:
    """What `num_ranks` ranks divide of the weights and buffers of the model that `build` makes of `config`."""
    fields = divided_fields(config)
    base, slopes = _sizes(build(with_fields(config, {}))), _slopes(config, fields, build)
    rank_sizes = _sizes(build(with_fields(config, rank_fields(config, fields, num_ranks))))
    head_size = getattr(with_fields(config, {}), "head_dim", None) or 1
    cuts = []
    for name, shape in base.items():
        for dim, size in enumerate(shape):
            if rank_sizes[name][dim] == size:
                continue
            parts = {field: slope[name, dim] for field, slope in slopes.items() if slope.get((name, dim))}
            found = [Field(fields[field], _number(getattr(config, field), name), each) for field, each in parts.items()]
            layouts = []
            if sum(field.number * field.slope for field in found) == size:
                layouts = [
                    layout
                    for layout in possible_layouts(found, head_size, num_ranks)
                    if len(kept_rows(layout, 0, num_ranks)) == rank_sizes[name][dim]
                ]
            if not layouts:
                raise UnsupportedModelError(
                    f"{name} has {size} rows in dimension {dim}, and one of {num_ranks} ranks would have "
                    f"{rank_sizes[name][dim]}, which are not those of whole heads or columns.",
                    remedy=_REMEDY,
                )
            owner = re.sub(r"\d+", "*", name.rpartition(".")[0])
            cuts.append(Cut(name, dim, (owner, tuple(parts.items())), layouts))
    if not cuts:
        raise UnsupportedModelError(
            "No weight of the model has fewer rows when its config says fewer heads.", remedy=_REMEDY
        )
    return cuts


def _number(value: Any, name: str) -> int:
    """A field's value for the layer that a weight belongs to."""
    if not isinstance(value, list | tuple):
        return int(value)
    index = re.search(r"\.(\d+)\.", name)
    return int(value[int(index.group(1))]) if index is not None else int(value[0])


def _sizes(model: Any) -> Shapes:
    return {name: tensor.shape for name, tensor in _tensors(model)}


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _slopes(config: Any, fields: Mapping[str, Kind], build: Build) -> dict[str, dict[tuple[str, int], int]]:
    """For each field: by how many rows a dimension grows with one more head or column."""

    def doubled(names: list[str]) -> Shapes:
        return _sizes(build(with_fields(config, {name: scaled(getattr(config, name), 2) for name in names})))

    base = _sizes(build(with_fields(config, {})))
    heads = [name for name, kind in fields.items() if kind == "heads"]
    with_heads = doubled(heads)
    slopes = {}
    for name, kind in fields.items():
        if kind == "heads":
            before, after = base, with_heads
        elif kind == "kv_heads":
            before, after = with_heads, doubled([*heads, name])
        else:
            before, after = base, doubled([name])
        slopes[name] = {
            (path, dim): (after[path][dim] - size) // _number(getattr(config, name), path)
            for path, shape in before.items()
            for dim, size in enumerate(shape)
            if after[path][dim] != size
        }
    return slopes


class _Parts:
    """One rank's parts of a model's weights. Owns: the whole weights."""

    def __init__(self, whole: Any, build: Build, peers: Peers, cuts: list[Cut]) -> None:
        fields = divided_fields(whole.config)
        self._config = with_fields(whole.config, rank_fields(whole.config, fields, peers.size))
        self._build, self._peers = build, peers
        self._source = dict(_tensors(whole))
        self._modules = dict(whole.named_modules())
        self._cuts: dict[str, list[Cut]] = {}
        for cut in cuts:
            self._cuts.setdefault(cut.name, []).append(cut)
        self._layouts: dict[tuple[Any, ...], Layout] = {}

    def assemble(
        self, layouts: dict[tuple[Any, ...], Layout], behind: Mapping[str, str], finish: Callable[[Any], None]
    ) -> Any:
        """The rank's model by these layouts, with its weights and with what it exchanges with others.

        `behind`: norms that are given the whole result of a linear layer, and which one that is.
        """
        self._layouts = layouts
        made = self._build(self._config)
        kept: dict[int, torch.Tensor] = {}
        for name, _ in list(_tensors(made)):
            tensor = self._source[name]
            if id(tensor) not in kept:
                own = tensor.data
                for cut in self._cuts.get(name, ()):
                    own = keep(own, cut.dim, self._rows(cut, self._peers.index))
                is_parameter = isinstance(tensor, nn.Parameter)
                kept[id(tensor)] = nn.Parameter(own, requires_grad=False) if is_parameter else own
            _replace_tensor(made, name, kept[id(tensor)])
        made = made.eval()
        finish(made)
        for path, module in list(made.named_modules()):
            self._connect(made, path, module)
            if is_vector_module(module):
                self._gather(made, path, behind.get(path))
        _divide_vocabulary(made, self._peers)
        return made.eval()

    def _rows(self, cut: Cut, rank: int) -> torch.Tensor:
        return kept_rows(self._layouts[cut.key], rank, self._peers.size)

    def _connect(self, made: Any, path: str, module: nn.Module) -> None:
        """Put in what adds up or gathers the results of a module."""
        own = {name: self._cuts.get(f"{path}.{name}", []) for name, _ in module.named_parameters(recurse=False)}
        matrices = {name: cuts for name, cuts in own.items() if getattr(module, name).dim() > 1}
        whole_ones = [name for name, cuts in own.items() if not cuts]
        if not any(own.values()):
            return
        if isinstance(module, nn.Linear):
            if own["weight"] and own["weight"][0].dim == 1:
                _keep_on_first(module, whole_ones, self._peers)
                _put(made, path, RowParallelLinear(module, self._peers))
        elif sum(map(bool, matrices.values())) > 1:
            _keep_on_first(module, whole_ones, self._peers)
            add_up_results(module, self._peers)

    def _gather(self, made: Any, path: str, source: str | None) -> None:
        """Let a norm over all heads have them all, be its own vector shorter for fewer heads or not."""
        whole = self._modules[path]
        cuts = [cut for name, _ in whole.named_parameters() for cut in self._cuts.get(f"{path}.{name}", ())]
        if not cuts and source is not None:
            size = max(len(parameter) for parameter in whole.parameters())
            weight = self._source[f"{source}.weight"]
            cuts = [cut for cut in self._cuts.get(f"{source}.weight", ()) if cut.dim == 0 and len(weight) == size]
        if cuts:
            parts = [self._rows(cuts[0], rank) for rank in range(self._peers.size)]
            everywhere = torch.cat(parts)
            sources = torch.zeros(int(everywhere.max()) + 1, dtype=torch.int64)
            sources[everywhere] = torch.arange(len(everywhere))
            _put(made, path, GatheredModule(whole, self._peers, sources, parts[self._peers.index]))


def _replace_tensor(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    kept: dict[str, Any] = module._parameters if attribute in module._parameters else module._buffers
    kept[attribute] = tensor


def _keep_on_first(module: nn.Module, names: list[str], peers: Peers) -> None:
    """What is added to a sum of all ranks is added by rank 0 alone."""
    for name in names:
        tensor = getattr(module, name)
        if peers.index and tensor is not None:
            setattr(module, name, nn.Parameter(torch.zeros_like(tensor), requires_grad=False))


def _divide_vocabulary(made: Any, peers: Peers) -> None:
    """Divide the embedding of tokens and the head, each by the vocabulary; a head that is the embedding stays it."""
    embedding, head = made.get_input_embeddings(), made.get_output_embeddings()
    paths = {module: path for path, module in made.named_modules()}
    kept: dict[int, nn.Parameter] = {}

    def own(tensor: torch.Tensor) -> nn.Parameter:
        if id(tensor) not in kept:
            rows = kept_rows((Block("width", len(tensor), 1),), peers.index, peers.size)
            kept[id(tensor)] = nn.Parameter(keep(tensor.data, 0, rows), requires_grad=False)
        return kept[id(tensor)]

    if isinstance(embedding, nn.Embedding):
        embedding.weight = own(embedding.weight)
        count = len(embedding.weight)
        _put(made, paths[embedding], VocabularyEmbedding(embedding, peers, peers.index * count, count))
    if isinstance(head, nn.Linear):
        size = len(head.weight)
        head.weight = own(head.weight)
        if head.bias is not None:
            head.bias = own(head.bias)
        _put(made, paths[head], GatheredLinear(head, peers, size))


def _put(model: Any, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
