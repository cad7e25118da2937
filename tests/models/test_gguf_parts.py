"""A rank's part of a GGUF file: what cutting the whole tensors gives, of no more bytes than it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.config import ModelSource, read_environment
from octavo.errors import UnsupportedModelError
from octavo.formats.dequantize import dequantize
from octavo.formats.model_config import read_hf_config
from octavo.formats.open_files import open_gguf
from octavo.formats.source import locate
from octavo.models import gguf_parts
from octavo.models.gguf_weights import read_gguf_weights
from octavo.models.zoo import find_model
from tests.models.gguf_converter import CASES, random_model, write_gguf
from tests.models.parallel.parts import build, parts_of

QUICK = ("llama", "gemma3", "qwen3moe", "gpt-oss", "phi3")

TOO_MIXED = ("gemma4 with shared layers", "gemma4 with experts")
"""Their few layers are of so many kinds that not all orders of weights can be tried."""
NOT_DIVIDED = ("gpt2", "bloom", "gptneox", "phi2", "falcon", "starcoder", "stablelm", "mamba", "lfm2")
"""Of which no rank can have a part."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in QUICK else pytest.mark.long) for name in CASES]
)
def test_parts_are_those_of_whole_tensors(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    write_gguf(tmp_path / "model.gguf", case, random_model(case))
    files = locate(ModelSource(model=str(tmp_path / "model.gguf")), read_environment())
    config, model_class = find_model(read_hf_config(files))
    shapes = {key: tensor.shape for key, tensor in build(model_class, config).state_dict().items()}
    whole = read_gguf_weights(files.weight_paths, shapes, config, torch.float32).parameters
    try:
        parts = parts_of(model_class, config, 2)
    except UnsupportedModelError as error:
        is_too_mixed = name in TOO_MIXED and "kinds of weights whose order is not known" in error.fact
        assert is_too_mixed or case.architecture in NOT_DIVIDED
        return
    num_cut = 0
    for part in parts:
        with part.constructing(model_class):
            own_shapes = {key: tensor.shape for key, tensor in build(model_class, part.config).state_dict().items()}
        found = read_gguf_weights(files.weight_paths, own_shapes, config, torch.float32, part=part).parameters
        assert found.keys() == whole.keys()
        for key, tensor in whole.items():
            assert found[key].shape == own_shapes[key]
            assert torch.equal(found[key], part.keep(key, tensor)), key
            num_cut += found[key].shape != tensor.shape
    assert num_cut > 8


@pytest.mark.parametrize("columns", [(0, 32), (32, 96), (16, 48), (-1, 40), (90, 96)])
def test_columns_within_blocks(columns: tuple[int, int], tmp_path: Path) -> None:
    """Q8_0 has 32 numbers in a block: those around the columns are read and cut."""
    from gguf import GGUFWriter, quants
    from gguf.constants import GGMLQuantizationType as Kind

    numbers = np.random.default_rng(0).normal(size=(3, 6, 96)).astype(np.float32)
    coded = quants.quantize(numbers, Kind.Q8_0)
    writer = GGUFWriter(str(tmp_path / "one.gguf"), "llama")
    writer.add_tensor("some.weight", coded, raw_dtype=Kind.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    wanted = torch.arange(*columns)
    found = gguf_parts._read_columns(open_gguf(tmp_path / "one.gguf"), "some.weight", wanted, torch.float32)
    expected = torch.from_numpy(quants.dequantize(coded, Kind.Q8_0))[..., wanted.clamp(min=0)]
    assert torch.equal(found, expected.masked_fill(wanted < 0, 0))


@pytest.mark.slow
def test_no_more_is_read_than_a_rank_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of halves of experts' matrices, stacks, embeddings and rows in another order."""
    case = CASES["qwen3moe"]
    write_gguf(tmp_path / "model.gguf", case, random_model(case))
    files = locate(ModelSource(model=str(tmp_path / "model.gguf")), read_environment())
    config, model_class = find_model(read_hf_config(files))
    part = parts_of(model_class, config, 2)[1]
    with part.constructing(model_class):
        own = build(model_class, part.config)
    num_read = 0

    def counting(raw: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal num_read
        num_read += raw.nbytes
        return dequantize(raw, *args, **kwargs)

    monkeypatch.setattr(gguf_parts, "dequantize", counting)
    shapes = {key: tensor.shape for key, tensor in own.state_dict().items()}
    read_gguf_weights(files.weight_paths, shapes, config, torch.float32, part=part)
    assert num_read == sum(parameter.numel() * 4 for parameter in own.parameters())
