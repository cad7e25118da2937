"""`octavo bench serve` against a running server with a fake model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import Said, run_octavo
from tests.engine.fake_process import install_fake_process
from tests.server.running import RunningServer, running


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with pytest.MonkeyPatch.context() as patch:
        install_fake_process(patch)
        with running(served_model_names=("fake",), api_keys=("k",)) as server:
            yield server


def bench(monkeypatch: pytest.MonkeyPatch, server: RunningServer, *arguments: str) -> Said:
    monkeypatch.setenv("OCTAVO_API_KEY", "k")
    flags = ["--base-url", server.url, "--num-prompts", "8", "--input-len", "20", "--output-len", "5"]
    return run_octavo(monkeypatch, ["bench", "serve", *flags, *arguments])


@pytest.mark.slow
def test_all_requests_are_answered_and_counted(
    monkeypatch: pytest.MonkeyPatch, server: RunningServer, tmp_path: Path
) -> None:
    files = ["--result-dir", str(tmp_path / "a"), "--result-filename", "r.json", "--plot", str(tmp_path / "p.svg")]
    said = bench(monkeypatch, server, "--json", "--num-warmups", "2", "--goodput", "ttft:60000", *files)
    assert said.code == 0, said.err
    document = said.document
    assert (document["completed"], document["failed"], document["total_input_tokens"]) == (8, 0, 160)
    assert document["total_output_tokens"] == 40
    assert document["request_goodput"] == document["request_throughput"] > 0
    assert 0 < document["ttft"]["p50_ms"] <= document["e2el"]["p99_ms"]
    assert len(document["requests"]) == 8
    assert json.loads((tmp_path / "a" / "r.json").read_text()) == document
    assert (tmp_path / "p.svg").read_text().startswith("<svg")


@pytest.mark.slow
def test_a_result_is_saved_under_a_name_that_tells_what_it_is_of(
    monkeypatch: pytest.MonkeyPatch, server: RunningServer, tmp_path: Path
) -> None:
    document = bench(monkeypatch, server, "--json", "--save-result", "--result-dir", str(tmp_path)).document
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("infqps-fake-2")
    assert json.loads(path.read_text()) == document


@pytest.mark.slow
def test_concurrency_is_bounded_and_arrivals_are_spread(monkeypatch: pytest.MonkeyPatch, server: RunningServer) -> None:
    pace = ["--max-concurrency", "1", "--request-rate", "100", "--burstiness", "0.5"]
    requests = bench(monkeypatch, server, "--json", *pace).document["requests"]
    spans = sorted((one["started"], one["ended"]) for one in requests)
    assert all(after[0] >= before[1] for before, after in itertools.pairwise(spans))


@pytest.mark.slow
def test_conversations_and_traces_are_sent(
    monkeypatch: pytest.MonkeyPatch, server: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "c.json").write_text(json.dumps([{"conversations": [{"value": "hello"}, {"value": "abc"}]}]))
    said = bench(monkeypatch, server, "--dataset-name", "sharegpt", "--dataset-path", str(tmp_path / "c.json"))
    assert said.code == 0, said.err
    assert "1 done, 0 failed" in said.out
    assert "output tokens   4" in said.out  # the fake tokenizer puts a mark before the reply
    row = {"timestamp": 5, "input_length": 5000, "output_length": 3, "hash_ids": [1, 2]}
    (tmp_path / "t.jsonl").write_text(json.dumps(row))
    said = bench(monkeypatch, server, "--dataset-name", "trace", "--dataset-path", str(tmp_path / "t.jsonl"), "--json")
    assert (said.document["completed"], said.document["total_input_tokens"]) == (1, 997)


@pytest.mark.slow
def test_failures_are_told_and_end_in_an_error(monkeypatch: pytest.MonkeyPatch, server: RunningServer) -> None:
    said = bench(monkeypatch, server, "--input-len", "5000")
    assert said.code == 1
    assert "0 done, 8 failed" in said.out
    assert "failed: status 400" in said.out
    assert said.err.endswith("error: No request was answered. What the server said is above.\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--request-rate", "0"], "--request-rate is 0"), (["--dataset-name", "x"], "--dataset-name is x"),
        (["--metric-percentiles", "50,200"], "--metric-percentiles is 50,200"),
        (["--goodput", "x:1"], "--goodput is x:1"),
        (["--plot", "a.bmp"], "--plot is a.bmp"), (["--max-concurrency", "0"], "--max-concurrency is 0"),
        (["--vocab-size", "1"], "--vocab-size is 1"),
        (["--num-prompts", "0"], "--num-prompts is 0"), (["--input-len", "-1"], "--input-len is -1"),
        (["--range-ratio", "nan"], "--range-ratio is nan"), (["--num-prefixes", "0"], "--num-prefixes is 0"),
        (["--seed", "-1"], "--seed is -1"), (["--temperature", "nan"], "--temperature is nan"),
        (["--temperature", "-1"], "--temperature is -1"), (["--num-warmups", "-1"], "--num-warmups is -1"),
        (["--burstiness", "inf"], "--burstiness is inf"), (["--request-rate", "nan"], "--request-rate is nan"),
        (["--timeout", "nan"], "--timeout is nan"), (["--trace-speed", "inf"], "--trace-speed is inf"),
        (["--ready-check-timeout-sec", "nan"], "--ready-check-timeout-sec is nan"),
        (["--ready-check-timeout-sec", "-1"], "--ready-check-timeout-sec is -1"),
        (["--dataset-name", "trace"], "--dataset-name trace has no file"),
        (["--base-url", "nonsense", "--ready-check-timeout-sec", "0"], "No server"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    said = run_octavo(monkeypatch, ["bench", "serve", *arguments])
    assert said.code == 1
    assert said.err.startswith(f"error: {words}")
    assert said.err.count("\n") == 1


@pytest.mark.slow
def test_another_model_and_a_wrong_key_are_refused(monkeypatch: pytest.MonkeyPatch, server: RunningServer) -> None:
    said: Any = bench(monkeypatch, server, "--model", "gpt")
    assert "--model is gpt, and the server has fake" in said.err
    said = bench(monkeypatch, server, "--api-key", "wrong")
    assert "refuses /v1/models (status 401)" in said.err
