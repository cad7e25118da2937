from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.config import ModelSource, read_environment
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.gguf import GGUFFile
from octavo.formats.gguf_config import hf_config_of_gguf
from octavo.formats.source import locate
from tests.formats import build

HIDDEN, HEADS, VOCAB = 64, 4, 40

FIELDS: dict[str, Any] = {
    "context_length": 2048,
    "block_count": 3,
    "embedding_length": HIDDEN,
    "feed_forward_length": 160,
    "attention.head_count": HEADS,
    "attention.head_count_kv": 2,
    "rope.freq_base": 12345.0,
    "attention.layer_norm_rms_epsilon": 0.25,
    "attention.layer_norm_epsilon": 0.125,
}


def config_of(
    tmp_path: Path, name: str, tensors: dict[str, tuple[int, ...]] | None = None, **fields: Any
) -> dict[str, Any]:
    stored = {"token_embd.weight": (VOCAB, HIDDEN), **(tensors or {})}
    metadata = {"general.architecture": name, "tokenizer.ggml.eos_token_id": 7}
    metadata |= {f"{name}.{key}": value for key, value in (FIELDS | fields).items() if value is not None}
    raw = {
        key: ("F16", shape, bytes(2 * shape[0] * (shape[1] if len(shape) > 1 else 1))) for key, shape in stored.items()
    }
    return hf_config_of_gguf(GGUFFile(build.write(tmp_path / "m.gguf", build.gguf(metadata, raw))))


def test_what_every_architecture_says(tmp_path: Path) -> None:
    config = config_of(tmp_path, "llama", **{"rope.dimension_count": 16})
    assert config == {
        "model_type": "llama",
        "max_position_embeddings": 2048,
        "num_hidden_layers": 3,
        "hidden_size": HIDDEN,
        "intermediate_size": 160,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "rms_norm_eps": 0.25,
        "vocab_size": VOCAB,
        "tie_word_embeddings": True,
        "dtype": "float16",
        "rope_theta": 12345.0,
        "head_dim": 16,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": 7,
        "pad_token_id": None,
    }


def test_a_head_of_its_own_unties_the_embedding(tmp_path: Path) -> None:
    assert not config_of(tmp_path, "qwen2", {"output.weight": (VOCAB, HIDDEN)})["tie_word_embeddings"]


def test_heads_by_layer(tmp_path: Path) -> None:
    assert config_of(tmp_path, "qwen2", **{"attention.head_count_kv": [2, 2, 2]})["num_key_value_heads"] == 2
    assert config_of(tmp_path, "qwen2", **{"attention.head_count_kv": [2, 1, 2]})["num_key_value_heads"] == [2, 1, 2]


def test_windows_soft_caps_and_experts(tmp_path: Path) -> None:
    gemma = config_of(
        tmp_path, "gemma2",
        **{"attention.sliding_window": 128, "attn_logit_softcapping": 50.0, "attention.key_length": 32},
    )  # fmt: skip
    assert (gemma["sliding_window"], gemma["attn_logit_softcapping"], gemma["head_dim"]) == (128, 50.0, 32)
    phi = config_of(tmp_path, "phi3", **{"attention.sliding_window": 0, "rope.dimension_count": 8})
    assert phi["sliding_window"] is None
    assert phi["partial_rotary_factor"] == 0.5
    mixtral = config_of(tmp_path, "llama", expert_count=8, expert_used_count=2)
    assert (mixtral["model_type"], mixtral["num_local_experts"], mixtral["num_experts_per_tok"]) == ("mixtral", 8, 2)
    qwen = config_of(tmp_path, "qwen3moe", expert_count=8, expert_used_count=2, expert_feed_forward_length=96)
    assert (qwen["num_experts"], qwen["moe_intermediate_size"], qwen["norm_topk_prob"]) == (8, 96, True)


