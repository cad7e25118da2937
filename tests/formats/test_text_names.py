from __future__ import annotations

import pytest

from octavo.formats.text_names import text_names


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ("language_model.model.layers.0.w", "language_model.lm_head.weight", "vision_tower.layers.0.w"),
            ("model.layers.0.w", "lm_head.weight", None),
        ),
        (
            ("model.vision_tower.w", "model.language_model.layers.0.w", "lm_head.weight", "model.projector.w"),
            (None, "model.layers.0.w", "lm_head.weight", None),
        ),
        (
            ("model.layers.0.w", "model.my_language_model_norm.w", "visual.w"),
            ("model.layers.0.w", "model.my_language_model_norm.w", "visual.w"),
        ),
        ((), ()),
    ],
)
def test_the_text_part_has_the_names_of_the_text_model(
    names: tuple[str, ...], expected: tuple[str | None, ...]
) -> None:
    assert tuple(map(text_names(names).get, names)) == expected
