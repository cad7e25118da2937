"""Which decoder layers a rank computes, and what a model's config says of those alone."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from octavo.config import LayerConfig, ModelConfig
from octavo.errors import UnsupportedModelError
from octavo.kv.stages import split_layers


class Stage(NamedTuple):
    """One stage of a pipeline: consecutive layers of a model."""

    layers: range
    num_layers: int
    """Of the whole model."""

    @property
    def is_first(self) -> bool:
        """It has the embedding."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """It has the last norm and the head."""
        return self.layers.stop == self.num_layers


class PipelinePlace(NamedTuple):
    """Which of a pipeline's stages a rank has."""

    number: int = 0
    num_stages: int = 1
    layer_counts: tuple[int, ...] = ()
    """Layers of each stage; empty: as equal as can be."""

    def stage(self, num_layers: int) -> Stage:
        """Its layers; raises `ConfigError` where the model has too few, or other ones than `layer_counts` says."""
        return Stage(split_layers(num_layers, self.num_stages, self.layer_counts)[self.number], num_layers)


def whole(num_layers: int) -> Stage:
    """The one stage of a model that is not cut."""
    return Stage(range(num_layers), num_layers)


def stage_config(model_config: ModelConfig, stage: Stage) -> ModelConfig:
    """`model_config` as if layers outside `stage` kept nothing.

    Raises `UnsupportedModelError` where a layer reads the cache of a layer in another stage.
    """
    for index, layer in enumerate(model_config.layers):
        target = layer.kv_sharing_target
        if target is not None and (target in stage.layers) != (index in stage.layers):
            raise UnsupportedModelError(
                f"Layer {index} of {model_config.architecture} reads the cache of layer {target}, which lies in "
                "another pipeline stage.",
                remedy="Keep both in one stage with --pipeline-layers, or use --pipeline-parallel-size 1.",
                layer=index,
            )
    nothing = LayerConfig(kind="none")
    layers = (layer if index in stage.layers else nothing for index, layer in enumerate(model_config.layers))
    return msgspec.structs.replace(model_config, layers=tuple(layers))
