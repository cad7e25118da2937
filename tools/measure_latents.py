"""Measures a model with latent attention over its latents and over K and V: the tables of docs/decisions/0016.

The same random model runs twice, as its config says and as if its layers kept K and V of every head. Both take each
step in turn, round after round; a cell is the median CPU time of the rounds on one thread, with the fastest and the
slowest behind it. CPU time, because other processes of a busy machine stretch the time on the clock.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from octavo.attention.backend import AttentionGroup, AttentionMetadata, KVCacheView
from octavo.attention.numba_cpu import NumbaCPU
from octavo.config import LayerConfig, ModelConfig, ModelSource
from octavo.formats.model_config import load_model_config
from octavo.formats.source import ModelFiles
from octavo.kv.layout import strided_view
from octavo.models.hf_adapter import LoadedModel
from octavo.models.loader import load_model

BLOCK = 16
ROUNDS = 9
STEPS = ((1, 384, 1), (8, 384, 1), (1, 4096, 1), (4, 2048, 1), (1, 512, 512), (1, 4096, 256))
"""(requests, tokens in the cache, queries of each)."""

CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 1024,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "first_k_dense_replace": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 8192,
}


def _as_plain_heads(config: ModelConfig) -> ModelConfig:
    """The same model, every layer of which keeps K and V of all heads."""
    heads = CONFIG["num_attention_heads"]
    key_size = CONFIG["qk_nope_head_dim"] + CONFIG["qk_rope_head_dim"]
    layer = LayerConfig(kind="full", num_kv_heads=heads, head_size=key_size, head_size_v=CONFIG["v_head_dim"])
    return msgspec.structs.replace(config, layers=(layer,) * len(config.layers))


def _load(folder: Path, change: Callable[[ModelConfig], ModelConfig], dtype: torch.dtype) -> LoadedModel:
    files = ModelFiles(
        kind="folder", path=folder, config_path=folder / "config.json", weight_paths=(), name=folder.name
    )
    return load_model(
        ModelSource(model=str(folder), load_format="dummy"),
        files,
        change(load_model_config(files)),
        device=torch.device("cpu"),
        dtype=dtype,
        backend=NumbaCPU(num_threads=1),
        block_size=BLOCK,
        kv_cache_dtype="auto",
    )


class Way:
    """A model and a cache of random numbers. Owns: both."""

    def __init__(self, name: str, model: LoadedModel, num_blocks: int) -> None:
        self.name, self.model = name, model
        self.group = AttentionGroup(0, BLOCK)
        self.token_bytes = sum(spec.token_bytes for spec in model.kv_cache_specs().values())
        for layer in model.attention_layers.values():
            view = strided_view(layer.spec, num_blocks)
            memory = torch.randn(num_blocks * view.strides[0]).to(getattr(torch, view.dtype))
            layer.group = self.group
            layer.kv_cache = KVCacheView(
                memory.as_strided(view.key_shape, view.strides, view.key_offset),
                memory.as_strided(view.value_shape, view.strides, view.value_offset),
            )

    def run(self, requests: int, length: int, queries: int) -> float:
        """CPU milliseconds of one step; every request reads blocks of its own."""
        width = -(-length // BLOCK)
        table = torch.arange(requests * width, dtype=torch.int32).view(requests, width)
        places = torch.arange(length - queries, length)
        slots = (table[:, places // BLOCK].long() * BLOCK + places % BLOCK).flatten()
        starts = torch.arange(0, (requests + 1) * queries, queries, dtype=torch.int32)
        seq_lens = torch.full((requests,), length, dtype=torch.int32)
        self.group.metadata = AttentionMetadata(
            query_start=starts,
            seq_lens=seq_lens,
            block_table=table,
            slot_mapping=slots,
            num_requests=requests,
            num_tokens=requests * queries,
            max_query_len=queries,
            max_seq_len=length,
        )
        tokens = torch.randint(0, CONFIG["vocab_size"], (requests * queries,))
        positions = places.repeat(requests)
        start = time.process_time()
        self.model.forward(tokens, positions, starts, seq_lens)
        return 1000 * (time.process_time() - start)


def main() -> None:
    """Prints a table for each of the dtypes given, or for bfloat16 and float32."""
    torch.set_num_threads(1)
    num_blocks = max(requests * -(-length // BLOCK) for requests, length, _ in STEPS)
    for name in sys.argv[1:] or ("bfloat16", "float32"):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
            ways = [
                Way(title, _load(Path(folder), change, getattr(torch, name)), num_blocks)
                for title, change in (("latents", lambda config: config), ("K and V", _as_plain_heads))
            ]
        print(f"\n{name}: " + ", ".join(f"{way.name} {way.token_bytes:,} bytes a token" for way in ways))
        print("| step | " + " | ".join(way.name for way in ways) + " | ratio |")
        print("|---|" + "---|" * (len(ways) + 1))
        for step in STEPS:
            times: dict[str, list[float]] = {way.name: [way.run(*step)][:0] for way in ways}
            for _ in range(ROUNDS):
                for way in ways:
                    times[way.name].append(way.run(*step))
            medians = [statistics.median(times[way.name]) for way in ways]
            cells = [f"{m:.1f} ({min(t):.1f}-{max(t):.1f})" for m, t in zip(medians, times.values(), strict=True)]
            print(f"| {step[0]} x {step[1]}, {step[2]} queries | {' | '.join(cells)} | {medians[1] / medians[0]:.2f} |")


if __name__ == "__main__":
    main()
