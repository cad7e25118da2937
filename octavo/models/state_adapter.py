"""From modules with a state to bound layers: compare them with the config, probe them, let them run on pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from octavo.attention.state import StateLayer
from octavo.config import ModelConfig, state_name
from octavo.errors import UnsupportedModelError
from octavo.formats.kv_specs import state_spec
from octavo.models.state_mixer import Mixer, PagedMixer, install
from octavo.models.state_probe import ProbedMixer, find_mixers

_REMEDY = "Octavo cannot run this model yet; use another one."


def examine_mixers(model: Any, model_config: ModelConfig) -> list[Mixer]:
    """The modules of `model` that keep a state, one for each layer whose config promises one; none where none does.

    Raises `UnsupportedModelError` where they keep something else than the config says.
    """
    if not any(layer.state_shapes for layer in model_config.layers):
        return []
    mixers = find_mixers(model, model_config.vocab_size)
    by_layer = {mixer.layer_index: mixer for mixer in mixers}
    if len(by_layer) < len(mixers) or max(by_layer, default=0) >= len(model_config.layers):
        raise UnsupportedModelError(
            f"The modules of {model_config.architecture} keep {len(mixers)} states for the layers "
            f"{', '.join(str(mixer.layer_index) for mixer in mixers)}, of {len(model_config.layers)}.",
            remedy=_REMEDY,
        )
    for index, layer in enumerate(model_config.layers):
        mixer = by_layer.get(index)
        if (mixer is None) != (not layer.state_shapes):
            keeps = "keeps no state in a cache" if mixer is None else "keeps a state in a cache"
            raise UnsupportedModelError(
                f"Layer {index} of {model_config.architecture} {keeps}, but its config makes it a layer of kind "
                f"{layer.kind!r} with {len(layer.state_shapes)} states.",
                remedy=_REMEDY,
                layer=index,
            )
        if mixer is not None:
            _check_states(mixer, layer.state_shapes, layer.state_dtypes)
    return mixers


def bind_mixers(
    mixers: Sequence[Mixer], model_config: ModelConfig, *, block_size: int, dtype: str
) -> dict[str, StateLayer]:
    """A `StateLayer` for each module, through which its calls go from now on; by name, in the order of layers.

    Raises `UnsupportedModelError` for a module that does not go on from what it kept.
    """
    layers: dict[str, StateLayer] = {}
    for mixer in sorted(mixers, key=lambda mixer: mixer.layer_index):
        layer = model_config.layers[mixer.layer_index]
        spec = state_spec(layer, block_size=block_size, dtype=dtype)
        bound = StateLayer(state_name(mixer.layer_index, layer), spec=spec)
        continues_runs = ProbedMixer(mixer, spec).continues_runs()
        install(mixer.module, PagedMixer(mixer, bound, continues_runs=continues_runs))
        layers[bound.name] = bound
    return layers


def _check_states(mixer: Mixer, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> None:
    kept = tuple(state.page_shape for state in mixer.states)
    coarse = next(mixer.module.parameters()).dtype != torch.float32
    too_coarse = coarse and any(
        state.dtype == torch.float32 and dtype == "auto" for state, dtype in zip(mixer.states, dtypes, strict=False)
    )
    if kept != shapes or too_coarse:
        seen = [f"{list(state.page_shape)} of {state.dtype}" for state in mixer.states]
        said = [f"{list(shape)} of {dtype}" for shape, dtype in zip(shapes, dtypes, strict=True)]
        raise UnsupportedModelError(
            f"Layer {mixer.layer_index} disagrees with the model's config about its state: the config says "
            f"{', '.join(said)}, but when it runs it keeps {', '.join(seen)}.",
            remedy=_REMEDY,
            layer=mixer.layer_index,
        )
