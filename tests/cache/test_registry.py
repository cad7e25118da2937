from __future__ import annotations

from typing import get_args

import pytest

from octavo.cache.full_attention import FullAttentionManager
from octavo.cache.registry import MANAGERS, make_group_manager
from octavo.cache.sliding_window import SlidingWindowManager
from octavo.errors import UnsupportedModelError
from octavo.kv.specs import CrossAttentionSpec, LayerSpec, MLASpec
from tests.cache.build import window


def test_each_kind_gets_its_manager() -> None:
    made = make_group_manager(window(9), max_model_len=64, max_chunk_tokens=8)
    assert type(made) is SlidingWindowManager
    assert (made.block_size, made.max_model_len, made.max_chunk_tokens) == (4, 64, 8)
    latent = make_group_manager(
        MLASpec(block_size=64, latent_size=8, dtype="bfloat16"), max_model_len=64, max_chunk_tokens=8
    )
    assert type(latent) is FullAttentionManager


def test_every_kind_that_can_be_planned_is_served_or_refused_by_name() -> None:
    assert set(get_args(LayerSpec)) - set(MANAGERS) == {CrossAttentionSpec}
    spec = CrossAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16", max_encoder_tokens=100)
    with pytest.raises(UnsupportedModelError, match="No cache manager serves cross layers"):
        make_group_manager(spec, max_model_len=64, max_chunk_tokens=8)


def test_ranks_that_share_a_request_share_its_blocks() -> None:
    """Spread over two ranks, a block of 4 slots holds 8 positions."""
    spec = MLASpec(block_size=4, latent_size=8, dtype="bfloat16", context_parallel_size=2)
    assert make_group_manager(spec, max_model_len=64, max_chunk_tokens=8).num_table_blocks(17) == 3
