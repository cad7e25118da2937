from __future__ import annotations

import re

import pytest

from octavo.errors import CacheTooSmallError, NoCacheMemoryError
from octavo.kv.budget import Budget, Reservation
from octavo.kv.grouping import Stages, foldings
from octavo.kv.refusal import Question, refuse_fit, refuse_length, refuse_override
from octavo.kv.specs import FullAttentionSpec, LayerSpec, SlidingWindowSpec

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
PAGE = 8192
KIB = 1024


def question(*available: int, length: int = 4096, override: int | None = None, by_rank: bool = False) -> Question:
    """One layer a rank."""
    stages: list[dict[str, LayerSpec]] = [{f"layers.{rank}": FULL} for rank in range(len(available))]
    layers = {name: spec for specs in stages for name, spec in specs.items()}
    found = Stages.of(stages)
    return Question(
        folds=foldings(layers, found, hybrid=True, reference=True),
        budget=Budget(available, found.of_rank, override),
        reservation=Reservation(exact=True, chunk_tokens=64, in_flight_tokens=64),
        max_model_len=length,
        by_rank=by_rank,
    )


def test_a_cache_too_small_says_where_the_memory_went_and_what_would_do() -> None:
    error = refuse_length(question(100 * PAGE + 4 * KIB))
    assert isinstance(error, CacheTooSmallError)
    assert str(error) == (
        "One request of 4096 tokens needs 2,105,344 bytes (2.01 MiB: 256 blocks and the null block, 8,192 bytes each), "
        "but the KV cache has 823,296 bytes (804.0 KiB): 811,008 bytes in 99 usable blocks, 8,192 bytes for the null "
        "block, 4,096 bytes left over. "
        "Lower --max-model-len to 1584, or raise --kv-memory to 2105344 (2.01 MiB)."
    )
    numbers = error.numbers
    parts = ("usable_bytes", "null_block_bytes", "unused_bytes")
    assert sum(numbers[part] for part in parts) == numbers["available_bytes"] == 100 * PAGE + 4 * KIB
    assert numbers["needed_bytes"] == 256 * PAGE
    assert numbers["smallest_budget_bytes"] == 257 * PAGE
    assert numbers["estimated_max_model_len"] == 99 * 16


def test_the_rank_that_lacks_memory_is_named() -> None:
    poor = refuse_length(question(300 * PAGE, 20 * PAGE, 10 * PAGE))
    assert "but rank 2 has 81,920 bytes (80.00 KiB)" in str(poor)
    assert poor.numbers["estimated_max_model_len"] == 9 * 16
    first = refuse_length(question(300 * PAGE, 20 * PAGE, 10 * PAGE, by_rank=True))
    assert "but rank 1 has 163,840 bytes (160.0 KiB)" in str(first)
    # The reference's estimate is that of the rank it names; the remedy heeds the poorest one.
    assert first.numbers["estimated_max_model_len"] == 19 * 16
    assert "Lower --max-model-len to 144," in str(first)


def test_no_usable_block_is_a_case_of_its_own() -> None:
    error = refuse_length(question(PAGE + 100))
    assert isinstance(error, NoCacheMemoryError)
    assert str(error) == (
        "One request of 4096 tokens needs 2,105,344 bytes (2.01 MiB: 256 blocks and the null block, 8,192 bytes each), "
        "but the KV cache has 8,292 bytes (8.10 KiB): not one usable block beside the null block, so that no length "
        "fits. Raise --kv-memory to 2105344 (2.01 MiB)."
    )
    assert isinstance(refuse_length(question(0)), NoCacheMemoryError)
    # The reference calls it so only where nothing at all is left.
    assert isinstance(refuse_length(question(PAGE, by_rank=True)), NoCacheMemoryError)
    small = refuse_length(question(PAGE + 100, by_rank=True))
    assert isinstance(small, CacheTooSmallError)
    assert "Lower" not in str(small)


def test_nothing_to_fit() -> None:
    error = refuse_fit(question(PAGE))
    assert str(error) == (
        "No max_model_len fits: one token needs 16,384 bytes (16.00 KiB: 1 block and the null block, 8,192 bytes "
        "each), but the KV cache has 8,192 bytes (8.00 KiB). Raise --kv-memory to 16384 (16.00 KiB)."
    )
    assert error.numbers["smallest_budget_bytes"] == 2 * PAGE


def test_an_override_above_the_budget() -> None:
    asked = question(300 * PAGE, override=301)
    error = refuse_override(asked, asked.folds[0])
    assert str(error) == (
        "--num-blocks-override 301 needs 2,465,792 bytes (2.35 MiB: 301 blocks of 8,192 bytes), but the KV cache has "
        "2,457,600 bytes (2.34 MiB). "
        "Lower --num-blocks-override to 300, or raise --kv-memory to 2465792 (2.35 MiB)."
    )
    useless = question(100 * PAGE, override=301)
    assert str(refuse_override(useless, useless.folds[0])).endswith(
        "has 819,200 bytes (800.0 KiB). Raise --kv-memory to 2465792 (2.35 MiB)."
    )


def test_an_override_too_small_for_a_request() -> None:
    error = refuse_length(question(300 * PAGE, override=100))
    assert (
        "but --num-blocks-override 100 is 819,200 bytes (800.0 KiB): 811,008 bytes in 99 usable blocks, 8,192 bytes "
        "for the null block. Lower"
    ) in str(error)
    assert str(error).endswith(
        "Lower --max-model-len to 1584, or raise --num-blocks-override to 257, "
        "which takes --kv-memory of at least 2105344 (2.01 MiB)."
    )


@pytest.mark.parametrize("missing", [1, 100, PAGE - 1, PAGE, PAGE + 1])
def test_the_need_that_is_printed_exceeds_what_is_there(missing: int) -> None:
    """Also where both round to the same size."""
    length = 2852 * 16
    error = str(refuse_length(question(2853 * PAGE - missing, length=length)))
    found = re.search(
        r"needs ([0-9,]+) bytes .* has ([0-9,]+) bytes .*: ([0-9,]+) bytes in [^,]*, ([0-9,]+) bytes", error
    )
    assert found is not None
    needed, available, usable, null_block = (int(text.replace(",", "")) for text in found.groups())
    assert needed - available == missing
    left_over = re.search(r"([0-9,]+) bytes left over", error)
    unused = int(left_over[1].replace(",", "")) if left_over else 0
    assert usable + null_block + unused == available
    assert bool(left_over) == (missing % PAGE != 0)


def test_where_no_length_fits_the_usable_blocks_it_says_so() -> None:
    """A block for each of five layers: their windows differ, so that none shares a table with another."""
    layers: dict[str, LayerSpec] = {
        f"layers.{index}": SlidingWindowSpec(
            block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", window=16 * (index + 1)
        )
        for index in range(5)
    }
    found = Stages.of([layers])
    asked = question(300 * PAGE, override=5)._replace(
        folds=foldings(layers, found, hybrid=True, reference=False), budget=Budget((300 * PAGE,), found.of_rank, 5)
    )
    error = str(refuse_length(asked))
    assert "no length fits in 4 usable blocks" in error
    assert "Lower --max-model-len" not in error
    assert "left over" not in error
