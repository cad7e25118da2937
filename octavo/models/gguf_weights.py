"""A GGUF file's tensors under transformers' names, in transformers' layout, in the dtype of computation.

llama.cpp's converters rename every tensor and change some:

- the rows of Q and K are permuted where llama.cpp rotates neighbouring pairs instead of halves (Llama and its kin);
- norms that multiply by `1 + weight` are stored as `1 + weight` (Gemma, Nemotron);
- the gate and up matrices of all experts, one tensor each, are one parameter in transformers.

Both ways are undone here. Names come from the `gguf` package's own map.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import TensorNameMap

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.dequantize import dequantize
from octavo.formats.gguf import GGUFFile
from octavo.formats.open_files import open_gguf

FixUp = Callable[[str, torch.Tensor, Any], torch.Tensor]
"""(GGUF name, tensor, transformers config) -> tensor as transformers has it."""

_DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

_ROTARY_FACTORS = "rope_freqs.weight"

_EXPERT_TENSOR = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.weight")
_EXPERT_PARAMETER = re.compile(r".*\.(\d+)\..*experts\.(gate_up_proj|down_proj)")


class GGUFWeights(NamedTuple):
    """What a GGUF model brings for its model's parameters, and beside them."""

    parameters: dict[str, torch.Tensor]
    """By parameter name; a tensor that no parameter corresponds to keeps its GGUF name."""
    rotary_factors: torch.Tensor | None
    """float32 [rotary size / 2]: what each rotary frequency is divided by (Llama 3.1 and later)."""


def read_gguf_weights(
    paths: Iterable[Path], shapes: Mapping[str, torch.Size], config: Any, dtype: torch.dtype
) -> GGUFWeights:
    """Every tensor of the files in `dtype`, for a model whose parameters have these shapes.

    Vectors are fixed up in float32 before they are rounded. Raises `ModelFileError` for a tensor that does not fit the
    config, `UnsupportedModelError` for an architecture whose tensor names are not known.
    """
    parameters: dict[str, torch.Tensor] = {}
    rotary_factors = None
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for path in paths:
        file = open_gguf(path)
        architecture = file.get("general.architecture", str, "")
        names = names or _parameter_of_tensor(architecture, config.num_hidden_layers, shapes)
        fix_up = FIX_UPS.get(architecture, _unchanged)
        for name, info in file.tensors.items():
            try:
                if name == _ROTARY_FACTORS:
                    rotary_factors = _read(file, name, torch.float32)
                    continue
                tensor = fix_up(name, _read(file, name, dtype), config).to(dtype)
                _place(parameters, name, names.get(name, name), tensor, shapes)
            except (RuntimeError, ZeroDivisionError):
                raise ModelFileError(
                    f"{path}: the tensor {name!r} of shape {list(info.shape)} does not fit the model's config.",
                    remedy="Convert the model again.",
                ) from None
            seen.update([names[name]] if name in names else [])
        file.release_pages()
    needed = Counter(names.values())
    for parameter in [parameter for parameter, count in seen.items() if count < needed[parameter]]:
        del parameters[parameter]  # Half a parameter is a missing one.
    return GGUFWeights(parameters, rotary_factors)


def _read(file: GGUFFile, name: str, dtype: torch.dtype) -> torch.Tensor:
    info = file.tensors[name]
    exact = dtype if len(info.shape) > 1 else torch.float32
    tensor = torch.from_numpy(dequantize(file.raw(name), info.type, info.shape, dtype=_DTYPE_NAMES[exact]))
    return tensor.view(torch.bfloat16) if exact is torch.bfloat16 else tensor


def _place(
    parameters: dict[str, torch.Tensor],
    name: str,
    parameter: str,
    tensor: torch.Tensor,
    shapes: Mapping[str, torch.Size],
) -> None:
    """Put `tensor` into its parameter, or into its half of one."""
    shape = shapes.get(parameter)
    expert = _EXPERT_TENSOR.fullmatch(name)
    if shape is None or expert is None or expert[2] == "down":
        has_shape = shape is not None and tensor.numel() == shape.numel() and tensor.squeeze().shape == _squeezed(shape)
        parameters[parameter] = tensor.view(shape) if shape is not None and has_shape else tensor
        return
    if parameter not in parameters:
        parameters[parameter] = torch.empty(shape, dtype=tensor.dtype)
    gate, up = parameters[parameter].chunk(2, dim=1)
    (gate if expert[2] == "gate" else up).copy_(tensor)


def _squeezed(shape: torch.Size) -> torch.Size:
    return torch.Size(size for size in shape if size != 1)


def _parameter_of_tensor(architecture: str, num_layers: int, parameters: Iterable[str]) -> dict[str, str]:
    """{GGUF tensor name: parameter name}"""
    known = {name: MODEL_ARCH(key) for key, name in MODEL_ARCH_NAMES.items()}
    if architecture not in known:
        raise UnsupportedModelError(
            f"The gguf package has no tensor names for the architecture {architecture!r}.",
            remedy="Use the safetensors version of the model.",
        )
    name_map = TensorNameMap(known[architecture], num_layers)
    names: dict[str, str] = {}
    for parameter in parameters:
        if expert := _EXPERT_PARAMETER.fullmatch(parameter):
            kinds = ("down",) if expert[2] == "down_proj" else ("gate", "up")
            names |= {f"blk.{expert[1]}.ffn_{kind}_exps.weight": parameter for kind in kinds}
        elif found := name_map.get_name(parameter, try_suffixes=(".weight", ".bias")):
            names[found] = parameter
    return names


def _unpermute_rotary(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    if ".attn_q." in name:
        num_heads = config.num_attention_heads
    elif ".attn_k." in name:
        num_heads = config.num_key_value_heads
    else:
        return tensor
    pairs = tensor.view(num_heads, tensor.shape[0] // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _norm_minus_one(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    return tensor - 1 if name.endswith("norm.weight") else tensor


def _unchanged(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    return tensor


FIX_UPS: dict[str, FixUp] = {
    "llama": _unpermute_rotary,
    "granite": _unpermute_rotary,
    "smollm3": _unpermute_rotary,
    "gemma": _norm_minus_one,
    "gemma2": _norm_minus_one,
    "gemma3": _norm_minus_one,
    "nemotron": _norm_minus_one,
}
"""By GGUF architecture; one that is absent stores what transformers has."""
