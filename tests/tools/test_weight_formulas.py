from __future__ import annotations

import pytest

from tools.weight_formulas import Explainer

FIELDS = {"a": (5, 7, 11), "b": (3, 13, 17), "c": (20, 23, 29)}


@pytest.mark.parametrize(
    ("sizes", "formula"),
    [
        ((5, 7, 11), "a"),
        ((10, 14, 22), "2*a"),
        ((15, 91, 187), "a*b"),
        ((25, 49, 121), "a*a"),
        ((8, 20, 28), "a+b"),
        ((115, 205, 361), "3*a+5*c"),
        ((22, 25, 31), "c+2"),
        ((4096, 4096, 4096), "4096"),
    ],
)
def test_sizes_are_explained_in_all_models(sizes: tuple[int, ...], formula: str) -> None:
    if formula == "3*a+5*c":
        with pytest.raises(ValueError, match="no formula"):
            Explainer(FIELDS).expression(sizes)
    else:
        assert Explainer(FIELDS).expression(sizes) == formula


def test_what_is_alike_in_two_models_alone_is_no_formula() -> None:
    with pytest.raises(ValueError, match="no formula"):
        Explainer(FIELDS).expression((5, 7, 12))
