"""Series of groups: one a core and group, and none of a core that is not known."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from octavo.kv.specs import KVCacheGroupSpec
from octavo.messages import CacheFigures
from octavo.observe.group_series import GroupSeries
from tests.cache.build import full, window

GROUPS = [
    KVCacheGroupSpec(layer_names=("layers.0",), spec=full()),
    KVCacheGroupSpec(layer_names=("layers.1",), spec=window(8)),
]


def test_each_group_of_each_core_has_its_own_series() -> None:
    registry = CollectorRegistry()
    series = GroupSeries(registry, "m")

    def value(name: str, engine: int, group: int, kind: str) -> float | None:
        labels = {"model_name": "m", "engine": str(engine), "group": str(group), "kind": kind}
        return registry.get_sample_value(f"octavo:kv_cache_group_{name}", labels)

    kinds = [group.spec.kind for group in GROUPS]
    series.start(GROUPS, 40, engine=0)
    series.start(GROUPS, 40, engine=1)
    series.show(CacheFigures(used_blocks=[10, 4], cached_blocks=[0, 9]), engine=1)
    series.show(CacheFigures(used_blocks=[1, 1], cached_blocks=[1, 1]), engine=2)
    assert [value("used_blocks", 0, group, kinds[group]) for group in range(2)] == [0, 0]
    assert [value("used_blocks", 1, group, kinds[group]) for group in range(2)] == [10, 4]
    assert [value("cached_blocks", 1, group, kinds[group]) for group in range(2)] == [0, 9]
    assert [value("usage_perc", 1, group, kinds[group]) for group in range(2)] == [0.25, 0.1]
    assert value("used_blocks", 2, 0, kinds[0]) is None
    series.start(GROUPS, 40, engine=1)
    assert value("used_blocks", 1, 0, kinds[0]) == 0
