"""Lets `AsyncLLM("fake")` start a process whose core has no model."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.engine import preparation, process_client
from octavo.formats.source import ModelFiles
from tests.engine.byte_tokenizer import ByteTokenizer
from tests.engine.fake_core_process import FAKE_MODEL


def install_fake_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `AsyncLLM("fake...")` start such a process."""
    files = ModelFiles(kind="folder", path=Path("fake"), config_path=None, weight_paths=(), name="fake")
    monkeypatch.setattr(preparation, "locate", lambda source, environment, **_: files)
    monkeypatch.setattr(preparation, "load_tokenizer", lambda files, **_: ByteTokenizer())
    monkeypatch.setattr(preparation, "load_model_config", lambda files: FAKE_MODEL)
    monkeypatch.setattr(process_client, "CORE_MODULE", "tests.engine.fake_core_process")