def test_scaled_positions(tmp_path: Path) -> None:
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    assert config_of(tmp_path, "gemma3", **linear)["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 512}
    assert config_of(tmp_path, "qwen2", **yarn)["rope_scaling"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512,
    }  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=r"rope.scaling.type = 'longrope'"):
        config_of(tmp_path, "qwen2", **{"rope.scaling.type": "longrope"})
    with pytest.raises(UnsupportedModelError, match=r"rope_factors_long"):
        config_of(tmp_path, "phi3", {"rope_factors_long.weight": (8, 1)})


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="architecture 'hal9000'") as caught:
        config_of(tmp_path, "hal9000")
    assert "gemma3" in caught.value.remedy


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_count": None}, "does not say num_hidden_layers"),
        ({"embedding_length": "wide"}, "has llama.embedding_length = wide, which is no size"),
        ({"attention.head_count": 0}, "does not say num_attention_heads"),
        ({"attention.layer_norm_rms_epsilon": None}, "has no llama.attention.layer_norm_rms_epsilon"),
    ],
)
def test_missing_fields_are_refused_by_name(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        config_of(tmp_path, "llama", **fields)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["gemma2", "gemma3", "llama", "phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "stablelm", "starcoder2"],
)
def test_transformers_reads_the_same(tmp_path: Path, name: str) -> None:
    """Every field that transformers' own mapping sets, for the architectures that it maps."""
    loader = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    mine = config_of(
        tmp_path, name, vocab_size=VOCAB,
        **{"attention.key_length": 16, "rope.dimension_count": 16, "expert_count": 0},
        **({"attention.sliding_window": 32} if name in ("gemma2", "gemma3", "phi3") else {}),
    )  # fmt: skip
    theirs = loader.load_gguf_checkpoint(str(tmp_path / "m.gguf"))["config"]
    for field, value in theirs.items():
        if field in ("_model_name_or_path", "sliding_window", "num_experts"):
            continue
        assert mine.get(field) == value, field


@pytest.mark.model
@pytest.mark.parametrize(
    "model", [pytest.param("demo", marks=pytest.mark.long), pytest.param("demo-smollm2", marks=pytest.mark.slow)]
)
def test_transformers_reads_the_demo_models_the_same(model: str) -> None:
    loader = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    path = locate(ModelSource(model=model), read_environment()).path
    mine = hf_config_of_gguf(GGUFFile(path))
    theirs = loader.load_gguf_checkpoint(str(path))["config"]
    for field, value in theirs.items():
        if field not in ("_model_name_or_path", "unk_token_id"):
            assert mine.get(field) == value, field


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("llama", "attention.sliding_window", 32),
        ("llama", "logit_scale", 0.5),
        ("qwen2", "attention.max_alibi_bias", 8.0),
        ("qwen3", "expert_count", 8),
        ("gemma3", "attention.shared_kv_layers", 2),
        ("llama", "rope.dimension_sections", [1, 2, 3]),
        ("phi3", "rope.scaling.attn_factor", 1.2),
        ("qwen2", "attention.causal", False),
        ("granite", "attention.rope_pattern", [True, False, True]),
        ("llama", "num_loops", 2),
        ("llama", "attention.value_scale", 0.7),
        ("gpt-oss", "expert_weights_norm", False),
    ],
)
def test_what_is_not_read_and_would_change_the_model_is_refused_by_name(
    tmp_path: Path, name: str, field: str, value: Any
) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"has {name}.{field} = "):
        config_of(tmp_path, name, **{field: value})


def test_values_that_change_nothing_are_let_pass(tmp_path: Path) -> None:
    neutral = {
        "num_loops": 1,
        "attention.rope_pattern": [True] * 3,
        "logit_scale": 1.0,
        "attention.sliding_window": 0,
        "attention.causal": True,
        "expert_gating_func": 1,
    }
    assert config_of(tmp_path, "qwen2", **neutral) == config_of(tmp_path, "qwen2")


def test_whether_the_weights_of_experts_are_normed(tmp_path: Path) -> None:
    assert config_of(tmp_path, "qwen3moe")["norm_topk_prob"]
    assert not config_of(tmp_path, "qwen3moe", expert_weights_norm=False)["norm_topk_prob"]
    assert config_of(tmp_path, "qwen2moe", expert_weights_norm=True)["norm_topk_prob"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention.key_length": 16, "attention.value_length": 8}, "heads of 16 elements, 16 .* with values of 8"),
        ({"rope.dimension_count": 8}, "heads of 16 elements, 8 of them rotated"),
    ],
)
def test_heads_in_parts_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        config_of(tmp_path, "qwen2", **fields)
