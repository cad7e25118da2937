from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from octavo.config import ModelSource, read_environment
from octavo.engine.folder_tokenizer import load_folder_tokenizer
from octavo.engine.tokenizer import load_tokenizer
from octavo.errors import ModelFileError
from octavo.formats.source import locate
from tests.engine.scripts import TEXTS


def save(folder: Path, settings: dict[str, Any] | None = None, *, adds_marks: bool = True, **files: Any) -> Path:
    """A folder with a small byte-level tokenizer, as transformers saves one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", "<|im_end|>"],
    )  # fmt: skip
    tokenizer.train_from_iterator(list(TEXTS.values()), trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    if adds_marks:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    default = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(default | (settings or {})))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.slow
def test_ids_and_text_are_transformers_own(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = load_tokenizer(locate(ModelSource(model=str(save(tmp_path))), read_environment(), config_only=True))
    reference = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    for name, text in TEXTS.items():
        marked = f"{text}<|im_end|><tool>{text}"
        ids = tokenizer.encode(marked)
        assert ids == reference.encode(marked), name
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True), name
        assert tokenizer.decode(ids, skip_special_tokens=False) == reference.decode(ids), name
    assert tokenizer.vocab_size == len(reference)


def test_what_the_file_adds_is_added(tmp_path: Path) -> None:
    special = load_folder_tokenizer(save(tmp_path)).special
    assert (special.prefix_ids, special.suffix_ids) == ((0,), (1,))
    assert special.special_ids == {0, 1, 2}
    assert special.bos_token_id == 0


def test_a_token_may_be_written_as_an_object(tmp_path: Path) -> None:
    assert load_folder_tokenizer(save(tmp_path, {"bos_token": {"content": "<s>"}})).special.bos_token_id == 0
    assert load_folder_tokenizer(save(tmp_path, {"bos_token": None})).special.bos_token_id is None


def test_flags_add_marks_where_the_file_adds_none(tmp_path: Path) -> None:
    special = load_folder_tokenizer(save(tmp_path, {"add_bos_token": True}, adds_marks=False)).special
    assert (special.prefix_ids, special.suffix_ids) == ((0,), ())
    special = load_folder_tokenizer(save(tmp_path, {"add_eos_token": True}, adds_marks=False)).special
    assert (special.prefix_ids, special.suffix_ids) == ((), (1,))


def test_ends_of_the_generation_config_win_over_the_models(tmp_path: Path) -> None:
    save(tmp_path, generation_config={"eos_token_id": [2, 1]}, config={"eos_token_id": 7})
    assert load_folder_tokenizer(tmp_path).special.eos_token_ids == (2, 1)
    (tmp_path / "generation_config.json").unlink()
    assert load_folder_tokenizer(tmp_path).special.eos_token_ids == (7, 1)
    (tmp_path / "config.json").unlink()
    assert load_folder_tokenizer(tmp_path).special.eos_token_ids == (1,)


def test_templates_from_all_places(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    save(tmp_path, {"chat_template": listed})
    assert load_folder_tokenizer(tmp_path).chat_templates == {"default": "D", "tool_use": "T"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R")
    (tmp_path / "chat_template.jinja").write_text("J")
    assert load_folder_tokenizer(tmp_path).chat_templates == {"default": "J", "rag": "R", "tool_use": "T"}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_damaged_files_are_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    save(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelFileError, match=name):
        load_folder_tokenizer(tmp_path)
