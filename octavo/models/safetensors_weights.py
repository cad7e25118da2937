"""The weights of safetensors files, by the names that they have there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.load_clock import part

WEIGHT_DTYPES = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
"""Numbers that mean themselves."""

_MATRIX_SUFFIXES = ("weight", "_proj")


@part("read_weights")
def read_safetensors_weights(paths: Iterable[Path], *, is_quantized: bool) -> dict[str, torch.Tensor]:
    """Every tensor of the files as a view of the mapped file.

    `is_quantized` says that the config explains numbers that do not mean themselves.
    Raises `ModelFileError` when a file cannot be read or two files hold a tensor of the same name,
    `UnsupportedModelError` for a weight matrix of other numbers that nothing explains.
    """
    weights: dict[str, torch.Tensor] = {}
    owners: dict[str, Path] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    if name in owners:
                        raise ModelFileError(
                            f"The tensor {name!r} is in {owners[name].name} and in {path.name}, both in {path.parent}.",
                            remedy="Keep the files of one copy of the model only.",
                        )
                    owners[name] = path
                    weights[name] = file.get_tensor(name)
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelFileError(f"{path} cannot be read: {error}.", remedy="Download the file again.") from None
    if not is_quantized:
        _check_dtypes(weights, owners)
    return weights


def _check_dtypes(weights: dict[str, torch.Tensor], owners: dict[str, Path]) -> None:
    for name, tensor in weights.items():
        if tensor.dtype not in WEIGHT_DTYPES and tensor.dim() > 1 and name.endswith(_MATRIX_SUFFIXES):
            raise UnsupportedModelError(
                f"{owners[name]} holds {name!r} as {str(tensor.dtype).removeprefix('torch.')}, and no "
                "quantization_config in config.json says what these numbers stand for.",
                remedy="Use the unquantised version of the model, or add the config's quantization_config.",
                tensor=name,
            )
