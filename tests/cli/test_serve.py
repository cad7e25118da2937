"""The flags of `octavo serve` are those that users know; tests/server/test_serving.py runs it."""

from __future__ import annotations

import pytest

from tests.cli.terminal import run_octavo

KNOWN = (
    "--host", "--port", "--uds", "--served-model-name", "--api-key", "--chat-template", "--max-model-len",
    "--max-num-seqs", "--kv-cache-memory-bytes", "--gpu-memory-utilization", "--no-enable-prefix-caching",
    "--trust-remote-code", "--log-format", "--max-waiting", "--scheduling-policy",
)  # fmt: skip


def test_the_help_has_the_flags_that_users_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said = run_octavo(monkeypatch, ["serve", "--help"])
    assert said.code == 0
    assert [flag for flag in KNOWN if flag not in said.out] == []
