"""What can be refused before weights are read is, in the words that are said after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.config import EngineConfig, ModelSource, ParallelConfig
from octavo.engine.llm import LLM
from octavo.engine.preparation import check_prompts, prepare
from octavo.errors import RequestError
from octavo.formats.source import ModelFiles
from octavo.messages import StageReport
from octavo.models.reading_ahead import Form
from octavo.request import SamplingParams
from tests.engine.fake_core import FakeCore
from tests.engine.fake_model import install_fake_model


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> FakeCore:
    return install_fake_model(monkeypatch)


def _config(max_model_len: int | None = 1000) -> EngineConfig:
    return EngineConfig(model=ModelSource(model="fake", max_model_len=max_model_len))


@pytest.mark.parametrize(
    ("prompts", "fields", "pattern"),
    [
        ("a" * 1000, {}, "The prompt has 1001 tokens, but prompt and output together may have 1000"),
        (["a", ""], {}, r"prompts\[1\] \(of 2\): The prompt is empty"),
        ([[1, 320]], {}, "Token id 320 in the prompt"),
        ("a", {"logprobs": 321}, "logprobs .* is 321, more than the vocabulary of 320"),
        ("a", {"stop_token_ids": [320], "n": 3}, "Token id 320 in stop_token_ids"),
        ("a", {"min_tokens": 999, "max_tokens": None}, "min_tokens is 999"),
    ],
)
def test_what_a_loaded_model_would_refuse_is_refused_before(
    core: FakeCore, prompts: Any, fields: dict[str, Any], pattern: str
) -> None:
    prepared = prepare(_config(), lambda report: None)
    with pytest.raises(RequestError, match=pattern):
        check_prompts(prepared, _config(), prompts, SamplingParams(**fields))
    check_prompts(prepared, _config(), "a" * 998, SamplingParams(logprobs=320, stop_token_ids=[319]))


@pytest.mark.parametrize("max_model_len", [None, -1])
def test_a_length_that_is_not_known_yet_is_the_models_own(core: FakeCore, max_model_len: int | None) -> None:
    prepared = prepare(_config(max_model_len), lambda report: None)
    check_prompts(prepared, _config(max_model_len), "a" * 1998, SamplingParams())
    with pytest.raises(RequestError, match="may have 2000 "):
        check_prompts(prepared, _config(max_model_len), "a" * 1999, SamplingParams())


def test_a_prepared_model_is_not_read_again(core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[StageReport] = []
    prepared = prepare(_config(), told.append)
    assert [report.name for report in told] == ["prepare_files", "load_tokenizer"]
    monkeypatch.setattr("octavo.engine.preparation.load_tokenizer", lambda *_, **__: pytest.fail("read again"))
    with LLM("fake", prepared=prepared, on_stage=told.append) as llm:
        assert llm.get_tokenizer() is prepared.tokenizer
        assert llm.generate("abc")[0].outputs[0].text == "cba"
    assert [report.name for report in told].count("load_tokenizer") == 1


@pytest.mark.parametrize(
    ("kind", "source", "parallel", "form"),
    [
        ("gguf", {}, {}, Form("float32", is_coded=False)),
        ("gguf", {"dtype": "bfloat16"}, {"executor": "inproc"}, Form("bfloat16", is_coded=True)),
        ("gguf", {"dtype": "bfloat16", "quantization": "none"}, {"device": "cpu"}, Form("bfloat16", is_coded=False)),
        ("gguf", {"quantization": "gguf"}, {}, Form("float32", is_coded=True)),
        ("gguf", {"load_format": "dummy"}, {}, None),
        ("gguf", {}, {"device": "cuda"}, None),
        ("gguf", {}, {"executor": "mp"}, None),
        ("gguf", {}, {"tensor_parallel_size": 2}, None),
        ("gguf", {}, {"data_parallel_size": 2}, None),
        ("folder", {}, {}, None),
    ],
)
def test_weights_are_read_ahead_where_this_process_will_load_them(
    kind: str, source: dict[str, Any], parallel: dict[str, Any], form: Form | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_model(monkeypatch)
    path = Path("some.gguf")
    files = ModelFiles(kind=kind, path=path, config_path=None, weight_paths=(path,), name="some")  # type: ignore[arg-type]
    begun: list[Any] = []
    monkeypatch.setattr("octavo.engine.preparation.locate", lambda *_: files)
    monkeypatch.setattr("octavo.engine.preparation.read_ahead", lambda *given: begun.append(given))
    monkeypatch.setattr("octavo.engine.preparation.fastest_dtype", lambda: "float32")
    monkeypatch.setattr("octavo.engine.preparation.usable_cores", lambda: 3)
    monkeypatch.setattr("octavo.engine.preparation._GPU_DRIVER", Path("/no/such/driver"))
    config = _config()
    prepare(
        msgspec.structs.replace(
            config, model=msgspec.structs.replace(config.model, **source), parallel=ParallelConfig(**parallel)
        ),
        lambda report: None,
    )
    assert begun == ([] if form is None else [((path,), form, 2)])


def test_a_gpu_that_may_be_used_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_fake_model(monkeypatch)
    files = ModelFiles(kind="gguf", path=tmp_path, config_path=None, weight_paths=(tmp_path,), name="some")
    monkeypatch.setattr("octavo.engine.preparation.locate", lambda *_: files)
    monkeypatch.setattr("octavo.engine.preparation.read_ahead", lambda *_: pytest.fail("read for a CPU"))
    monkeypatch.setattr("octavo.engine.preparation._GPU_DRIVER", tmp_path)
    prepare(_config(), lambda report: None)
