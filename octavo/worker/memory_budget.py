"""How many bytes a rank's cache may take: what was asked for, checked against what is there, or a share of it."""

from __future__ import annotations

from pathlib import Path

import torch

from octavo.config import CacheConfig, format_bytes
from octavo.errors import ConfigError
from octavo.worker.host_memory import MemoryLimit, free_memory

_MIB = 2**20


def cpu_budget(cache: CacheConfig, num_local_ranks: int, root: Path = Path("/")) -> tuple[int, str]:
    """Bytes for one rank's cache on this machine, and how they came about.

    Ask after the weights are loaded. Raises `ConfigError` when `kv_memory_bytes` exceeds what is free.
    """
    limit = free_memory(root)
    return _budget(cache, limit, num_local_ranks)


def cuda_budget(cache: CacheConfig, device: torch.device, activation_bytes: int) -> tuple[int, str]:
    """Bytes for one rank's cache on `device`, and how they came about.

    `activation_bytes` is what the largest step needs beside weights and cache; that much is left free.
    Raises `ConfigError` as `cpu_budget`.
    """
    free, _ = torch.cuda.mem_get_info(device)
    bound = f"{device} less {format_bytes(activation_bytes)} for a step's activations"
    return _budget(cache, MemoryLimit(free_bytes=max(0, free - activation_bytes), bound=bound), 1)


def _budget(cache: CacheConfig, limit: MemoryLimit, num_ranks: int) -> tuple[int, str]:
    free = limit.free_bytes // num_ranks
    share = f" for each of {num_ranks} ranks" if num_ranks > 1 else ""
    told = f"{format_bytes(free)} free{share}, bounded by {limit.bound}"
    asked = cache.kv_memory_bytes
    if asked is None:
        budget = int(free * cache.memory_utilization)
        return budget, f"{format_bytes(budget)}: {cache.memory_utilization:g} of {told}"
    if asked > free:
        # Other processes move what is free from one moment to the next, so the printed value keeps a distance.
        safe_mib = max(1, int(free * 0.9) // _MIB)
        raise ConfigError(
            f"--kv-memory is {format_bytes(asked)} ({asked} bytes), but only {format_bytes(free)} ({free} bytes) are "
            f"free{share} (bounded by {limit.bound}).",
            remedy=f"Give the cache at most {safe_mib}MiB.",
            asked_bytes=asked,
            free_bytes=free,
            safe_bytes=safe_mib * _MIB,
        )
    return asked, f"{format_bytes(asked)} as asked, of {told}"
