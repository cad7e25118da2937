"""Budgets: shares of what is free, explicit sizes checked, and remedies that work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.config import CacheConfig, parse_bytes
from octavo.errors import ConfigError
from octavo.worker.memory_budget import cpu_budget, cuda_budget

GIB = 2**30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 10 GiB free."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemAvailable: {10 * GIB // 1024} kB\n")
    return tmp_path


def test_the_default_is_a_share_of_what_is_free(root: Path) -> None:
    assert cpu_budget(CacheConfig(), 1, root) == (5 * GIB, "5.00 GiB: 0.5 of 10.00 GiB free, bounded by the machine")
    assert cpu_budget(CacheConfig(memory_utilization=0.9), 1, root)[0] == 9 * GIB


def test_ranks_of_one_machine_divide_it(root: Path) -> None:
    budget, told = cpu_budget(CacheConfig(), 2, root)
    assert budget == 5 * GIB // 2
    assert "5.00 GiB free for each of 2 ranks" in told


def test_an_explicit_size_is_taken_as_it_is(root: Path) -> None:
    assert cpu_budget(CacheConfig(kv_memory_bytes=12345), 1, root) == (
        12345,
        "12.06 KiB as asked, of 10.00 GiB free, bounded by the machine",
    )
    assert cpu_budget(CacheConfig(kv_memory_bytes=10 * GIB), 1, root)[0] == 10 * GIB


def test_more_than_is_free_is_refused_and_the_printed_remedy_works(root: Path) -> None:
    asked = 10 * GIB + 1
    with pytest.raises(ConfigError, match=r"--kv-memory is 10\.00 GiB \(10737418241 bytes\), but only 10\.00 GiB") as e:
        cpu_budget(CacheConfig(kv_memory_bytes=asked), 1, root)
    assert "bounded by the machine" in e.value.fact
    printed = e.value.remedy.removeprefix("Give the cache at most ").removesuffix(".")
    assert cpu_budget(CacheConfig(kv_memory_bytes=parse_bytes(printed)), 1, root)[0] == e.value.numbers["safe_bytes"]
    with pytest.raises(ConfigError):
        cpu_budget(CacheConfig(kv_memory_bytes=6 * GIB), 2, root)


def test_cuda_leaves_a_steps_activations_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * GIB, 80 * GIB))
    device = torch.device("cuda", 3)
    budget, told = cuda_budget(CacheConfig(), device, 2 * GIB)
    assert budget == 3 * GIB
    assert told == "3.00 GiB: 0.5 of 6.00 GiB free, bounded by cuda:3 less 2.00 GiB for a step's activations"
    with pytest.raises(ConfigError, match=r"only 6\.00 GiB"):
        cuda_budget(CacheConfig(kv_memory_bytes=7 * GIB), device, 2 * GIB)
    assert cuda_budget(CacheConfig(), device, 9 * GIB)[0] == 0
