"""Processes that load their parts of a model of some size: the memory that they take is that of a part."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from gguf import GGUFWriter
from gguf.constants import MODEL_ARCH
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import quantize
from gguf.tensor_mapping import TensorNameMap

MIB = 1 << 20
NOISE = 32 * MIB
"""What modules that are imported meanwhile, a model without values, and made-up weights take."""

SIZES = {
    "vocab_size": 4096,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}


class Loaded(NamedTuple):
    """What it took to load a part, in bytes."""

    loading: int
    """The most memory that is no file's until weights are loaded."""
    peak: int
    """The most until they are in the form in which they are computed with, too."""
    weights: int
    """Of the part, in the dtype of computation."""


def loaded(model: Path, meeting: Path, size: int, num_stages: int = 1) -> list[Loaded]:
    """What each of so many ranks needed."""
    command = [sys.executable, "-m", "tests.models.parallel.load_a_part", str(model), str(meeting)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(size), str(num_stages)], stdout=subprocess.PIPE, text=True)
        for rank in range(size * num_stages)
    ]
    found = []
    for rank in ranks:
        out, _ = rank.communicate(timeout=500)
        assert rank.returncode == 0
        found.append(Loaded(**json.loads(out.splitlines()[-1])))
    return found


def made(kind: str, folder: Path) -> tuple[Path, int]:
    """(a random Llama in bfloat16 or a GGUF file of one in Q8_0, bytes of its numbers in float32)"""
    from transformers import AutoConfig, AutoModelForCausalLM

    config: Any = AutoConfig.for_model("llama", **SIZES)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    num_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    if kind == "safetensors":
        model.save_pretrained(folder)
        return folder, num_bytes
    writer = GGUFWriter(str(folder / "model.gguf"), "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(SIZES["vocab_size"])
    names = TensorNameMap(MODEL_ARCH.LLAMA, SIZES["num_hidden_layers"])
    for name, parameter in model.named_parameters():
        values, stored = parameter.detach().float().numpy(), str(names.get_name(name, try_suffixes=(".weight",)))
        if values.ndim == 1:
            writer.add_tensor(stored, values)
        else:
            writer.add_tensor(stored, quantize(values, Kind.Q8_0), raw_dtype=Kind.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf", num_bytes


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_a_rank_loads_its_part_alone(kind: str, tmp_path: Path) -> None:
    model, num_bytes = made(kind, tmp_path)
    (alone,) = loaded(model, tmp_path / "one", 1)
    halves = loaded(model, tmp_path / "two", 2)
    assert alone.weights >= num_bytes > 4 * NOISE
    for half in halves:
        assert half.weights < 0.51 * alone.weights
        assert half.loading < half.weights + NOISE
        assert half.peak < 0.85 * alone.peak


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_a_rank_of_a_stage_loads_its_layers_alone(kind: str, tmp_path: Path) -> None:
    model, _ = made(kind, tmp_path)
    (alone,) = loaded(model, tmp_path / "one", 1)
    for quarter in loaded(model, tmp_path / "four", 2, 2):
        assert quarter.weights < 0.27 * alone.weights
        assert quarter.loading < quarter.weights + NOISE
