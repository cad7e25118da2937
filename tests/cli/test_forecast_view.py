"""The answer for people: every figure is there, and lines stay within a terminal's width."""

from __future__ import annotations

from octavo.cli.forecast_view import forecast_text
from octavo.planning.devices import known_devices
from octavo.planning.forecast import forecast
from octavo.planning.inquiry import Inquiry
from octavo.planning.machine import Machine
from octavo.planning.remedies import find_remedies
from tests.planning.build import GIB, inquiry, planned, subject


def test_a_plan_that_fits() -> None:
    asked = planned("Gemma-3-27b", 24 * GIB, max_model_len=131072, lengths=(8192,))
    text = forecast_text(asked)
    for told in (
        "62 layers, cached: 52 window 1,024, 10 full", "24.00 GiB", "436,207,616 + 81,920 * L", "10.41 GiB",
        "26-30", "shortest reusable prefix  16 tokens", "7 groups of up to 10 layers", "193.0 MiB of it padding",
        f"{asked.plan.figures.num_blocks:,} blocks", f"{asked.plan.figures.capacity_tokens:,} tokens",
    ):  # fmt: skip
        assert told in text, told
    assert "DOES NOT FIT" not in text
    rows = [line.split() for line in text.splitlines()]
    assert any(row[:2] == ["8,192", f"{asked.concurrency(8192):.2f}"] for row in rows)


def test_a_plan_that_does_not_fit_says_what_would() -> None:
    about = subject("Gemma-3-27b")
    asked = forecast(about, inquiry(4 * GIB, max_model_len=131072))
    remedies = find_remedies(about, asked)
    text = forecast_text(asked, remedies)
    assert "DOES NOT FIT" in text
    assert "Holds" not in text
    for number, remedy in enumerate(remedies, 1):
        assert f"{number}. {remedy.flags}: {remedy.effect}" in text
    assert f"--kv-memory {asked.refusal.numbers['smallest_budget_bytes']}" in text


def test_the_budget_equation_of_every_rank_is_shown_once() -> None:
    machine = Machine(device=known_devices()["h200"], num_devices=8, weight_bytes=141 * 10**9)
    text = forecast_text(forecast(subject("Llama-3.1-70B"), Inquiry(machine=machine)))
    assert "0-7" in text
    assert "140.4 GiB" in text
    assert "runtime (estimate)" in text
    assert "141 GB, 4.8 TB/s" in text


def test_uneven_ranks_are_told_apart() -> None:
    text = forecast_text(planned("Llama-3.1-8B", (GIB, 2 * GIB), pipeline_parallel_size=2, max_model_len=512))
    assert "rank 0: 1.00 GiB, rank 1: 2.00 GiB" in text


def test_a_model_that_caches_nothing_has_a_plan_too() -> None:
    config = {**subject("Llama-3.1-8B").config, "num_hidden_layers": 1}
    assert "Plan:" in forecast_text(planned(config, max_model_len=64))
