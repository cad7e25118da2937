"""Float32 greedy output of models that keep states equals transformers', however the engine runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from octavo.errors import OctavoError
from octavo.models.call_cache import CallCache
from octavo.models.state_mixer import PagedMixer
from octavo.worker import kv_memory, state_steps
from octavo.worker.state_steps import Run
from tests.parity.reference import greedy
from tests.parity.states import NAMED, OTHERS
from tests.parity.toy import Toy

LENGTHS = (1, 2, 7, 16, 17, 40, 66)
FORKS = (16, 48, 48)
NUM_LONG_OUTPUT_TOKENS = 30

pytestmark = pytest.mark.timeout(600)


def make_toy(name: str, factory: pytest.TempPathFactory, lengths: tuple[int, ...] = LENGTHS) -> Toy:
    config = {"model_type": name} | (NAMED | OTHERS)[name]
    return Toy(factory.mktemp(name), config, lengths=lengths, forks=FORKS)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Gated delta rule and full attention."""
    return make_toy("qwen3_5_text", tmp_path_factory)


def _ways(usual: tuple[int, ...], others: tuple[int, ...]) -> list[Any]:
    marks = dict.fromkeys(usual, pytest.mark.slow) | dict.fromkeys(others, pytest.mark.long)
    return [pytest.param(way, marks=mark) for way, mark in marks.items()]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in NAMED else pytest.mark.long) for name in NAMED | OTHERS],
)
def test_families(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    toy = make_toy(name, tmp_path_factory, (2, 17, 40))
    order = list(range(len(toy.prompts)))
    with toy.llm(max_num_batched_tokens=23, block_size=4) as llm:
        layers = llm.plan.configs[0].groups
        assert any(group.spec.kind == "mamba" for group in layers)
        toy.check(llm, order)
        assert toy.check(llm, order) > 0
    with toy.llm(enable_prefix_caching=False) as llm:
        for index in order:
            toy.check(llm, [index])


@pytest.mark.slow
def test_outputs_are_varied(toy: Toy) -> None:
    distinct = sorted(len(set(reference.token_ids)) for reference in toy.greedy)
    assert distinct[0] > 3
    assert distinct[len(distinct) // 2] > 6


@pytest.mark.parametrize("step_tokens", _ways((7,), (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 13, 17, 31, 200)))
def test_prompts_in_chunks(toy: Toy, step_tokens: int) -> None:
    with toy.llm(max_num_batched_tokens=step_tokens) as llm:
        toy.check(llm, list(range(len(toy.prompts))))


@pytest.mark.parametrize("block_size", _ways((4, 16), (1, 2, 3, 5, 8, 9, 18, 27, 32)))
def test_block_sizes_and_prefix_hits(toy: Toy, block_size: int) -> None:
    with toy.llm(block_size=block_size) as llm:
        order = list(range(len(toy.prompts)))
        toy.check(llm, order)
        assert toy.check(llm, order) > 100


@pytest.mark.parametrize("interval", _ways((), (0, 1, 2)))
def test_states_kept_at_intervals(toy: Toy, interval: int) -> None:
    with toy.llm() as probe:
        size = probe.plan.figures.scheduler_block_size
    with toy.llm(retention_interval=interval * size, max_num_batched_tokens=29) as llm:
        order = list(range(len(toy.prompts)))
        toy.check(llm, order)
        assert toy.check(llm, order) > 100


@pytest.mark.slow
def test_preemption(toy: Toy) -> None:
    order = [index for index, prompt in enumerate(toy.prompts) if 7 <= len(prompt) <= 57]
    references = [greedy(toy.model, toy.prompts[index], NUM_LONG_OUTPUT_TOKENS) for index in order]
    options: dict[str, Any] = {"max_model_len": 128, "block_size": 2, "max_num_batched_tokens": 16}
    another_begins = 3  # blocks, one a group with states: in the smallest pool a second request would not be let in
    with toy.llm(**options, num_blocks_override=toy.smallest_pool(**options) + another_begins) as llm:
        toy.check(llm, order, references=references)
        assert llm.stats().num_preemptions > 0


@pytest.mark.slow
def test_nothing_leaks_from_pages_that_others_left(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """All memory is NaN before it is written; what a finished request leaves is another one's state."""

    def poisoned(size_bytes: int) -> torch.Tensor:
        return torch.full((size_bytes,), -1, dtype=torch.int8)  # every float of it is NaN

    monkeypatch.setattr(kv_memory, "_zeros_on_first_use", poisoned)
    with toy.llm(enable_prefix_caching=False, max_num_seqs=2, max_num_batched_tokens=11) as llm:
        toy.check(llm, list(range(len(toy.prompts))))


def _state_is_not_reset(patch: pytest.MonkeyPatch) -> None:
    """A request begins from whatever its block holds."""
    right = state_steps.runs_of_step

    def planted(*args: Any) -> list[Run]:
        return [run._replace(reads=run.reads or run.writes) for run in right(*args)]

    patch.setattr("octavo.worker.group_steps.runs_of_step", planted)


def _reads_one_block_early(patch: pytest.MonkeyPatch) -> None:
    """At a border the state is sought in the block before."""
    right = state_steps.runs_of_step

    def planted(table: Any, *args: Any) -> list[Run]:
        runs = right(table, *args)
        before = {int(block): int(row[max(0, place - 1)]) for row in table for place, block in enumerate(row)}
        return [run._replace(reads=before[run.reads] or run.reads) if run.reads else run for run in runs]

    patch.setattr("octavo.worker.group_steps.runs_of_step", planted)


def _keeps_the_inputs_of_one_token_less(patch: pytest.MonkeyPatch) -> None:
    right = CallCache.update_conv_state

    def planted(self: CallCache, conv_states: Any, layer_idx: int, state_idx: int = 0, **options: Any) -> Any:
        inputs = right(self, conv_states, layer_idx, state_idx, **options)
        self.convolutions[state_idx] = self.convolutions[state_idx].roll(1, dims=-1)
        return inputs

    patch.setattr(CallCache, "update_conv_state", planted)


def _ignores_the_order_of_runs(patch: pytest.MonkeyPatch) -> None:
    """A step's runs are computed last to first."""
    right = state_steps.batches_of_runs
    patch.setattr("octavo.worker.group_steps.batches_of_runs", lambda runs: right(runs)[::-1])


def _goes_on_with_several_tokens_always(patch: pytest.MonkeyPatch) -> None:
    right = PagedMixer.__init__
    patch.setattr(
        PagedMixer, "__init__", lambda self, mixer, layer, **_: right(self, mixer, layer, continues_runs=True)
    )


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        pytest.param(_state_is_not_reset, "qwen3_5_text", marks=pytest.mark.slow),
        pytest.param(_reads_one_block_early, "qwen3_5_text", marks=pytest.mark.slow),
        pytest.param(_keeps_the_inputs_of_one_token_less, "qwen3_5_text", marks=pytest.mark.slow),
        pytest.param(_ignores_the_order_of_runs, "qwen3_5_text", marks=pytest.mark.slow),
        pytest.param(_goes_on_with_several_tokens_always, "jamba", marks=pytest.mark.long),
    ],
)
def test_a_planted_bug_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None],
    name: str,
    toy: Toy,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = toy if name == "qwen3_5_text" else make_toy(name, tmp_path_factory)
    order = list(range(len(own.prompts)))
    plant(monkeypatch)
    noticed = False
    try:
        with own.llm(max_num_batched_tokens=16, block_size=4) as llm:
            own.check(llm, order)
            own.check(llm, order)
    except (AssertionError, OctavoError):
        noticed = True  # by other tokens, or earlier: when the modules are probed
    assert noticed
