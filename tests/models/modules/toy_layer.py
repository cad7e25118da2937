"""A decoder layer of the usual parts, put together in a way of choice."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from octavo.models.attention_interface import AttentionHook, AttentionInput, attention_forward


class OwnValues(AttentionHook):
    def attend(self, given: AttentionInput) -> torch.Tensor:
        return given.own_values()


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)
        self.epsilon = 1e-6

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        wide = rows.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(rows.dtype)


class Attention(nn.Module):
    """Four query heads and two KV heads of 4 numbers, rotated by halves."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, width, bias=False) for width in (16, 8, 8))
        self.out = nn.Linear(16, size, bias=False)
        self.layer_idx = 0

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor], **options: Any
    ) -> tuple[torch.Tensor, None]:
        parts = (self.query(hidden_states), self.key(hidden_states), self.value(hidden_states))
        query, key, value = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in parts)
        query, key = (_rotated(part, *position_embeddings) for part in (query, key))
        attended, _ = attention_forward(self, query, key, value, None, **options)
        return self.out(attended.flatten(2)), None


def _rotated(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    left, right = heads.chunk(2, dim=-1)
    return heads * cosines[:, None] + torch.cat((-right, left), dim=-1) * sines[:, None]


class MLP(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(size, 24, bias=False) for _ in range(2))
        self.down = nn.Linear(24, size, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(rows)) * self.up(rows))


class Layer(nn.Module):
    """`form`: before, behind, or around (four norms); `change` is something that no known form does."""

    def __init__(self, size: int, form: str = "before", *, multiplier: float = 1.0, change: str = "") -> None:
        super().__init__()
        self.attention, self.mlp = Attention(size), MLP(size)
        self.norms = nn.ModuleList()
        self.first, self.second = Norm(size), Norm(size)
        if form == "around":
            self.third, self.fourth = Norm(size), Norm(size)
        self.form, self.change = form, change
        self.multiplier = multiplier

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        norms = {
            "before": (self.first, None, self.second, None),
            "behind": (None, self.first, None, self.second),
            "around": (self.first, self.second, getattr(self, "third", None), getattr(self, "fourth", None)),
        }[self.form]
        if self.change == "other angles":
            position_embeddings = (position_embeddings[1], position_embeddings[0])
        rows = self._part(
            hidden_states,
            norms[:2],
            lambda rows: self.attention(hidden_states=rows, position_embeddings=position_embeddings)[0],
        )
        if self.change == "clamped":
            rows = rows.clamp(-50, 50)
        source = hidden_states if self.change == "parallel" else rows
        return self._part(source, norms[2:], self.mlp, onto=rows)

    def _part(self, rows: torch.Tensor, norms: Any, part: Any, onto: torch.Tensor | None = None) -> torch.Tensor:
        before, behind = norms
        result = part(rows if before is None else before(rows))
        result = result if behind is None else behind(result)
        return (rows if onto is None else onto) + result * self.multiplier
