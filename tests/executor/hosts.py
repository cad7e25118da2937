"""Hosts made from network namespaces: each with an address of its own, joined by a cable, on one machine's disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from octavo.config import child_environment


class Host:
    """One host. Owns: its namespace, and every process that was started in it."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    def popen(self, command: Sequence[str], environment: dict[str, str], **more: Any) -> subprocess.Popen[str]:
        """Start a command there."""
        whole = {**child_environment(), **environment}
        return subprocess.Popen(["ip", "netns", "exec", self.name, *command], env=whole, text=True, **more)

    def run(self, command: Sequence[str], environment: dict[str, str], timeout_s: float = 300) -> str:
        """Run a command there to its end; what it wrote. Fails the test where it fails."""
        with self.popen(command, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            try:
                out, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, out
        return out

    def pids(self) -> list[int]:
        """Processes that live there."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def unplug(self) -> None:
        """Cut the cable."""
        _ip("-n", self.name, "link", "set", "cable", "down")

    def switch_off(self) -> None:
        """End everything there at once."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + 10
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.05)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nothing else. Skips the test where namespaces are not permitted."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (iproute2) for network namespaces")
    label = f"o{os.getpid() % 100_000}"
    hosts = Host(f"{label}a", "10.231.77.1"), Host(f"{label}b", "10.231.77.2")
    try:
        for host in hosts:
            made = subprocess.run(["ip", "netns", "add", host.name], capture_output=True, text=True, check=False)
            if made.returncode:
                pytest.skip(f"network namespaces are not permitted here: {made.stderr.strip()}")
        _ip(
            "link",
            "add",
            "cable",
            "netns",
            hosts[0].name,
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            hosts[1].name,
        )
        for host in hosts:
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "cable")
            for link in ("lo", "cable"):
                _ip("-n", host.name, "link", "set", link, "up")
        yield hosts
    finally:
        for host in hosts:
            host.switch_off()
            subprocess.run(["ip", "netns", "delete", host.name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
