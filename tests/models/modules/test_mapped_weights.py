"""Pages of files that are let go of: which ones, and that nobody else's numbers change."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from octavo.models.modules import mapped_weights
from octavo.models.modules.mapped_weights import MappedFiles, give_back_freed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="lists of mappings are Linux's")

_ROWS, _WIDTH = 4096, 256


def _mapped(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor, and the same one as safetensors maps it from a file."""
    weight = torch.randn(_ROWS, _WIDTH)
    save_file({"small": torch.ones(3), "weight": weight}, folder / "model.safetensors")
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return weight, file.get_tensor("weight")


def _resident_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the mapping around `tensor` that are in memory, as /proc/self/smaps has them."""
    inside, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            start, stop = (int(part, 16) for part in name.split("-"))
            inside = start <= tensor.data_ptr() < stop
        elif inside and name == "Rss:":
            total += int(rest.split()[0]) * 1024
    return total


def test_pages_of_a_file_leave_and_come_back_with_the_same_numbers(tmp_path: Path) -> None:
    weight, tensor = _mapped(tmp_path)
    assert torch.equal(tensor, weight)
    before = _resident_bytes(tensor)
    files = MappedFiles()
    assert files.holds(tensor)
    files.let_go(tensor[: _ROWS // 2])
    half = _resident_bytes(tensor)
    assert before - half >= weight.nbytes // 2 - 2 * mmap.PAGESIZE
    files.let_go(tensor)
    assert _resident_bytes(tensor) <= before - weight.nbytes + 2 * mmap.PAGESIZE
    assert torch.equal(tensor, weight)


def test_other_memory_keeps_its_numbers(tmp_path: Path) -> None:
    _, tensor = _mapped(tmp_path)
    files = MappedFiles()
    plain = torch.randn(_ROWS, _WIDTH)
    copy = plain.clone()
    files.let_go(plain)
    assert not files.holds(plain) and torch.equal(plain, copy)
    columns = tensor[:, : _WIDTH // 2]
    assert not files.holds(columns)


def test_a_system_without_these_calls_keeps_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, tensor = _mapped(tmp_path)
    monkeypatch.setattr(mapped_weights, "_c_function", lambda name: None)
    files = MappedFiles()
    assert not files.holds(tensor)
    files.let_go(tensor)
    give_back_freed()
    assert torch.equal(tensor, weight)
