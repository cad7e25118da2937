"""Names of `vllm bench serve`'s flags work."""

from __future__ import annotations

import pytest

from octavo.cli import bench_serving
from tests.cli.terminal import run_octavo


def test_flags_of_vllms_benchmark_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, object] = {}
    monkeypatch.setattr(bench_serving, "run", told.update)
    flags = "--random-input-len 1k --random-output-len 7 --random-range-ratio 0.5 --random-prefix-len 3 --num-prompts 4"
    flags += " --request-rate inf --burstiness 2 --max-concurrency 5 --goodput ttft:500 --goodput tpot:50 --seed 3"
    flags += " --prefix-repetition-num-prefixes 6 --no-ignore-eos --metric-percentiles 50 --result-filename r.json"
    flags += " --save-result --result-dir results"
    said = run_octavo(monkeypatch, ["bench", "serve", *flags.split()])
    assert said.code == 0, said.err
    assert (told["input_len"], told["output_len"], told["range_ratio"], told["prefix_len"]) == (1000, 7, 0.5, 3)
    assert (told["request_rate"], told["max_concurrency"], told["goodput"]) == (
        float("inf"),
        5,
        ["ttft:500", "tpot:50"],
    )
    assert (told["num_prefixes"], told["ignore_eos"], told["result_file"]) == (6, False, "r.json")
    assert (told["save_result"], told["result_dir"]) == (True, "results")
