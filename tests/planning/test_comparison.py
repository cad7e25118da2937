from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.planning.comparison import compare
from octavo.planning.library import ask
from tests.formats.published import CONFIGS


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "gemma.json"
    path.write_text(json.dumps(CONFIGS["Gemma-3-27b"]))
    return str(path)


def test_each_combination_is_the_plan_that_it_is_alone(model: str) -> None:
    rows = compare(["tp=1,2", "kv-dtype=auto,fp8"], model, None, {"kv_memory": "12GiB"})
    assert [row.values for row in rows] == [
        {"tp": tp, "kv-dtype": dtype} for tp in ("1", "2") for dtype in ("auto", "fp8")
    ]
    alone = ask(model, kv_memory="12GiB", tensor_parallel_size=2, kv_cache_dtype="fp8")
    assert rows[-1].forecast == alone
    assert all(row.longest == 131072 for row in rows)


def test_models_and_machines_are_compared_too(model: str, tmp_path: Path) -> None:
    other = tmp_path / "llama.json"
    other.write_text(json.dumps(CONFIGS["Llama-3.1-8B"]))
    rows = compare([f"model={model},{other}", "kv-memory=4GiB,32GiB"], "ignored", None, {"gpu": "h200"})
    assert [row.forecast.model.name for row in rows if row.forecast] == ["gemma"] * 2 + ["llama"] * 2
    assert [row.forecast.fits for row in rows if row.forecast] == [False, True, False, True]
    assert 0 < rows[0].longest < 131072


def test_what_cannot_be_planned_is_told_in_its_row(model: str) -> None:
    rows = compare(["tp=2,3"], model, None, {"kv_memory": "12GiB"})
    assert rows[0].refusal == ""
    assert rows[1].forecast is None
    assert "--tensor-parallel-size is 3" in rows[1].refusal


@pytest.mark.parametrize("wrong", ["tp", "tp=", "colour=1,2", "block-size=" + ",".join(map(str, range(1, 300)))])
def test_what_cannot_be_compared_is_refused(model: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match="--compare"):
        compare([wrong], model, None, {})


@pytest.mark.parametrize(("wrong", "named"), [("tp=1,a", "'a'"), ("max-len=auto,4x", "'4x'")])
def test_a_value_that_cannot_be_read_is_refused_before_any_plan(model: str, wrong: str, named: str) -> None:
    with pytest.raises(ConfigError, match=f"{named} is no whole number"):
        compare([wrong], model, None, {"kv_memory": "12GiB"})


@pytest.mark.parametrize(
    "wanted",
    [("tp=1", "tp=2"), ("tp=1", "tensor-parallel-size=2"), ("gpu=h200", "memory=8GiB"), ("kv-memory=1", "gpu=l4")],
)
def test_two_columns_that_set_one_thing_are_refused(model: str, wanted: tuple[str, str]) -> None:
    first, second = (
        {"tensor-parallel-size": "tp"}.get(name, name) for name in (text.partition("=")[0] for text in wanted)
    )
    with pytest.raises(ConfigError, match=rf"--compare is given {first} and {second}, which set one thing"):
        compare(wanted, model, None, {})
