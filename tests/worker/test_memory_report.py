from __future__ import annotations

from pathlib import Path

import torch

from octavo.attention.backend import KVCacheView
from octavo.attention.state import StateView
from octavo.worker.memory_report import report_memory, resident_bytes, tensors_of


def test_a_storage_is_counted_once_however_many_look_into_it() -> None:
    first, second = torch.ones(400, dtype=torch.int8), torch.ones(100, dtype=torch.int8)
    views = {
        "a": KVCacheView(key=first[:200].view(torch.float32), value=first[200:].view(torch.float32)),
        "b": KVCacheView(key=first[:100], value=first[300:]),
        "c": StateView(states=(second[:50], second[50:])),
    }
    report = report_memory(views, num_blocks=5, rank=3)
    assert (report.num_views, report.num_storages, report.storage_bytes, report.num_blocks) == (6, 2, 500, 5)
    assert report.rank == 3
    assert first.all(), "it only looks"
    assert len(tensors_of(views["c"])) == 2


def test_resident_bytes_are_read_where_the_system_tells(tmp_path: Path) -> None:
    assert resident_bytes(tmp_path) == 0
    status = tmp_path / "proc/self/status"
    status.parent.mkdir(parents=True)
    status.write_text("Name:\tx\nVmRSS:\t    1234 kB\n")
    assert resident_bytes(tmp_path) == 1234 * 1024
