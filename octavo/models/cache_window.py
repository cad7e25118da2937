"""Windows that a model's cache has in transformers, but its attention mask has not.

transformers' cache forgets tokens by the config alone: without a list of layer types, a `sliding_window` (else an
`attention_chunk_size`) in it makes every layer forget what lies further back. Where the model's mask does not heed that
field, a prompt is attended to as a whole and a generated token only through the window: the tokens that `generate`
gives are then not those of the model's own forward, and there is no one answer to compute.

Nor is there for a window or a chunk of one token: transformers' cache, told to keep none of those before, keeps all.
"""

from __future__ import annotations

from typing import Any

from octavo.config import ModelConfig
from octavo.errors import UnsupportedModelError

_FIELDS = ("sliding_window", "attention_chunk_size")


def check_cache_window(hf_config: Any, model_config: ModelConfig, max_model_len: int) -> None:
    """Raise `UnsupportedModelError` when sequences of `max_model_len` outgrow a window that only the cache has, or only
    the mask.

    `hf_config` is transformers' config object of the text model.
    """
    for index, layer in enumerate(model_config.layers):
        if 1 in (layer.window, layer.chunk) and max_model_len > 1:
            raise UnsupportedModelError(
                f"Layer {index} sees a token at a time, but transformers' cache keeps all of them: what the model "
                "generates depends on how much of it is cached.",
                remedy="Octavo cannot run this model; use another one.",
                layer=index,
            )
    if getattr(hf_config, "layer_types", None) is not None:
        return
    field = next((name for name in _FIELDS if getattr(hf_config, name, None) is not None), None)
    if field is None:
        return
    span = getattr(hf_config, field)
    full = next((index for index, layer in enumerate(model_config.layers) if layer.kind == "full"), None)
    if full is not None and isinstance(span, int) and span < max_model_len:
        raise UnsupportedModelError(
            f"The config's {field} of {span} tokens holds for transformers' cache but not for the attention mask of "
            f"layer {full}: what the model generates depends on how much of it is cached.",
            remedy=(f"Use --max-model-len {span}, up to which both agree, or set" if span > 1 else "Set")
            + f" {field} to null in config.json if the model was trained without it.",
            field=field,
            layer=full,
        )
