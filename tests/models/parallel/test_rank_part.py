"""A rank's part: parts make the whole together, and a model has their shapes before it has values."""

from __future__ import annotations

import pytest
import torch

from octavo.models.parallel.trial_weights import TrialWeights
from octavo.models.zoo import find_model
from tests.models.architectures import ARCHITECTURES
from tests.models.parallel.parts import build, parts_of


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "phi3", "olmo2", "qwen3_moe"])
def test_parts_have_every_row_and_models_their_shapes(name: str) -> None:
    """Rows that only one rank has are each somewhere; olmo2 has norms over all heads, which each rank has whole."""
    config, model_class = find_model({"model_type": name, **ARCHITECTURES[name].fields}, code_folder=None)
    whole = build(model_class, config)
    TrialWeights(torch.device("cpu")).fill(whole)
    parts = parts_of(model_class, config, 2)
    for key, tensor in whole.state_dict().items():
        assert parts[0].whole_shape(key) == tensor.shape
        kept = [part.keep(key, tensor) for part in parts]
        cuts = parts[0].cuts_of(key)
        if not cuts:
            assert torch.equal(kept[0], tensor) and torch.equal(kept[1], tensor)
            continue
        ((dim, _),) = cuts
        rows = torch.cat([part.cuts_of(key)[0][1] for part in parts])
        assert sorted(rows.tolist()) == list(range(tensor.shape[dim]))
        assert torch.equal(torch.cat(kept, dim)[(slice(None),) * dim + (rows.argsort(),)], tensor)
    for part in parts:
        with part.constructing(model_class):
            made = build(model_class, part.config)
        shapes = {key: parameter.shape for key, parameter in made.state_dict().items()}
        assert shapes == {key: part.keep(key, tensor).shape for key, tensor in whole.state_dict().items()}


@pytest.mark.slow
def test_a_part_is_kept_of_whole_weights_alone() -> None:
    """And as a tensor of its own, so that the whole one can go."""
    config, model_class = find_model({"model_type": "llama", **ARCHITECTURES["llama"].fields}, code_folder=None)
    part = parts_of(model_class, config, 2)[1]
    name = "model.layers.0.mlp.up_proj.weight"
    tensor = torch.randn(part.whole_shape(name) or ())
    own = part.keep_if_whole(name, tensor)
    assert torch.equal(own, tensor[len(tensor) // 2 :])
    assert own.untyped_storage().nbytes() == own.nbytes
    assert part.keep_if_whole(name, own) is own
    assert part.keep_if_whole("model.norm.weight", tensor) is tensor
