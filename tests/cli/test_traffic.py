"""Traffic is drawn from a seed, with the lengths, prefixes and times that were asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.cli.traffic import TRACE_BLOCK, TrafficOptions, TrafficRequest, arrivals, draw_traffic
from octavo.errors import ConfigError


def draw(**options: Any) -> list[TrafficRequest]:
    return draw_traffic(TrafficOptions(**options), 50_000, lambda text: len(text.split()))


def test_random_lengths_vary_around_their_mean() -> None:
    requests = draw(num_prompts=300, input_len=100, output_len=40, range_ratio=0.5, prefix_len=7)
    lengths = [request.num_prompt_tokens - 7 for request in requests]
    assert (min(lengths), max(lengths)) == (50, 150)
    assert 90 < np.mean(lengths) < 110
    assert {20, 60} <= {request.max_tokens for request in requests}
    assert len({tuple(request.prompt[:7]) for request in requests}) == 1
    assert len({tuple(request.prompt[7:17]) for request in requests}) == 300
    assert all(0 <= token < 50_000 for request in requests for token in request.prompt)  # type: ignore[operator]
    assert requests == draw(num_prompts=300, input_len=100, output_len=40, range_ratio=0.5, prefix_len=7)
    assert requests != draw(num_prompts=300, input_len=100, output_len=40, range_ratio=0.5, prefix_len=7, seed=1)


def test_prefixes_are_shared_in_turn() -> None:
    requests = draw(dataset="prefix", num_prompts=12, num_prefixes=4, prefix_len=9, input_len=3)
    assert len({tuple(request.prompt[:9]) for request in requests}) == 4
    assert requests[0].prompt[:9] == requests[4].prompt[:9]


def test_conversations_are_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    turns: list[Any] = [
        {"conversations": [{"value": "one two three"}, {"value": "a b"}, {"value": "more"}]},
        {"conversations": [{"value": "alone"}]},
        {"odd": 1},
        {"conversations": [{"value": "long " * 50}, {"value": "a"}]},
        {"conversations": [{"value": "four"}, {"value": "c d e"}]},
    ]
    path.write_text(json.dumps(turns))
    found = [(r.prompt, r.num_prompt_tokens, r.max_tokens) for r in draw(dataset="sharegpt", path=path, max_len=20)]
    assert found == [("one two three", 3, 2), ("four", 1, 3)]
    assert len(draw(dataset="sharegpt", path=path, num_prompts=1)) == 1


def test_a_trace_has_its_lengths_times_and_shared_blocks(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [
        {"timestamp": 1000, "input_length": 700, "output_length": 5, "hash_ids": [3, 4]},
        {"timestamp": 2500, "input_length": 600, "output_length": 9000, "hash_ids": [3, 9]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    first, second = draw(dataset="trace", path=path, max_len=1000)
    assert (first.at, second.at) == (0.0, 1.5)
    assert (first.num_prompt_tokens, second.num_prompt_tokens, second.max_tokens) == (700, 500, 500)
    assert first.prompt[:500] == second.prompt[:500]
    assert first.prompt[TRACE_BLOCK:] != draw(dataset="trace", path=path)[1].prompt[TRACE_BLOCK:]
    assert arrivals([first, second], rate=float("inf"), burstiness=1, seed=0, speed=3) == [0.0, 0.5]


def test_a_table_is_a_trace_too(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,3,1\n"
    )
    first, second = draw(dataset="trace", path=path)
    assert (first.num_prompt_tokens, first.max_tokens, second.num_prompt_tokens) == (374, 44, 3)
    assert second.at == pytest.approx(4.314579)
    assert first.prompt[:3] != second.prompt


def test_gaps_have_the_rate_and_the_burstiness() -> None:
    requests = draw(num_prompts=4000, input_len=1)
    assert set(arrivals(requests, rate=float("inf"), burstiness=1, seed=0)) == {0.0}
    for burstiness in (0.25, 1.0, 4.0):
        times = arrivals(requests, rate=10, burstiness=burstiness, seed=0)
        gaps = np.diff(times)
        assert times[0] == 0
        assert gaps.mean() == pytest.approx(0.1, rel=0.15)
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.15)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_prompts": 0}, "--num-prompts is 0"),
        ({"range_ratio": 1.0}, "--range-ratio is 1.0"),
        ({"dataset": "trace"}, "has no file"),
        ({"dataset": "trace", "path": Path("/nowhere")}, "cannot be read"),
    ],
)
def test_mistakes_are_told(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        draw(**options)


@pytest.mark.parametrize(
    ("name", "dataset", "text", "words"),
    [
        ("a.json", "sharegpt", "{}", "no list of conversations"), ("a.json", "sharegpt", "[]", "no requests"),
        ("a.json", "sharegpt", "{", "is no JSON"), ("a.jsonl", "trace", "{}", "Line 1 of .* is no request"),
        ("a.csv", "trace", "A,B\n1,2\n", "Line 2 of .* is no request"), ("a.jsonl", "trace", "", "no requests"),
    ],
)  # fmt: skip
def test_bad_files_are_told(tmp_path: Path, name: str, dataset: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words):
        draw(dataset=dataset, path=tmp_path / name)
