"""A model named `fake`, whose answer is the prompt backwards: the front of the engine runs, no model does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.engine import llm as llm_module
from octavo.engine import preparation
from octavo.formats.source import ModelFiles
from octavo.messages import EngineCoreRequest
from tests.engine.byte_tokenizer import BOS, EOS, ByteTokenizer
from tests.engine.fake_core import FakeCore
from tests.engine.fake_plan import FAKE_PLAN


def install_fake_model(monkeypatch: pytest.MonkeyPatch) -> FakeCore:
    """Let `LLM(...)` start this model; its core."""

    def backwards(request: EngineCoreRequest) -> Sequence[int]:
        return [*[token for token in request.prompt_token_ids if token != BOS][::-1], EOS]

    fake = FakeCore(backwards)
    fake.plan = FAKE_PLAN
    fake.model_config = SimpleNamespace(name="fake", max_position=2000, vocab_size=320)
    files = ModelFiles(kind="folder", path=Path("fake"), config_path=None, weight_paths=(), name="fake")
    monkeypatch.setattr(preparation, "locate", lambda source, environment, **_: files)
    monkeypatch.setattr(preparation, "load_tokenizer", lambda files, **_: ByteTokenizer())
    monkeypatch.setattr(preparation, "load_model_config", lambda files: fake.model_config)
    monkeypatch.setattr(llm_module, "start_client", lambda config, on_stage: fake)
    return fake
