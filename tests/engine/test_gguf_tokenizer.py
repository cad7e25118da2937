from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.config import ModelSource, read_environment
from octavo.engine.gguf_tokenizer import load_gguf_tokenizer
from octavo.engine.tokenizer import Tokenizer, load_tokenizer
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.gguf import GGUFFile
from octavo.formats.source import locate
from tests.formats import build

TOKENS = ["<unk>", "<s>", "</s>", "<|im_end|>", "<tool>", "▁", "a", "b", "▁a", "ab"]
SENTENCEPIECE: dict[str, Any] = {
    "model": "llama",
    "tokens": TOKENS,
    "scores": [0.0, 0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0],
    "token_type": [2, 3, 3, 3, 4, 1, 1, 1, 1, 1],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "unknown_token_id": 0,
}
BYTE_LEVEL: dict[str, Any] = {
    "model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "Ġ", "ab", "<|end|>", "<|bos|>"], "merges": ["a b"],
    "token_type": [1, 1, 1, 1, 3, 3], "eos_token_id": 4, "bos_token_id": 5,
}  # fmt: skip


def load(tmp_path: Path, fields: dict[str, Any], **more: Any) -> Tokenizer:
    metadata = {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}
    path = build.write(tmp_path / "m.gguf", build.gguf({"general.architecture": "llama", **metadata, **more}))
    return Tokenizer(load_gguf_tokenizer(GGUFFile(path)))


def test_sentencepiece_adds_bos_and_a_space_by_default(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, SENTENCEPIECE)
    assert tokenizer.encode("ab a") == [1, 8, 7, 8]
    assert tokenizer.encode("ab a", add_special_tokens=False) == [8, 7, 8]
    assert tokenizer.decode([1, 8, 7, 8]) == "ab a"
    assert tokenizer.decode([1, 8, 7, 8], skip_special_tokens=False) == "<s> ab a"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.vocab_size) == (1, (2,), 10)


def test_what_the_file_says_goes(tmp_path: Path) -> None:
    fields = SENTENCEPIECE | {"add_bos_token": False, "add_eos_token": True, "add_space_prefix": False}
    assert load(tmp_path, fields).encode("ab") == [9, 2]


def test_marks_are_special_and_user_defined_pieces_are_text(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, SENTENCEPIECE | {"add_space_prefix": False})
    ids = tokenizer.encode("a<|im_end|><tool>b", add_special_tokens=False)
    assert ids == [6, 3, 4, 7]
    assert [tokenizer.is_special(index) for index in ids] == [False, True, False, False]
    assert tokenizer.is_special(0)
    assert tokenizer.decode(ids) == "a<tool>b"


def test_user_defined_brackets_are_marks(tmp_path: Path) -> None:
    """Gemma 3: the pair is special in the model's own tokenizer, line breaks and tags of the same type are text."""
    more = ["<start_of_image>", "\n\n", "<table>", "</table>", "<end_of_image>", "<start_of_x>", "<end_of_y>"]
    fields = SENTENCEPIECE | {
        "tokens": TOKENS + more,
        "scores": SENTENCEPIECE["scores"] + [0.0] * len(more),
        "token_type": SENTENCEPIECE["token_type"] + [4] * len(more),
        "add_space_prefix": False,
    }
    tokenizer = load(tmp_path, fields)
    text = "<start_of_image>a\n\n<table></table><end_of_image><start_of_x><end_of_y>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == [10, 6, 11, 12, 13, 14, 15, 16]
    assert tokenizer.decode(ids) == "a\n\n<table></table><start_of_x><end_of_y>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_bos_and_ends_are_marks_whatever_their_type(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, BYTE_LEVEL | {"token_type": None, "eot_token_id": 1})
    assert tokenizer.decode([0, 4, 5, 1]) == "a"


def test_every_declared_end_ends_a_completion(tmp_path: Path) -> None:
    assert load(tmp_path, SENTENCEPIECE | {"eot_token_id": 3}).eos_token_ids == (2, 3)


def test_the_end_of_turn_that_the_template_writes_ends_a_completion(tmp_path: Path) -> None:
    template = {"tokenizer.chat_template": "{{ messages[0].content }}<|im_end|>"}
    tokenizer = load(tmp_path, SENTENCEPIECE, **template)
    assert tokenizer.eos_token_ids == (2, 3)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}]) == "a<|im_end|>"
    assert load(tmp_path, SENTENCEPIECE).eos_token_ids == (2,)


def test_byte_level_adds_nothing_unless_the_file_or_its_kind_says_so(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, BYTE_LEVEL)
    assert tokenizer.encode("ab a<|end|>") == [3, 2, 0, 4]
    assert tokenizer.decode([3, 2, 0, 4]) == "ab a"
    assert load(tmp_path, BYTE_LEVEL | {"add_bos_token": True}).encode("ab") == [5, 3]
    assert load(tmp_path, BYTE_LEVEL | {"pre": "llama-bpe"}).encode("ab") == [5, 3]
    assert load(tmp_path, BYTE_LEVEL | {"pre": None}).encode("ab") == [3]


def test_no_token_types_means_normal_ones(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, SENTENCEPIECE | {"token_type": None, "add_space_prefix": False})
    assert tokenizer.encode("ab", add_special_tokens=False) == [9]


def test_an_id_that_stands_for_none(tmp_path: Path) -> None:
    assert load(tmp_path, BYTE_LEVEL | {"bos_token_id": 0xFFFFFFFF}).bos_token_id is None


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"model": None}, ModelFileError, r"has no tokenizer.ggml.model"),
        ({"model": "bert"}, UnsupportedModelError, "kind 'bert'; known are llama, gpt2"),
        ({"tokens": None}, ModelFileError, "holds no vocabulary"),
        ({"tokens": [1, 2]}, ModelFileError, "holds no vocabulary"),
        ({"scores": None}, ModelFileError, "without scores"),
        ({"scores": [1.0]}, ModelFileError, r"10 tokens, but 1 entries of tokenizer.ggml.scores"),
        ({"token_type": [1]}, ModelFileError, r"10 tokens, but 1 entries of tokenizer.ggml.token_type"),
        ({"token_type": ["x"] * 10}, ModelFileError, "strings where numbers belong"),
        ({"eos_token_id": 10}, ModelFileError, r"eos_token_id is 10, but the vocabulary has 10 tokens"),
        ({"unknown_token_id": 10}, ModelFileError, r"unknown_token_id is 10, but the vocabulary has 10 tokens"),
        ({"eos_token_id": "2"}, ModelFileError, "not a int"),
        ({"add_bos_token": 1}, ModelFileError, "not a bool"),
        ({"remove_extra_whitespaces": True}, UnsupportedModelError, "removes repeated spaces"),
        ({"model": "gpt2"}, ModelFileError, "without merges"),
        ({"model": "gpt2", "merges": ["a b"], "pre": "new"}, UnsupportedModelError, r"pre is 'new'"),
        ({"model": "gemma4"}, ModelFileError, "without merges"),
    ],
)
def test_damaged_metadata_is_refused_with_the_fact(
    tmp_path: Path, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load(tmp_path, SENTENCEPIECE | fields)


@pytest.mark.slow
@pytest.mark.model
def test_the_demo_model_shows_no_image_marks() -> None:
    tokenizer = load_tokenizer(locate(ModelSource(model="demo"), read_environment()))
    ids = [255999, *tokenizer.encode("a\n\n<table>", add_special_tokens=False), 256000]
    assert tokenizer.decode(ids) == "a\n\n<table>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<start_of_image>a\n\n<table><end_of_image>"
