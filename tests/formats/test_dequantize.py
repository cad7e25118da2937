from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config import ModelSource, read_environment
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.dequantize import CHUNK_ELEMENTS, KERNELS, dequantize
from octavo.formats.ggml_types import GGML_TYPES
from octavo.formats.gguf import GGUFFile
from octavo.formats.source import locate

gguf = pytest.importorskip("gguf")
KINDS = {kind.name: kind for kind in GGML_TYPES.values()}


def random_blocks(name: str, num_rows: int, blocks_per_row: int) -> tuple[np.ndarray[Any, Any], tuple[int, int]]:
    """Random stored bytes: every scale, infinities and NaN among them."""
    raw = np.random.default_rng(7).integers(0, 256, num_rows * blocks_per_row * KINDS[name].block_bytes, dtype=np.uint8)
    return raw, (num_rows, blocks_per_row * KINDS[name].block_elements)


def reference(name: str, raw: np.ndarray[Any, Any], num_rows: int) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        values = gguf.dequantize(raw.reshape(num_rows, -1), gguf.GGMLQuantizationType[name])
    return np.ascontiguousarray(values, dtype=np.float32)


def assert_same_bits(mine: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> None:
    assert mine.shape == theirs.shape
    both_nan = np.isnan(mine) & np.isnan(theirs)
    assert np.array_equal(mine.view(np.uint32)[~both_nan], theirs.view(np.uint32)[~both_nan])


@pytest.mark.parametrize("name", KERNELS)
def test_float32_equals_the_reference_to_the_bit(name: str) -> None:
    raw, shape = random_blocks(name, 5, 9)
    assert_same_bits(dequantize(raw, name, shape), reference(name, raw, 5))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_chunks_and_threads_do_not_show(num_threads: int) -> None:
    blocks_per_row = CHUNK_ELEMENTS * 2 // 32 + 3
    raw, shape = random_blocks("Q5_1", 2, blocks_per_row)
    assert_same_bits(dequantize(raw, "Q5_1", shape, num_threads=num_threads), reference("Q5_1", raw, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_K", "F32", "BF16", "F16"])
def test_half_precision_rounds_to_nearest_even(name: str) -> None:
    torch = pytest.importorskip("torch")
    raw, shape = random_blocks(name, 4, 64)
    exact = torch.from_numpy(dequantize(raw, name, shape))
    for dtype in ("bfloat16", "float16"):
        mine = torch.from_numpy(dequantize(raw, name, shape, dtype).view(np.int16)).view(getattr(torch, dtype))
        assert torch.equal(mine.float().nan_to_num(12.5), exact.to(getattr(torch, dtype)).float().nan_to_num(12.5))


def test_ties_go_to_the_even_neighbour() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800001, 0xFF800000], dtype=np.uint32)
    rounded = dequantize(bits.view(np.uint8), "F32", (6,), "bfloat16")
    assert rounded.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7FC0, 0xFF80]


def test_the_result_can_be_written_in_place() -> None:
    raw, shape = random_blocks("Q6_K", 3, 2)
    out = np.empty(shape, dtype=np.float32)
    assert dequantize(raw, "Q6_K", shape, out=out) is out
    assert_same_bits(out, reference("Q6_K", raw, 3))


def test_a_type_without_a_kernel_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="type IQ2_XXS cannot be dequantised"):
        dequantize(np.zeros(66, dtype=np.uint8), "IQ2_XXS", (256,))


def test_a_wrong_size_is_refused_with_both_numbers() -> None:
    with pytest.raises(ModelFileError, match="has 33 bytes, 34 are needed"):
        dequantize(np.zeros(33, dtype=np.uint8), "Q8_0", (32,))


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("model", ["demo", "demo-smollm2"])
def test_the_demo_models_equal_the_reference_to_the_bit(model: str) -> None:
    file = GGUFFile(Path(locate(ModelSource(model=model), read_environment()).path))
    for name, info in list(file.tensors.items())[:40]:
        num_rows = info.shape[0] if len(info.shape) > 1 else 1
        raw = np.asarray(file.raw(name))
        if raw.size > 1 << 24:  # the embedding: a part of its rows says as much
            raw, num_rows = raw[: raw.size // num_rows * 20_000], 20_000
        shape = (num_rows, info.shape[-1])
        assert_same_bits(dequantize(raw, info.type, shape), reference(info.type, raw, num_rows).reshape(shape))
