"""From a model's name to a model ready to be bound: what a rank does to load its part."""

from __future__ import annotations

import torch

from octavo.attention.backend import AttentionBackend
from octavo.config import Environment, ModelConfig, ModelSource
from octavo.formats.model_config import load_model_config
from octavo.formats.source import locate
from octavo.models.hf_adapter import LoadedModel
from octavo.models.loader import load_model
from octavo.models.peers import Peers
from octavo.models.stage import PipelinePlace


def open_model(
    source: ModelSource,
    environment: Environment,
    *,
    device: torch.device,
    dtype: torch.dtype,
    backend: AttentionBackend,
    block_size: int,
    kv_cache_dtype: str,
    place: PipelinePlace = PipelinePlace(),  # noqa: B008 (immutable)
    peers: Peers | None = None,
) -> tuple[ModelConfig, LoadedModel]:
    """Find the files of `source`, read their config, load the model, or the part of it that is for this `place` in a
    pipeline; errors as those of the three functions, and of `octavo.kv.stages.split_layers`.

    `peers` are the ranks that divide the layers of this place with this rank; None is this rank alone.
    """
    files = locate(source, environment)
    model_config = load_model_config(files)
    model = load_model(
        source,
        files,
        model_config,
        device=device,
        dtype=dtype,
        backend=backend,
        block_size=block_size,
        kv_cache_dtype=kv_cache_dtype,
        stage=place.stage(model_config.num_layers),
        peers=peers,
    )
    return model_config, model
