"""Names of `vllm bench throughput|latency`'s flags work."""

from __future__ import annotations

import pytest

from octavo.cli import bench_running
from tests.cli.terminal import run_octavo


def test_flags_of_vllms_benchmarks_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, object] = {}
    monkeypatch.setattr(bench_running, "run_throughput", told.update)
    monkeypatch.setattr(bench_running, "run_latency", told.update)
    said = run_octavo(
        monkeypatch, ["bench", "throughput", "--input-len", "1k", "--num-prompts", "5", "--max-num-seqs", "3"]
    )
    assert said.code == 0, said.err
    assert (told["input_len"], told["num_prompts"], told["max_num_seqs"]) == (1000, 5, 3)
    flags = "--batch-size 4 --num-iters 6 --num-iters-warmup 1 --output-len 9"
    said = run_octavo(monkeypatch, ["bench", "latency", *flags.split()])
    assert said.code == 0, said.err
    assert (told["batch_size"], told["num_iters"], told["num_iters_warmup"], told["output_len"]) == (4, 6, 1, 9)
    assert told["enable_prefix_caching"] is False
