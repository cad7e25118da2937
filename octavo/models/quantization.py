"""Quantised checkpoints: what reads them here, and what is missing where nothing does.

The reading is transformers' own: its quantisers unpack the numbers, or put modules in place that compute with them.
Most of them need a package for each format. What is missing is named before any weight is read.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from octavo.errors import ConfigError, ModelFileError, UnsupportedModelError
from octavo.formats.source import ModelFiles
from octavo.models.reading_ahead import stays_coded

PACKAGES: dict[str, tuple[str, ...]] = {
    "fp8": ("accelerate",),
    "mxfp8": ("accelerate",),
    "mxfp4": ("accelerate",),
    "compressed-tensors": ("accelerate", "compressed_tensors"),
    "awq": ("accelerate", "gptqmodel"),
    "gptq": ("accelerate", "optimum", "gptqmodel"),
    "bitsandbytes": ("accelerate", "bitsandbytes"),
    "torchao": ("accelerate", "torchao"),
    "quanto": ("accelerate", "optimum.quanto"),
    "hqq": ("accelerate", "hqq"),
    "aqlm": ("accelerate", "aqlm"),
    "auto-round": ("accelerate", "auto_round"),
    "vptq": ("accelerate", "vptq"),
    "spqr": ("accelerate", "spqr_quant"),
    "bitnet": ("accelerate",),
    "quark": ("accelerate", "quark"),
}
"""`quant_method` -> the packages that transformers' quantiser imports."""


def quantization_of(hf_config: Mapping[str, Any]) -> str | None:
    """How the weights are quantised: `quantization_config.quant_method`, or None for weights that mean themselves.

    Raises `ModelFileError` for a `quantization_config` that names no method.
    """
    for config in (hf_config, hf_config.get("text_config")):
        stated = config.get("quantization_config") if isinstance(config, Mapping) else None
        if stated is None:
            continue
        method = stated.get("quant_method") if isinstance(stated, Mapping) else None
        if (
            method is None
            and isinstance(stated, Mapping)
            and (stated.get("load_in_4bit") or stated.get("load_in_8bit"))
        ):
            method = "bitsandbytes"  # as older versions of it wrote
        if not isinstance(method, str):
            raise ModelFileError(
                "The config has a quantization_config without a quant_method.", remedy="Download config.json again."
            )
        return method
    return None


def check_quantization(method: str | None, path: Path) -> None:
    """Raises `UnsupportedModelError`, naming the method and what is missing, when such weights cannot be read."""
    if method is None:
        return
    if method not in PACKAGES:
        raise UnsupportedModelError(
            f"The weights of {path} are quantised with {method!r}, which nothing here can read; known are "
            + ", ".join(sorted(PACKAGES))
            + ".",
            remedy="Use the unquantised version of the model, or a .gguf file.",
            quant_method=method,
        )
    missing = [package for package in PACKAGES[method] if not _is_installed(package)]
    if missing:
        raise UnsupportedModelError(
            f"The weights of {path} are quantised with {method!r}, and reading them needs "
            f"{' and '.join(missing)}, not installed here.",
            remedy="Install that, or use the unquantised version of the model or a .gguf file.",
            quant_method=method,
        )


def choose_quantization(
    asked: str, files: ModelFiles, method: str | None, device: torch.device, dtype: torch.dtype, *, num_ranks: int = 1
) -> str:
    """How the weights of linear layers are kept: `none` in the dtype of computation, `gguf` as their file has them, or
    `int8`, coded when they are loaded.

    `auto` is `gguf` for a GGUF model that is computed in bfloat16 on a CPU by one rank, and `none` for every other:
    `num_ranks` ranks do not divide the codes of a file. `method` is how the file itself quantises. Raises `ConfigError`
    when what is asked for cannot be.
    """
    is_gguf = files.kind == "gguf"
    dtype_name = str(dtype).removeprefix("torch.")
    if asked == "auto":
        is_cpu = device.type == "cpu" and num_ranks == 1
        return "gguf" if is_gguf and is_cpu and stays_coded(asked, dtype_name) else "none"
    if asked == "none":
        return asked
    flag = f"--quantization {asked}"
    if device.type != "cpu":
        raise ConfigError(f"{flag} is computed on a CPU alone, and the device is {device.type}.", remedy=_LEAVE_OUT)
    if dtype not in (torch.bfloat16, torch.float32):
        raise ConfigError(f"{flag} has no kernel for {dtype_name}.", remedy="Use --dtype bfloat16 or float32.")
    if asked == "gguf" and not is_gguf:
        raise ConfigError(f"{flag} keeps the weights of a GGUF file, and {files.path} is none.", remedy=_LEAVE_OUT)
    if asked == "gguf" and num_ranks > 1:
        raise ConfigError(
            f"{flag} keeps the codes of a file, which --tensor-parallel-size {num_ranks} would have to cut.",
            remedy="Use --quantization int8 or none.",
        )
    if method is not None:
        raise ConfigError(f"{flag} cannot be: the weights are quantised with {method!r} already.", remedy=_LEAVE_OUT)
    return asked


_LEAVE_OUT = "Leave --quantization out."


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package around a subpackage
        return False
