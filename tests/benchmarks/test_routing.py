"""What the routing benchmark makes of small traces whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.routing import HASHED_TOKENS, POLICIES, TraceRequest, main, read_trace


def write(path: Path, lines: list[tuple[float, int, int, list[int]]]) -> Path:
    path.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": length, "output_length": output, "hash_ids": ids}) + "\n"
            for at, length, output, ids in lines
        )
    )
    return path


def conversations(num_conversations: int, num_turns: int, *, gap_ms: float) -> list[tuple]:
    """Turns that extend their conversation by two hashed pieces, all conversations in turn."""
    numbers = iter(range(10**6))
    ids: list[list[int]] = [[] for _ in range(num_conversations)]
    lines = []
    for number in range(num_turns * num_conversations):
        own = ids[number % num_conversations]
        own += [next(numbers), next(numbers)]
        lines.append((gap_ms * number, HASHED_TOKENS * len(own) - 100, 3, list(own)))
    return lines


def outcomes(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, float]]:
    assert main([*arguments, "--json"]) == 0
    return {each["policy"]: each for each in json.loads(capsys.readouterr().out)}


def test_a_prompt_is_equal_where_its_hashes_are() -> None:
    one = TraceRequest(0.0, 1000, 1, [3, 4]).prompt()
    other = TraceRequest(0.0, 1200, 1, [3, 5, 6]).prompt()
    assert (len(one), len(other)) == (1000, 1200)
    assert one[:512] == other[:512]
    assert one[512] != other[512]


def test_prefix_routing_finds_what_is_there_and_the_others_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = conversations(23, 6, gap_ms=60)  # 4 does not divide 23: no turn is dealt where the one before was
    trace = write(tmp_path / "t.jsonl", lines)
    found = outcomes(capsys, "--trace", str(trace), "--replicas", "4", "--pool-tokens", "1000000")
    prompts = read_trace(trace)
    # The whole part of what a turn before had: its prompt less its last, half-filled block and the token recomputed.
    most = sum(max(0, line.prompt_tokens - 2 * HASHED_TOKENS) // 16 * 16 for line in prompts)
    ideal = most / sum(line.prompt_tokens for line in prompts)
    assert found.keys() == POLICIES.keys()
    assert found["one pool"]["hit"] == pytest.approx(ideal, abs=1e-9)
    assert 0.95 * ideal < found["prefix"]["hit"] <= ideal, "less where a turn found its replica overloaded"
    assert found["round robin"]["hit"] < 0.75 * ideal
    assert found["least loaded"]["hit"] < 0.75 * ideal
    assert found["prefix"]["work"] < 1.25
    assert found["prefix"]["first_mean_s"] < found["round robin"]["first_mean_s"]


def test_one_prefix_for_all_does_not_overload_one_replica(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [(10.0 * number, 8 * HASHED_TOKENS, 100, [*range(7), 1000 + number]) for number in range(80)]
    trace = write(tmp_path / "t.jsonl", lines)
    found = outcomes(capsys, "--trace", str(trace), "--max-num-batched-tokens", "512")
    assert found["prefix"]["work"] < 1.4
    assert found["prefix"]["hit"] > 0.7
    strict = outcomes(capsys, "--trace", str(trace), "--policies", "prefix", "--tolerance", "100")
    assert strict["prefix"]["work"] == pytest.approx(4.0), "without a limit it goes to one alone"


def test_the_table_and_a_trace_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write(tmp_path / "t.jsonl", conversations(2, 2, gap_ms=100))
    assert main(["--trace", str(trace), "--policies", "prefix", "--requests", "3"]) == 0
    assert "prefix" in capsys.readouterr().out
    (tmp_path / "bad.jsonl").write_text('{"timestamp": 0}\n')
    assert main(["--trace", str(tmp_path / "bad.jsonl")]) == 1
    assert "line 1, is no request of a trace" in capsys.readouterr().err
    assert main(["--trace", str(tmp_path / "none.jsonl")]) == 1
