from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kv.base import TokenVectors, ceil_div
from octavo.kv.specs import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    LayerSpec,
    MambaSpec,
    MLASpec,
    RetainedWindowSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)

PLAIN = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}


def test_where_k_and_v_lie_in_a_token() -> None:
    plain = FullAttentionSpec(**PLAIN, head_size_v=64).token_vectors
    assert plain == TokenVectors(
        dtype="bfloat16", num_heads=8, head_elements=192, key_size=128, value_size=64, value_offset=128
    )
    latent = MLASpec(block_size=64, latent_size=576, value_size=512, dtype="bfloat16").token_vectors
    assert latent == TokenVectors(
        dtype="bfloat16", num_heads=1, head_elements=576, key_size=576, value_size=512, value_offset=0
    )
    for spec in (
        FullAttentionSpec(**PLAIN, scale_bytes=8),
        FullAttentionSpec(**PLAIN, packed_head_bytes=136),
        MLASpec(block_size=64, latent_size=576, dtype="uint8", packed_token_bytes=656),
        MambaSpec(block_size=512, shapes=((3, 4),), dtypes=("float32",)),
    ):
        assert spec.token_vectors is None


def test_bytes_of_a_page() -> None:
    assert FullAttentionSpec(**PLAIN).page_bytes == 16 * 8 * 256 * 2
    assert FullAttentionSpec(**PLAIN, head_size_v=64).page_bytes == 16 * 8 * 192 * 2
    assert FullAttentionSpec(**PLAIN | {"dtype": "int8"}, scale_bytes=8).token_bytes == 8 * (256 + 8)
    assert FullAttentionSpec(**PLAIN | {"dtype": "uint8"}, packed_head_bytes=136).token_bytes == 8 * 136
    assert MLASpec(block_size=64, latent_size=576, dtype="bfloat16").page_bytes == 64 * 576 * 2
    assert MLASpec(block_size=64, latent_size=576, dtype="uint8", packed_token_bytes=656).page_bytes == 64 * 656
    state = MambaSpec(block_size=512, shapes=((3, 1024), (16, 64, 64)), dtypes=("bfloat16", "float32"))
    assert state.page_bytes == 3 * 1024 * 2 + 16 * 64 * 64 * 4
    padded = msgspec.structs.replace(state, page_size_padded=278528)
    assert (padded.page_bytes, padded.content_bytes) == (278528, 268288)


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 20), st.integers(1, 90))
def test_a_window_holds_as_many_blocks_as_its_worst_step(window: int, block: int, chunk: int, tokens: int) -> None:
    """Against the steps themselves: blocks from the window before the step's first token to its last token."""
    spec = SlidingWindowSpec(**PLAIN | {"block_size": block}, window=window)
    worst = max(
        (first + step - 1) // block - max(0, first - window + 1) // block + 1
        for first in range(tokens)
        for step in range(1, min(chunk, tokens - first) + 1)
    )
    assert spec.max_blocks(tokens, chunk_tokens=chunk) == worst
    assert worst <= spec.reference_max_blocks(tokens, in_flight_tokens=chunk)
    assert spec.reference_max_blocks(tokens, in_flight_tokens=chunk) == (
        math.ceil(min(window - 1 + chunk, tokens) / block) + 1
    )


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 20), st.integers(1, 90))
def test_an_attention_chunk_holds_as_many_blocks_as_its_worst_step(
    width: int, block: int, chunk: int, tokens: int
) -> None:
    spec = ChunkedLocalSpec(**PLAIN | {"block_size": block}, chunk=width)
    worst = max(
        (first + step - 1) // block - first // width * width // block + 1
        for first in range(tokens)
        for step in range(1, min(chunk, tokens - first) + 1)
    )
    found = spec.max_blocks(tokens, chunk_tokens=chunk)
    assert worst <= found <= ceil_div(tokens, block)
    if width % block == 0:
        assert found == worst <= spec.reference_max_blocks(tokens, in_flight_tokens=chunk)
        assert spec.reference_max_blocks(tokens, in_flight_tokens=chunk) == math.ceil(
            min(width + chunk, tokens) / block
        )


