"""A thousand streams at once, and ten minutes of mixed traffic, on the demo model: no error, and nothing grows."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from octavo.cli.load_client import LoadClient, run_load
from octavo.cli.traffic import TrafficOptions, draw_traffic

pytestmark = [pytest.mark.long, pytest.mark.model]

NUM_STREAMS = 1000
SOAK_S = 600.0


class Served:
    """`octavo serve demo` in a process. Owns: it."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        command = [sys.executable, "-m", "octavo", "serve", "demo", "--port", "0", "--max-model-len", "1024"]
        command += ["--kv-memory", "256MiB", "--max-waiting", str(2 * NUM_STREAMS), "--no-access-log"]
        self._out = self.log.open("w")
        self.process = subprocess.Popen(command, stdout=self._out, stderr=self._out)
        try:
            self.url = self._address()
        except BaseException:
            self.kill()
            raise

    def _address(self) -> str:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            port = next((c.laddr.port for c in self._connections() if c.status == psutil.CONN_LISTEN), None)
            if port is not None:
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                        return f"http://127.0.0.1:{port}"
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-2000:])

    def _connections(self) -> list[psutil._common.pconn]:
        return list(psutil.Process(self.process.pid).net_connections(kind="tcp"))

    def processes(self) -> list[psutil.Process]:
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def num_files(self) -> int:
        return sum(process.num_fds() for process in self.processes())

    def rss(self) -> int:
        return sum(process.memory_info().rss for process in self.processes())

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def until_idle(self) -> None:
        deadline = time.monotonic() + 60
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        while any(self.metric(name) for name in names):
            assert time.monotonic() < deadline, "blocks or requests are left"
            time.sleep(0.2)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(120) == 0

    def kill(self) -> None:
        for process in self.processes() if self.process.poll() is None else []:
            process.kill()
        self.process.wait()
        self._out.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path)
    try:
        yield server
        server.stop()
    finally:
        server.kill()


@pytest.mark.timeout(1800)
def test_a_thousand_streams_at_once(served: Served) -> None:
    requests = draw_traffic(
        TrafficOptions(num_prompts=NUM_STREAMS, input_len=24, output_len=12, range_ratio=0.5), 200_000, len
    )
    before = served.num_files()

    async def main() -> list[str]:
        async with LoadClient(served.url, api_key=None, timeout_s=1500) as client:
            sent = await run_load(
                client, "demo", requests, [0.0] * NUM_STREAMS, {"ignore_eos": True, "temperature": 0},
                max_concurrency=None, on_done=lambda _: None,
            )  # fmt: skip
        assert [one.num_output_tokens for one in sent] == [request.max_tokens for request in requests]
        return [one.error for one in sent if one.error]

    assert asyncio.run(main()) == []
    served.until_idle()
    assert served.num_files() <= before + 5


@pytest.mark.timeout(SOAK_S + 1200)
def test_ten_minutes_of_mixed_traffic_leave_nothing_behind(served: Served) -> None:
    """Whole answers, streams that are read, streams whose reader goes away, and requests that are refused."""
    rng = random.Random(0)
    memory: list[int] = []
    files: list[int] = []

    async def one(client: httpx.AsyncClient) -> None:
        kind = rng.choice(["whole", "stream", "gone", "refused"])
        prompt = [rng.randrange(2000, 200_000) for _ in range(rng.choice([5, 60, 400]))]
        body = {
            "prompt": prompt * (9 if kind == "refused" and len(prompt) > 300 else 1),
            "max_tokens": rng.randrange(1, 40),
        }
        if kind == "refused":
            body["temperature"] = -1
            assert (await client.post("/v1/completions", json=body)).status_code == 400
        elif kind == "whole":
            assert (await client.post("/v1/completions", json=body)).status_code == 200
        else:
            async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    if kind == "gone" and line:
                        return
                assert kind == "gone" or line == "" or line.endswith("[DONE]")

    async def main() -> None:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=served.url, timeout=300, limits=limits) as client:
            ends = time.monotonic() + SOAK_S

            async def ask_on() -> None:
                while time.monotonic() < ends:
                    await one(client)

            async with asyncio.TaskGroup() as group:
                for _ in range(32):
                    group.create_task(ask_on())
                for _ in range(20):
                    await asyncio.sleep(SOAK_S / 20)
                    memory.append(served.rss())
                    files.append(served.num_files())

    asyncio.run(main())
    served.until_idle()
    third = len(memory) // 3
    early, late = statistics.median(memory[third : 2 * third]), statistics.median(memory[-third:])
    assert late <= 1.03 * early, memory
    assert max(files[-third:]) <= max(files[:third]) + 5, files
    assert served.metric("octavo:engine_core_starts_total") == 1
