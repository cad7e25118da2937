"""What each group of layers has of the cache, as Prometheus series."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge

from octavo.kv.specs import KVCacheGroupSpec
from octavo.messages import CacheFigures

LABELS = ("model_name", "engine", "group", "kind")
"""`group` is the group's number in the plan, `kind` how its layers attend."""


class GroupSeries:
    """Owns: the series of every core's groups."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._model_name = model_name
        self._kinds: dict[int, list[str]] = {}
        """By core: the kind of each of its groups."""
        self._sizes: dict[int, int] = {}
        """By core: its usable blocks."""

        def make(name: str, text: str) -> Gauge:
            return Gauge(f"octavo:kv_cache_group_{name}", text, LABELS, registry=registry)

        self._used = make("used_blocks", "Blocks that requests hold in this group.")
        self._cached = make("cached_blocks", "Unused blocks of this group with content worth keeping.")
        self._usage = make("usage_perc", "Share of all blocks that requests hold in this group, 0 to 1.")

    def start(self, groups: Sequence[KVCacheGroupSpec], num_usable: int, engine: int) -> None:
        """A core is ready; its groups hold nothing."""
        self._kinds[engine] = [group.spec.kind for group in groups]
        self._sizes[engine] = num_usable
        nothing = [0] * len(groups)
        self.show(CacheFigures(used_blocks=nothing, cached_blocks=nothing), engine)

    def show(self, figures: CacheFigures, engine: int) -> None:
        """What the groups of a core have; nothing of a core that is not known."""
        rows = zip(self._kinds.get(engine, ()), figures.used_blocks, figures.cached_blocks, strict=False)
        for group, (kind, used, cached) in enumerate(rows):
            labels = (self._model_name, str(engine), str(group), kind)
            self._used.labels(*labels).set(used)
            self._cached.labels(*labels).set(cached)
            self._usage.labels(*labels).set(used / max(1, self._sizes[engine]))
