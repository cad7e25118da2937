"""Float32 greedy output of each attention kind equals transformers', however the engine runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from octavo.attention.backend import AttentionLayer, KVCacheView
from octavo.attention.numba_cpu import NumbaCPU
from octavo.errors import OctavoError
from octavo.models.position_cache import PositionCache
from tests.parity.reference import greedy
from tests.parity.tiny import ALIBI, CHUNKED, LATENT
from tests.parity.toy import Toy

KINDS: dict[str, dict[str, Any]] = {"chunked": CHUNKED, "alibi": ALIBI, "latent": LATENT}
LENGTHS = (1, 2, 8, 9, 10, 17, 18, 19, 33, 70)
"""Below, at and past the chunk of 9 tokens, and the multiples of it."""
FORKS = (16, 36, 36)
NUM_LONG_OUTPUT_TOKENS = 40

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=KINDS)
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp(request.param), KINDS[request.param], lengths=LENGTHS, forks=FORKS)


def _ways(usual: tuple[int, ...], others: tuple[int, ...]) -> list[Any]:
    marks = dict.fromkeys(usual, pytest.mark.slow) | dict.fromkeys(others, pytest.mark.long)
    return [pytest.param(way, marks=mark) for way, mark in marks.items()]


@pytest.mark.slow
def test_outputs_are_varied(toy: Toy) -> None:
    distinct = sorted(len(set(reference.token_ids)) for reference in toy.greedy)
    assert distinct[0] > 3
    assert distinct[len(distinct) // 2] > 6


@pytest.mark.parametrize("step_tokens", _ways((1, 7), (2, 3, 4, 5, 6, 8, 9, 10, 11, 13, 17, 31, 200)))
def test_prompts_in_chunks(toy: Toy, step_tokens: int) -> None:
    with toy.llm(max_num_batched_tokens=step_tokens) as llm:
        toy.check(llm, list(range(len(toy.prompts))))


@pytest.mark.parametrize("block_size", _ways((1, 4, 16), (2, 3, 5, 8, 9, 18, 27, 32)))
def test_block_sizes_and_prefix_hits(toy: Toy, block_size: int) -> None:
    with toy.llm(block_size=block_size) as llm:
        order = list(range(len(toy.prompts)))
        toy.check(llm, order)
        assert toy.check(llm, order) > 100


@pytest.mark.slow
def test_alone(toy: Toy) -> None:
    with toy.llm(enable_prefix_caching=False) as llm:
        for index in range(len(toy.prompts)):
            toy.check(llm, [index])


@pytest.mark.slow
def test_preemption(toy: Toy) -> None:
    order = [index for index, prompt in enumerate(toy.prompts) if 17 <= len(prompt) <= 33]
    references = [greedy(toy.model, toy.prompts[index], NUM_LONG_OUTPUT_TOKENS) for index in order]
    options: dict[str, Any] = {"max_model_len": 80, "block_size": 2, "max_num_batched_tokens": 16}
    with toy.llm(**options, num_blocks_override=toy.smallest_pool(**options)) as llm:
        toy.check(llm, order * 2, references=references * 2)
        assert llm.stats().num_preemptions > 0


def _is_noticed(toy: Toy) -> bool:
    """By other tokens, or earlier: when the model is examined."""
    try:
        with toy.llm(max_num_batched_tokens=7) as llm:
            toy.check(llm, list(range(len(toy.prompts))))
    except (AssertionError, OctavoError):
        return True
    return False


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("chunked"), CHUNKED, lengths=LENGTHS, forks=FORKS)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_chunk_off_by_one_is_noticed(chunked: Toy, monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    original = AttentionLayer.__init__

    def planted(self: AttentionLayer, name: str, **fields: Any) -> None:
        chunk = fields.get("chunk")
        original(self, name, **(fields | {"chunk": chunk + wrong if chunk else chunk}))

    assert not _is_noticed(chunked)
    monkeypatch.setattr(AttentionLayer, "__init__", planted)
    assert _is_noticed(chunked)


@pytest.mark.slow
def test_positions_counted_from_the_start_of_a_step_are_noticed(chunked: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PositionCache, "at", staticmethod(lambda positions: PositionCache(0)))
    assert _is_noticed(chunked)


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("latent"), LATENT, lengths=LENGTHS, forks=FORKS)


def late_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """V begins one element late in its latent."""
    original = NumbaCPU.attend

    def planted(self: NumbaCPU, layer: Any, cache: KVCacheView, query: Any, metadata: Any) -> Any:
        shifted = cache.key[..., 1 : 1 + cache.value.shape[3]]
        return original(self, layer, KVCacheView(cache.key, shifted), query, metadata)

    monkeypatch.setattr(NumbaCPU, "attend", planted)


def early_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every latent is written one slot too early."""
    original = NumbaCPU.write

    def planted(self: NumbaCPU, cache: KVCacheView, key: Any, value: Any, metadata: Any) -> None:
        slots = (metadata.slot_mapping - 1).clamp(min=-1)
        original(self, cache, key, value, dataclasses.replace(metadata, slot_mapping=slots))

    monkeypatch.setattr(NumbaCPU, "write", planted)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [late_values, early_slots])
def test_a_latent_off_by_one_is_noticed(
    latent: Toy, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    assert not _is_noticed(latent)
    plant(monkeypatch)
    assert _is_noticed(latent)
