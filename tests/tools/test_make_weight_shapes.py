"""The table of weights is that of the installed transformers: for a few types on each run, for all in the long tier."""

from __future__ import annotations

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from octavo.formats.config_fields import config_table
from octavo.planning.parameters import count_tensors, shapes_table, why_uncounted
from tools.make_weight_shapes import find_shapes


def _is_fresh(model_type: str) -> None:
    architecture = config_table()[model_type].architecture
    assert architecture is not None
    # Three models give the formulas, and a fourth with other numbers is counted by them and compared.
    assert find_shapes(model_type, architecture) == shapes_table()[model_type], "run python -m tools.make_weight_shapes"


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "qwen3_moe", "falcon_mamba", "jamba", "deepseek_v2"])
def test_a_type_is_counted_as_transformers_builds_it(model_type: str) -> None:
    _is_fresh(model_type)


@pytest.mark.long
@pytest.mark.parametrize("model_type", sorted(shapes_table()))
def test_every_type_is_counted_as_transformers_builds_it(model_type: str) -> None:
    _is_fresh(model_type)


@pytest.mark.slow
def test_a_config_that_says_nothing_is_counted_as_one_that_states_the_defaults() -> None:
    different, refused = [], []
    for model_type in shapes_table():
        stated = CONFIG_MAPPING[model_type]().to_dict() | {"model_type": model_type}
        counted = [count_tensors(config, "float32") for config in ({"model_type": model_type}, stated)]
        totals = [None if tensors is None else sum(tensor.num_bytes for tensor in tensors) for tensors in counted]
        if totals[0] is None and totals[1] is not None:
            refused.append(model_type)
        if totals[0] not in (None, totals[1]):
            different.append((model_type, *totals, why_uncounted(stated)))
    assert not different
    # The class makes some fields of others in its own way: those a config must state.
    assert all(why_uncounted({"model_type": model_type}) for model_type in refused)
    assert not {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gemma3_text", "gpt_oss"} & {*refused}
