"""Model files that were damaged or made to hurt, each from one seed: what a reader must survive."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.formats import build
from tests.formats.published import CONFIGS

HUGE = (0, 1, -1, 2, 127, 255, 1 << 15, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 53, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
NAMES = ("llama", "gemma3", "qwen2", "qwen3moe", "gpt2", "falcon", "gpt-oss", "lfm2", "mamba", "phi3", "nemotron")

SENTENCEPIECE: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "\u2581a", "b", "ab", "<0x41>", "<start_of_x>", "<end_of_x>"],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0, -3.0, 0.0, 0.0, 0.0],
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 6, 4, 4],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_bos_token": True,
}
BYTE_LEVEL: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "\u0120", "<|end|>"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 3],
    "tokenizer.ggml.eos_token_id": 4,
    "tokenizer.chat_template": "{{ messages }}<|im_end|>",
}
UNIGRAM = SENTENCEPIECE | {
    "tokenizer.ggml.model": "t5",
    "tokenizer.ggml.precompiled_charsmap": [0, 0, 0, 0],
    "tokenizer.ggml.remove_extra_whitespaces": True,
}
SHAPE: dict[str, Any] = {
    "context_length": 128, "block_count": 2, "embedding_length": 32, "feed_forward_length": 64,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 8, "rope.freq_base": 10000.0,
    "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": 8,
    "rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 64,
}  # fmt: skip
TENSORS: dict[str, tuple[str, tuple[int, ...], bytes]] = {
    "token_embd.weight": ("F16", (9, 32), bytes(9 * 64)),
    "blk.0.attn_q.weight": ("Q8_0", (32, 32), bytes(32 * 34)),
    "blk.0.ffn_up.weight": ("Q4_0", (64, 32), bytes(64 * 18)),
    "output_norm.weight": ("F32", (32,), bytes(128)),
}


def hostile_gguf(seed: int) -> bytes:
    """A GGUF file with one to three things wrong."""
    rng = random.Random(seed)
    name = rng.choice(NAMES)
    metadata = {"general.architecture": name} | {f"{name}.{key}": field for key, field in SHAPE.items()}
    metadata |= rng.choice((SENTENCEPIECE, BYTE_LEVEL, UNIGRAM))
    encoded = {key: build.value(field) for key, field in metadata.items()}
    headers = _tensor_headers(rng)
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 3)):
            encoded[rng.choice((*encoded, "general.alignment", f"{name}.expert_count"))] = _hostile_value(rng)
    counts = [len(headers), len(encoded)]
    if rng.random() < 0.1:
        counts[rng.randrange(2)] = rng.choice(HUGE) % (1 << 64)
    data = b"GGUF" + struct.pack("<IQQ", 3, *counts)
    data += b"".join(build.string(key) + field for key, field in encoded.items()) + b"".join(headers)
    data += bytes(-len(data) % 32)
    for _, _, raw in TENSORS.values():
        data += raw + bytes(-len(raw) % 32)
    return _damaged(rng, data) if rng.random() < 0.5 else data


def _tensor_headers(rng: random.Random) -> list[bytes]:
    headers, offset = [], 0
    hurt = rng.choice(list(TENSORS)) if rng.random() < 0.3 else ""
    for tensor, (kind, shape, raw) in TENSORS.items():
        type_id, at, size = build.TYPE_IDS[kind], offset, list(shape)
        if tensor == hurt:
            # Another type, a place inside or before another tensor, sizes that overflow when multiplied.
            type_id = rng.choice((type_id, rng.randrange(45), rng.choice(HUGE) % (1 << 32)))
            at = rng.choice((at, 0, 7, rng.choice(HUGE) % (1 << 64)))
            size[rng.randrange(len(size))] = rng.choice((size[0], rng.choice(HUGE) % (1 << 64)))
        headers.append(build.tensor_header(tensor, size, type_id, at))
        offset += len(raw) + -len(raw) % 32
    return headers


def _hostile_value(rng: random.Random, depth: int = 0) -> bytes:
    """A metadata value: numbers at the borders, NaN, text that is not UTF-8, arrays in arrays, claims of length."""
    kind = rng.randrange(8)
    if kind == 0:
        return struct.pack("<IQ", 10, rng.choice(HUGE) % (1 << 64))
    if kind == 1:
        return struct.pack("<If", 6, rng.choice((float("nan"), float("inf"), -1.0, 0.0, 1e38)))
    if kind == 2:
        return struct.pack("<I", 8) + build.string(bytes(rng.randrange(256) for _ in range(rng.randrange(9))))
    if kind == 3:
        return struct.pack("<Iq", 11, rng.choice((-1, -(1 << 63), 5)))
    if kind == 4:
        claimed = rng.choice(HUGE) % (1 << 64)
        return struct.pack("<IIQ", 9, rng.choice((0, 4, 6, 8, 9, 12, 99)), claimed) + bytes(rng.randrange(40))
    if kind == 5:
        numbers = [rng.choice((-1, 0, 1, 3, 6, 7, 1 << 30)) for _ in range(rng.choice((0, 1, 5, 9)))]
        return struct.pack(f"<IIQ{len(numbers)}i", 9, 5, len(numbers), *numbers)
    if kind == 6:
        texts = [
            build.string(rng.choice((b"", b"a", b"\xff", b"a b", b"<0xZZ>", b"\0")))
            for _ in range(rng.choice((0, 2, 9)))
        ]
        return struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(texts)
    nested = _hostile_value(rng, depth + 1) if depth < 20 else b""
    return struct.pack("<IIQ", 9, 9, 1) + nested


def hostile_safetensors(seed: int) -> bytes:
    """A safetensors file with something wrong in its header, its length or its bytes."""
    rng = random.Random(seed)
    arrays = {"a.weight": np.zeros((2, 3), dtype=np.float32), "b": np.zeros(5, dtype=np.int8)}
    data = build.safetensors(arrays)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for _ in range(rng.randint(0, 2)):
        _hurt_json(rng, header)
    text = json.dumps(header, allow_nan=True).encode()
    file = (
        struct.pack("<Q", rng.choice((len(text), len(text), rng.choice(HUGE) % (1 << 64)))) + text + data[8 + length :]
    )
    return _damaged(rng, file) if rng.random() < 0.5 else file


def hostile_index(seed: int) -> bytes:
    """A shard index that is broken or leads elsewhere."""
    rng = random.Random(seed)
    names = ("model-00001-of-00002.safetensors", "../x", "/etc/passwd", "a/../../b", "\u0000", "", "c:\\x", "." * 5000)
    index: dict[str, Any] = {"metadata": {"total_size": 1}, "weight_map": {"a": rng.choice(names), "b": names[0]}}
    _hurt_json(rng, index)
    text = json.dumps(index).encode()
    return _damaged(rng, text) if rng.random() < 0.5 else text


def hostile_config(seed: int) -> bytes:
    """A published config.json with one to three fields replaced."""
    rng = random.Random(seed)
    config = json.loads(json.dumps(CONFIGS[rng.choice(sorted(CONFIGS))]))
    for _ in range(rng.randint(1, 3)):
        _hurt_json(rng, config)
    text = json.dumps(config).encode()
    return _damaged(rng, text) if rng.random() < 0.2 else text


def _hurt_json(rng: random.Random, value: dict[str, Any]) -> None:
    """Replace, remove or nest one entry somewhere inside."""
    place: Any = value
    while isinstance(place, dict) and place:
        key = rng.choice(list(place))
        if not isinstance(place[key], dict) or not place[key] or rng.random() < 0.3:
            break
        place = place[key]
    if not isinstance(place, dict) or not place:
        return
    key = rng.choice(list(place))
    nested: Any = 1
    for _ in range(rng.choice((1, 50, 900))):
        nested = [nested]
    choices: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(HUGE), lambda: -1, lambda: 0.5, lambda: float("nan"), lambda: 1e300, lambda: None,
        lambda: True, lambda: "x" * rng.choice((0, 1, 5000)), list, dict, lambda: nested, lambda: {"a": nested},
        lambda: [rng.choice(HUGE)] * rng.choice((1, 3, 2000)), lambda: "\ud800".encode("utf-8", "replace").decode(),
    )  # fmt: skip
    if rng.random() < 0.15:
        del place[key]
    else:
        place[key] = rng.choice(choices)()


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """Bytes changed, removed, put in, or cut off; most of it near the front, where headers lie."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not changed:
            break
        at = rng.randrange(min(len(changed), rng.choice((64, 600, len(changed)))))
        kind = rng.randrange(5)
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 1:
            changed[at : at + 8] = struct.pack("<Q", rng.choice(HUGE) % (1 << 64))
        elif kind == 2:
            del changed[at : at + rng.randint(1, 9)]
        elif kind == 3:
            changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
        else:
            del changed[at + rng.randrange(200) :]
    return bytes(changed)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
