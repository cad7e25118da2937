"""`octavo bench throughput` and `latency` with a fake model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.terminal import run_octavo
from tests.engine.fake_model import install_fake_model


@pytest.fixture(autouse=True)
def _model(monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_model(monkeypatch)


def test_throughput_is_that_of_a_drawn_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--num-prompts", "6", "--input-len", "20", "--output-len", "4", "--json"]
    said = run_octavo(monkeypatch, ["bench", "throughput", *flags])
    assert said.code == 0, said.err
    document = said.document
    assert document["workload"]["name"] == "random"
    assert (document["workload"]["num_requests"], document["workload"]["prompt_tokens"]) == (6, 120)
    assert document["figures"]["output_tokens"] == 24
    assert "output" in run_octavo(monkeypatch, ["bench", "throughput", *flags[:-1]]).out


def test_texts_are_encoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps([{"conversations": [{"value": "hello"}, {"value": "abc"}]}]))
    flags = ["--dataset-name", "sharegpt", "--dataset-path", str(path), "--json"]
    document = run_octavo(monkeypatch, ["bench", "throughput", *flags]).document
    assert (document["workload"]["prompt_tokens"], document["workload"]["output_tokens"]) == (6, 4)


def test_latency_is_of_batches_with_new_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [
        "--input-len",
        "9",
        "--output-len",
        "3",
        "--batch-size",
        "2",
        "--num-iters",
        "4",
        "--num-iters-warmup",
        "1",
    ]
    said = run_octavo(monkeypatch, ["bench", "latency", *flags, "--json"])
    assert said.code == 0, said.err
    document = said.document
    assert len(document["latencies_s"]) == 4
    assert document["avg_latency_s"] == pytest.approx(sum(document["latencies_s"]) / 4)
    assert min(document["latencies_s"]) <= document["percentiles_s"]["50"] <= max(document["latencies_s"])
    text = run_octavo(monkeypatch, ["bench", "latency", *flags, "--metric-percentiles", "50,99.9"]).out
    assert [line.split()[0] for line in text.splitlines()] == ["average", "p50", "p99.9"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["throughput", "--dataset-name", "x"], "--dataset-name is x"),
        (["throughput", "--dataset-name", "trace"], "has no file"),
        (["throughput", "--output-len", "0"], "--output-len is 0"),
        (["latency", "--metric-percentiles", "x"], "--metric-percentiles is x"),
        (["latency", "--input-len", "0"], "--input-len is 0"),
    ],
)
def test_mistakes_are_one_sentence(monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    said = run_octavo(monkeypatch, ["bench", *arguments])
    assert said.code == 1
    assert said.err.startswith("error: ")
    assert words in said.err


@pytest.mark.parametrize("command", ["throughput", "latency"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", "-1"], "--seed is -1. It must be at least 0."),
        (["--input-len", "0"], "--input-len is 0. It must be at least 1."),
        (["--output-len", "-3"], "--output-len is -3. It must be at least 1."),
    ],
)
def test_what_both_refuse(monkeypatch: pytest.MonkeyPatch, command: str, arguments: list[str], words: str) -> None:
    assert run_octavo(monkeypatch, ["bench", command, *arguments]) == (1, "", f"error: {words}\n")
