"""Float32 greedy output of a hybrid model does not depend on how the engine runs it, and equals transformers'."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.attention.backend import AttentionLayer, AttentionMetadata
from octavo.attention.numba_cpu import NumbaCPU
from octavo.errors import OctavoError
from tests.parity.reference import greedy
from tests.parity.tiny import HYBRID
from tests.parity.toy import NUM_OUTPUT_TOKENS, Toy

NUM_LONG_OUTPUT_TOKENS = 90
LENGTHS = (1, 2, 7, 11, 12, 13, 25, 40, 64, 90, 131)
"""Below, at and past the window of 11 tokens, on and off block borders."""
FORKS = (16, 48, 48, 80)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("hybrid"), HYBRID, lengths=LENGTHS, forks=FORKS)


def test_outputs_are_varied(tiny: Toy) -> None:
    distinct = sorted(len(set(reference.token_ids)) for reference in tiny.greedy)
    assert distinct[0] > 3
    assert distinct[len(distinct) // 2] > NUM_OUTPUT_TOKENS // 2


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 13, 16, 31, 64, 200])
def test_chunk_sizes(tiny: Toy, chunk: int) -> None:
    with tiny.llm(max_num_batched_tokens=chunk) as llm:
        tiny.check(llm, list(range(len(tiny.prompts))))


@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 16, 32, 64, 128])
def test_block_sizes(tiny: Toy, block_size: int) -> None:
    with tiny.llm(block_size=block_size) as llm:
        order = list(range(len(tiny.prompts)))
        tiny.check(llm, order)
        tiny.check(llm, order)


def test_alone(tiny: Toy) -> None:
    with tiny.llm(enable_prefix_caching=False) as llm:
        for index in range(len(tiny.prompts)):
            tiny.check(llm, [index])


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    batch=st.sampled_from([1, 4, 9, 30, 2048]),
    num_seqs=st.integers(1, 20),
    block_size=st.sampled_from([1, 4, 5, 16, 27]),
    caching=st.booleans(),
    extra_blocks=st.integers(0, 40),
)
def test_any_schedule(
    tiny: Toy, seed: int, batch: int, num_seqs: int, block_size: int, caching: bool, extra_blocks: int
) -> None:
    """Any order, budget, block size and pool, down to one that holds a single request at a time."""
    options: dict[str, Any] = {
        "max_num_batched_tokens": batch,
        "max_num_seqs": num_seqs,
        "block_size": block_size,
        "enable_prefix_caching": caching,
        "max_model_len": 160,
    }
    smallest = tiny.smallest_pool(**options)
    order = random.Random(seed).choices(range(len(tiny.prompts)), k=20)
    with tiny.llm(**options, num_blocks_override=smallest + extra_blocks) as llm:
        tiny.check(llm, order)
        tiny.check(llm, order)


def test_preemption(tiny: Toy) -> None:
    """Long outputs in a pool that holds little more than one request of the greatest length."""
    order = [index for index, prompt in enumerate(tiny.prompts) if 11 <= len(prompt) <= 64]
    references = [greedy(tiny.model, tiny.prompts[index], NUM_LONG_OUTPUT_TOKENS) for index in order]
    options: dict[str, Any] = {"max_model_len": 160, "block_size": 2, "max_num_batched_tokens": 16}
    smallest = tiny.smallest_pool(**options)
    with tiny.llm(**options, num_blocks_override=smallest) as llm:
        tiny.check(llm, order * 3, references=references * 3)
        assert llm.stats().num_preemptions > 0


def wide_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every windowed layer sees one token too many."""
    original = AttentionLayer.__init__

    def planted(self: AttentionLayer, name: str, **fields: Any) -> None:
        window = fields.get("window")
        original(self, name, **(fields | {"window": window + 1 if window else window}))

    monkeypatch.setattr(AttentionLayer, "__init__", planted)


def shifted_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token is written one slot too early."""
    original = NumbaCPU.write

    def planted(self: NumbaCPU, cache: Any, key: Any, value: Any, metadata: AttentionMetadata) -> None:
        slots = (metadata.slot_mapping - 1).clamp(min=-1)
        original(self, cache, key, value, dataclasses.replace(metadata, slot_mapping=slots))

    monkeypatch.setattr(NumbaCPU, "write", planted)


@pytest.mark.parametrize("plant", [wide_window, shifted_slots])
def test_a_planted_bug_is_noticed(
    tiny: Toy, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    order = list(range(len(tiny.prompts)))
    with tiny.llm() as llm:
        tiny.check(llm, order)
    plant(monkeypatch)
    noticed = False
    try:
        with tiny.llm() as llm:
            tiny.check(llm, order)
    except (AssertionError, OctavoError):
        noticed = True  # by other tokens, or earlier: when the loaded model is compared with the config
    assert noticed
