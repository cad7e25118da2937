from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.engine.tokenizer import load_tokenizer
from octavo.errors import ModelFileError
from octavo.formats.source import ModelFiles
from tests.engine.scripts import TEXTS
from tests.engine.test_byte_level_bpe import LETTERS, MERGES

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    """GPT-2's old files, without a tokenizer.json."""
    words = [*LETTERS, *(merge.replace(" ", "", 1) for merge in MERGES), "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES]))
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "{{ messages[0].content }}"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "eos_token_id": 3}))
    return ModelFiles(kind="folder", path=tmp_path, config_path=None, weight_paths=(), name="m")


def test_the_slow_way_has_the_same_contract(files: ModelFiles) -> None:
    tokenizer = load_tokenizer(files)
    end = tokenizer.vocab_size - 1
    assert tokenizer.eos_token_ids == (3, end)
    assert tokenizer.is_special(end)
    for name, text in TEXTS.items():
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode([*ids, end, end + 99, -5]) == text, name
    assert tokenizer.decode([end], skip_special_tokens=False) == "<|endoftext|>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}]) == "x"


def test_a_folder_without_a_tokenizer_is_refused_even_where_transformers_makes_an_empty_one(tmp_path: Path) -> None:
    for model_type in ("mamba", "llama"):
        folder = tmp_path / model_type
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        files = ModelFiles(kind="folder", path=folder, config_path=None, weight_paths=(), name="m")
        with pytest.raises(ModelFileError, match=r"holds no tokenizer.*name another with --tokenizer") as caught:
            load_tokenizer(files)
        assert ": Put" not in str(caught.value) and "  " not in str(caught.value)
