"""What `--kv-cache-dtype` may be in a plan: formats of K and V, and what they store beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from octavo.errors import ConfigError
from octavo.kv.specs import AttentionSpec, LayerSpec, MambaSpec, MLASpec

SCALE_BYTES = 8
"""Two float32 scales, of K and of V, in the formats that scale every token and head."""


class CacheFormat(NamedTuple):
    """How K and V are stored."""

    dtype: str
    scale_bytes: int = 0
    """Per token and head."""
    quantization: str = ""


_FP8, _FP8_WIDE = "float8_e4m3fn", "float8_e5m2"

FORMATS: dict[str, CacheFormat] = {
    **dict.fromkeys(("bfloat16", "bf16"), CacheFormat("bfloat16")),
    **dict.fromkeys(("float16", "fp16", "half"), CacheFormat("float16")),
    **dict.fromkeys(("float32", "fp32", "float"), CacheFormat("float32")),
    **dict.fromkeys(("fp8", "fp8_e4m3", _FP8), CacheFormat(_FP8, quantization="fp8")),
    **dict.fromkeys(("fp8_e5m2", _FP8_WIDE), CacheFormat(_FP8_WIDE, quantization="fp8")),
    **dict.fromkeys(("int8", "int8_per_token_head"), CacheFormat("int8", SCALE_BYTES, "int8_per_token_head")),
    "fp8_per_token_head": CacheFormat(_FP8, SCALE_BYTES, "fp8_per_token_head"),
}
"""By the names that users know. One scale for a whole tensor (fp8) lies beside the weights and takes nothing here."""

RUNNABLE = ("bfloat16", "float16", "float32")
"""Dtypes that the engine computes attention from today; the others can be planned only."""


def cache_format(name: str, compute_dtype: str) -> CacheFormat:
    """The format called `name`; `auto` is the compute dtype. Raises `ConfigError` for an unknown name."""
    found = FORMATS.get(compute_dtype if name == "auto" else name.lower())
    if found is None:
        raise ConfigError(f"--kv-cache-dtype is {name!r:.60}.", remedy=f"Use one of auto, {', '.join(FORMATS)}.")
    return found


def with_format(specs: Mapping[str, LayerSpec], cache: CacheFormat) -> dict[str, LayerSpec]:
    """`specs` with K and V stored in that format. States stay as they are: they are computed with.

    Raises `ConfigError` for latents in a format that scales heads: a latent has none.
    """
    changed: dict[str, LayerSpec] = {}
    for name, spec in specs.items():
        if isinstance(spec, MLASpec) and cache.scale_bytes:
            raise ConfigError(
                f"--kv-cache-dtype is {cache.quantization}, but {name} keeps one latent per token, without heads.",
                remedy="Use fp8 for this model.",
            )
        if isinstance(spec, MambaSpec):
            changed[name] = spec
        elif isinstance(spec, AttentionSpec):
            changed[name] = msgspec.structs.replace(
                spec, dtype=cache.dtype, scale_bytes=cache.scale_bytes, quantization=cache.quantization
            )
        else:
            changed[name] = msgspec.structs.replace(spec, dtype=cache.dtype, quantization=cache.quantization)
    return changed
