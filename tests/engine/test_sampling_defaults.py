"""generation_config.json: which of its fields count, and whose file it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig, ModelSource
from octavo.engine.llm import LLM
from octavo.engine.preparation import prepare
from octavo.engine.sampling_defaults import read_sampling_defaults
from octavo.errors import ConfigError, ModelFileError
from octavo.formats.source import ModelFiles
from octavo.request import SamplingParams
from tests.engine.fake_model import install_fake_model

QWEN: dict[str, Any] = {
    "bos_token_id": 5,
    "do_sample": True,
    "eos_token_id": [5, 6],
    "max_new_tokens": 77,
    "pad_token_id": 5,
    "repetition_penalty": 1.1,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": None,
    "transformers_version": "4.51.0",
}
DEFAULTS = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1, "max_tokens": 77}


def _files(folder: Path, config: Any = None, kind: Any = "folder") -> ModelFiles:
    if config is not None:
        (folder / "generation_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return ModelFiles(kind=kind, path=folder, config_path=None, weight_paths=(), name="x")


def test_the_models_own_file_counts_where_there_is_one(tmp_path: Path) -> None:
    assert read_sampling_defaults("auto", _files(tmp_path)) == {}
    files = _files(tmp_path, QWEN)
    assert read_sampling_defaults("auto", files) == DEFAULTS
    assert read_sampling_defaults("vllm", files) == {}


def test_another_file_is_named_by_its_folder_or_itself(tmp_path: Path) -> None:
    files = _files(tmp_path, QWEN)
    other = tmp_path / "other"
    other.mkdir()
    _files(other, {"top_p": 0.5})
    for name in (other, other / "generation_config.json"):
        assert read_sampling_defaults(str(name), files) == {"top_p": 0.5}
    gguf = ModelFiles(kind="gguf", path=tmp_path / "m.gguf", config_path=None, weight_paths=(), name="m")
    assert read_sampling_defaults(str(other), gguf) == {"top_p": 0.5}
    assert read_sampling_defaults("auto", gguf) == {}


def test_what_is_not_there_and_what_no_request_may_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--generation-config is nowhere, where there is no"):
        read_sampling_defaults("nowhere", _files(tmp_path))
    with pytest.raises(ConfigError, match=r"top_p is 7.*--generation-config vllm"):
        read_sampling_defaults("auto", _files(tmp_path, {"top_p": 7}))
    with pytest.raises(ConfigError, match="temperature is 'hot'"):
        read_sampling_defaults("auto", _files(tmp_path, {"temperature": "hot"}))
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_sampling_defaults("auto", _files(tmp_path, "{"))


def test_prompts_without_parameters_get_them_and_others_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = install_fake_model(monkeypatch)
    _files(tmp_path, QWEN)
    with LLM("fake", generation_config=str(tmp_path)) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(**DEFAULTS)
        llm.generate("abc")
        llm.generate("abc", SamplingParams(max_tokens=3))
    assert [(one.sampling.temperature, one.sampling.top_k, one.sampling.max_tokens) for one in core.added] == [
        (0.6, 20, 77),
        (1.0, 0, 3),
    ]
    source = ModelSource(model="fake", generation_config=str(tmp_path))
    prepared = prepare(EngineConfig(model=source), lambda report: None)
    assert prepared.sampling_defaults == DEFAULTS
