"""Models whose weights stay coded, against the same models with the numbers that the codes stand for."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from octavo.attention.torch_reference import TorchReference
from octavo.config import ModelSource
from octavo.formats.model_config import load_model_config
from octavo.formats.source import ModelFiles
from octavo.models import coded_parameters
from octavo.models.coded_parameters import code_linears, row_order
from octavo.models.gguf_conversions import CONVERSIONS, Conversion
from octavo.models.hf_adapter import LoadedModel
from octavo.models.loader import load_model
from octavo.models.modules.coded_tensor import CodedTensor
from tests.formats import build
from tests.formats.test_codes import stored_rows
from tests.models.architectures import ARCHITECTURES, load_folder, save_model
from tests.models.paged_run import logits_in_chunks

HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, HEAD = 64, 96, 64, 4, 2, 16


class Heads:
    num_attention_heads, num_key_value_heads, num_kv_heads = 4, 2, 2
    new_decoder_architecture, multi_query = True, False


def test_rows_may_be_in_another_order() -> None:
    weight = torch.randn(64, 32)
    for architecture, name in (("llama", "blk.0.attn_q.weight"), ("bloom", "blk.0.attn_qkv.weight")):
        conversion, shape = CONVERSIONS[architecture], (64 if architecture == "llama" else 96, 32)
        given = torch.randn(shape)
        order = row_order(name, shape, conversion, Heads)
        assert order is not None and len(order) == shape[0]
        assert torch.equal(conversion.undo(name, given, Heads), given[order])
    in_order = row_order("blk.0.ffn_up.weight", weight.shape, CONVERSIONS["llama"], Heads)
    assert in_order is not None and len(in_order) == 0
    other: list[Conversion] = [CONVERSIONS["gpt2"], Conversion(undo=lambda name, tensor, config: tensor * 2)]
    for conversion in other:
        assert row_order("blk.0.ffn_up.weight", weight.shape, conversion, Heads) is None
    assert row_order("blk.0.attn_q.weight", (6, 32), CONVERSIONS["llama"], Heads) is None


def write(path: Path, types: dict[str, str], *, tied: bool) -> ModelFiles:
    """A Llama of two layers; `types` are tensor types by the end of a tensor's name."""
    shapes = {"token_embd.weight": (VOCAB, HIDDEN), **({} if tied else {"output.weight": (VOCAB, HIDDEN)})}
    for layer in range(2):
        for name, shape in {
            "attn_q": (HEADS * HEAD, HIDDEN), "attn_k": (KV_HEADS * HEAD, HIDDEN), "attn_v": (KV_HEADS * HEAD, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }.items():  # fmt: skip
            shapes[f"blk.{layer}.{name}.weight"] = shape
    tensors: dict[str, Any] = {}
    for number, (name, shape) in enumerate(shapes.items()):
        kind = next((kind for end, kind in types.items() if name.endswith(end)), "Q4_1")
        tensors[name] = (kind, shape, stored_rows(kind, *shape, seed=number).tobytes())
    ones = np.ones(HIDDEN, "<f4").tobytes()
    names = ["output_norm", *(f"blk.{layer}.{name}_norm" for layer in range(2) for name in ("attn", "ffn"))]
    tensors |= {f"{name}.weight": ("F32", (HIDDEN,), ones) for name in names}
    fields = {
        "context_length": 128, "block_count": 2, "embedding_length": HIDDEN, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "rope.dimension_count": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": VOCAB,
    }  # fmt: skip
    metadata = {"general.architecture": "llama", **{f"llama.{key}": field for key, field in fields.items()}}
    build.write(path, build.gguf(metadata, tensors))
    return ModelFiles(kind="gguf", path=path, config_path=None, weight_paths=(path,), name="llama")


def load(files: ModelFiles, quantization: str, dtype: torch.dtype) -> LoadedModel:
    return load_model(
        ModelSource(model=str(files.path), quantization=quantization),
        files,
        load_model_config(files),
        device=torch.device("cpu"),
        dtype=dtype,
        backend=TorchReference(),
        block_size=16,
        kv_cache_dtype="auto",
    )


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_model_computes_with_its_own_codes(tied: bool, tmp_path: Path) -> None:
    types = {"attn_v.weight": "Q8_0", "ffn_up.weight": "Q5_0", "ffn_down.weight": "Q8_0", "token_embd.weight": "Q8_0"}
    files = write(tmp_path / "model.gguf", types, tied=tied)
    prompt = torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    coded, plain = (load(files, quantization, torch.float32) for quantization in ("gguf", "none"))
    (found,), (expected,) = (logits_in_chunks(model, [prompt], (7,)) for model in (coded, plain))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))
    stored = sum(info[2] for info in _stored(files))
    assert {"Q4_1", "Q5_0", "Q8_0"} <= coded.weight_formats.keys()
    assert sum(size for name, size in coded.weight_formats.items() if name.startswith("Q")) == stored


