"""An engine is started for a command, and not started when its input cannot be asked of the model."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.cli.startup import start
from octavo.errors import RequestError
from tests.engine.fake_core import FakeCore
from tests.engine.fake_model import install_fake_model


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> FakeCore:
    return install_fake_model(monkeypatch)


def _start(make_ready: Any, *, verbose: bool = False, quiet: bool = False) -> Any:
    return start({"model": "fake", "max_model_len": 500, "prompts": ["x"]}, make_ready, verbose=verbose, quiet=quiet)


def test_input_is_made_ready_from_config_and_tokenizer(core: FakeCore, capsys: pytest.CaptureFixture[str]) -> None:
    llm, ready = _start(lambda prepared, config: (prepared.tokenizer.encode("ab"), config.model.max_model_len))
    assert ready == ([256, 97, 98], 500)
    assert llm.generate("ab")[0].outputs[0].text == "ba"
    said = capsys.readouterr()
    assert said.out == ""
    assert "KV cache plan of fake" in said.err


def test_what_cannot_be_made_ready_starts_no_engine(core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prepared: Any, config: Any) -> None:
        raise RequestError("No.")

    monkeypatch.setattr("octavo.engine.llm.start_client", lambda *_, **__: pytest.fail("an engine was started"))
    stopped: list[bool] = []
    monkeypatch.setattr("octavo.engine.preparation.stop_reading", lambda: stopped.append(True))
    with pytest.raises(RequestError, match=r"^No\.$"):
        _start(refuse)
    assert stopped


def test_quiet_says_nothing_and_verbose_each_stage(core: FakeCore, capsys: pytest.CaptureFixture[str]) -> None:
    _start(lambda *_: None, quiet=True)
    assert capsys.readouterr().err == ""
    _start(lambda *_: None, quiet=True, verbose=True)
    names = [line.split()[2] for line in capsys.readouterr().err.splitlines()]
    assert (names[0], names[-1]) == ("start_python", "ready")
    assert sorted(names[1:-1]) == [
        "await_readers",
        "import_libraries",
        "import_readers",
        "import_torch",
        "load_tokenizer",
        "prepare_files",
    ]
