"""`octavo serve` as a process: its address, its signals, what it leaves behind. The core has no model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from octavo.errors import ConfigError
from octavo.server.serving import bind
from octavo.server.settings import ServerSettings

PROGRAM = """
import sys, pytest
from tests.engine.fake_process import install_fake_process
from octavo import cli
install_fake_process(pytest.MonkeyPatch())
sys.argv = ["octavo", "serve", *sys.argv[1:]]
cli.main()
"""
LONG: dict[str, Any] = {"prompt": "a" * 100, "max_tokens": 100}


class Served:
    """A server process and its client. Owns: both."""

    def __init__(self, *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *flags, "--port", str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while True:
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    break
            except httpx.TransportError:
                assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.children = psutil.Process(self.process.pid).children()

    def ask(self, **more: Any) -> tuple[threading.Thread, list[httpx.Response]]:
        """A request under way."""
        answers: list[httpx.Response] = []
        body = LONG | more
        thread = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{self.url}/v1/completions", json=body, timeout=60))
        )
        thread.start()
        deadline = time.monotonic() + 10
        while httpx.get(f"{self.url}/load").json() != {"server_load": 1}:
            assert time.monotonic() < deadline
        return thread, answers

    def end(self, number: int = signal.SIGTERM) -> str:
        """Its stderr, once a signal has ended it."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=20)
        assert out == ""
        assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in self.children)
        return err


@contextmanager
def served(*flags: str) -> Iterator[Served]:
    server = Served(*flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()


def test_sigterm_lets_requests_end_and_leaves_nothing() -> None:
    with served("fake-slow", "--log-format", "json") as server:
        thread, answers = server.ask()
        err = server.end()
        thread.join(10)
        assert answers[0].json()["choices"][0]["text"] == "a" * 100
        assert server.process.returncode == 0
        lines = [line for line in err.splitlines() if "KV cache size" in line]
        assert lines[0].startswith('{"time":')
        assert "CPU KV cache size: " in lines[0]
        assert "1 requests under way may still end" in err


def test_a_second_signal_does_not_wait() -> None:
    with served("fake-slow", "--no-access-log") as server:
        thread, answers = server.ask(prompt="a" * 900, max_tokens=900)
        asked = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        err = server.end()
        thread.join(10)
        assert time.monotonic() - asked < 15, "the request takes eighteen seconds"
        assert not answers or answers[0].status_code != 200
        assert "a second time" in err


def test_a_server_that_is_killed_takes_its_core_along() -> None:
    with served("fake") as server:
        (core,) = server.children
        server.process.kill()
        server.process.communicate()
        deadline = time.monotonic() + 5
        while core.is_running() and core.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_start_that_fails_is_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "fake-unplannable", "--port", "0"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: It needs 7 bytes. Give 8."
    assert "Traceback" not in done.stderr


def test_a_signal_while_the_model_loads_ends_the_start(tmp_path: Path) -> None:
    program = PROGRAM.replace("cli.main()", (
        "from octavo.engine import preparation\n"
        "import time\n"
        "real = preparation.load_tokenizer\n"
        "def slow(files, **_):\n"
        "    print('loading', flush=True)\n"
        "    time.sleep(1)\n"
        "    return real(files)\n"
        "preparation.load_tokenizer = slow\n"
        "cli.main()"
    ))  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", program, "fake", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_an_address_that_cannot_be_had_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with bind(ServerSettings(port=0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1 port {port}: it is in use"):
            bind(ServerSettings(port=port))
    with pytest.raises(ConfigError, match="cannot listen"):
        bind(ServerSettings(host="203.0.113.7"))
    path = str(tmp_path / "s")
    with bind(ServerSettings(uds=path)), pytest.raises(ConfigError, match="--uds"):
        bind(ServerSettings(uds=path))
    assert os.path.exists(path)
