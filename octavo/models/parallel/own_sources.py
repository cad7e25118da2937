"""What a rank reads of a checkpoint: the rows of each tensor that its own part of a parameter is made of.

Tensors are views of mapped files, so what is not cut out of them is never read. transformers renames tensors and makes
parameters of several (experts, halves of a matrix). Where it does, the same conversion is tried on numbered rows: if it
makes of the cut tensors what cutting gives of the whole one's result, they are cut. All others are converted whole, one
parameter at a time, and cut at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from octavo.errors import UnsupportedModelError
from octavo.models.parallel.layouts import Layout, keep
from octavo.models.parallel.rank_part import RankPart, owner_pattern
from octavo.models.parallel.trial import REMEDY
from octavo.models.peers import Peers
from octavo.models.transformers_api import WeightConversions

_TRIED = 2
"""Tensors of one pattern that a conversion is tried on."""

_APART = 1 << 32
"""Between the numbers of one tensor's rows and the next one's."""


class _Source(NamedTuple):
    name: str
    pattern: str
    tensor: torch.Tensor


def own_sources(
    weights: Mapping[str, torch.Tensor], conversions: WeightConversions, part: RankPart
) -> dict[str, torch.Tensor]:
    """`weights`, by the checkpoint's names, cut to what the rank's `part` needs wherever that is known.

    Raises `UnsupportedModelError` for a tensor of several weights that transformers would part by a rank's sizes.
    """
    own = dict(weights)
    converted: dict[str, list[_Source]] = {}
    for name, (parameter, pattern) in conversions.parameters_of(weights).items():
        if pattern is not None:
            if part.cuts_of(parameter) and conversions.are_told_apart_by_size(pattern):
                raise UnsupportedModelError(
                    f"{name} holds several weights one after the other, and transformers tells them apart by their "
                    "sizes in the model, which are smaller in a rank's part.",
                    remedy=REMEDY,
                )
            converted.setdefault(parameter, []).append(_Source(name, pattern, weights[name]))
        elif weights[name].shape == part.whole_shape(parameter):
            own[name] = part.keep(parameter, weights[name])
    agreed: dict[object, bool] = {}
    for parameter, sources in converted.items():
        found = _Merging.of(parameter, sources, part)
        if found is None:
            continue
        key = (owner_pattern(parameter), found.dim, *found.sizes.items())
        if key not in agreed:
            agreed[key] = found.agrees(conversions, part)
        if agreed[key]:
            own |= {source.name: keep(source.tensor, found.dim, found.rows[source.pattern]) for source in sources}
    return own


class _Merging(NamedTuple):
    """How a divided parameter may be made of tensors that are cut."""

    parameter: str
    sources: list[_Source]
    dim: int
    """The divided dimension, counted from the end."""
    sizes: dict[str, int]
    """By pattern, the rows of each of its tensors."""
    rows: dict[str, torch.Tensor]
    """By pattern, which of them the rank has; -1 for zeros."""

    @classmethod
    def of(cls, parameter: str, sources: list[_Source], part: RankPart) -> _Merging | None:
        """The tensors' rows one after the other, in the order in which they come; None where that cannot be."""
        shape, cuts = part.whole_shape(parameter), part.cuts_of(parameter)
        if shape is None or len(cuts) != 1:
            return None
        dim = cuts[0][0] - len(shape)
        sizes: dict[str, int] = {}
        for source in sources:
            size = source.tensor.shape[dim] if source.tensor.dim() >= -dim else 0
            if sizes.setdefault(source.pattern, size) != size:
                return None
        if len(sizes) == 1:
            rows = dict.fromkeys(sizes, cuts[0][1]) if set(sizes.values()) == {shape[dim]} else None
        else:
            rows = _rows_by_pattern(part.layout_of(parameter, cuts[0][0]) or (), sizes, part.peers)
        return None if rows is None else cls(parameter, sources, dim, sizes, rows)

    def agrees(self, conversions: WeightConversions, part: RankPart) -> bool:
        """Whether the conversion makes of cut tensors what cutting makes of its result, tried on numbered rows."""
        given: list[tuple[str, str, torch.Tensor]] = []
        counts = dict.fromkeys(self.sizes, 0)
        for source in self.sources:
            if counts[source.pattern] < _TRIED:
                counts[source.pattern] += 1
                shape = [1] * source.tensor.dim()
                shape[self.dim] = self.sizes[source.pattern]
                numbers = torch.arange(shape[self.dim], dtype=torch.float64) + len(given) * _APART
                given.append((source.name, source.pattern, numbers.view(shape)))
        cut = [(name, pattern, keep(tensor, self.dim, self.rows[pattern])) for name, pattern, tensor in given]
        whole, own = conversions.convert(self.parameter, given), conversions.convert(self.parameter, cut)
        shape_of_all = part.whole_shape(self.parameter)
        if whole is None or own is None or shape_of_all is None or whole.dim() != len(shape_of_all):
            return False
        ((_, rows),) = part.cuts_of(self.parameter)
        is_whole = whole.shape[self.dim] == shape_of_all[self.dim]
        return is_whole and torch.equal(keep(whole, self.dim, rows), own)


def _rows_by_pattern(layout: Layout, sizes: dict[str, int], peers: Peers) -> dict[str, torch.Tensor] | None:
    """The rows of each pattern's tensors, if the blocks of `layout` fill them one after the other."""
    rows: dict[str, torch.Tensor] = {}
    blocks = list(layout)
    for pattern, size in sizes.items():
        mine, filled = [], 0
        while blocks and filled < size:
            block = blocks.pop(0)
            mine.append(block.rows(peers.index, peers.size, filled))
            filled += block.number * block.unit
        if filled != size:
            return None
        rows[pattern] = torch.cat(mine)
    return None if blocks else rows
