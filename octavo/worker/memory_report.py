"""What a rank's cache really takes: the storages behind the views of its layers, and the memory of its process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from octavo.attention.backend import KVCacheView
from octavo.attention.state import StateView
from octavo.messages import MemoryReport


def report_memory(views: Mapping[str, KVCacheView | StateView], *, num_blocks: int, rank: int) -> MemoryReport:
    """The storages that the bound views look into, each address counted once, and what the process takes. Changes
    nothing: it may be asked while requests run."""
    storages: dict[int, int] = {}
    num_tensors = 0
    for view in views.values():
        for tensor in tensors_of(view):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            num_tensors += 1
    return MemoryReport(
        num_blocks=num_blocks,
        num_views=num_tensors,
        num_storages=len(storages),
        storage_bytes=sum(storages.values()),
        resident_bytes=resident_bytes(),
        rank=rank,
    )


def tensors_of(view: KVCacheView | StateView) -> tuple[torch.Tensor, ...]:
    """The tensors of one layer's view."""
    return (view.key, view.value) if isinstance(view, KVCacheView) else tuple(view.states)


def resident_bytes(root: Path = Path("/")) -> int:
    """Bytes of this process that lie in memory now; 0 where the system does not tell."""
    try:
        lines = (root / "proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return int(found[0]) * 1024 if found else 0
