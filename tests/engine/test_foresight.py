"""A cache that is too small is refused before weights are read; nothing is refused that would have run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.llm import LLM
from octavo.errors import AutoFitError, BlocksOverrideError, ConfigError, NoCacheMemoryError, PlanError
from octavo.messages import StageReport
from tests.parity.tiny import HYBRID, build_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    build_model(path, HYBRID)
    return path


def _stages_until(folder: Path, kind: type[Exception], **options: Any) -> tuple[list[str], str]:
    """Names of the stages that ran before `kind` was raised, and its message."""
    told: list[StageReport] = []
    with pytest.raises(kind) as refused:
        LLM(str(folder), device="cpu", dtype="float32", on_stage=told.append, **options)
    return [report.name for report in told], str(refused.value)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"kv_memory": "64KiB"}, PlanError),
        ({"kv_memory": "1KiB"}, NoCacheMemoryError),
        ({"kv_memory": "1KiB", "max_model_len": -1}, AutoFitError),
        ({"kv_memory": "1MiB", "num_blocks_override": 100_000}, BlocksOverrideError),
        ({"kv_memory": "500TiB"}, ConfigError),
        ({"kv_cache_dtype": "int8"}, ConfigError),
        ({"max_model_len": 1000}, ConfigError),
    ],
)
def test_no_weight_is_read_for_what_cannot_be(folder: Path, options: dict[str, Any], kind: type[Exception]) -> None:
    stages, _ = _stages_until(folder, kind, **options)
    assert "read_config" in stages
    assert "load_model" not in stages
    assert "start_executor" not in stages


def test_the_budget_that_is_named_is_the_least_that_runs(folder: Path) -> None:
    _, message = _stages_until(folder, PlanError, kv_memory="64KiB")
    match = re.search(r"raise --kv-memory to (\d+)", message)
    assert match is not None
    with LLM(str(folder), device="cpu", dtype="float32", kv_memory=int(match[1])) as llm:
        assert llm.plan.figures.max_concurrency >= 1
    _stages_until(folder, PlanError, kv_memory=int(match[1]) - 1)
