"""What a rank takes of a checkpoint: its own rows, also of tensors that transformers makes one parameter of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.config import ModelSource, read_environment
from octavo.formats.model_config import read_hf_config
from octavo.formats.source import locate
from octavo.models.parallel.own_sources import own_sources
from octavo.models.safetensors_weights import read_safetensors_weights
from octavo.models.transformers_api import WeightConversions
from octavo.models.zoo import find_model
from tests.models.architectures import save_model
from tests.models.parallel.parts import build, parts_of

MERGED = {"mixtral": "block_sparse_moe.experts", "qwen3_moe": "mlp.experts", "phi3": "no conversion"}
"""Types, and what their checkpoints have apart that is one parameter."""


def sources_of(name: str, folder: Path) -> tuple[Any, list[Any], dict[str, torch.Tensor]]:
    """(whole model, parts of two ranks, the checkpoint)"""
    save_model(name, folder)
    files = locate(ModelSource(model=str(folder)), read_environment())
    config, model_class = find_model(read_hf_config(files))
    weights = read_safetensors_weights(files.weight_paths, is_quantized=False)
    return (model_class, config), parts_of(model_class, config, 2), weights


@pytest.mark.slow
@pytest.mark.parametrize("name", MERGED)
def test_no_more_is_taken_than_a_rank_has(name: str, tmp_path: Path) -> None:
    (model_class, _config), parts, weights = sources_of(name, tmp_path)
    assert name == "phi3" or any(MERGED[name] in key for key in weights)
    for part in parts:
        with part.constructing(model_class):
            own = build(model_class, part.config)
        taken = own_sources(weights, WeightConversions(own), part)
        assert taken.keys() == weights.keys()
        num_own = sum(parameter.numel() for parameter in own.parameters())
        assert sum(tensor.numel() for tensor in taken.values()) == num_own
        assert num_own < 0.6 * sum(tensor.numel() for tensor in weights.values())


@pytest.mark.slow
def test_a_conversion_that_mixes_rows_is_not_taken_for_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then whole tensors are converted, and what comes of them is cut."""
    (model_class, _config), (part, _), weights = sources_of("mixtral", tmp_path)
    with part.constructing(model_class):
        own = build(model_class, part.config)
    convert = WeightConversions.convert

    def mixing(conversions: Any, parameter: str, sources: Any) -> Any:
        made = convert(conversions, parameter, sources)
        return None if made is None else made.roll(1, dims=1)

    monkeypatch.setattr(WeightConversions, "convert", mixing)
    taken = own_sources(weights, WeightConversions(own), part)
    experts = [name for name in weights if name.endswith(("w1.weight", "w3.weight"))]
    assert experts and all(taken[name].shape == weights[name].shape for name in experts)
    others = [name for name in weights if "q_proj" in name]
    assert others and all(taken[name].shape != weights[name].shape for name in others)
