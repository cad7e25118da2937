"""From a model's files to its `ModelConfig`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec

from octavo.config import ModelConfig
from octavo.errors import ModelFileError
from octavo.formats.gguf_config import hf_config_of_gguf
from octavo.formats.hf_config import model_config_from_hf
from octavo.formats.open_files import open_gguf, open_gguf_header
from octavo.formats.safetensors import read_safetensors_header
from octavo.formats.source import ModelFiles


def read_hf_config(files: ModelFiles) -> dict[str, Any]:
    """The model's config in transformers' terms (`model_type` and its fields), whichever format it comes in.

    Raises `ModelFileError` when it cannot be read, `UnsupportedModelError` when a GGUF architecture has no counterpart.
    """
    if files.config_path is None:
        return hf_config_of_gguf(open_gguf_header(files.weight_paths))
    try:
        config = _decode(files.config_path.read_bytes())
    except OSError as error:
        raise ModelFileError(
            f"{files.config_path} cannot be read: {error.strerror or error}.",
            remedy="Check the path and its permissions.",
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(
            f"{files.config_path} holds JSON that cannot be read: {error}.", remedy="Download the file again."
        ) from None
    if not isinstance(config, dict):
        raise ModelFileError(
            f"{files.config_path} holds a JSON {type(config).__name__}, not an object.",
            remedy="Download the file again.",
        )
    return config


def load_model_config(files: ModelFiles) -> ModelConfig:
    """What planning and serving need to know of the model, from its headers alone.

    Raises `ModelFileError` for a damaged file and `UnsupportedModelError`, naming the field, for a layer whose cache
    cannot be told from the config.
    """
    weights = _stored_weights(files)
    return model_config_from_hf(
        read_hf_config(files),
        name=files.name,
        weight_bytes=sum(weights.values()) if files.weight_paths else None,
        dtype=_FLOAT_DTYPES.get(max(weights, key=lambda kind: weights[kind], default="")),
    )


def _decode(data: bytes) -> Any:
    """The JSON in `data`, in which Python may have written floats that JSON has not, and transformers objects for
    them."""
    try:
        return _with_special_floats(msgspec.json.decode(data))
    except msgspec.DecodeError:
        try:
            return json.loads(data)
        except ValueError:
            pass
        raise


def _with_special_floats(value: Any) -> Any:
    """`{"__float__": "Infinity"}` is how transformers saves that float."""
    if isinstance(value, dict):
        if len(value) == 1 and value.get("__float__") in ("Infinity", "-Infinity", "NaN"):
            return float(value["__float__"])
        return {key: _with_special_floats(entry) for key, entry in value.items()}
    return [_with_special_floats(entry) for entry in value] if isinstance(value, list) else value


_FLOAT_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""safetensors' names of dtypes that a model may be computed in."""


def _stored_weights(files: ModelFiles) -> Counter[str]:
    """Bytes of the stored weights by type, from the files' headers."""
    num_bytes: Counter[str] = Counter()
    for path in files.weight_paths:
        if files.kind == "gguf":
            for info in open_gguf(path).tensors.values():
                num_bytes[info.type] += info.num_bytes
        else:
            for tensor in read_safetensors_header(path).values():
                num_bytes[tensor.dtype] += tensor.num_bytes
    return num_bytes
