from __future__ import annotations

from octavo.planning.machine import BASE_BYTES, rank_budget, runtime_bytes
from tests.planning.build import GIB, subject


def test_the_equation_adds_up_to_the_byte() -> None:
    budget = rank_budget(80 * GIB, 0.92, 16 * GIB, 3 * GIB)
    assert budget.usable_bytes == int(80 * GIB * 0.92)
    assert budget.kv_bytes == budget.usable_bytes - 19 * GIB
    assert budget.missing_bytes == 0


def test_what_is_missing_is_told_where_weights_are_too_large() -> None:
    budget = rank_budget(24 * GIB, 0.5, 50 * GIB, GIB)
    assert (budget.kv_bytes, budget.missing_bytes) == (0, 39 * GIB)


def test_the_estimate_follows_its_formula() -> None:
    model = subject("Llama-3.1-8B").model
    found = runtime_bytes(model, "bfloat16", num_tokens=2048, num_seqs=128, tensor_parallel_size=2)
    assert found == BASE_BYTES + 2048 * 4096 * 8 * 2 + 128 * 128256 * 8
