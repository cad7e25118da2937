from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import octavo
from octavo.errors import CacheTooSmallError, ConfigError
from octavo.planning.library import ask, inquiry_from
from tests.formats.published import CONFIGS
from tests.planning.build import GIB


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["Gemma-3-27b"]))
    return path


def test_a_program_gets_the_frozen_plan(model: Path) -> None:
    plan = octavo.plan_kv_cache(model, kv_memory="24GiB", max_model_len=32768)
    assert plan.figures.num_blocks == plan.configs[0].num_blocks
    assert plan == ask(model, kv_memory=24 * GIB, max_model_len=32768).plan
    with pytest.raises(AttributeError):
        plan.figures = None  # type: ignore[misc,assignment]
    assert msgspec.json.decode(msgspec.json.encode(plan))["figures"]["num_blocks"] == plan.figures.num_blocks


def test_what_does_not_fit_is_raised_with_its_numbers(model: Path) -> None:
    with pytest.raises(CacheTooSmallError) as caught:
        octavo.plan_kv_cache(model, kv_memory="4GiB", max_model_len=131072)
    least = caught.value.numbers["smallest_budget_bytes"]
    assert octavo.plan_kv_cache(model, kv_memory=least, max_model_len=131072).figures.max_concurrency >= 1


def test_sizes_are_numbers_texts_and_lists() -> None:
    for value, expected in ((5, (5,)), ("1KiB", (1024,)), ("1KiB,2KiB", (1024, 2048)), ([1, "2KB"], (1, 2000))):
        assert inquiry_from({"kv_memory": value}).machine.kv_memory_bytes == expected


def test_the_names_of_vllm_work() -> None:
    asked = inquiry_from({"kv_cache_memory_bytes": 5, "gpu_memory_utilization": 0.5, "num_gpu_blocks_override": 7})
    assert (asked.machine.kv_memory_bytes, asked.machine.memory_utilization, asked.num_blocks_override) == (
        (5,),
        0.5,
        7,
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kv_mem": 5}, "Did you mean kv_memory"),
        ({"kv_memory": 5, "kv_cache_memory_bytes": 6}, "given twice"),
        ({"kv_memory": "5 apples"}, "not a size"),
        ({"devices": "x.json"}, "none is chosen"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        inquiry_from(options)