def _stored(files: ModelFiles) -> list[tuple[str, str, int]]:
    from octavo.formats.gguf import GGUFFile

    tensors = GGUFFile(files.path).tensors
    return [(name, info.type, info.num_bytes) for name, info in tensors.items() if info.type.startswith("Q")]


@pytest.mark.slow
def test_what_has_no_codes_is_expanded(tmp_path: Path) -> None:
    files = write(tmp_path / "model.gguf", {"attn_v.weight": "F16", "ffn_gate.weight": "BF16"}, tied=True)
    prompt = torch.randint(0, VOCAB, (20,), generator=torch.Generator().manual_seed(1)).tolist()
    coded, plain = (load(files, quantization, torch.float32) for quantization in ("gguf", "none"))
    (found,), (expected,) = (logits_in_chunks(model, [prompt], (7,)) for model in (coded, plain))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))
    assert coded.weight_formats["float32"] > 2 * 4 * (INNER + KV_HEADS * HEAD) * HIDDEN


@pytest.mark.slow
def test_automatic_is_by_dtype(tmp_path: Path) -> None:
    files = write(tmp_path / "model.gguf", {}, tied=True)
    assert load(files, "auto", torch.float32).weight_formats.keys() == {"float32"}
    assert "Q4_1" in load(files, "auto", torch.bfloat16).weight_formats
    assert "Q4_1" not in load(files, "none", torch.bfloat16).weight_formats


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_moe", "deepseek_v2"])
def test_int8_is_close_to_the_model_that_was_coded(name: str, tmp_path: Path) -> None:
    save_model(name, tmp_path)
    prompt = list(range(3, 33))
    config = ARCHITECTURES[name].model_config(name)
    coded, plain = (
        load_folder(tmp_path, config, source=ModelSource(model=str(tmp_path), quantization=quantization))
        for quantization in ("int8", "none")
    )
    (found,), (expected,) = (logits_in_chunks(model, [prompt], (7,)) for model in (coded, plain))
    assert float((found - expected).norm() / expected.norm()) < 0.05
    assert coded.weight_bytes < 0.9 * plain.weight_bytes


@pytest.mark.slow
def test_a_parameter_of_two_modules_is_coded_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(40, 24), nn.Linear(24, 40, bias=False)
            self.head.weight = self.embedding.weight
            self.other = nn.Embedding(40, 24)

    model = Tied()
    before = model.embedding.weight.detach().clone()
    code_linears(model)
    assert isinstance(model.head.weight, CodedTensor) and model.head.weight is model.embedding.weight
    assert not isinstance(model.other.weight, CodedTensor)
    torch.testing.assert_close(model.head.weight.numbers(), before, rtol=0, atol=0.02)


def test_plain_weights_are_let_go_of_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    weights = [weakref.ref(layer.weight) for layer in model]
    alive: list[int] = []
    int8 = coded_parameters._int8

    def watched(weight: torch.Tensor, mapped: Any) -> Any:
        alive.append(sum(weight() is not None for weight in weights))
        return int8(weight, mapped)

    monkeypatch.setattr(coded_parameters, "_int8", watched)
    code_linears(model)
    assert alive == [4, 3, 2, 1]
    assert all(isinstance(layer.weight, CodedTensor) for layer in model)
