"""Octavo: an LLM inference engine whose heart is its KV cache.

    from octavo import LLM, SamplingParams

    with LLM("demo") as llm:
        outputs = llm.generate("The history of the book", SamplingParams(temperature=0, max_tokens=32))
        print(outputs[0].outputs[0].text)

The names below are loaded when they are first used: `import octavo` alone needs neither torch nor a model.
"""

from __future__ import annotations

import importlib
import typing

from octavo.config import prefer_short_spins

if typing.TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.llm import LLM
    from octavo.planning.library import plan_kv_cache
    from octavo.request import BeamSearchParams, SamplingParams
    from octavo.structured_outputs import StructuredOutputsParams

__version__ = "0.1.0"

_HOMES = {
    "AsyncLLM": "octavo.engine.async_llm",
    "BeamSearchParams": "octavo.request",
    "LLM": "octavo.engine.llm",
    "EngineConfig": "octavo.config",
    "SamplingParams": "octavo.request",
    "StructuredOutputsParams": "octavo.structured_outputs",
    "plan_kv_cache": "octavo.planning.library",
}
"""Public name -> the module that defines it."""

prefer_short_spins()

__all__ = [
    "LLM", "AsyncLLM", "BeamSearchParams", "EngineConfig", "SamplingParams", "StructuredOutputsParams", "__version__",
    "plan_kv_cache",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
