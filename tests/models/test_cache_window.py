from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from octavo.config import LayerConfig
from octavo.errors import UnsupportedModelError
from octavo.models.cache_window import check_cache_window
from tests.models.architectures import ARCHITECTURES

FULL = ARCHITECTURES["llama"].model_config("moshi")


def test_a_window_that_only_the_cache_has_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"sliding_window of 7 tokens .* layer 0.*--max-model-len 7"):
        check_cache_window(SimpleNamespace(sliding_window=7), FULL, 8)
    with pytest.raises(UnsupportedModelError, match="attention_chunk_size of 7"):
        check_cache_window(SimpleNamespace(sliding_window=None, attention_chunk_size=7), FULL, 8)


@pytest.mark.parametrize("layer", [{"kind": "sliding_window", "window": 1}, {"kind": "chunked_local", "chunk": 1}])
def test_one_token_at_a_time_is_refused_though_the_mask_is_clear(layer: dict[str, Any]) -> None:
    """transformers cuts its cache by `-window + 1`, which is all of it: `generate` is not the model's own forward."""
    layers = (*FULL.layers[:2], LayerConfig(num_kv_heads=2, head_size=8, **layer))
    narrow = msgspec.structs.replace(FULL, layers=layers)
    with pytest.raises(UnsupportedModelError, match=r"^Layer 2 sees a token at a time, but transformers' cache"):
        check_cache_window(SimpleNamespace(layer_types=[]), narrow, 8)
    check_cache_window(SimpleNamespace(layer_types=[]), narrow, 1)


def test_a_window_of_nothing_has_no_length_to_offer() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"sliding_window of 0 tokens .* is cached\. Set sliding_window to null"
    ):
        check_cache_window(SimpleNamespace(sliding_window=0), FULL, 8)


def test_up_to_the_window_both_agree() -> None:
    check_cache_window(SimpleNamespace(sliding_window=7), FULL, 7)


@pytest.mark.parametrize(
    "config", [SimpleNamespace(), SimpleNamespace(sliding_window=7, layer_types=["full_attention"] * 4)]
)
def test_no_window_and_listed_layers_are_left_to_the_mask(config: SimpleNamespace) -> None:
    check_cache_window(config, FULL, 96)


def test_layers_that_heed_the_window_are_fine() -> None:
    windowed = ARCHITECTURES["mistral"].model_config("mistral")
    assert all(layer.kind == LayerConfig(kind="sliding_window").kind for layer in windowed.layers)
    check_cache_window(SimpleNamespace(sliding_window=7), windowed, 96)
