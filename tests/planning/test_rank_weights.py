"""What a plan says of the weights on each rank, and the parameters that modules of the rank's part have."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.models.zoo import find_model
from octavo.planning.forecast import find_subject
from octavo.planning.parameters import WeightTensor
from octavo.planning.weights import divide, find_weights
from tests.models.parallel.parts import build, parts_of
from tests.models.walk.tiny_model import save_tiny_model

BLOCK = "model.layers.0."


def test_a_mixer_with_a_state_is_whole_and_the_attention_beside_it_is_cut() -> None:
    mixer = [
        WeightTensor(f"{BLOCK}mamba.in_proj.weight", (32, 8), 1024),
        WeightTensor(f"{BLOCK}mamba.conv1d.weight", (16, 1, 4), 256),
        WeightTensor(f"{BLOCK}mamba.A_log", (16, 4), 256),
    ]
    attention = [WeightTensor(f"{BLOCK}self_attn.q_proj.weight", (8, 8), 256)]
    ranks = divide([*mixer, *attention], (range(1),), tensor_parallel_size=2, num_kv_heads=2)
    assert ranks == (1024 + 256 + 256 + 128,) * 2


def test_a_state_of_one_layer_keeps_no_other_layers_mixer_of_that_name_whole() -> None:
    """As in Kimi Linear, whose attention has one name with and without a state."""
    state = WeightTensor(f"{BLOCK}self_attn.q_conv1d.weight", (8, 1, 4), 128)
    ranks = [
        divide([state, WeightTensor(f"model.layers.{layer}.self_attn.q_proj.weight", (8, 8), 256)], (range(2),),
               tensor_parallel_size=2, num_kv_heads=2)
        for layer in (0, 1)
    ]  # fmt: skip
    assert ranks == [(128 + 256,) * 2, (128 + 128,) * 2]


def test_tensors_of_gguf_files_that_a_state_has_are_whole() -> None:
    tensors = [WeightTensor("blk.0.ssm_in.weight", (32, 8), 1024), WeightTensor("blk.0.attn_q.weight", (8, 8), 256)]
    assert divide(tensors, (range(1),), tensor_parallel_size=2, num_kv_heads=2) == (1024 + 128,) * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "jamba", "granitemoehybrid", "qwen3_next", "kimi_linear", "falcon_h1", "nemotron_h", "llama", "gpt_oss",
        "phi4_multimodal", "gemma3",  # one with images and sound in the text model's class, one of several parts
    ],
)  # fmt: skip
def test_ranks_have_the_bytes_of_the_modules_that_the_engine_makes(name: str, tmp_path: Path) -> None:
    save_tiny_model(name, tmp_path, spread=0.1)
    files, fields, model = find_subject(str(tmp_path))
    stages = (range(len(model.layers)),)
    planned = find_weights(files, fields, model, stages, tensor_parallel_size=2, dtype="float32", given=None)
    config, model_class = find_model(dict(fields))
    for part, num_bytes in zip(parts_of(model_class, config, 2), planned.by_rank, strict=True):
        with part.constructing(model_class):
            made = build(model_class, part.config)
        stored = made.state_dict(keep_vars=True)
        if config.tie_word_embeddings:  # which it is only once it has values
            stored.pop("lm_head.weight", None)
        tensors = {id(tensor): tensor for tensor in stored.values()}.values()
        assert num_bytes == sum(4 * tensor.numel() for tensor in tensors)
