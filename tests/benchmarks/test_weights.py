"""A demo model's weights in every form are the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.weights import BF16, HF, PACKED, prepare
from octavo.errors import OctavoError
from octavo.formats.gguf import GGUFFile
from octavo.formats.model_config import read_hf_config
from octavo.formats.source import ModelFiles
from octavo.models.gguf_weights import read_gguf_weights
from octavo.models.zoo import find_model


def _files(path: Path) -> ModelFiles:
    return ModelFiles(kind="gguf", path=path, config_path=None, weight_paths=(path,), name="m")


@pytest.mark.long
@pytest.mark.model
def test_every_form_holds_the_same_weights(tmp_path: Path) -> None:
    out = prepare("demo-smollm2", tmp_path / "made")
    written = load_file(out / HF / "model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
    shapes = {name: tensor.shape for name, tensor in written.items()}
    config = find_model(json.loads((out / HF / "config.json").read_text()))[0]
    for form in (BF16, PACKED):
        read = read_gguf_weights([out / form], shapes, config, torch.bfloat16).parameters
        assert set(read) == set(written)
        assert all(torch.equal(read[name], tensor) for name, tensor in written.items())
    whole, packed = GGUFFile(out / BF16), GGUFFile((out / PACKED).resolve())
    assert {info.type for info in whole.tensors.values()} == {"BF16", "F32"}
    changed = {key for key, value in packed.metadata.items() if _plain(whole.metadata.get(key)) != _plain(value)}
    assert changed <= {"general.file_type"}
    assert read_hf_config(_files(out / BF16)) == read_hf_config(_files(out / PACKED))
    assert (out / HF / "tokenizer.json").is_file()
    times = [path.stat().st_mtime_ns for path in out.iterdir()]
    assert [path.stat().st_mtime_ns for path in prepare("demo-smollm2", out).iterdir()] == times


def _plain(value: object) -> object:
    return value.tolist() if hasattr(value, "tolist") else value


def test_a_folder_has_no_other_forms(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(OctavoError, match="is no GGUF file"):
        prepare(str(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()
