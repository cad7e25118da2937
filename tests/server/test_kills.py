"""`octavo serve` whose core is killed at random moments: each request gets an answer, the server comes back, and
nothing is left running."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest

from tests.parity.tiny import HYBRID, VOCAB_SIZE, write_tokenizer
from tests.server.test_serving import PROGRAM

TEXT = " ".join(f"w{number}" for number in range(5, 45))
DOING = ("idle", "prefill", "decode", "stream", "start", "queue")
"""What the server is doing when its core is killed."""


class Ending(NamedTuple):
    """How a request ended: its status, its text, and the error that it was told."""

    status: int
    text: str
    error: dict[str, Any] | None


class KilledServer:
    """A server process whose core is killed now and then. Owns: it, and the threads that ask it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log.open("w")
        self.log = log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [*command, "--port", str(port), "--no-access-log"], stdout=self._log, stderr=self._log
        )
        self.url = f"http://127.0.0.1:{port}"
        self.http = self._client()
        self._threads: list[threading.Thread] = []
        self._endings: list[Ending] = []

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def status(self) -> int:
        """Of /health; 0 where nobody listens."""
        try:
            return self.http.get("/health").status_code
        except httpx.TransportError:
            return 0

    def until(self, holds: Callable[[], Any], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.02)

    def processes(self) -> list[psutil.Process]:
        """The core, and its ranks."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def core(self) -> psutil.Process | None:
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # a zombie, which is one of these, has no command line
                if any("core_process" in word for word in child.cmdline()):
                    return child
        return None

    def kill_core(self) -> None:
        core = self.core()
        if core is not None:
            with suppress(ProcessLookupError):
                os.kill(core.pid, signal.SIGKILL)

    def ask(self, count: int, **fields: Any) -> None:
        """Let `count` threads ask, each for one completion."""

        def one() -> None:
            with self._client() as client:
                self._endings.append(_ending(client, {"prompt": TEXT, "max_tokens": 60, "temperature": 0, **fields}))

        for _ in range(count):
            self._threads.append(threading.Thread(target=one))
            self._threads[-1].start()

    def endings(self) -> list[Ending]:
        """How all that was asked has ended; fails when something hangs."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), f"a request hangs: {self.log.read_text()[-3000:]}"
        endings, self._endings, self._threads = self._endings, [], []
        return endings

    def end(self) -> None:
        """Stop it in its own way; nothing of it may be left."""
        family = self.processes()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0
        _, left = psutil.wait_procs(family, timeout=10)
        assert left == []

    def close(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            for process in (*self.processes(), psutil.Process(self.process.pid)):
                process.kill()
        self.process.wait()
        self._log.close()


def _ending(client: httpx.Client, body: dict[str, Any]) -> Ending:
    with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200 or not body.get("stream"):
            document = json.loads(answer.read())
            text = "" if "error" in document else document["choices"][0]["text"]
            return Ending(answer.status_code, text, document.get("error"))
        text, error, lines = "", None, [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        event = json.loads(line.removeprefix("data: "))
        assert error is None, "nothing comes behind an error"
        error = event.get("error")
        text += event["choices"][0]["text"] if error is None else ""
    return Ending(200, text, error)


def _check(ending: Ending, whole: str) -> None:
    """It is a whole answer, or a clear error in OpenAI's shape."""
    if ending.error is None:
        assert (ending.status, ending.text) == (200, whole)
        return
    assert ending.error.keys() == {"message", "type", "param", "code"}
    assert (ending.error["type"], ending.error["code"]) == ("service_unavailable", "engine_unavailable")
    assert "signal 9" in ending.error["message"] or "is starting" in ending.error["message"]
    assert ending.status in (200, 503)  # 200: a stream that had begun
    assert whole.startswith(ending.text)


def _round(server: KilledServer, doing: str, rng: random.Random, whole: str, *, step_s: float) -> None:
    """Kill the core while the server is `doing` that; all that was asked ends, and it is green again."""
    before = server.core()
    if doing == "stream":
        server.ask(4, stream=True)
    elif doing != "idle":
        server.ask(20 if doing == "queue" else 4)
    wait_s = {"idle": 0.1, "prefill": step_s, "start": 0.0}.get(doing, 40 * step_s)
    time.sleep(rng.random() * wait_s)
    server.kill_core()
    if doing == "start":  # the one that is being started dies, too
        server.until(lambda: (core := server.core()) is not None and core != before)
        time.sleep(rng.random() * 0.3)
        server.kill_core()
    for ending in server.endings():
        _check(ending, whole)
    server.until(lambda: (core := server.core()) is not None and core != before)
    server.until(lambda: server.status() == 200)
    server.ask(1)
    assert server.endings() == [Ending(200, whole, None)], "and it is as good as new"


@contextmanager
def killed_server(command: Sequence[str], folder: Path) -> Iterator[KilledServer]:
    server = KilledServer(command, folder / "log")
    try:
        server.until(lambda: server.status() == 200)
        yield server
        server.end()
    finally:
        server.close()


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_moments(seed: int, tmp_path: Path) -> None:
    """The core has no model, and its answer is the prompt backwards."""
    rng = random.Random(seed)
    with killed_server([sys.executable, "-c", PROGRAM, "fake-slow", "--max-restarts", "99"], tmp_path) as server:
        server.ask(1)
        (first,) = server.endings()
        assert first.text == TEXT[::-1][:60]
        for doing in rng.sample(DOING, len(DOING)):
            _round(server, doing, rng, first.text, step_s=0.02)
        starts = [line for line in server.http.get("/metrics").text.splitlines() if "core_starts_total{" in line]
        assert float(starts[0].split()[-1]) >= 1 + len(DOING)


def test_a_core_that_dies_too_often_stays_down_and_the_server_says_so(tmp_path: Path) -> None:
    with killed_server([sys.executable, "-c", PROGRAM, "fake-slow", "--max-restarts", "2"], tmp_path) as server:
        for number in range(3):
            before = server.core()
            server.ask(2)
            time.sleep(0.1)
            server.kill_core()
            server.endings()
            if number < 2:
                server.until(lambda before=before: (core := server.core()) is not None and core != before)  # type: ignore[misc]
                server.until(lambda: server.status() == 200)
        server.until(lambda: "stays down" in server.log.read_text())
        assert server.status() == 503
        server.ask(1)
        (ending,) = server.endings()
        assert ending.status == 503
        assert ending.error is not None
        assert "died 3 times in a row" in ending.error["message"]
        assert server.core() is None
        assert server.http.get("/metrics").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-tp", "2")], ids=["one rank", "two ranks"])
def test_kills_of_a_core_with_a_model(flags: tuple[str, ...], tmp_path: Path) -> None:
    """A model with random weights: what it says after a kill is what it said before, and no rank outlives its core."""
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    write_tokenizer(tmp_path, VOCAB_SIZE)
    command = [sys.executable, "-m", "octavo", "serve", str(tmp_path), "--load-format", "dummy", "--kv-memory", "2MiB"]
    command += ["--max-model-len", "200", "--block-size", "8", "--max-restarts", "99", "--dtype", "float32", *flags]
    rng = random.Random(5)
    with killed_server(command, tmp_path) as server:
        server.ask(1, ignore_eos=True)
        (first,) = server.endings()
        assert first.error is None
        server.ask(1)
        whole = server.endings()[0].text
        for doing in ("decode", "stream", "queue"):
            ranks = [process for process in server.processes() if process != server.core()]
            assert bool(ranks) == bool(flags)
            _round(server, doing, rng, whole, step_s=0.01)
            _, left = psutil.wait_procs(ranks, timeout=20)
            assert left == [], "a rank outlived its core"
