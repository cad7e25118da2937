from __future__ import annotations

from typing import Any

import pytest
import torch

from octavo.config import LayerConfig, ModelConfig
from octavo.errors import UnsupportedModelError
from octavo.models.state_adapter import bind_mixers, examine_mixers
from octavo.models.state_mixer import PagedMixer
from tests.models.test_state_probe import Model
from tests.models.toy_mixer import KERNEL, SIZE

KEEPS = LayerConfig(kind="mamba", state_shapes=((KERNEL - 1, SIZE), (SIZE,)), state_dtypes=("auto", "float32"))
BESIDE = LayerConfig(
    kind="full", num_kv_heads=1, head_size=4, state_shapes=KEEPS.state_shapes, state_dtypes=KEEPS.state_dtypes
)


def config(**layers: LayerConfig) -> ModelConfig:
    """Eight layers without a cache but those given as `layer_N`."""
    return ModelConfig(
        name="toy", architecture="Toy", model_type="toy", dtype="float32", num_layers=8, hidden_size=SIZE, num_heads=1,
        vocab_size=50, max_position=64,
        layers=tuple(layers.get(f"layer_{index}", LayerConfig(kind="none")) for index in range(8)),
    )  # fmt: skip


@torch.inference_mode()
def test_modules_are_bound_under_the_names_of_the_plan() -> None:
    model, wanted = Model(), config(layer_4=KEEPS, layer_7=BESIDE)
    layers = bind_mixers(examine_mixers(model, wanted), wanted, block_size=16, dtype="float32")
    assert list(layers) == ["layers.4", "layers.7.state"]
    assert [layer.spec.dtypes for layer in layers.values()] == [("float32", "float32")] * 2
    assert isinstance(vars(model.first)["forward"], PagedMixer)


def test_a_model_without_states_is_not_run() -> None:
    assert examine_mixers(None, config()) == []


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"layer_4": KEEPS}, "Layer 7 of Toy keeps a state in a cache, but its config makes it a layer of kind 'none'"),
        ({"layer_4": KEEPS, "layer_7": KEEPS, "layer_1": KEEPS}, "Layer 1 of Toy keeps no state in a cache"),
        (
            {
                "layer_4": LayerConfig(kind="mamba", state_shapes=((2, 5), (SIZE,)), state_dtypes=("auto", "float32")),
                "layer_7": KEEPS,
            },
            r"Layer 4 disagrees .* says \[2, 5\] of auto, \[6\] of float32, but when it runs it keeps \[2, 6\]",
        ),
    ],
)
@torch.inference_mode()
def test_what_the_config_does_not_say_is_refused(layers: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        examine_mixers(Model(), config(**layers))
