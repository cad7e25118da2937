"""Files whose matrices are all of one tensor type: greedy tokens against transformers with the weights that the `gguf`
package unpacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from octavo.config import ModelSource, read_environment
from octavo.formats.dequantize import KERNELS
from octavo.formats.ggml_types import GGML_TYPES
from octavo.formats.model_config import read_hf_config
from octavo.formats.source import locate
from octavo.models.zoo import find_model
from tests.formats import build
from tests.models.paged_run import PagedRun
from tests.models.test_gguf_weights import load

SIZE, VOCAB, LAYERS, KV_SIZE = 256, 96, 2, 128
"""Rows of 256 elements: the K types have blocks of that size."""

SCALES_AT: dict[str, tuple[int, ...]] = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
"""Where in a block its float16 scales lie."""

SPREAD = {"Q6_K": 2e-5, "Q3_K": 2e-4, "Q2_K": 3e-3, "IQ4_XS": 4e-5}
"""Scales that make weights of about 0.1; 1e-3 for the others."""

MATRICES = {
    "attn_q.weight": (SIZE, SIZE), "attn_k.weight": (KV_SIZE, SIZE), "attn_v.weight": (KV_SIZE, SIZE),
    "attn_output.weight": (SIZE, SIZE), "ffn_gate.weight": (SIZE, SIZE), "ffn_up.weight": (SIZE, SIZE),
    "ffn_down.weight": (SIZE, SIZE),
}  # fmt: skip
FIELDS: dict[str, Any] = {
    "context_length": 128, "block_count": LAYERS, "embedding_length": SIZE, "feed_forward_length": SIZE,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0, "vocab_size": VOCAB, "attention.key_length": 64,
}  # fmt: skip


def stored_bytes(kind: str, shape: tuple[int, int], generator: np.random.Generator) -> bytes:
    """Random blocks whose scales are such that the weights are of ordinary size."""
    if kind in ("F32", "F16", "BF16"):
        values = generator.normal(0, 0.1, shape).astype(np.float32)
        bits = {"F32": values, "F16": values.astype(np.float16), "BF16": (values.view(np.uint32) >> 16).astype("<u2")}
        return bits[kind].tobytes()
    ggml = next(entry for entry in GGML_TYPES.values() if entry.name == kind)
    num_blocks = shape[0] * shape[1] // ggml.block_elements
    blocks = generator.integers(0, 256, (num_blocks, ggml.block_bytes), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = generator.integers(120, 124, num_blocks)
    for at in SCALES_AT.get(kind, ()):
        scales = generator.uniform(0.5, 1.5, num_blocks) * SPREAD.get(kind, 1e-3)
        blocks[:, at : at + 2] = scales.astype("<f2").view(np.uint8).reshape(num_blocks, 2)
    return blocks.tobytes()


def write_file(path: Path, kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """Write the file; what its tensors stand for, by GGUF name, as the `gguf` package has it."""
    generator = np.random.default_rng(5)
    shapes = {"token_embd.weight": (VOCAB, SIZE), "output.weight": (VOCAB, SIZE)}
    shapes |= {f"blk.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in MATRICES.items()}
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    meant: dict[str, np.ndarray[Any, Any]] = {}
    for name, shape in shapes.items():
        raw = stored_bytes(kind, shape, generator)
        tensors[name] = (kind, shape, raw)
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(shape[0], -1)
        meant[name] = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind]).astype(np.float32)
    norms = ["output_norm.weight"]
    norms += [f"blk.{layer}.{name}_norm.weight" for layer in range(LAYERS) for name in ("attn", "ffn")]
    vectors = {name: generator.normal(1, 0.1, SIZE) for name in norms}
    vectors |= {
        f"blk.{layer}.attn_{part}.bias": generator.normal(0, 0.1, SIZE if part == "q" else KV_SIZE)
        for layer in range(LAYERS) for part in "qkv"
    }  # fmt: skip
    for name, vector in vectors.items():
        meant[name] = vector.astype(np.float32)
        tensors[name] = ("F32", vector.shape, meant[name].tobytes())
    metadata = {"general.architecture": "qwen2"} | {f"qwen2.{key}": field for key, field in FIELDS.items()}
    build.write(path, build.gguf(metadata, tensors))
    return meant


@pytest.mark.slow
@pytest.mark.parametrize("kind", KERNELS)
def test_greedy_tokens_are_those_of_the_unpacked_weights(kind: str, tmp_path: Path) -> None:
    meant = write_file(tmp_path / "model.gguf", kind)
    files = locate(ModelSource(model=str(tmp_path / "model.gguf")), read_environment())
    config, model_class = find_model(read_hf_config(files))
    theirs = model_class._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, LAYERS)
    state = {
        name: torch.from_numpy(meant[names.get_name(name, try_suffixes=(".weight", ".bias"))])
        for name in theirs.state_dict()
    }
    theirs.load_state_dict(state)
    prompt, steps = list(range(3, 23)), 10
    run = PagedRun(load(files), [len(prompt) + steps])
    (logits,) = run.step([prompt])
    tokens = [int(logits[-1].argmax())]
    while len(tokens) < steps:
        tokens.append(int(run.step([tokens[-1:]])[0][-1].argmax()))
    with torch.no_grad():
        whole = theirs(torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits[0]
    torch.testing.assert_close(logits, whole[: len(prompt)], rtol=1e-3, atol=1e-3)
    assert tokens == whole[len(prompt) - 1 :].argmax(-1).tolist()
    assert whole.abs().max() < 1e3
