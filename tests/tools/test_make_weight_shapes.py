"""The table of weights is that of the installed transformers: for a few types on each run, for all in the long tier."""

from __future__ import annotations

import pytest

from octavo.formats.config_fields import config_table
from octavo.planning.parameters import shapes_table
from tools.make_weight_shapes import find_shapes


def _is_fresh(model_type: str) -> None:
    architecture = config_table()[model_type].architecture
    assert architecture is not None
    # Three models give the formulas, and a fourth with other numbers is counted by them and compared.
    assert find_shapes(model_type, architecture) == shapes_table()[model_type], "run python -m tools.make_weight_shapes"


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "qwen3_moe"])
def test_a_type_is_counted_as_transformers_builds_it(model_type: str) -> None:
    _is_fresh(model_type)


@pytest.mark.long
@pytest.mark.parametrize("model_type", sorted(shapes_table()))
def test_every_type_is_counted_as_transformers_builds_it(model_type: str) -> None:
    _is_fresh(model_type)
