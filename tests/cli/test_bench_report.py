"""The figures of requests, and the report that people read."""

from __future__ import annotations

import pytest

from octavo.cli.bench_report import in_json, in_lines, request_times, spread
from octavo.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput


def _output(first: float | None, last: float | None, num_tokens: int) -> RequestOutput:
    return RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=[1],
        outputs=[CompletionOutput(index=0, text="", token_ids=[5] * num_tokens)],
        finished=True,
        metrics=RequestMetrics(first_token_s=first, finished_s=last),
    )


def test_percentiles_are_values_that_were_measured() -> None:
    values = spread([float(value) for value in range(100, 0, -1)])
    assert values == {"mean": 50.5, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert spread([4.0]) == {"mean": 4.0, "p50": 4.0, "p90": 4.0, "p99": 4.0, "max": 4.0}
    assert spread([1.0, 2.0, 3.0])["p50"] == 2.0
    assert spread([]) == {}


def test_times_between_tokens_leave_out_the_first() -> None:
    times = request_times([_output(1.0, 5.0, 5), _output(2.0, 2.0, 1), _output(None, None, 0)])
    assert times["first_token_s"]["mean"] == 1.5
    assert times["latency_s"]["max"] == 5.0
    assert times["token_s"] == {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0, "max": 1.0}


DOCUMENT = {
    "workload": {"name": "w", "num_requests": 2, "prompt_tokens": 1234, "output_tokens": 7},
    "model": {"name": "m"},
    "settings": {
        "num_threads": 2, "dtype": "bfloat16", "attention_backend": "numba_cpu", "num_blocks": 100,
        "block_sizes": [16, 32], "pool_bytes": 2**30, "versions": {"octavo": "1"},
    },
    "figures": {
        "wall_s": 1.5, "output_tokens_per_s": 10.0, "prefill_tokens_per_s": 20.0, "decode_tokens_per_s": 30.0,
        "hit_tokens": 1024, "peak_rss_bytes": 2**31, "load_s": 2.0, "start_to_first_token_s": 2.5,
        "requests": {"first_token_s": spread([0.25]), "latency_s": spread([1.5]), "token_s": {}},
    },
}  # fmt: skip


def test_lines_have_units_and_skip_what_was_not_there() -> None:
    lines = in_lines(DOCUMENT).splitlines()
    assert lines[0] == "workload w: 2 requests, 1,234 prompt tokens, 7 output tokens, of m"
    assert lines[1].startswith("settings: 2 threads, bfloat16, numba_cpu, 100 blocks of 16 and 32 tokens, 1.00 GiB of")
    assert "decode 30.0 tok/s | hit tokens 1,024 | peak RSS 2.00 GiB" in lines[2]
    assert lines[3] == "ready after 2.00 s, first token 2.50 s after the start of the process"
    assert lines[4] == "first token, ms over requests: mean 250.0, p50 250.0, p90 250.0, p99 250.0, max 250.0"
    assert len(lines) == 6


def test_json_is_one_line() -> None:
    assert in_json({"a": [1, 2]}) == '{"a":[1,2]}\n'
    with pytest.raises(TypeError):
        in_json({"a": object()})
