"""The whole engine on a toy hybrid model, in seconds: the first thing to run after a change.

Random weights, sliding-window and full layers, a small pool: files -> plan -> bound views -> scheduler -> text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.errors import CacheTooSmallError, RequestError
from tests.cli.terminal import run_octavo
from tests.parity.tiny import HYBRID, build_model

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = [
    " ".join(f"w{3 + (7 * index * index + seed * index) % 300}" for index in range(length))
    for seed, length in ((1, 5), (2, 40), (3, 70), (4, 100))
]
"""Varied words, the longer ones far past the window of 11 tokens."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return build_model(folder, HYBRID)


@pytest.fixture(scope="module")
def llm(folder: Path, model: Any) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", kv_memory="4MiB", max_num_batched_tokens=64) as engine:
        yield engine


def _tokens(llm: LLM, prompts: Any, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


def test_tokens_are_those_of_transformers(llm: LLM, model: Any) -> None:
    for prompt, tokens in zip(PROMPTS, _tokens(llm, PROMPTS), strict=True):
        ids = torch.tensor([llm.get_tokenizer().encode(prompt)])
        reference = model.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert tokens == reference[0, ids.shape[1] :].tolist()


def test_alone_and_together_are_equal(llm: LLM) -> None:
    assert [_tokens(llm, prompt)[0] for prompt in PROMPTS] == _tokens(llm, PROMPTS)


def test_a_prompt_seen_before_hits_the_prefix_cache_and_says_the_same(llm: LLM) -> None:
    assert llm.reset_prefix_cache()
    (cold,) = llm.generate(PROMPTS[3], GREEDY)
    (warm,) = llm.generate(PROMPTS[3], GREEDY)
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 96)
    assert warm.outputs[0].token_ids == cold.outputs[0].token_ids


def test_a_salt_keeps_prefixes_apart(llm: LLM) -> None:
    salted = [{"prompt": PROMPTS[2], "cache_salt": salt} for salt in ("a", "b", "a")]
    assert [llm.generate(prompt, GREEDY)[0].num_cached_tokens for prompt in salted] == [0, 0, 64]


def test_completions_of_one_prompt_share_its_blocks_and_differ(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
    (first,) = llm.generate(PROMPTS[3] + " w9", params)
    (again,) = llm.generate(PROMPTS[3] + " w9", params)
    texts = [completion.text for completion in first.outputs]
    assert len(set(texts)) == 3
    assert [completion.text for completion in again.outputs] == texts
    assert all(completion.num_cached_tokens >= 64 for completion in first.outputs[1:])


def test_a_stop_string_cuts_the_text(llm: LLM) -> None:
    text = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].text
    words = text.split()
    stop = f"{words[4]} {words[5]}"
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, stop=stop)
    completion = llm.generate(PROMPTS[0], params)[0].outputs[0]
    assert completion.text == text[: text.index(stop)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_logprobs_speak_of_the_tokens_that_were_chosen(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (output,) = llm.generate(PROMPTS[1], params)
    completion = output.outputs[0]
    assert completion.logprobs is not None
    for token_id, place in zip(completion.token_ids, completion.logprobs, strict=True):
        best = max(place, key=lambda key: place[key].logprob)
        assert best == token_id
        assert place[token_id].rank == 1
        assert 2 <= len(place) <= 3
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_a_bad_prompt_is_named_and_leaves_every_block_free(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"prompts\[1\]"):
        llm.generate([PROMPTS[0], [5, 10**6], PROMPTS[1]], GREEDY)
    with pytest.raises(RequestError, match=r"prompts\[2\].*300 tokens"):
        llm.generate([PROMPTS[0], PROMPTS[1], [5] * 300], GREEDY)
    assert llm.reset_prefix_cache(), "a block is still in use"
    assert len(_tokens(llm, PROMPTS)) == 4


def test_a_pool_that_is_too_small_says_how_much_would_do(folder: Path, model: Any) -> None:
    with pytest.raises(CacheTooSmallError) as caught:
        LLM(str(folder), dtype="float32", kv_memory="64KiB")
    assert "needed" in str(caught.value) or "needs" in str(caught.value)
    assert caught.value.remedy


def test_one_sequence_at_a_time_is_enough(folder: Path, llm: LLM) -> None:
    with LLM(str(folder), dtype="float32", kv_memory="4MiB", max_num_seqs=1) as narrow:
        assert _tokens(narrow, PROMPTS) == _tokens(llm, PROMPTS)


def test_the_command_line_runs_it_too(monkeypatch: pytest.MonkeyPatch, folder: Path, llm: LLM) -> None:
    arguments = ["generate", "--model", str(folder), "--dtype", "float32", "--kv-memory", "4MiB", "--ignore-eos"]
    said = run_octavo(monkeypatch, [*arguments, "--json", "--max-tokens", "24", *PROMPTS])
    assert (said.code, said.err) == (0, "")
    assert [output["token_ids"] for output in said.document["outputs"]] == _tokens(llm, PROMPTS)
