"""The weights of a composite model's text part, under the names that the text model alone has."""

from __future__ import annotations

import torch

from octavo.formats.text_names import text_names


def text_part(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`weights` itself, unless its names show a model of several parts; then those of the text part and of the head."""
    names = text_names(weights)
    if all(names.get(name) == name for name in weights):
        return weights
    return {own: weights[name] for name, own in names.items()}
