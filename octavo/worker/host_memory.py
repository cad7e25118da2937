"""How much memory and how many cores this process may really use: the machine's, or its control group's if less.

Read from files under `root` ("/" in earnest, a made-up tree in tests). Linux control groups of both versions are
known: the limits of the process's own group and of every group above it count. Elsewhere only the machine counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from octavo.errors import ConfigError

_UNLIMITED = 2**60
"""Version 1 writes a number near 2**63 where there is no limit."""


class MemoryLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that can still be taken, and what bounds it."""

    free_bytes: int
    bound: str
    """For people: `the machine`, or the control group's file."""


def free_memory(root: Path = Path("/")) -> MemoryLimit:
    """The memory that this process could still use: the least of `MemAvailable` and, for each control group with a
    limit, its limit less its usage; page cache that could be dropped counts as free in both.

    Raises `ConfigError` when the system does not tell.
    """
    limits = [
        MemoryLimit(free_bytes=max(0, limit - usage), bound=f"the control group's limit in {path}")
        for path, limit, usage in _group_limits(root)
    ]
    available = _machine_available(root)
    if available is not None:
        limits.append(MemoryLimit(free_bytes=available, bound="the machine"))
    if not limits:
        raise ConfigError(
            "The free memory of this machine cannot be read.",
            remedy="Say how much the KV cache may take, such as --kv-memory 1GiB.",
        )
    return min(limits, key=lambda limit: limit.free_bytes)


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process may use: its affinity, or its control group's quota (rounded up) if less; at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *(-(-quota // period) for quota, period in _cpu_quotas(root))]))


def _machine_available(root: Path) -> int | None:
    """`MemAvailable` in bytes; where there is no `/proc`, the free pages that POSIX knows; None when neither is."""
    text = _read(root / "proc/meminfo")
    if text is not None:
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    if "SC_AVPHYS_PAGES" in os.sysconf_names and root == Path("/"):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _group_limits(root: Path) -> Iterator[tuple[Path, int, int]]:
    """(file of the limit, limit, usage less droppable page cache) of each group with a limit."""
    for folder in _group_folders(root, controller=""):
        limit = _number(folder / "memory.max")
        if limit is not None:
            yield folder / "memory.max", limit, _usage(folder, "memory.current", ("active_file", "inactive_file"))
    for folder in _group_folders(root, controller="memory"):
        limit = _number(folder / "memory.limit_in_bytes")
        if limit is not None:
            # Of groups above that a container does not see.
            limit = min(limit, _statistics(folder).get("hierarchical_memory_limit", limit))
        if limit is not None and limit < _UNLIMITED:
            page_cache = ("total_active_file", "total_inactive_file")
            yield folder / "memory.limit_in_bytes", limit, _usage(folder, "memory.usage_in_bytes", page_cache)


def _cpu_quotas(root: Path) -> Iterator[tuple[int, int]]:
    """(quota, period) in microseconds of each group with a quota."""
    for folder in _group_folders(root, controller=""):
        words = (_read(folder / "cpu.max") or "").split()
        if len(words) == 2 and words[0].isdigit():
            yield int(words[0]), int(words[1])
    for folder in _group_folders(root, controller="cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period is not None and quota > 0:
            yield quota, period


def _group_folders(root: Path, *, controller: str) -> Iterator[Path]:
    """Folders of this process's group and of those above it; `controller` is empty for version 2.

    A container sees its own group as the mount's root while `/proc/self/cgroup` may still name the host's path, so
    folders that do not exist are passed over and the mount's root is always among them.
    """
    mount = root / "sys/fs/cgroup" / controller
    place = "/"
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (controllers == "" and controller == "") or (controller and controller in controllers.split(",")):
            place = path
    parts = [part for part in place.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:depth])
        if folder.is_dir():
            yield folder


def _usage(folder: Path, file: str, droppable: tuple[str, ...]) -> int:
    statistics = _statistics(folder)
    return max(0, (_number(folder / file) or 0) - sum(statistics.get(name, 0) for name in droppable))


def _statistics(folder: Path) -> dict[str, int]:
    lines = (_read(folder / "memory.stat") or "").splitlines()
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
