from __future__ import annotations

import pytest

from octavo.errors import ConfigError
from octavo.kv.specs import FullAttentionSpec, MambaSpec, MLASpec
from octavo.planning.cache_dtype import cache_format, with_format

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
LATENT = MLASpec(block_size=16, latent_size=576, dtype="bfloat16")
STATE = MambaSpec(block_size=16, shapes=((3, 8),), dtypes=("bfloat16",), cache_mode="auto")


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [
        ("auto", 512), ("bf16", 512), ("fp16", 512), ("float32", 1024), ("fp8", 256), ("fp8_e5m2", 256),
        ("int8", 2 * (128 + 8)), ("int8_per_token_head", 2 * (128 + 8)), ("fp8_per_token_head", 2 * (128 + 8)),
    ],
)  # fmt: skip
def test_a_token_takes_its_elements_and_its_scales(name: str, token_bytes: int) -> None:
    changed = with_format({"a": FULL}, cache_format(name, "bfloat16"))
    assert changed["a"].token_bytes == token_bytes  # type: ignore[union-attr]


def test_latents_may_be_fp8_and_have_no_heads_to_scale() -> None:
    assert with_format({"a": LATENT}, cache_format("fp8", "bfloat16"))["a"].content_bytes == 16 * 576
    with pytest.raises(ConfigError, match="one latent per token, without heads"):
        with_format({"a": LATENT}, cache_format("int8", "bfloat16"))


def test_states_stay_in_the_dtype_that_they_are_computed_in() -> None:
    assert with_format({"a": STATE}, cache_format("fp8", "bfloat16")) == {"a": STATE}


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="--kv-cache-dtype is 'int3'"):
        cache_format("int3", "bfloat16")
