"""The table of two servers, and the order in which they are asked."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare_servers
from benchmarks.compare_servers import commands, compare, read_flags, table


def _run(wall: float, rate: float) -> dict[str, Any]:
    spread = {"p50_ms": wall, "p90_ms": wall, "p99_ms": wall}
    return {"duration_s": wall, "output_throughput": rate, **dict.fromkeys(("ttft", "tpot", "itl", "e2el"), spread)}


def test_ratios_are_of_one_round_and_above_one_where_octavo_is_faster() -> None:
    ours = [_run(10, 40), _run(30, 10), _run(20, 20)]
    theirs = [_run(20, 20), _run(15, 20), _run(60, 10)]
    lines = table({"Octavo": ours, "vLLM": theirs}).splitlines()
    assert lines[2] == "| all requests, wall | 20 s (10..30) | 20 s (15..60) | 2.00 (0.50..3.00) |"
    assert lines[3] == "| output tokens a second | 20 (10..40) | 20 (10..20) | 2.00 (0.50..2.00) |"


def test_one_is_asked_at_a_time_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []

    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def send(self, number: signal.Signals) -> None:
            events.append((self.name, number.name))

    def ask(server: Any, given: Any, seed: int, *, num_requests: int) -> dict[str, Any]:
        events.append((server.name, seed, num_requests))
        return {"seed": seed}

    monkeypatch.setattr(compare_servers, "ask", ask)
    servers: list[Any] = [Fake("Octavo"), Fake("vLLM")]
    runs = compare(read_flags(["--peer-python", "p", "--rounds", "2", "--requests", "5"]), servers)
    assert runs == {"Octavo": [{"seed": 0}, {"seed": 1}], "vLLM": [{"seed": 0}, {"seed": 1}]}
    asked = [event for event in events if len(event) == 3]
    assert asked == [
        ("vLLM", 1000, 8), ("Octavo", 1000, 8), ("Octavo", 0, 5), ("vLLM", 0, 5), ("vLLM", 1, 5), ("Octavo", 1, 5),
    ]  # fmt: skip
    for first, event in itertools.pairwise(events):
        if len(event) == 3:
            assert first == (event[0], "SIGCONT")
    assert events[-1] == ("Octavo", "SIGSTOP")


def test_both_get_the_same_model_dtype_and_cache() -> None:
    given = read_flags(["--peer-python", "/env/bin/python", "--dtype", "float32"])
    made = commands(given, Path("/weights/hf"))
    for command, _ in made.values():
        assert {"--dtype=float32", "--served-model-name=m", "--max-model-len=2048"} <= set(command)
        assert any("/weights/hf" in word for word in command)
    assert "--kv-memory=1GiB" in made["Octavo"][0]
    assert f"--kv-cache-memory-bytes={2**30}" in made["vLLM"][0]
