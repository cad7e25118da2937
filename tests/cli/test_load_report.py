"""Figures of a run that can be checked by hand."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from octavo.cli.load_client import Sent
from octavo.cli.load_report import in_lines, report, samples, write_plot
from octavo.errors import ConfigError

SENT = [
    Sent(10, started=0.0, token_times=[0.1, 0.2, 0.5], num_output_tokens=3, num_cached_tokens=4, ended=0.5),
    Sent(20, started=1.0, token_times=[1.3], num_output_tokens=1, ended=1.5),
    Sent(30, started=1.0, ended=2.0, error="status 429: too many"),
]


def test_each_latency_is_what_its_name_says() -> None:
    found = {name: [round(value, 6) for value in values] for name, values in samples(SENT).items()}
    assert found == {"ttft": [100, 300], "e2el": [500, 300], "tpot": [200], "itl": [100, 300]}


def test_rates_are_of_whole_answers_over_the_whole_time() -> None:
    document = report(SENT, percentiles=[50, 99], goals={"ttft": 200, "itl": 300}, settings={"model": "m"})
    assert (document["model"], document["duration_s"], document["completed"], document["failed"]) == ("m", 2.0, 2, 1)
    assert document["errors"] == ["status 429: too many"]
    assert (document["total_input_tokens"], document["total_output_tokens"], document["cached_tokens"]) == (30, 4, 4)
    assert (document["request_throughput"], document["output_throughput"], document["total_token_throughput"]) == (
        1.0, 2.0, 17.0,
    )  # fmt: skip
    assert document["request_goodput"] == 0.5
    assert set(document["ttft"]) == {"mean_ms", "std_ms", "p50_ms", "p99_ms"}
    assert document["ttft"]["p50_ms"] == pytest.approx(200)
    text = in_lines(document)
    for part in ("2 done, 1 failed", "goodput", "ttft (time to first token)", "failed: status 429"):
        assert part in text
    assert "request_goodput" not in report(SENT, percentiles=[50], goals={}, settings={})


def test_a_run_without_answers_has_no_latencies() -> None:
    document = report(SENT[2:], percentiles=[50], goals={}, settings={})
    assert (document["completed"], document["ttft"]) == (0, {})
    assert "0 done, 1 failed" in in_lines(document)


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    write_plot(SENT, tmp_path / "p.svg")
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    assert len(root.findall("{*}polyline")) == 4
    with pytest.raises(ConfigError, match="--plot"):
        write_plot(SENT, tmp_path / "p.png")
