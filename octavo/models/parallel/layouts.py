"""Which rows of a whole weight a rank keeps.

A dimension's size is a sum of multiples of the divided fields (heads, KV heads, a width): by how much each counts is
found by building the model again with the field doubled. That leaves the order open, where several things stand in one
dimension (queries, keys and values; gates and what they gate): each possible order is a `Layout`, and a trial says
which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from octavo.models.parallel.rank_config import Kind, part_of


class Field(NamedTuple):
    """A divided field, as it stands in one dimension of one weight."""

    kind: Kind
    number: int
    """Heads, or columns, of the whole model."""
    slope: int
    """Rows of the dimension for each."""


Layout = tuple["Block", ...]
"""Blocks one below the other."""


class Block(NamedTuple):
    """Rows of one field: `unit` rows for each of its `number`."""

    kind: Kind
    number: int
    unit: int

    def rows(self, rank: int, num_ranks: int, start: int) -> torch.Tensor:
        """int64: which rows of the whole the rank keeps of a block that begins at `start`; -1 where it has zeros."""
        count = part_of(self.kind, self.number, num_ranks)
        first = rank * count
        if self.kind == "kv_heads" and self.number < num_ranks:
            first = rank // (num_ranks // self.number)
        units = torch.arange(first, first + count)
        units = units.where(units < self.number, -1)
        rows = start + units[:, None] * self.unit + torch.arange(self.unit)
        return rows.where(units[:, None] >= 0, -1).flatten()


def kept_rows(layout: Layout, rank: int, num_ranks: int) -> torch.Tensor:
    """int64: which rows of the whole dimension the rank keeps, in order; -1 where it has zeros instead."""
    parts, start = [], 0
    for block in layout:
        parts.append(block.rows(rank, num_ranks, start))
        start += block.number * block.unit
    return torch.cat(parts)


def possible_layouts(fields: Sequence[Field], head_size: int, num_ranks: int) -> list[Layout]:
    """The orders in which a dimension with these fields may be arranged, the likeliest first; none when unknown."""
    if len(fields) == 1:
        kind, number, slope = fields[0]
        whole: list[Layout] = [(Block(kind, number, slope),)]
        least = 1 if kind == "width" else head_size
        parted: list[Layout] = [
            (Block(kind, number, slope // parts),) * parts for parts in (2, 3) if slope % (parts * least) == 0
        ]
        return parted + whole if kind == "width" else whole + parted
    by_kind: Mapping[Kind, Field] = {field.kind: field for field in fields}
    if len(fields) == 2 and by_kind.keys() == {"heads", "kv_heads"}:
        heads, kv_heads = by_kind["heads"], by_kind["kv_heads"]
        if kv_heads.slope % 2 or heads.number % kv_heads.number:
            return []
        one = Block("kv_heads", kv_heads.number, kv_heads.slope // 2)
        in_rows: Layout = (Block("heads", heads.number, heads.slope), one, one)
        group = heads.number // kv_heads.number * heads.slope + kv_heads.slope
        in_groups: Layout = (Block("kv_heads", kv_heads.number, group),)
        return [in_rows] if kv_heads.number % num_ranks else [in_rows, in_groups]
    return []


def keep(tensor: torch.Tensor, dim: int, rows: torch.Tensor) -> torch.Tensor:
    """These rows of `tensor` along `dim`, and zeros for -1: a view where the rows are one after the other."""
    first, count = int(rows[0]), len(rows)
    if first >= 0 and torch.equal(rows, torch.arange(first, first + count)):
        return tensor.narrow(dim, first, count)
    found = tensor.index_select(dim, rows.clamp(min=0).to(tensor.device))
    empty = (rows < 0).nonzero().flatten().to(tensor.device)
    return found.index_fill_(dim, empty, 0) if len(empty) else found
