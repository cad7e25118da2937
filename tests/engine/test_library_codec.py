from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from octavo.engine.library_codec import LibraryCodec, load_library_file
from octavo.errors import ModelFileError


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<s>": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    return tokenizer


def test_nothing_is_added_padded_or_cut() -> None:
    tokenizer = words()
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(max_length=1)
    codec = LibraryCodec(tokenizer)
    assert codec.encode("a b a") == [0, 1, 0]
    assert codec.vocab_size == 4


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    assert LibraryCodec(words()).decode([0, 99, 1]) == "ab"


def test_a_lone_surrogate_is_no_reason_to_fail() -> None:
    assert LibraryCodec(words()).encode("a \ud800") == [0, 3]


def test_a_file_is_read_or_refused_by_name(tmp_path: Path) -> None:
    words().save(str(tmp_path / "tokenizer.json"))
    assert LibraryCodec(load_library_file(tmp_path / "tokenizer.json")).encode("b") == [1]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"tokenizer.json cannot be read"):
        load_library_file(tmp_path / "tokenizer.json")
