"""Where tokens stand, for modules that ask the cache instead of heeding the positions they are given.

Some attention modules count positions themselves: their first token stands at the cache's length, the others follow.
In a step of several requests there is no such length. `PositionCache` answers with one number per token, which added to
the token's place in the step is its position; arithmetic by token then comes out as it would for each request alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_LENGTH = "get_seq_length"


class PositionCache:
    """Stands in for transformers' cache in one forward. Owns: the lengths it answers. Never: keeps keys or values."""

    def __init__(self, seen: torch.Tensor | int) -> None:
        """`seen` is the number of tokens before the step's first one; [T] where it differs from token to token."""
        self._seen = seen

    @staticmethod
    def at(positions: torch.Tensor) -> PositionCache:
        """For tokens at `positions`, int64 [T]."""
        return PositionCache(positions - torch.arange(len(positions), device=positions.device))

    def get_seq_length(self, layer_idx: int = 0) -> torch.Tensor | int:
        return self._seen

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the step brings is all that a module sees here; attention reads the rest from the pages."""
        return key_states, value_states


def asks_for_length(module: nn.Module) -> bool:
    """Whether the module's forward asks a cache how many tokens it holds."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and _LENGTH in code.co_names


@dataclass(frozen=True, slots=True)
class PositionInput:
    """How a base model is told where its tokens stand."""

    cache_name: str | None = None
    """The argument that takes a `PositionCache` too; None where positions alone do."""
    takes_positions: bool = True
    """False where the model has no use for them (its attention looks at distances alone), or counts them itself."""
    is_counting: bool = False
    """Whether the base model counts positions itself, by the length of the cache."""

    @staticmethod
    def of(base: nn.Module, attention_modules: Iterable[nn.Module]) -> PositionInput:
        """For a base model and the modules in it that compute attention."""
        parameters = inspect.signature(inspect.unwrap(type(base).forward)).parameters
        takes_positions = "position_ids" in parameters
        modules = list(attention_modules)
        is_counting = not takes_positions and bool(modules) and any(map(asks_for_length, base.modules()))
        if not is_counting and not any(map(asks_for_length, modules)):
            return PositionInput(takes_positions=takes_positions)
        name = "past_key_values" if "past_key_values" in parameters else "cache"
        return PositionInput(name, takes_positions, is_counting)

    def at(self, positions: torch.Tensor) -> dict[str, Any]:
        """Arguments for tokens at `positions`, int64 [T]."""
        given: dict[str, Any] = {"position_ids": positions[None]} if self.takes_positions else {}
        if self.cache_name is not None:
            given[self.cache_name] = PositionCache.at(positions)
        if self.is_counting:
            # Else the model would make a mask as long as the cache; none is needed.
            given["attention_mask"] = positions.new_ones(1, len(positions))
        return given
