"""A GGUF file's tensors under transformers' names, in transformers' layout, in the dtype of computation.

llama.cpp's converters rename every tensor, which is undone here with the `gguf` package's own map of names, and change
some, which is undone by `octavo.models.gguf_conversions`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import TensorNameMap

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.open_files import open_gguf
from octavo.models.coded_parameters import CodedParameters
from octavo.models.gguf_conversions import CONVERSIONS, Conversion
from octavo.models.gguf_parts import DTYPE_NAMES, EXPERT_TENSOR, read_part, read_tensor
from octavo.models.load_clock import part as loading_part
from octavo.models.modules.panels import Panels
from octavo.models.parallel.rank_part import RankPart
from octavo.models.reading_ahead import Form, ReadyWeights, what_is_ready

_ROTARY_FACTORS = "rope_freqs.weight"

_EXPERT_PARAMETER = re.compile(r".*\.(\d+)\..*experts\.(gate_up|down)_proj(_bias)?")
_OUTSIDE_THE_MAP = (
    (re.compile(r".*\.(\d+)\..*e_score_correction_bias"), "blk.{}.exp_probs_b.bias"),
    (re.compile(r".*\.(\d+)\.linear_attn\.dt_bias"), "blk.{}.ssm_dt.bias"),
    (re.compile(r".*\.(\d+)\.router\.scale"), "blk.{}.ffn_gate_inp.scale"),
    (re.compile(r".*\.(\d+)\.router\.per_expert_scale"), "blk.{}.ffn_down_exps.scale"),
)
"""Parameters that the `gguf` package's map does not know."""

_LAYER_TENSOR = re.compile(r"blk\.(\d{1,9})\.(.+)")

_WITHOUT_SUFFIX = (".attn_sinks", ".layer_output_scale")
"""Ends of names that have no suffix in transformers, but `.weight` in the file."""


class GGUFWeights(NamedTuple):
    """What a GGUF model brings for its model's parameters, and beside them."""

    parameters: dict[str, torch.Tensor]
    """By parameter name; a tensor that no parameter corresponds to keeps its GGUF name."""
    rotary_factors: torch.Tensor | None
    """float32 [rotary size / 2]: what each rotary frequency is divided by (Llama 3.1 and later)."""


@loading_part("read_weights")
def read_gguf_weights(
    paths: Sequence[Path],
    shapes: Mapping[str, torch.Size],
    config: Any,
    dtype: torch.dtype,
    coded: CodedParameters | None = None,
    left_out: Collection[str] = (),
    part: RankPart | None = None,
) -> GGUFWeights:
    """Every tensor of the files in `dtype`, for a model whose parameters have these shapes.

    With a rank's `part` they are those of the rank, `config` is that of the whole model, and no other rows are read.

    What `coded` takes stays as it is; parameters in `left_out` are another rank's, and their tensors are not read.
    Vectors are fixed up in float32 before they are rounded. What `reading_ahead` has ready is taken from there. Raises
    `ModelFileError` for a tensor that does not fit the config, `UnsupportedModelError` for an architecture whose tensor
    names are not known.
    """
    with what_is_ready(paths, Form(DTYPE_NAMES[dtype], coded is not None)) as ahead:
        return _read_files(paths, shapes, config, dtype, coded, left_out, part, ahead)


