"""Devices by name: how much memory each has and how fast it is read, with the source of both numbers.

`devices.json` beside this file is the list. A user's own file of the same form adds devices, or replaces them by name:

    [{"name": "my-card", "memory_bytes": "48GiB", "bandwidth_bytes_per_s": 1e12, "source": "measured"}]
"""

from __future__ import annotations

import difflib
import re
from importlib import resources
from pathlib import Path

import msgspec

from octavo.config import MAX_RANKS, parse_bytes
from octavo.errors import ConfigError


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator."""

    name: str
    memory_bytes: int
    """What its driver reports, which is less than its data sheet says."""
    bandwidth_bytes_per_s: int
    """Bytes per second that can be read from it; 0 where that is not known."""
    source: str
    """Where the numbers are from."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    memory_bytes: int | str
    bandwidth_bytes_per_s: float = 0
    source: str = "the user's file"


def known_devices(own_file: Path | None = None) -> dict[str, Device]:
    """Devices by name, those of `own_file` included. Raises `ConfigError` for a file that cannot be read as one."""
    entries = msgspec.json.decode(
        resources.files("octavo.planning").joinpath("devices.json").read_bytes(), type=list[_Entry]
    )
    if own_file is not None:
        entries += _read(own_file)
    return {entry.name.lower(): _device(entry) for entry in entries}


def find_devices(text: str, known: dict[str, Device]) -> tuple[Device, int]:
    """`h200` is one, `h200x8` and `8xh200` are eight. Raises `ConfigError` for a name that nobody knows."""
    wanted = text.strip().lower().replace("_", "-").replace(" ", "-")
    if wanted in known:
        return known[wanted], 1
    before, behind = re.fullmatch(r"(\d+)[x*](.+)", wanted), re.fullmatch(r"(.+)[x*](\d+)", wanted)
    name, count = (before[2], int(before[1])) if before else (behind[1], int(behind[2])) if behind else (wanted, 1)
    if name in known and 1 <= count <= MAX_RANKS:
        return known[name], count
    if name in known:
        raise ConfigError(f"--gpu is {text}.", remedy=f"Give from 1 to {MAX_RANKS} devices.")
    if not name.strip("x*0123456789") or _count_beside_a_name(wanted, known):
        raise ConfigError(
            f"--gpu is {text!r:.60}, which is no name of a device with a number of them behind it.",
            remedy="Write NAMExN, such as h200x8.",
        )
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or [key for key in known if key.startswith(name)]
    meant = f"Did you mean {' or '.join(near[:3])}? " if near else ""
    raise ConfigError(
        f"--gpu is {text!r:.60}, which is not in the list of devices.",
        remedy=f"{meant}Known are {', '.join(known)}; give --memory SIZE for another one, or a list with --devices.",
    )


def _count_beside_a_name(wanted: str, known: dict[str, Device]) -> bool:
    """Whether a known name stands there with something beside it that is no number: `h200x-1`."""
    return any(re.match(rf"{re.escape(name)}[x*]", wanted) or wanted.endswith(f"x{name}") for name in known)


def _read(path: Path) -> list[_Entry]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[_Entry])
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.", remedy="Check --devices.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is no list of devices: {error}.",
            remedy='Write [{"name": "my-card", "memory_bytes": "48GiB", "bandwidth_bytes_per_s": 1e12}].',
        ) from None


def _device(entry: _Entry) -> Device:
    memory = parse_bytes(entry.memory_bytes)
    if not memory or not entry.name.strip() or entry.bandwidth_bytes_per_s < 0:
        raise ConfigError(
            f"The device {entry.name!r:.60} has {memory} bytes of memory and {entry.bandwidth_bytes_per_s:g} bytes/s.",
            remedy="Give it a name, more than 0 bytes, and a bandwidth that is not negative.",
        )
    return Device(
        name=entry.name,
        memory_bytes=memory,
        bandwidth_bytes_per_s=int(entry.bandwidth_bytes_per_s),
        source=entry.source,
    )
