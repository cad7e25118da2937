from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.formats.source import SAFETENSORS_INDEX
from octavo.planning.parameters import WeightTensor
from octavo.planning.weights import divide, find_weights, stored_tensors
from tests.formats.build import safetensors, write
from tests.planning.build import subject
from tools.imports import ROOT

TENSORS = [
    WeightTensor("model.embed_tokens.weight", (100, 8), 1600),
    WeightTensor("model.layers.0.self_attn.q_proj.weight", (8, 8), 128),
    WeightTensor("model.layers.0.self_attn.k_proj.weight", (4, 8), 64),
    WeightTensor("model.layers.0.mlp.gate.weight", (4, 8), 60),
    WeightTensor("model.layers.1.mlp.up_proj.weight", (16, 8), 256),
    WeightTensor("model.layers.1.input_layernorm.weight", (8,), 16),
    WeightTensor("model.norm.weight", (8,), 16),
    WeightTensor("lm_head.weight", (100, 8), 1600),
]
STAGES = (range(1), range(1, 2))


def test_one_rank_has_all() -> None:
    assert divide(TENSORS, (range(2),), tensor_parallel_size=1, num_kv_heads=2) == (3740,)


def test_stages_have_their_layers_the_first_the_embedding_and_the_last_the_head() -> None:
    assert divide(TENSORS, STAGES, tensor_parallel_size=1, num_kv_heads=2) == (1852, 1888)


def test_matrices_are_cut_routers_and_vectors_are_whole_and_heads_are_not_cut() -> None:
    (first, *_) = divide(TENSORS[:4], (range(2),), tensor_parallel_size=4, num_kv_heads=2)
    assert first == 1600 // 4 + 128 // 4 + 64 // 2 + 60


def test_a_tied_embedding_is_on_the_first_and_on_the_last_stage() -> None:
    assert divide(TENSORS[:1], STAGES, tensor_parallel_size=1, num_kv_heads=2) == (1600, 1600)


def test_layers_of_an_image_part_are_not_layers_of_the_text_and_are_whole() -> None:
    vision = [
        WeightTensor("model.image_embed.encoder.layers.1.mlp.weight", (8, 8), 128),
        WeightTensor("model.image_embed.encoder.embeddings.weight", (8, 8), 128),
    ]
    assert divide(vision, STAGES, tensor_parallel_size=1, num_kv_heads=2) == (256, 0)
    assert divide(vision, STAGES, tensor_parallel_size=2, num_kv_heads=2) == (256, 256, 0, 0)


@pytest.mark.parametrize(
    ("text", "images"),
    [("model.language_model", "model.vision_tower"), ("model", "visual"), ("model", "image_newline")],
)
def test_of_a_composite_model_the_text_part_alone_is_loaded(tmp_path: Path, text: str, images: str) -> None:
    """The engine leaves the parts for images out (`octavo/models/text_part.py`)."""
    zeros = np.zeros((8, 8), np.float32)
    names = [f"{text}.embed_tokens.weight", f"{text}.layers.0.mlp.up_proj.weight", f"{images}.layers.0.mlp.fc1.weight"]
    path = write(tmp_path / "model.safetensors", safetensors(dict.fromkeys(names, zeros)))
    asked = subject("Gemma-3-27b")
    found = find_weights(
        msgspec.structs.replace(asked.files, weight_paths=(path,)), asked.config, asked.model, (range(62),),
        tensor_parallel_size=2, dtype="bfloat16", given=None,
    )  # fmt: skip
    assert (found.total_bytes, found.by_rank) == (2 * 128, (128, 128))


def test_an_index_of_a_composite_model_does_not_tell_the_text_parts_total(tmp_path: Path) -> None:
    (tmp_path / SAFETENSORS_INDEX).write_text('{"metadata": {"total_size": 54864809184}, "weight_map": {}}')
    asked = subject(json.loads((ROOT / "docs/examples/gemma-3-27b.json").read_text()))
    files = msgspec.structs.replace(asked.files, path=tmp_path)
    found = find_weights(
        files, asked.config, asked.model, (range(62),), tensor_parallel_size=1, dtype="bfloat16", given=None
    )
    assert found.total_bytes == 2 * 27_009_346_304
    assert "config" in found.source


def test_what_files_list_is_counted_in_the_compute_dtype(tmp_path: Path) -> None:
    tensors = {"model.norm.weight": np.zeros(8, np.float32), "model.codes": np.zeros(3, np.int8)}
    path = write(tmp_path / "model.safetensors", safetensors(tensors))
    files = msgspec.structs.replace(subject("Llama-3.1-8B").files, weight_paths=(path,))
    assert [tensor.num_bytes for tensor in stored_tensors(files, "bfloat16")] == [16, 3]
    assert [tensor.num_bytes for tensor in stored_tensors(files, "float32")] == [32, 3]


def test_an_index_without_its_files_tells_the_total(tmp_path: Path) -> None:
    (tmp_path / SAFETENSORS_INDEX).write_text('{"metadata": {"total_size": 16060522496}, "weight_map": {}}')
    asked = subject("Jamba-v0.1")
    files = msgspec.structs.replace(asked.files, path=tmp_path)
    found = find_weights(
        files, asked.config, asked.model, (range(32),), tensor_parallel_size=2, dtype="bfloat16", given=None
    )
    assert found.total_bytes == 16060522496
    assert SAFETENSORS_INDEX in found.source
    assert 0 <= sum(found.by_rank) - found.total_bytes < 0.1 * found.total_bytes


def test_what_nobody_knows_is_asked_for() -> None:
    asked = subject({**subject("Jamba-v0.1").config, "quantization_config": {"quant_method": "fp8"}})
    with pytest.raises(ConfigError, match="--weights SIZE"):
        find_weights(
            asked.files, asked.config, asked.model, (range(32),), tensor_parallel_size=1, dtype="bfloat16", given=None
        )
    given = find_weights(
        asked.files, asked.config, asked.model, (range(32),), tensor_parallel_size=2, dtype="bfloat16", given=100
    )
    assert (given.total_bytes, given.by_rank, given.source) == (100, (50, 50), "--weights")
