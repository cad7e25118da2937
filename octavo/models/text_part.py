"""The weights of a composite model's text part, under the names that the text model alone has."""

from __future__ import annotations

import torch

_PART = "language_model"
_HEAD = "lm_head"


def text_part(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`weights` itself, unless its names show a model of several parts; then those of the text part and of the head.

    A composite model keeps its text model at `language_model`, or its base model at `model.language_model` beside the
    head. Without that one word both are the names of the text model alone. Weights of other parts (images, sound) are
    left out: the text part computes without them.
    """
    if not any(_PART in name.split(".") for name in weights):
        return weights
    found = {}
    for name, weight in weights.items():
        words = name.split(".")
        if _PART in words:
            words.remove(_PART)
            found[".".join(words)] = weight
        elif words[0] == _HEAD:
            found[name] = weight
    return found
