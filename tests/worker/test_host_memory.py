"""Free memory and usable cores, read from made-up /proc and /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.worker.host_memory import free_memory, usable_cores

GIB = 2**30


def tree(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def meminfo(available: int) -> str:
    return f"MemTotal: {64 * GIB // 1024} kB\nMemFree:  1 kB\nMemAvailable: {available // 1024} kB"


def test_without_groups_the_machine_bounds(tmp_path: Path) -> None:
    limit = free_memory(tree(tmp_path, {"proc/meminfo": meminfo(8 * GIB)}))
    assert (limit.free_bytes, limit.bound) == (8 * GIB, "the machine")


def test_a_version_2_group_bounds_by_limit_less_usage_and_page_cache_is_free(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": meminfo(50 * GIB),
            "proc/self/cgroup": "0::/app",
            "sys/fs/cgroup/app/memory.max": 4 * GIB,
            "sys/fs/cgroup/app/memory.current": 3 * GIB,
            "sys/fs/cgroup/app/memory.stat": f"anon {GIB}\nfile {2 * GIB}\nactive_file {GIB // 2}\ninactive_file {GIB}",
        },
    )
    limit = free_memory(root)
    assert limit.free_bytes == 4 * GIB - 3 * GIB + GIB // 2 + GIB
    assert limit.bound == f"the control group's limit in {root}/sys/fs/cgroup/app/memory.max"


def test_the_tightest_of_all_groups_above_counts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": meminfo(50 * GIB),
            "proc/self/cgroup": "0::/outer/inner",
            "sys/fs/cgroup/outer/memory.max": 2 * GIB,
            "sys/fs/cgroup/outer/memory.current": GIB,
            "sys/fs/cgroup/outer/inner/memory.max": "max",
            "sys/fs/cgroup/outer/inner/memory.current": GIB,
        },
    )
    assert free_memory(root).free_bytes == GIB


def test_inside_a_container_the_mounts_root_is_the_group(tmp_path: Path) -> None:
    """/proc/self/cgroup names the host's path, which is not there."""
    root = tree(
        tmp_path,
        {
            "proc/meminfo": meminfo(50 * GIB),
            "proc/self/cgroup": "0::/docker/0123abc",
            "sys/fs/cgroup/memory.max": 3 * GIB,
            "sys/fs/cgroup/memory.current": GIB,
        },
    )
    assert free_memory(root).free_bytes == 2 * GIB


def test_a_version_1_group_bounds_and_its_sentinel_does_not(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "proc/meminfo": meminfo(50 * GIB),
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/job\n0::/",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": 0,
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": 6 * GIB,
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": 5 * GIB,
        "sys/fs/cgroup/memory/job/memory.stat": f"total_inactive_file {2 * GIB}\ninactive_file {GIB}",
    }
    assert free_memory(tree(tmp_path, files)).free_bytes == 3 * GIB
    files["sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = 9223372036854771712
    assert free_memory(tree(tmp_path, files)).bound == "the machine"


def test_a_version_1_limit_of_a_group_that_is_not_seen_counts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": meminfo(50 * GIB),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB,
            "sys/fs/cgroup/memory/memory.stat": f"hierarchical_memory_limit {4 * GIB}",
        },
    )
    assert free_memory(root).free_bytes == 3 * GIB


def test_usage_above_the_limit_leaves_nothing(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/meminfo": meminfo(GIB),
            "sys/fs/cgroup/memory.max": GIB,
            "sys/fs/cgroup/memory.current": 2 * GIB,
        },
    )
    assert free_memory(root).free_bytes == 0


def test_a_machine_that_does_not_tell_is_asked_for_a_budget(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="free memory of this machine cannot be read") as caught:
        free_memory(tmp_path)
    assert "--kv-memory" in caught.value.remedy


def test_this_machine_tells() -> None:
    assert free_memory().free_bytes > 0
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("files", "quota_cores"),
    [
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 2),
        ({"sys/fs/cgroup/cpu.max": "1000 100000"}, 1),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1, "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000}, None),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": 50000, "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000}, 1),
    ],
)
def test_a_quota_bounds_the_cores(
    files: dict[str, object], quota_cores: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert usable_cores(tree(tmp_path, files)) == (8 if quota_cores is None else quota_cores)