def _read_files(
    paths: Sequence[Path],
    shapes: Mapping[str, torch.Size],
    config: Any,
    dtype: torch.dtype,
    coded: CodedParameters | None,
    left_out: Collection[str],
    part: RankPart | None,
    ahead: ReadyWeights | None,
) -> GGUFWeights:
    parameters: dict[str, torch.Tensor] = {}
    rotary_factors = None
    names: dict[str, str] = {}
    conversion = Conversion()
    num_further = 0
    seen: Counter[str] = Counter()
    for path in paths:
        file = open_gguf(path)
        if not names:  # Only the first shard names the architecture.
            architecture = file.get("general.architecture", str, "")
            names = _parameter_of_tensor(architecture, config.num_hidden_layers, [*shapes, *left_out])
            conversion = CONVERSIONS.get(architecture, conversion)
            num_further = file.get(f"{architecture}.nextn_predict_layers", int, 0)
        for name, info in file.tensors.items():
            try:
                if name == _ROTARY_FACTORS:
                    rotary_factors = read_tensor(file, name, torch.float32)
                    continue
                if name not in names and _is_never_read(name, config, num_further):
                    continue
                parameter = names.get(name, name)
                if parameter in left_out:
                    continue
                ready = None if ahead is None else ahead.take(path, name)
                if coded is not None:
                    panels = ready if isinstance(ready, Panels) else None
                    stand_in = coded.take(parameter, name, info, np.asarray(file.raw(name)), conversion, config, panels)
                    if stand_in is not None:
                        parameters[parameter] = stand_in
                        seen.update([parameter])
                        continue
                exact = torch.float32 if name.endswith(conversion.exact) else dtype
                numbers = ready if isinstance(ready, np.ndarray) and exact is dtype else None
                tensor = read_part(file, name, parameter, part, conversion, config, exact, numbers).to(dtype)
                _place(parameters, name, parameter, tensor, shapes, conversion)
            except (RuntimeError, ZeroDivisionError, IndexError, StopIteration):
                raise ModelFileError(
                    f"{path}: the tensor {name!r} of shape {list(info.shape)} does not fit the model's config.",
                    remedy="Convert the model again.",
                ) from None
            if name in names:
                seen[names[name]] += 2 if "_gate_up_exps" in name else 1
        file.release_pages()
    halved = {parameter for name, parameter in names.items() if "_gate_up_exps" in name}
    for parameter in [parameter for parameter, count in seen.items() if parameter in halved and count < 2]:
        del parameters[parameter]  # Half a parameter is a missing one.
    return GGUFWeights(parameters, rotary_factors)


def _place(
    parameters: dict[str, torch.Tensor],
    name: str,
    parameter: str,
    tensor: torch.Tensor,
    shapes: Mapping[str, torch.Size],
    conversion: Conversion,
) -> None:
    """Put `tensor` into its parameter, or into its half of one; a file may also hold both halves as one tensor."""
    shape = shapes.get(parameter)
    expert = EXPERT_TENSOR.fullmatch(name)
    if shape is None or expert is None or expert[1] == "down":
        has_shape = shape is not None and tensor.numel() == shape.numel() and tensor.squeeze().shape == _squeezed(shape)
        parameters[parameter] = tensor.view(shape) if shape is not None and has_shape else tensor
        return
    if parameter not in parameters:
        parameters[parameter] = torch.empty(shape, dtype=tensor.dtype)
    gate, up = conversion.halves(parameters[parameter])
    if expert[1] != "gate_up":
        (gate if expert[1] == "gate" else up).copy_(tensor)
        return
    dim = next(dim for dim, size in enumerate(gate.shape) if tensor.shape[dim] == 2 * size)
    for half, values in zip((gate, up), tensor.chunk(2, dim), strict=True):
        half.copy_(values)


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
            kinds = ("down",) if expert[2] == "down" else ("gate", "up", "gate_up")
            suffix = "bias" if expert[3] else "weight"
            names |= {f"blk.{expert[1]}.ffn_{kind}_exps.{suffix}": parameter for kind in kinds}
        elif found := _name_outside_the_map(parameter) or _tensor_name(name_map, parameter):
            names[found] = parameter
    return names


def _tensor_name(name_map: TensorNameMap, parameter: str) -> str | None:
    """The map's name for a parameter, known to it with or without the name of the base model in front."""
    for known in (parameter, parameter.partition(".")[2]):
        if found := name_map.get_name(known, try_suffixes=(".weight", ".bias")):
            return f"{found}.weight" if found.endswith(_WITHOUT_SUFFIX) else str(found)
    return None


def _name_outside_the_map(parameter: str) -> str | None:
    for pattern, name in _OUTSIDE_THE_MAP:
        if found := pattern.fullmatch(parameter):
            return name.format(found[1])
    return None


def _is_never_read(name: str, config: Any, num_further: int) -> bool:
    """Whether it belongs to one of `num_further` layers that predict further tokens, or would make keys or values in a
    layer that reads another layer's; some files bring such tensors."""
    found = _LAYER_TENSOR.fullmatch(name)
    if found is None:
        return False
    index, num_layers = int(found[1]), config.num_hidden_layers
    first_shared = num_layers - (getattr(config, "num_kv_shared_layers", None) or 0)
    makes_keys = found[2] in ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
    return num_layers <= index < num_layers + num_further or (first_shared <= index < num_layers and makes_keys)
