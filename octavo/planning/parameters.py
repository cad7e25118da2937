"""The weights of a model without its files, counted from the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class WeightTensor(NamedTuple):
    """One tensor of the weights."""

    name: str
    shape: tuple[int, ...]
    num_bytes: int


def count_tensors(config: Mapping[str, Any], dtype: str) -> list[WeightTensor] | None:
    """The tensors of a model with that config, in `dtype`; None where they cannot be told."""
    del config, dtype
    return None


def why_uncounted(config: Mapping[str, Any]) -> str:
    """Why `count_tensors` has no answer, as a part of a sentence."""
    return f"those of a {config.get('model_type')} cannot be counted from its config"
