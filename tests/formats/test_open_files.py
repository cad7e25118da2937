from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octavo.config import Environment, ModelSource
from octavo.engine.tokenizer import load_tokenizer
from octavo.errors import ModelFileError
from octavo.formats import open_files
from octavo.formats.gguf import GGUFFile
from octavo.formats.model_config import load_model_config, read_hf_config
from octavo.formats.open_files import OpenFiles
from octavo.formats.source import locate
from tests.formats import build


def write(path: Path, number: int = 1) -> Path:
    return build.write(path, build.gguf({"number": number}))


def test_a_file_is_parsed_once(tmp_path: Path) -> None:
    files, path = OpenFiles(), write(tmp_path / "m.gguf")
    assert files.open(path) is files.open(path)


def test_a_file_that_was_replaced_or_written_to_is_parsed_again(tmp_path: Path) -> None:
    files, path = OpenFiles(), write(tmp_path / "m.gguf")
    first = files.open(path)
    write(tmp_path / "other", 2).replace(path)
    second = files.open(path)
    assert (first.get("number", int), second.get("number", int)) == (1, 2)
    os.utime(path, ns=(1, 1))
    assert files.open(path) is not second


def test_what_cannot_be_parsed_is_not_kept(tmp_path: Path) -> None:
    files, path = OpenFiles(), build.write(tmp_path / "m.gguf", b"GGUF")
    for _ in range(2):
        with pytest.raises(ModelFileError, match="ends too early"):
            files.open(path)
    path.unlink()
    with pytest.raises(ModelFileError, match="cannot be read: No such file"):
        files.open(path)


def test_the_least_recently_used_is_dropped(tmp_path: Path) -> None:
    files = OpenFiles(max_files=2)
    one, two, three = (write(tmp_path / f"{name}.gguf") for name in "abc")
    first, second = files.open(one), files.open(two)
    assert files.open(one) is first
    files.open(three)
    assert files.open(one) is first
    assert files.open(two) is not second


def test_threads_that_ask_at_once_share_one_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path = OpenFiles(), write(tmp_path / "m.gguf")
    parsed = count_parses(monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: id(files.open(path)), range(20)))) == 1
    assert parsed == [path]


def count_parses(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    parsed: list[Path] = []

    class Counted(GGUFFile):
        def __init__(self, path: Path) -> None:
            parsed.append(path)
            super().__init__(path)

    monkeypatch.setattr(open_files, "GGUFFile", Counted)
    return parsed


def test_start_up_parses_the_header_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata: dict[str, Any] = {
        "general.architecture": "qwen2", "qwen2.block_count": 1, "qwen2.embedding_length": 8,
        "qwen2.attention.head_count": 2, "qwen2.attention.head_count_kv": 1,
        "qwen2.attention.layer_norm_rms_epsilon": 0.5, "qwen2.context_length": 64,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b"],
    }  # fmt: skip
    path = build.write(tmp_path / "m.gguf", build.gguf(metadata, {"token_embd.weight": ("F32", (3, 8), bytes(96))}))
    parsed = count_parses(monkeypatch)
    files = locate(
        ModelSource(model=str(path)),
        Environment(cache_dir=tmp_path, attention_backend="", ray_address="", num_threads=0),
    )
    load_model_config(files)
    read_hf_config(files)
    load_tokenizer(files)
    assert parsed == [path]


def test_shards_say_one_thing_together(tmp_path: Path) -> None:
    tensors = {name: ("F32", (2,), bytes(8)) for name in "abc"}
    one = build.write(tmp_path / "1.gguf", build.gguf({"general.architecture": "x"}, {"a": tensors["a"]}))
    two = build.write(tmp_path / "2.gguf", build.gguf({"split.no": 1}, {"b": tensors["b"]}))
    header = open_files.open_gguf_header((one, two))
    assert (header.get("general.architecture", str), sorted(header.tensors)) == ("x", ["a", "b"])
    build.write(two, build.gguf({"split.no": 1}, tensors))
    with pytest.raises(ModelFileError, match=r"2.gguf holds 'a', which another shard of the model holds, too"):
        open_files.open_gguf_header((one, two))
