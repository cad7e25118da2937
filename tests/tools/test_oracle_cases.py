from __future__ import annotations

from typing import Any

import pytest

from octavo.kv.specs import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLASpec,
    RetainedWindowSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)
from tools.oracle_cases import case_options, case_ranks, is_block_outermost, layer_spec, shared_by_rank

HEADS = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("recorded", "spec"),
    [
        ({"kind": "full", **HEADS}, FullAttentionSpec(**HEADS)),
        ({"kind": "full", **HEADS, "window": 64}, FullAttentionSpec(**HEADS, compute_window=64)),
        ({"kind": "full", **HEADS, "head_size_v": 64}, FullAttentionSpec(**HEADS, head_size_v=64)),
        ({"kind": "full", **HEADS, "head_size_v": 128}, FullAttentionSpec(**HEADS)),
        ({"kind": "sliding_window", **HEADS, "window": 64}, SlidingWindowSpec(**HEADS, window=64)),
        ({"kind": "chunked_local", **HEADS, "chunk": 64}, ChunkedLocalSpec(**HEADS, chunk=64)),
        ({"kind": "sink_full", **HEADS, "sink_len": 16}, SinkFullAttentionSpec(**HEADS, sink_len=16)),
        ({"kind": "rswa", **HEADS, "window": 64}, RetainedWindowSpec(**HEADS, window=64)),
        ({"kind": "cross", **HEADS}, CrossAttentionSpec(**HEADS, max_encoder_tokens=1500)),
        (
            {"kind": "mla", **HEADS, "num_kv_heads": 1, "head_size": 576},
            MLASpec(block_size=16, latent_size=576, dtype="bfloat16"),
        ),
        (
            {"kind": "mamba", "block_size": 512, "shapes": [[3, 8]], "dtypes": ["float32"], "page_size_padded": 512},
            MambaSpec(block_size=512, shapes=((3, 8),), dtypes=("float32",), page_size_padded=512),
        ),
    ],
)
def test_kinds(recorded: dict[str, Any], spec: object) -> None:
    assert layer_spec({"max_encoder_tokens": 1500}, recorded) == spec


@pytest.mark.parametrize(
    ("quant", "content", "token_bytes"),
    [
        ("fp8_per_tensor", None, 8 * 256),
        ("int8_per_token_head", None, 8 * (256 + 8)),
        ("int8_per_token_head", 264, 8 * 264),
        ("fp8_per_token_head", None, 8 * (256 + 8)),
        ("int4_per_token_head", None, 8 * (128 + 8)),
    ],
)
def test_quantised_formats(quant: str, content: int | None, token_bytes: int) -> None:
    recorded: dict[str, Any] = {"kind": "full", **HEADS, "dtype": "float8_e4m3", "quant": quant}
    if content is not None:
        recorded["state_content_bytes"] = content
    spec = layer_spec({}, recorded)
    assert spec.token_bytes == token_bytes
    assert spec != layer_spec({}, recorded | {"quant": "another"})


def test_ranks_are_stage_major() -> None:
    case = {
        "specs": [{"kind": "full", **HEADS}],
        "stages": [[["L0", 0]], [["L1", 0], ["L2", 0]]],
        "tp": 2,
        "available": 7,
        "shared": {"L3": "L2"},
        "max_model_len": 9,
        "max_in_flight_tokens": 5,
        "layout": "HND",
    }
    ranks, available = case_ranks(case)
    assert [list(specs) for specs in ranks] == [["L0"], ["L0"], ["L1", "L2"], ["L1", "L2"]]
    assert available == [7] * 4
    assert case_ranks(case | {"available": [1, 2, 3, 4]})[1] == [1, 2, 3, 4]
    assert shared_by_rank(case, ranks) == [{}, {}, {"L3": "L2"}, {"L3": "L2"}]
    assert case_options(case, reference=True).layout == "HND"
    assert case_options(case, reference=False).layout == "LBNHC"
    assert not is_block_outermost(case)
    assert is_block_outermost({"layout": "BLHNC"})
