"""A model that recalls: its next token is a checksum of what its layers find in the cache.

Keys hold token ids. A full layer sums over all positions, a windowed one over its window, each position with a weight
of its own, so a wrong slot, table entry, position or window gives another token. Numbers are whole and small, so the
answer is exact and `next_token` can compute it from the tokens alone.
"""

from __future__ import annotations

from typing import Any

import torch

from octavo.attention.backend import AttentionBackend, AttentionLayer, AttentionMetadata, KVCacheView
from octavo.attention.state import StateLayer
from octavo.attention.torch_reference import TorchReference, first_position
from octavo.kv.specs import AttentionSpec, LayerSpec

VOCAB = 61
PRIME = 97


def term(token: int, position: int) -> int:
    return (token + 1) * (position % PRIME + 1) % PRIME


def checksum(tokens: list[int], window: int | None) -> int:
    """What a layer of this window finds at the last of `tokens`."""
    first = first_position(len(tokens) - 1, window, None)
    return sum(term(tokens[p], p) for p in range(first, len(tokens))) % PRIME


def next_token(tokens: list[int], windows: list[int | None]) -> int:
    """The greedy token after `tokens`."""
    return sum((i + 1) * checksum(tokens, window) for i, window in enumerate(windows)) % VOCAB


def generate(prompt: list[int], num_tokens: int, windows: list[int | None]) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, windows))
    return tokens[len(prompt) :]


class RecallBackend(AttentionBackend):
    """Writes as the reference does; reads checksums."""

    name = "recall"

    def write(self, cache: KVCacheView, key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata) -> None:
        TorchReference().write(cache, key, value, metadata)

    def attend(
        self, layer: AttentionLayer, cache: KVCacheView, query: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        out = torch.zeros(query.shape[0], 1, 1)
        block_size = cache.key.shape[1]
        starts, seq_lens = metadata.query_start.tolist(), metadata.seq_lens.tolist()
        assert len(seq_lens) == metadata.num_requests
        assert starts[-1] == metadata.num_tokens == query.shape[0]
        assert max(seq_lens) == metadata.max_seq_len
        for request, seq_len in enumerate(seq_lens):
            table = metadata.block_table[request].tolist()
            for token in range(starts[request], starts[request + 1]):
                position = seq_len - (starts[request + 1] - token)
                total = 0
                for p in range(first_position(position, layer.window, None), position + 1):
                    total += term(int(cache.key[table[p // block_size], p % block_size, 0, 0]), p)
                out[token] = total % PRIME
        return out


class RecallingModel:
    """What the model runner asks of a model, with one layer per spec."""

    def __init__(self, specs: dict[str, LayerSpec], shared: dict[str, str] | None = None) -> None:
        self.vocab_size = VOCAB
        self.weight_bytes = 0
        self.weight_formats: dict[str, int] = {}
        self.shared_layers = shared or {}
        self.attention_layers: dict[str, AttentionLayer] = {}
        for name, spec in {**specs, **{name: specs[target] for name, target in self.shared_layers.items()}}.items():
            assert isinstance(spec, AttentionSpec)
            self.attention_layers[name] = AttentionLayer(
                name,
                spec=spec,
                num_heads=1,
                scale=1.0,
                backend=RecallBackend(),
                window=getattr(spec, "window", None),
                kv_sharing_target=self.shared_layers.get(name),
            )

    @property
    def state_layers(self) -> dict[str, StateLayer]:
        return {}

    @property
    def cache_layers(self) -> dict[str, AttentionLayer]:
        return self.attention_layers

    @property
    def windows(self) -> list[int | None]:
        return [layer.window for layer in self.attention_layers.values()]

    def kv_cache_specs(self) -> dict[str, LayerSpec]:
        layers = self.attention_layers.items()
        return {name: layer.spec for name, layer in layers if layer.kv_sharing_target is None}  # type: ignore[misc]

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, query_start: torch.Tensor, seq_lens: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states [T, 1]: the next token."""
        expected = torch.cat(
            [
                torch.arange(end - count, end)
                for end, count in zip(seq_lens.tolist(), query_start.diff().tolist(), strict=True)
            ]
        )
        assert torch.equal(positions, expected)
        key = token_ids.float().view(-1, 1, 1)
        hidden = torch.zeros(len(token_ids), 1)
        for i, layer in enumerate(self.attention_layers.values()):
            own = (None, None) if layer.kv_sharing_target else (key, key)
            hidden += (i + 1) * layer.forward(key, *own).view(-1, 1)
        return hidden % VOCAB

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, VOCAB]: falls with the distance from the next token."""
        return -(torch.arange(VOCAB, dtype=torch.float32) - hidden).abs()


def sizes(block_size: int) -> dict[str, Any]:
    """Fields of a spec for this model's layers."""
    return {"block_size": block_size, "num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
