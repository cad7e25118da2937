from __future__ import annotations

import pytest
import torch

from octavo.models.text_part import text_part


def weights(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.full((1,), float(index)) for index, name in enumerate(names)}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ("language_model.model.layers.0.w", "language_model.lm_head.weight", "vision_tower.layers.0.w"),
            {"model.layers.0.w": 0, "lm_head.weight": 1},
        ),
        (
            ("model.vision_tower.w", "model.language_model.layers.0.w", "lm_head.weight", "model.projector.w"),
            {"model.layers.0.w": 1, "lm_head.weight": 2},
        ),
    ],
)
def test_the_text_part_has_the_names_of_the_text_model(names: tuple[str, ...], expected: dict[str, int]) -> None:
    assert {name: int(weight) for name, weight in text_part(weights(*names)).items()} == expected


def test_a_model_of_one_part_stays_as_it_is() -> None:
    given = weights("model.layers.0.w", "model.my_language_model_norm.w", "lm_head.weight")
    assert text_part(given) is given
