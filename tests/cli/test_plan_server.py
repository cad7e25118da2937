"""`octavo plan --check --server`: servers that cannot be asked, and what a plan takes from one that can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.plan_server import ask_server
from octavo.errors import ConfigError
from tests.cli.terminal import run_octavo
from tests.formats.published import CONFIGS


class Answer:
    """What a server sent."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *error: object) -> None: ...

    def read(self) -> bytes:
        return json.dumps(self._document).encode()


def answering(monkeypatch: pytest.MonkeyPatch, document: Any) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Answer(document))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://x", "--server is"), ("http://127.0.0.1:9", "cannot be asked"), ("http://", "--server is"),
        ("http://[", "--server is"), ("http://127.0.0.1:99999", "--server is"), ("http://127.0.0.1:0", "--server is"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_in_a_sentence(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ask_server(url, None)


def test_a_server_without_a_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_octavo(monkeypatch, ["plan", "demo", "--server", "http://127.0.0.1:9"])
    assert done.code == 1
    assert "--check is not given" in done.err


def test_another_server_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"object": "list"})
    with pytest.raises(ConfigError, match="does not answer as one of Octavo"):
        ask_server("http://127.0.0.1:1", None)


def rank(index: int, storage_bytes: int, num_blocks: int, engine: int = 0) -> dict[str, int]:
    return {
        "rank": index, "num_blocks": num_blocks, "num_views": 4, "num_storages": 2, "storage_bytes": storage_bytes,
        "resident_bytes": 7, "engine": engine,
    }  # fmt: skip


def test_every_rank_of_every_engine_is_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["Llama-3.1-8B"]))
    settings = {"kv_memory": [2**30], "tensor_parallel_size": 2, "max_model_len": 4096, "dtype": "bfloat16"}
    pool = 2**30  # 1,024 blocks of 16 tokens, 64 KiB a token on each of two ranks
    good = [rank(index, pool, 1024, engine) for engine in (0, 1) for index in (0, 1)]
    arguments = ["plan", "--check", "--server", "http://127.0.0.1:1", "--json"]
    document = {"model": str(path), "settings": settings, "ranks": good}
    answering(monkeypatch, document)
    done = run_octavo(monkeypatch, arguments)
    assert done.code == 0, done.err
    assert done.document["check"]["planned_bytes"] == 4 * pool
    for wrong in (
        [*good[:3], rank(1, pool - 16, 1024, 1)],  # a byte too few
        [*good[:3], rank(1, pool, 1023, 1)],
        good[:3],  # a rank is missing
        [*good[:3], good[0]],  # one came twice
        [],
    ):
        answering(monkeypatch, document | {"ranks": wrong})
        done = run_octavo(monkeypatch, arguments)
        assert done.code == 1
        assert done.document["check"]["agrees"] is False
    answering(monkeypatch, document | {"ranks": [rank(2, pool, 1024)]})
    assert "There is a rank 2" in run_octavo(monkeypatch, arguments).err
