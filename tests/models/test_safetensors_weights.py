from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.safetensors_weights import read_safetensors_weights


def write(path: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, path)
    return path


def test_tensors_of_all_files_in_their_own_dtypes(tmp_path: Path) -> None:
    one = write(tmp_path / "one.safetensors", a=torch.ones(2, 3), b=torch.ones(2, dtype=torch.float16))
    two = write(tmp_path / "two.safetensors", c=torch.ones(2, 2, dtype=torch.bfloat16), mask=torch.ones(1, 9).bool())
    weights = read_safetensors_weights((one, two), is_quantized=False)
    assert {name: str(tensor.dtype) for name, tensor in weights.items()} == {
        "a": "torch.float32", "b": "torch.float16", "c": "torch.bfloat16", "mask": "torch.bool",
    }  # fmt: skip


def test_a_name_in_two_files_is_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one.safetensors", a=torch.ones(2))
    two = write(tmp_path / "two.safetensors", a=torch.zeros(2))
    with pytest.raises(ModelFileError, match=r"'a' is in one.safetensors and in two.safetensors, both in"):
        read_safetensors_weights((one, two), is_quantized=False)


def test_whole_numbers_are_no_weights_unless_the_config_explains_them(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", **{"x.weight": torch.ones(2, 2, dtype=torch.int8)})
    with pytest.raises(UnsupportedModelError, match=r"m.safetensors holds 'x.weight' as int8, and no quantization_con"):
        read_safetensors_weights((path,), is_quantized=False)
    assert read_safetensors_weights((path,), is_quantized=True)["x.weight"].dtype == torch.int8


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"\x08\0\0\0\0\0\0\0{}      junk")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_safetensors_weights((path,), is_quantized=False)
