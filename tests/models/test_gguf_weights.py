"""GGUF tensors against what transformers makes of the same files, and where it makes nothing, against the converters'
own formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.attention.torch_reference import TorchReference
from octavo.config import ModelSource, read_environment
from octavo.errors import ModelFileError
from octavo.formats.model_config import load_model_config, read_hf_config
from octavo.formats.source import ModelFiles, locate
from octavo.models.gguf_weights import read_gguf_weights
from octavo.models.hf_adapter import LoadedModel
from octavo.models.loader import load_model
from octavo.models.zoo import find_model
from tests.formats import build
from tests.models.paged_run import logits_in_chunks

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 64, 32, 48, 2, 4, 2, 8

FIELDS: dict[str, Any] = {
    "context_length": 128,
    "block_count": LAYERS,
    "embedding_length": HIDDEN,
    "feed_forward_length": INNER,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "rope.dimension_count": HEAD,
    "rope.freq_base": 10000.0,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "vocab_size": VOCAB,
}

Q, KV = (HEADS * HEAD, HIDDEN), (KV_HEADS * HEAD, HIDDEN)
NORMS = {"attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,)}
ATTENTION = {
    "attn_q.weight": Q,
    "attn_k.weight": KV,
    "attn_v.weight": KV,
    "attn_output.weight": (HIDDEN, HEADS * HEAD),
}
GATED = {"ffn_gate.weight": (INNER, HIDDEN), "ffn_up.weight": (INNER, HIDDEN), "ffn_down.weight": (HIDDEN, INNER)}
HEAD_NORMS = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
POST_NORMS = {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
QKV_BIASES = {"attn_q.bias": Q[:1], "attn_k.bias": KV[:1], "attn_v.bias": KV[:1]}
EXPERTS = {
    "ffn_gate_inp.weight": (4, HIDDEN),
    "ffn_gate_exps.weight": (4, 16, HIDDEN),
    "ffn_up_exps.weight": (4, 16, HIDDEN),
    "ffn_down_exps.weight": (4, HIDDEN, 16),
}
EXPERT_FIELDS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16}

BLOCKS: dict[str, dict[str, tuple[int, ...]]] = {
    "llama": NORMS | ATTENTION | GATED,
    "qwen2": NORMS | ATTENTION | GATED | QKV_BIASES,
    "qwen3": NORMS | ATTENTION | GATED | HEAD_NORMS,
    "qwen3moe": NORMS | ATTENTION | EXPERTS | HEAD_NORMS,
    "gemma2": NORMS | ATTENTION | GATED | POST_NORMS,
    "gemma3": NORMS | ATTENTION | GATED | POST_NORMS | HEAD_NORMS,
    "phi3": NORMS
    | {
        "attn_qkv.weight": (Q[0] + 2 * KV[0], HIDDEN),
        "attn_output.weight": (HIDDEN, HEADS * HEAD),
        "ffn_up.weight": (2 * INNER, HIDDEN),
        "ffn_down.weight": (HIDDEN, INNER),
    },
}
MORE_FIELDS: dict[str, dict[str, Any]] = {
    "qwen3moe": EXPERT_FIELDS,
    "gemma2": {"attention.sliding_window": 16},
    "gemma3": {"attention.sliding_window": 16},
}


def write_model(
    path: Path, architecture: str, *, extra: dict[str, np.ndarray[Any, Any]] | None = None, leave_out: str = ""
) -> ModelFiles:
    """A file of random float32 tensors, small so that norms stored as 1 + weight stay near 1."""
    generator = np.random.default_rng(0)
    shapes = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in BLOCKS[architecture].items()}
    arrays = {name: generator.normal(0, 0.3, shape) for name, shape in shapes.items()}
    arrays = {name: array + 1 if name.endswith("norm.weight") else array for name, array in arrays.items()}
    arrays |= extra or {}
    tensors = {
        name: ("F32", array.shape, array.astype("<f4").tobytes()) for name, array in arrays.items() if name != leave_out
    }
    metadata = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key}": field for key, field in (FIELDS | MORE_FIELDS.get(architecture, {})).items()}
    build.write(path, build.gguf(metadata, tensors))
    return ModelFiles(kind="gguf", path=path, config_path=None, weight_paths=(path,), name=architecture)


def load(files: ModelFiles, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(
        ModelSource(model=str(files.path)),
        files,
        load_model_config(files),
        device=torch.device("cpu"),
        dtype=dtype,
        backend=TorchReference(),
        block_size=16,
        kv_cache_dtype="auto",
    )


@pytest.mark.slow
@pytest.mark.parametrize("architecture", BLOCKS)
def test_parameters_are_those_that_transformers_reads(architecture: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    files = write_model(tmp_path / "model.gguf", architecture)
    # With our config: transformers' own leaves out the head size of some architectures.
    config, model_class = find_model(read_hf_config(files))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", config=config, dtype=torch.float32)
    shapes = {name: parameter.shape for name, parameter in theirs.state_dict().items()}
    ours = read_gguf_weights(files.weight_paths, shapes, config, torch.float32).parameters
    expected = {name: tensor for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    assert model_class is type(theirs) and ours.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3moe"])
def test_logits_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    files = write_model(tmp_path / "model.gguf", architecture)
    config, _ = find_model(read_hf_config(files))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", config=config, dtype=torch.float32)
    prompt = torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    (logits,) = logits_in_chunks(load(files), [prompt], (7,))
    with torch.no_grad():
        expected = theirs(torch.tensor([prompt]), use_cache=False).logits[0]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_vectors_are_fixed_up_before_they_are_rounded(tmp_path: Path) -> None:
    weight = 1 + np.linspace(-2e-3, 2e-3, HIDDEN, dtype=np.float32)  # 1 + w rounds to nothing in bfloat16, w does not
    files = write_model(tmp_path / "model.gguf", "gemma3", extra={"output_norm.weight": weight})
    config, _ = find_model(read_hf_config(files))
    shapes = {"model.norm.weight": torch.Size([HIDDEN])}
    ours = read_gguf_weights(files.weight_paths, shapes, config, torch.bfloat16).parameters["model.norm.weight"]
    assert torch.equal(ours, (torch.from_numpy(weight) - 1).bfloat16())


def test_rotary_factors_divide_the_frequencies(tmp_path: Path) -> None:
    factors = np.array([1.0, 2.0, 4.0, 8.0], dtype=np.float32)
    plain = load(write_model(tmp_path / "plain.gguf", "llama"))
    scaled = load(write_model(tmp_path / "scaled.gguf", "llama", extra={"rope_freqs.weight": factors}))
    frequencies = [dict(model._base.named_buffers())["rotary_emb.inv_freq"] for model in (plain, scaled)]
    torch.testing.assert_close(frequencies[0] / torch.from_numpy(factors), frequencies[1])


def test_rotary_factors_of_another_size_are_refused(tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": np.ones(3, dtype=np.float32)}
    with pytest.raises(ModelFileError, match="3 rotary factors, which fit none"):
        load(write_model(tmp_path / "model.gguf", "llama", extra=extra))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"leave_out": "blk.1.ffn_up.weight"},
            r"lacks weights that the model has: .*layers.1.mlp.up_proj.weight\.",
        ),
        ({"extra": {"blk.0.ssm_a": np.ones(3)}}, r"holds weights that the model has not: blk.0.ssm_a\."),
        ({"extra": {"blk.0.attn_v.weight": np.ones((8, HIDDEN))}}, "of another shape than the model's: .*v_proj"),
        (
            {"extra": {"blk.0.attn_q.weight": np.ones((6, HIDDEN))}},
            r"'blk.0.attn_q.weight' of shape \[6, 32\] does not",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=message):
        load(write_model(tmp_path / "model.gguf", "llama", **change))


def test_half_a_parameter_is_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"lacks weights .*layers.1.mlp.experts.gate_up_proj\."):
        load(write_model(tmp_path / "model.gguf", "qwen3moe", leave_out="blk.1.ffn_up_exps.weight"))


@pytest.mark.model
@pytest.mark.parametrize(
    "name", [pytest.param("demo-smollm2", marks=pytest.mark.slow), pytest.param("demo", marks=pytest.mark.long)]
)
def test_demo_models_have_the_weights_that_transformers_reads(name: str) -> None:
    from transformers import AutoModelForCausalLM

    files = locate(ModelSource(model=name), read_environment())
    theirs = AutoModelForCausalLM.from_pretrained(files.path.parent, gguf_file=files.path.name, dtype=torch.float32)
    config, _ = find_model(read_hf_config(files))
    expected = theirs.state_dict()
    shapes = {parameter: tensor.shape for parameter, tensor in expected.items()}
    ours = read_gguf_weights(files.weight_paths, shapes, config, torch.float32).parameters
    assert {*ours, "lm_head.weight"} == expected.keys()
    for parameter, tensor in ours.items():
        torch.testing.assert_close(tensor, expected[parameter], rtol=0, atol=0)
    prompt = torch.randint(5, 40000, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    (logits,) = logits_in_chunks(load(files), [prompt], (17,))
    with torch.no_grad():
        whole = theirs.eval()(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(logits, whole, rtol=1e-3, atol=1e-3)
