"""The process of the real core, with a toy model; tests/engine/test_process_client.py has what needs no model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.errors import CacheTooSmallError
from tests.parity.tiny import HYBRID, build_model

SLOW = pytest.mark.slow

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPT = " ".join(f"w{3 + 7 * index % 300}" for index in range(60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    build_model(folder, HYBRID)
    return folder


@SLOW
def test_tokens_are_those_of_the_engine_in_this_process(folder: Path) -> None:
    from octavo import LLM

    with LLM(str(folder), dtype="float32", kv_memory="4MiB") as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate([PROMPT, "w3 w4"], GREEDY)]

    async def main() -> None:
        async with AsyncLLM(str(folder), dtype="float32", kv_memory="4MiB") as llm:
            first, second = await asyncio.gather(*(_last(llm, prompt) for prompt in (PROMPT, "w3 w4")))
            assert [first[0], second[0]] == expected
            assert first[1] == 0
            assert (await _last(llm, PROMPT))[1] > 0, "the prefix cache was hit"

    async def _last(llm: AsyncLLM, prompt: str) -> tuple[list[int], int]:
        last = None
        async for output in llm.generate(prompt, GREEDY):
            last = output
        assert last is not None
        return last.outputs[0].token_ids, last.num_cached_tokens

    asyncio.run(main())


@SLOW
def test_two_replicas_give_the_tokens_of_one_and_share_no_memory(folder: Path) -> None:
    from octavo import LLM
    from octavo.request import BeamSearchParams

    prompts = [PROMPT, "w3 w4", PROMPT + " w5", *(f"w{number} w8 w9" for number in range(20, 30))]
    beams = BeamSearchParams(beam_width=3, max_tokens=6)
    answers = []
    for num_replicas in (1, 2):
        with LLM(str(folder), dtype="float32", kv_memory="2MiB", data_parallel_size=num_replicas) as llm:
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
            found = llm.beam_search([PROMPT, "w3 w4"], beams)
            answers.append(
                (
                    [output.outputs[0].token_ids for output in outputs],
                    [[sequence.tokens for sequence in each.sequences] for each in found],
                )
            )
            again = llm.generate([PROMPT], GREEDY, use_tqdm=False)
            assert again[0].num_cached_tokens > 0
    assert answers[0] == answers[1]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_replicas_of_stages_of_divided_layers_give_the_tokens_of_one_rank(folder: Path) -> None:
    from octavo import LLM

    prompts = [PROMPT, "w3 w4", *(f"w{number} w8 w9" for number in range(20, 26))]
    answers = []
    for split in ({}, {"data_parallel_size": 2, "pipeline_parallel_size": 2, "tensor_parallel_size": 2}):
        with LLM(str(folder), dtype="float32", kv_memory="1MiB", **split) as llm:
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
            answers.append([output.outputs[0].token_ids for output in outputs])
            assert len(llm.plan.configs) == (4 if split else 1)
    assert answers[0] == answers[1]


@SLOW
def test_a_cache_that_is_too_small_is_refused_by_its_own_error(folder: Path) -> None:
    async def main() -> None:
        await AsyncLLM(str(folder), dtype="float32", kv_memory="20KiB").start()

    with pytest.raises(CacheTooSmallError, match="--kv-memory"):
        asyncio.run(main())
