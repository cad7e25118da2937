"""A GGUF file's tensors under transformers' names, in transformers' layout, in the dtype of computation.

llama.cpp's converters rename every tensor and change some: Llama's Q and K rows are permuted (it rotates neighbouring
pairs instead of halves), and norms that multiply by `1 + weight` are stored as `1 + weight`. Both are undone here.
Names come from the `gguf` package's own map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import TensorNameMap

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.dequantize import dequantize
from octavo.formats.gguf import GGUFFile

FixUp = Callable[[str, torch.Tensor, Any], torch.Tensor]
"""(GGUF name, tensor, transformers config) -> tensor as transformers has it."""

_DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

_NOT_WEIGHTS = ("rope_freqs.weight",)
"""Tensors that are no parameter of the model; `rotary_factors` reads them."""


def _unpermute_rotary(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    if ".attn_q." in name:
        num_heads = config.num_attention_heads
    elif ".attn_k." in name:
        num_heads = config.num_key_value_heads
    else:
        return tensor
    rows = tensor.shape[0]
    pairs = tensor.view(num_heads, rows // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _norm_minus_one(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    return tensor - 1 if name.endswith("norm.weight") else tensor


def _unchanged(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    return tensor


FIX_UPS: dict[str, FixUp] = {
    "llama": _unpermute_rotary,
    "gemma": _norm_minus_one,
    "gemma2": _norm_minus_one,
    "gemma3": _norm_minus_one,
}
"""By GGUF architecture; one that is absent stores what transformers has."""


def read_gguf_weights(
    paths: Iterable[Path], parameter_names: Iterable[str], config: Any, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """{parameter name: tensor in `dtype`} for every tensor of the files.

    Vectors are fixed up in float32 before they are rounded. Tensors that no parameter corresponds to keep their GGUF
    name, so that the caller can refuse them. Raises `ModelFileError` and `UnsupportedModelError`.
    """
    weights: dict[str, torch.Tensor] = {}
    for path in paths:
        file = GGUFFile(path)
        architecture = file.get("general.architecture", str)
        names = _parameter_of_tensor(architecture, config.num_hidden_layers, parameter_names)
        fix_up = FIX_UPS.get(architecture, _unchanged)
        for name, info in file.tensors.items():
            if name in _NOT_WEIGHTS:
                continue
            exact = dtype if len(info.shape) > 1 else torch.float32
            array = dequantize(file.raw(name), info.type, info.shape, dtype=_DTYPE_NAMES[exact])
            tensor = torch.from_numpy(array)
            if exact is torch.bfloat16:
                tensor = tensor.view(torch.bfloat16)
            try:
                tensor = fix_up(name, tensor, config).to(dtype)
            except RuntimeError:
                raise ModelFileError(
                    f"{path}: the tensor {name!r} of shape {list(info.shape)} does not fit the model's heads.",
                    remedy="Convert the model again.",
                ) from None
            weights[names.get(name, name)] = tensor
    return weights


def rotary_factors(path: Path) -> torch.Tensor | None:
    """float32 [rotary size / 2]: what each rotary frequency is divided by (Llama 3.1 and later); None without them."""
    file = GGUFFile(path)
    info = file.tensors.get("rope_freqs.weight")
    if info is None:
        return None
    return torch.from_numpy(dequantize(file.raw("rope_freqs.weight"), info.type, info.shape, dtype="float32"))


def _parameter_of_tensor(architecture: str, num_layers: int, parameter_names: Iterable[str]) -> dict[str, str]:
    """{GGUF tensor name: parameter name}"""
    for key, name in MODEL_ARCH_NAMES.items():
        if name == architecture:
            name_map = TensorNameMap(MODEL_ARCH(key), num_layers)
            break
    else:
        raise UnsupportedModelError(
            f"The gguf package has no tensor names for the architecture {architecture!r}.",
            remedy="Use the safetensors version of the model.",
        )
    names: dict[str, str] = {}
    for parameter in parameter_names:
        found = name_map.get_name(parameter, try_suffixes=(".weight", ".bias"))
        if found is not None:
            names[found] = parameter
    return names
