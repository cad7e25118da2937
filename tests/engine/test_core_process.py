"""The process of the real core, with a toy model; tests/engine/test_process_client.py has what needs no model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.errors import CacheTooSmallError
from tests.parity.tiny import HYBRID, build_model

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPT = " ".join(f"w{3 + 7 * index % 300}" for index in range(60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    build_model(folder, HYBRID)
    return folder


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


def test_a_cache_that_is_too_small_is_refused_by_its_own_error(folder: Path) -> None:
    async def main() -> None:
        await AsyncLLM(str(folder), dtype="float32", kv_memory="20KiB").start()

    with pytest.raises(CacheTooSmallError, match="--kv-memory"):
        asyncio.run(main())
