"""`octavo plan --check --server` beside a server that runs a model."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.cli.terminal import run_octavo
from tests.parity.tiny import HYBRID, VOCAB_SIZE, write_tokenizer
from tests.server.running import running


@pytest.mark.slow
def test_a_running_server_is_compared_with_its_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its cache is the planned one to the byte, and goes on unchanged."""
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    write_tokenizer(tmp_path, VOCAB_SIZE)
    options = {"load_format": "dummy", "kv_memory": "2MiB", "max_model_len": 200, "block_size": 8}
    with running(str(tmp_path), **options) as server:
        body = {"model": server.gate.names[0], "prompt": "w5 w6 w7", "max_tokens": 12, "temperature": 0}
        before = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        done = run_octavo(monkeypatch, ["plan", "--check", "--server", server.url, "--json"])
        assert done.code == 0, done.err
        check = done.document["check"]
        assert (check["agrees"], check["difference_bytes"], check["found_weight_bytes"]) == (True, 0, None)
        assert check["found_blocks"] == server.engine.plan.configs[0].num_blocks
        assert check["found_bytes"] > 2**20
        after = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert after["choices"] == before["choices"]
        assert after["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
        told = run_octavo(monkeypatch, ["plan", "--check", "--server", server.url])
        assert "The plan is what was allocated." in told.out
        (other := tmp_path / "other").mkdir()
        (other / "config.json").write_text(json.dumps({**HYBRID, "num_key_value_heads": 1}))
        wrong = run_octavo(monkeypatch, ["plan", str(other), "--check", "--server", server.url])
        assert wrong.code == 1
        assert "NOT WHAT WAS ALLOCATED" in wrong.out
