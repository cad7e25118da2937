from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.zoo import find_model


def test_classes_follow_the_model_type() -> None:
    config, model_class = find_model({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3})
    assert model_class.__name__ == "LlamaForCausalLM"
    assert (config.hidden_size, config.num_hidden_layers) == (64, 3)


def test_a_composite_model_gives_its_text_part() -> None:
    config, model_class = find_model({"model_type": "gemma3", "text_config": {"num_hidden_layers": 5}})
    assert model_class.__name__ == "Gemma3ForCausalLM"
    assert (config.model_type, config.num_hidden_layers) == ("gemma3_text", 5)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_composite_model_says_whether_its_head_is_the_embedding(is_tied: bool) -> None:
    text = {"model_type": "qwen2", "num_hidden_layers": 2, "tie_word_embeddings": not is_tied}
    config, _ = find_model({"model_type": "got_ocr2", "tie_word_embeddings": is_tied, "text_config": text})
    assert config.tie_word_embeddings is is_tied


def test_a_composite_model_may_name_the_class_of_its_text_part() -> None:
    config, model_class = find_model({"model_type": "emu3"})
    assert model_class.__name__ == "Emu3ForCausalLM"
    assert type(config) is model_class.config_class


def test_a_class_that_lives_with_another_model_type_is_found() -> None:
    _, model_class = find_model({"model_type": "gpt-sw3", "n_layer": 2})
    assert model_class.__name__ == "GPT2LMHeadModel"


@pytest.mark.parametrize("model_type", [None, "no-such-model", 7])
def test_unknown_types_are_refused(model_type: object) -> None:
    with pytest.raises(UnsupportedModelError, match="which the installed transformers does not know"):
        find_model({"model_type": model_type})


def test_models_without_a_causal_head_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="'vit' has no causal language model in transformers"):
        find_model({"model_type": "vit"})


def test_fields_that_the_config_class_refuses_are_named() -> None:
    with pytest.raises(ModelFileError, match=r"cannot use this config of type 'llama'.*num_hidden_layers"):
        find_model({"model_type": "llama", "num_hidden_layers": "many"})


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""
OWN = {
    "model_type": "own", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
}  # fmt: skip


def test_code_that_a_model_brings_is_refused_unless_asked_for() -> None:
    with pytest.raises(UnsupportedModelError, match=r"brings its own Python code \(auto_map names own.OwnForCausalLM"):
        find_model(OWN)
    _, model_class = find_model(OWN | {"model_type": "llama"})
    assert model_class.__module__.startswith("transformers.models.llama"), "transformers' own class needs no consent"


@pytest.mark.slow
def test_code_that_a_model_brings_runs_with_consent_and_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tmp_path / "own.py").write_text(CODE)
    (tmp_path / "config.json").write_text(json.dumps(OWN))
    config, model_class = find_model(OWN, code_folder=tmp_path)
    assert (type(config).__name__, model_class.__name__, config.num_hidden_layers) == ("OwnConfig", "OwnForCausalLM", 3)
    assert "running Python code that the model in" in caplog.text
    (tmp_path / "own.py").write_text("raise RuntimeError('boom')")
    with pytest.raises(UnsupportedModelError, match="cannot be used: RuntimeError: boom"):
        find_model(OWN, code_folder=tmp_path)
