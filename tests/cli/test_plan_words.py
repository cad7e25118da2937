from __future__ import annotations

from octavo.cli.plan_words import attention_text, layer_numbers, page_text
from octavo.kv.specs import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", window=1024)


def test_attention_is_named_with_its_width() -> None:
    assert (attention_text(FULL), attention_text(WINDOW)) == ("full", "window 1,024")


def test_layers_are_spans_of_numbers() -> None:
    assert layer_numbers(["layers.0", "layers.1", "layers.2", "layers.5"]) == "0-2 5"
    assert layer_numbers(["layers.0.state", "layers.1"]) == "layers.0.state layers.1"[7:7] + "state 1"


def test_pages_of_several_sizes_are_all_told() -> None:
    wide = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=64, dtype="bfloat16")
    assert page_text(KVCacheGroupSpec(layer_names=("a",), spec=FULL)) == "8.00 KiB"
    mixed = KVCacheGroupSpec(layer_names=("a", "b"), spec=FULL, layer_specs=(FULL, wide))
    assert page_text(mixed) == "8.00 KiB / 16.00 KiB"