@pytest.mark.parametrize(
    "spec",
    [
        FullAttentionSpec(**PLAIN),
        SinkFullAttentionSpec(**PLAIN, sink_len=16),
        RetainedWindowSpec(**PLAIN, window=64),
        MLASpec(block_size=16, latent_size=576, dtype="bfloat16"),
    ],
)
def test_kinds_that_keep_every_token(spec: LayerSpec) -> None:
    assert spec.keeps_every_token
    assert spec.max_blocks(1001, chunk_tokens=1) == spec.reference_max_blocks(1001, in_flight_tokens=1) == 63
    assert spec.ideal_bytes(1001) == 1001 * spec.token_bytes == spec.fixed_bytes + 1001 * spec.bytes_per_token
    spread = msgspec.structs.replace(spec, context_parallel_size=4)
    assert spread.max_blocks(1001, chunk_tokens=1) == 16
    assert spread.ideal_bytes(1001) == 251 * spec.token_bytes


@pytest.mark.parametrize(
    ("spec", "reach"),
    [
        (SlidingWindowSpec(**PLAIN, window=100), 100),
        (ChunkedLocalSpec(**PLAIN, chunk=128), 128),
        (FullAttentionSpec(**PLAIN, compute_window=100), 100),
        (FullAttentionSpec(**PLAIN, compute_chunk=128), 128),
    ],
)
def test_ideal_bytes_stop_growing_at_the_reach(spec: LayerSpec, reach: int) -> None:
    assert (spec.fixed_bytes, spec.bytes_per_token) == (reach * spec.token_bytes, 0)
    assert spec.ideal_bytes(reach) == spec.ideal_bytes(10**6) == spec.fixed_bytes
    assert spec.ideal_bytes(reach - 1) == (reach - 1) * spec.token_bytes


def test_states_and_encoders_do_not_grow() -> None:
    state = MambaSpec(block_size=512, shapes=((2, 8),), dtypes=("float32",))
    assert [state.max_blocks(tokens, chunk_tokens=9) for tokens in (1, 10**6)] == [1, 1]
    assert (state.fixed_bytes, state.bytes_per_token, state.ideal_bytes(7)) == (64, 0, 64)
    aligned = msgspec.structs.replace(state, cache_mode="align", num_speculative_blocks=2)
    assert aligned.max_blocks(10**6, chunk_tokens=9) == 3
    cross = CrossAttentionSpec(**PLAIN, max_encoder_tokens=100)
    assert [cross.max_blocks(tokens, chunk_tokens=9) for tokens in (1, 10**6)] == [7, 7]
    assert cross.ideal_bytes(1) == cross.fixed_bytes == 100 * cross.token_bytes
    assert not cross.prefix_cacheable


def test_kinds_share_a_table_only_with_their_like() -> None:
    full, window = FullAttentionSpec(**PLAIN), SlidingWindowSpec(**PLAIN, window=64)
    assert full.uniform_key == MLASpec(block_size=16, latent_size=64, dtype="bfloat16").uniform_key
    assert full.uniform_key != msgspec.structs.replace(full, block_size=32).uniform_key
    assert window.uniform_key == msgspec.structs.replace(window, head_size=64).uniform_key
    assert window.uniform_key != msgspec.structs.replace(window, window=65).uniform_key
    kinds = {
        spec.kind
        for spec in (
            full,
            window,
            ChunkedLocalSpec(**PLAIN, chunk=64),
            SinkFullAttentionSpec(**PLAIN, sink_len=16),
            RetainedWindowSpec(**PLAIN, window=64),
            CrossAttentionSpec(**PLAIN, max_encoder_tokens=9),
        )
    }
    assert kinds == {"full", "sliding_window", "chunked_local", "sink_full", "rswa", "cross"}


def test_a_config_survives_the_wire() -> None:
    config = KVCacheConfig(
        num_blocks=3,
        groups=(
            KVCacheGroupSpec(layer_names=("a",), spec=FullAttentionSpec(**PLAIN)),
            KVCacheGroupSpec(layer_names=("b",), spec=MambaSpec(block_size=1, shapes=((2,),), dtypes=("float32",))),
        ),
        tensors=(KVCacheTensor(size_bytes=12, shared_by=("a", "b")),),
        max_model_len=8,
        max_chunk_tokens=8,
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=KVCacheConfig) == config
