"""Wrong usage is told in one sentence, as every other mistake is: what was written, and what it must be."""

from __future__ import annotations

import re

import pytest

from tests.cli.terminal import run_octavo

WHOLE = "a whole number"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("serve demo --watchdog-timeout -1", "--watchdog-timeout is -1. It must be a number, at least 0."),
        ("serve demo --watchdog-timeout nan", "--watchdog-timeout is nan. It must be a number, at least 0."),
        ("serve demo --drain-timeout inf", "--drain-timeout is inf. It must be a number, at least 0."),
        ("serve demo --drain-timeout 1e400", "--drain-timeout is 1e400. It must be a number, at least 0."),
        ("serve demo --request-timeout 0", "--request-timeout is 0. It must be a number, at least 0.001."),
        ("serve demo --port 65536", f"--port is 65536. It must be {WHOLE}, from 0 to 65535."),
        ("serve demo --port http", f"--port is http. It must be {WHOLE}, from 0 to 65535."),
        ("serve demo --max-restarts 1.5", f"--max-restarts is 1.5. It must be {WHOLE}, at least 0."),
        ("serve demo --max-waiting=", f"--max-waiting is ''. It must be {WHOLE}, at least 0."),
        ("serve demo --max-logprobs -2", f"--max-logprobs is -2. It must be {WHOLE}, at least -1."),
        ("serve demo --block-size 4.5", f"--block-size is 4.5. It must be {WHOLE}: 4096, 4k (4000) or 4K (4096)."),
        ("serve demo --max-model-len long", f"--max-model-len is long. It must be {WHOLE}: 4096, 4k (4000) or 4K"),
        ("plan demo --pipeline-layers 3,x", f"--pipeline-layers has x between commas. It must be {WHOLE}: "),
        (
            "plan demo --kv-memory 1GiB,big",
            "--kv-memory has big between commas. Write a number with a unit, such as 1GiB ",
        ),
        ("serve demo -tp two", f"--tensor-parallel-size is two. It must be {WHOLE}."),
        ("generate -t hot x", "--temperature is hot. It must be a number."),
        ("generate --stop-token-id 5 --stop-token-id five x", f"--stop-token-id is five. It must be {WHOLE}."),
        ("bench serve --request-rate fast", "--request-rate is fast. It must be a number."),
        ("bench latency --batch-size 0", f"--batch-size is 0. It must be {WHOLE}, at least 1."),
        ("bench latency --num-iters-warmup -1", f"--num-iters-warmup is -1. It must be {WHOLE}, at least 0."),
    ],
)
def test_one_sentence(monkeypatch: pytest.MonkeyPatch, arguments: str, message: str) -> None:
    said = run_octavo(monkeypatch, arguments.split())
    assert (said.code, said.out) == (2, ""), said
    assert said.err.startswith(f"error: {message}"), said.err
    assert said.err.endswith(".\n")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "fact", "command"),
    [
        ("serve demo --portt 1", "--portt", "serve"),
        ("serve demo other", "(other)", "serve"),
        ("serve demo --host", "'--host'", "serve"),
        ("serve demo --share-prefixes=5", "'--share-prefixes'", "serve"),
        ("bench offline", "'--workload'", "bench offline"),
        ("eval perplexity", "'FILE'", "eval perplexity"),
        ("bench offlin", "'offlin'", "bench"),
    ],
)
def test_what_the_library_finds_says_where_help_is(
    monkeypatch: pytest.MonkeyPatch, arguments: str, fact: str, command: str
) -> None:
    said = run_octavo(monkeypatch, arguments.split())
    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(rf"error: .*{re.escape(fact)}.*[.?] See .*octavo {command} -h\.\n", said.err), said.err


@pytest.mark.parametrize(
    ("value", "shown"), [("\x1b[1m5", "'\\x1b[1m5'"), (" ", "' '"), ("9" * 5000, "9" * 57 + "...")]
)
def test_no_value_spoils_the_terminal(monkeypatch: pytest.MonkeyPatch, value: str, shown: str) -> None:
    said = run_octavo(monkeypatch, ["serve", "demo", "--port", value])
    assert said.err == f"error: --port is {shown}. It must be {WHOLE}, from 0 to 65535.\n"


@pytest.mark.parametrize("arguments", [[], ["bench"], ["eval"]])
def test_a_group_without_a_command_shows_its_help(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    said = run_octavo(monkeypatch, arguments)
    assert said.code in (0, 2)  # typer before 0.16 and after
    assert re.search(r"Usage: .*COMMAND", said.out + said.err)
