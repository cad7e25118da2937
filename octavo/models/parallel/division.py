"""Find out how a model is divided over ranks, before any of its weights is read.

    config, class  ->  what ranks divide, and how  ->  this rank's part

Nothing here knows a class or the name of a weight. Sizes say what is divided: a weight with fewer outputs is kept in
part, one with fewer inputs makes a part of a sum. How several things lie in one dimension is tried, on made-up weights:
see `trial.py`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from octavo.errors import UnsupportedModelError
from octavo.models.load_clock import part
from octavo.models.parallel.layouts import Field, kept_rows, possible_layouts
from octavo.models.parallel.rank_config import Kind, divided_fields, field_of, rank_fields, scaled, with_fields
from octavo.models.parallel.rank_part import Cut, RankPart, owner_pattern, tensors_of
from octavo.models.parallel.trial import REMEDY, Trial, not_divided
from octavo.models.parallel.trial_weights import TrialWeights, with_few_tokens
from octavo.models.peers import Peers

Build = Callable[[Any], Any]
Shapes = Mapping[str, torch.Size]

_MOST_TRIALS = 24


def find_part(
    config: Any, build: Build, peers: Peers, device: torch.device, *, finish: Callable[[Any], None] = lambda _: None
) -> RankPart:
    """This rank's part of the model of `config`, which is tried on `device` with weights made up in float32.

    `build` makes a model of the class for a config, without values for its parameters; `finish` completes one that has
    its weights. Every rank must call this at the same time. Raises `UnsupportedModelError` when the class cannot be
    built for one rank, or computes something else then.
    """
    cuts = find_cuts(config, build, peers.size)
    options = {cut.key: cut.layouts for cut in cuts}
    whole = with_few_tokens(build(with_fields(config, {})))
    name = type(whole).__name__
    if math.prod(map(len, options.values())) > _MOST_TRIALS:
        raise not_divided(name, f"has {len(options)} kinds of weights whose order is not known")
    weights = TrialWeights(device)
    empty = with_few_tokens(build(with_fields(config, {})))
    weights.fill(whole)
    sources = dict(tensors_of(whole))
    finish(whole.eval())
    trial = Trial(whole, device)
    rank_config = with_fields(config, rank_fields(config, divided_fields(config), peers.size))
    difference = ""
    for choice in itertools.product(*options.values()):
        layouts = dict(zip(options, choice, strict=True))
        tried = RankPart(empty, rank_config, cuts, layouts, trial.behind, peers)
        made = with_few_tokens(build(rank_config))
        tried.shape(made)
        tried.fill(made, sources, copied=False)
        finish(tried.connect(made))
        found = trial.difference(made, peers)
        if found is None:
            return RankPart(build(with_fields(config, {})), rank_config, cuts, layouts, trial.behind, peers)
        difference = difference or found
    raise not_divided(name, difference)


@part("divide_model")
def find_cuts(config: Any, build: Build, num_ranks: int) -> list[Cut]:
    """What `num_ranks` ranks divide of the weights and buffers of the model that `build` makes of `config`."""
    fields = divided_fields(config)
    base, slopes = _sizes(build(with_fields(config, {}))), _slopes(config, fields, build)
    rank_sizes = _sizes(_build_part(config, fields, build, num_ranks))
    head_size = field_of(with_fields(config, {}), "head_dim") or 1
    cuts = []
    for name, shape in base.items():
        for dim, size in enumerate(shape):
            if rank_sizes[name][dim] == size:
                continue
            parts = {field: slope[name, dim] for field, slope in slopes.items() if slope.get((name, dim))}
            found = [
                Field(fields[field], _number(field_of(config, field), name), each) for field, each in parts.items()
            ]
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
                    remedy=REMEDY,
                )
            cuts.append(Cut(name, dim, (owner_pattern(name), tuple(parts.items())), layouts))
    if not cuts:
        raise UnsupportedModelError(
            "No weight of the model has fewer rows when its config says fewer heads.", remedy=REMEDY
        )
    return cuts


def _build_part(config: Any, fields: Mapping[str, Kind], build: Build, num_ranks: int) -> Any:
    """The class with what a rank has of it; one that takes no such numbers is refused, and they are named."""
    own = rank_fields(config, fields, num_ranks)
    try:
        return build(with_fields(config, own))
    except UnsupportedModelError as error:
        name = type(build(with_fields(config, {}))).__name__
        numbers = ", ".join(f"{field} {value}" for field, value in own.items() if fields.get(field) != "width")
        raise UnsupportedModelError(
            f"{name} cannot be built with the heads that one of {num_ranks} ranks would have ({numbers}).",
            remedy=REMEDY,
        ) from error


def _number(value: Any, name: str) -> int:
    """A field's value for the layer that a weight belongs to."""
    if not isinstance(value, list | tuple):
        return int(value)
    index = re.search(r"\.(\d+)\.", name)
    return int(value[int(index.group(1))]) if index is not None else int(value[0])


def _sizes(model: Any) -> Shapes:
    return {name: tensor.shape for name, tensor in tensors_of(model)}


def _slopes(config: Any, fields: Mapping[str, Kind], build: Build) -> dict[str, dict[tuple[str, int], int]]:
    """For each field: by how many rows a dimension grows with one more head or column."""

    def doubled(names: list[str]) -> Shapes:
        return _sizes(build(with_fields(config, {name: scaled(field_of(config, name), 2) for name in names})))

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
            (path, dim): (after[path][dim] - size) // _number(field_of(config, name), path)
            for path, shape in before.items()
            for dim, size in enumerate(shape)
            if after[path][dim] != size
        }
    return slopes
