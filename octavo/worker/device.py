"""Which device a rank computes on, in which dtype, with how many threads."""

from __future__ import annotations

from pathlib import Path

import torch

from octavo.errors import ConfigError
from octavo.worker.cpu_dtype import fastest_dtype
from octavo.worker.host_memory import usable_cores

CACHE_DTYPES = ("auto", "bfloat16", "float16", "float32")
"""What `--kv-cache-dtype` accepts: the dtypes that attention backends read and write."""


def choose_device(name: str, local_rank: int) -> torch.device:
    """`cpu`, or `cuda:<local_rank>`; `auto` is cuda where there is one.

    Raises `ConfigError` for another name, and when this machine has too few such devices.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if name != "cuda":
        raise ConfigError(f"--device is {name!r}.", remedy="It must be cpu, cuda or auto.")
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local_rank >= num_devices:
        raise ConfigError(
            f"--device is cuda, and local rank {local_rank} needs device number {local_rank}, but this process sees "
            f"{num_devices}.",
            remedy="Use --device cpu, or as many ranks as there are devices.",
            local_rank=local_rank,
            num_devices=num_devices,
        )
    return torch.device("cuda", local_rank)


def choose_dtype(name: str, device: torch.device, root: Path = Path("/")) -> torch.dtype:
    """The dtype of computation. `auto` is bfloat16 where the device is fastest in it, else float32 on a CPU and
    float16 on cuda.

    Raises `ConfigError` for an unknown name.
    """
    dtypes = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if name in dtypes:
        return dtypes[name]
    if name != "auto":
        raise ConfigError(f"--dtype is {name}.", remedy="It must be one of auto, " + ", ".join(dtypes) + ".")
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return dtypes[fastest_dtype(root)]


def check_cache_dtype(name: str) -> None:
    """Raises `ConfigError` unless `name` is one of `CACHE_DTYPES`."""
    if name not in CACHE_DTYPES:
        raise ConfigError(f"--kv-cache-dtype is {name}.", remedy="It must be one of " + ", ".join(CACHE_DTYPES) + ".")


def choose_num_threads(asked: int, num_local_ranks: int) -> int:
    """Compute threads of one rank: `asked`, or when that is 0 its share of the cores this process may use.

    torch's own number is an upper bound of that share, because it heeds the user's `OMP_NUM_THREADS`.
    """
    return asked or max(1, min(usable_cores(), torch.get_num_threads()) // num_local_ranks)
