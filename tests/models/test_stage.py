"""Which layers a stage has, and what the config says of them alone."""

from __future__ import annotations

import pytest

from octavo.errors import ConfigError, UnsupportedModelError
from octavo.models.stage import PipelinePlace, Stage, stage_config, whole
from tests.models.architectures import ARCHITECTURES


def test_places_are_those_that_a_plan_names() -> None:
    assert [PipelinePlace(number, 3).stage(7).layers for number in range(3)] == [range(2), range(2, 5), range(5, 7)]
    assert PipelinePlace(1, 2, (1, 4)).stage(5) == Stage(range(1, 5), 5)
    with pytest.raises(ConfigError, match="--pipeline-layers is 1,4: 2 stages of 5 layers"):
        PipelinePlace(0, 2, (1, 4)).stage(6)


def test_ends_of_a_pipeline() -> None:
    assert [(stage.is_first, stage.is_last) for stage in (PipelinePlace(n, 3).stage(3) for n in range(3))] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert whole(3).is_first and whole(3).is_last


def test_layers_of_other_stages_keep_nothing() -> None:
    config = ARCHITECTURES["gemma3_text"].model_config("gemma3_text")
    cut = stage_config(config, Stage(range(1, 3), 4))
    assert [layer.kind for layer in cut.layers] == ["none", "full", "sliding_window", "none"]
    assert cut.layers[1:3] == config.layers[1:3]
    assert stage_config(config, whole(4)) == config


def test_a_layer_and_the_one_whose_cache_it_reads_stay_together() -> None:
    config = ARCHITECTURES["gemma3n_text"].model_config("gemma3n_text")
    for layers in (range(2, 4), range(2)):
        with pytest.raises(UnsupportedModelError, match="Layer 2 of gemma3n_text reads the cache of layer 0"):
            stage_config(config, Stage(layers, 4))
    assert stage_config(config, Stage(range(4), 4)) == config
