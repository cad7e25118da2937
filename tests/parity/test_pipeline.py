"""Float32 greedy output of a pipeline of stages equals transformers', however the engine runs it."""

from __future__ import annotations

from typing import Any

import pytest

from octavo import SamplingParams
from octavo.attention.numba_cpu import NumbaCPU
from tests.parity.reference import greedy
from tests.parity.staged import StagedExecutor
from tests.parity.tiny import HYBRID
from tests.parity.toy import Toy

LENGTHS = (1, 2, 8, 10, 17, 19, 33, 70)
FORKS = (16, 36, 36)
EXECUTOR = f"{StagedExecutor.__module__}:{StagedExecutor.__name__}"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("hybrid"), HYBRID, lengths=LENGTHS, forks=FORKS)


def staged(num_stages: int, **options: Any) -> dict[str, Any]:
    return {"pipeline_parallel_size": num_stages, "distributed_executor_backend": EXECUTOR} | options


@pytest.mark.parametrize(
    "num_stages", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_prompts_in_chunks_and_prefix_hits(toy: Toy, num_stages: int) -> None:
    order = list(range(len(toy.prompts)))
    with toy.llm(**staged(num_stages), max_num_batched_tokens=37, block_size=4) as llm:
        assert len(StagedExecutor.last.workers) == num_stages
        toy.check(llm, order)
        assert toy.check(llm, order) > 100
        assert llm.plan.configs[0].num_blocks == llm.plan.configs[-1].num_blocks


@pytest.mark.slow
@pytest.mark.parametrize("layers", [(1, 4), (4, 1), (2, 3)])
def test_uneven_stages(toy: Toy, layers: tuple[int, int]) -> None:
    with toy.llm(**staged(2, pipeline_layers=layers)) as llm:
        assert [len(worker.get_kv_cache_specs()) for worker in StagedExecutor.last.workers] == list(layers)
        toy.check(llm, list(range(len(toy.prompts))))


@pytest.mark.slow
def test_preemption(toy: Toy) -> None:
    order = [index for index, prompt in enumerate(toy.prompts) if 17 <= len(prompt) <= 33]
    references = [greedy(toy.model, toy.prompts[index], 40) for index in order]
    options: dict[str, Any] = {"max_model_len": 80, "block_size": 2, "max_num_batched_tokens": 16}
    options = staged(2, **options)
    with toy.llm(**options, num_blocks_override=toy.smallest_pool(**options)) as llm:
        toy.check(llm, order * 2, references=references * 2)
        assert llm.stats().num_preemptions > 0


def test_samples_forks_and_log_probabilities_are_those_of_one_rank(toy: Toy) -> None:
    sampling = SamplingParams(
        temperature=1.0, seed=3, n=3, top_k=40, max_tokens=8, ignore_eos=True, logprobs=2, prompt_logprobs=1,
        presence_penalty=0.5,
    )  # fmt: skip
    prompts = [{"prompt_token_ids": prompt} for prompt in toy.prompts[3:8]]
    found = []
    for options in ({}, staged(2)):
        with toy.llm(**options, max_num_batched_tokens=50, block_size=4) as llm:
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            found.append(
                [
                    (output.prompt_logprobs, [(each.token_ids, each.logprobs) for each in output.outputs])
                    for output in outputs
                ]
            )
    assert found[0] == found[1]
    assert len({tuple(token_ids) for token_ids, _ in found[0][0][1]}) > 1


def test_few_tokens_are_one_program_in_every_stage(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    with toy.llm(**staged(3)) as llm:
        toy.check(llm, [0, 1])
        # A layer's own forward would call the kernel: none of these steps of two tokens does.
        calls: list[str] = []
        original = NumbaCPU.attend
        monkeypatch.setattr(
            NumbaCPU, "attend", lambda self, layer, *args: calls.append(layer.name) or original(self, layer, *args)
        )
        prompts = [{"prompt_token_ids": [7]}, {"prompt_token_ids": [9]}]
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), use_tqdm=False)
        assert calls == []


def test_tokens_in_flight_are_those_of_as_many_steps_as_stages(toy: Toy) -> None:
    """The plan holds what overlapping steps would need, though steps are synchronous."""
    for num_stages in (1, 2):
        with toy.llm(**staged(num_stages), max_num_batched_tokens=37, max_chunk_tokens=16) as llm:
            assert llm.plan.configs[0].max_chunk_tokens == 16
