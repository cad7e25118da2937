"""Whose cached prefixes a request finds, on the cache of a real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.parity.tiny import HYBRID, VOCAB_SIZE, write_tokenizer
from tests.server.running import running

TINY: dict[str, Any] = {"load_format": "dummy", "kv_memory": "2MiB", "max_model_len": 200, "block_size": 8}
DEMO: dict[str, Any] = {"kv_memory": "64MiB", "max_model_len": 256}
WORDS = " ".join(f"w{number}" for number in range(5, 69))
TEXT = "A library lends books to people who bring them back, and keeps those that nobody wants to read any more. " * 3


class Asker:
    """Asks one server with different keys. Owns: the number of the next fresh prompt."""

    def __init__(self, url: str, text: str) -> None:
        self._url, self._text = url, text
        self._number = 69

    def fresh(self) -> str:
        """A prompt that nobody has asked before."""
        self._number += 1
        return f"w{self._number} {self._text}"

    def cached(self, prompt: str, key: str, **fields: Any) -> int:
        """How many tokens of `prompt` the cache held."""
        answer = httpx.post(
            f"{self._url}/v1/completions",
            json={"prompt": prompt, "max_tokens": 1, **fields},
            headers={"Authorization": f"Bearer {key}"},
            timeout=300,
        )
        assert answer.status_code == 200, answer.text
        found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found


@pytest.fixture(params=["tiny", pytest.param("demo", marks=[pytest.mark.slow, pytest.mark.model])])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any], str]:
    if request.param == "demo":
        return "demo", DEMO, TEXT
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    write_tokenizer(tmp_path, VOCAB_SIZE)
    return str(tmp_path), TINY, WORDS


@pytest.fixture
def asker(served: tuple[str, dict[str, Any], str]) -> Iterator[Asker]:
    model, options, text = served
    with running(model, api_keys=("a", "b"), **options) as server:
        yield Asker(server.url, text)


def test_prefixes_are_found_by_their_own_key_and_by_all_who_share_them(asker: Asker) -> None:
    prompt = asker.fresh()
    assert asker.cached(prompt, "a") == 0
    assert asker.cached(prompt, "b") == 0, "another key must find nothing"
    own = asker.cached(prompt, "a")
    assert own > 0
    assert asker.cached(prompt, "b") == own
    assert asker.cached(prompt, "b", cache_salt="s") == 0, "nor another salt of the same key"
    assert asker.cached(prompt, "b", cache_salt="s") == own

    assert asker.cached(prompt, "a", public_prefix=True) == 0, "what was private stays so"
    assert asker.cached(prompt, "b", public_prefix=True) == own
    assert asker.cached(prompt, "b", public_prefix=True, cache_salt="s") == 0
    assert asker.cached(prompt, "a", public_prefix=True, cache_salt="s") == own

    prompt = asker.fresh()
    assert asker.cached(prompt, "a", public_prefix=True) == 0
    assert asker.cached(prompt, "b") == 0, "who does not ask for public prefixes finds none"
    assert asker.cached(prompt, "b", public_prefix=True) == own


def test_a_server_may_share_them_all(served: tuple[str, dict[str, Any], str]) -> None:
    model, options, text = served
    with running(model, api_keys=("a", "b"), shares_prefixes=True, **options) as server:
        asker = Asker(server.url, text)
        prompt = asker.fresh()
        assert asker.cached(prompt, "a") == 0
        assert asker.cached(prompt, "b") > 0
        assert asker.cached(prompt, "b", cache_salt="s") == 0
