"""The names of a composite model's weights that are its text part's."""

from __future__ import annotations

from collections.abc import Iterable

_PART = "language_model"
_HEAD = "lm_head"


def text_names(names: Iterable[str]) -> dict[str, str]:
    """Stored name -> the name that the text model alone has. Names of other parts (images, sound) are left out: the
    text part computes without them.

    A composite model keeps its text model at `language_model`, or its base model at `model.language_model` beside the
    head. Without that one word both are the names of the text model alone. Names that show no such part stay as they
    are.
    """
    split = {name: name.split(".") for name in names}
    if not any(_PART in words for words in split.values()):
        return {name: name for name in split}
    found = {}
    for name, words in split.items():
        if _PART in words:
            words.remove(_PART)
            found[name] = ".".join(words)
        elif words[0] == _HEAD:
            found[name] = name
    return found
