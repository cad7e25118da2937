"""Groups, layers and pages in words."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.config import format_bytes
from octavo.kv.specs import KVCacheGroupSpec, LayerSpec


def attention_text(spec: LayerSpec) -> str:
    """`full`, `window 1,024` and so on."""
    names = {"sliding_window": "window", "chunked_local": "chunk"}
    width = getattr(spec, "window", None) or getattr(spec, "chunk", None)
    return names.get(spec.kind, spec.kind) + (f" {width:,}" if width else "")


def page_text(group: KVCacheGroupSpec) -> str:
    """The size of the group's pages, or their sizes."""
    sizes = {spec.page_bytes for spec in group.layer_specs or (group.spec,)}
    return " / ".join(format_bytes(size) for size in sorted(sizes))


def layer_numbers(layer_names: Iterable[str]) -> str:
    """`layers.0`, `layers.1`, `layers.2`, `layers.5` -> `0-2 5`."""
    numbers = [name.rpartition(".")[2] for name in layer_names]
    if not all(number.isdigit() for number in numbers):
        return " ".join(numbers)
    spans: list[list[int]] = []
    for number in map(int, numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    texts = ["-".join(map(str, span)) for span in spans]
    return " ".join(texts if len(texts) <= 4 else [*texts[:2], "...", texts[-1]])
