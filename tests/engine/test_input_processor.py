"""Prompts in every form become requests; what cannot run is refused by number before anything runs."""

from __future__ import annotations

from collections import UserString
from typing import Any

import pytest

from octavo.engine.input_processor import InputProcessor, list_prompts
from octavo.errors import RequestError
from octavo.request import SamplingParams
from tests.engine.byte_tokenizer import BOS, EOS, ByteTokenizer


def _inputs(max_model_len: int = 100, max_position: int = 1000) -> InputProcessor:
    return InputProcessor(
        ByteTokenizer(), max_model_len=max_model_len, max_position=max_position, vocab_size=ByteTokenizer.vocab_size
    )


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("ab", [[BOS, 97, 98]]),
        (["ab", "c"], [[BOS, 97, 98], [BOS, 99]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ((5, 6), [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        ({"prompt_token_ids": [5, 6]}, [[5, 6]]),
        ({"prompt": "a"}, [[BOS, 97]]),
        (["a", [5], {"prompt": "b"}, {"prompt_token_ids": (6,)}], [[BOS, 97], [5], [BOS, 98], [6]]),
        ([], []),
    ],
)
def test_every_form_of_prompt_is_understood(prompts: Any, expected: list[list[int]]) -> None:
    assert [request.prompt_token_ids for request in _inputs().process(prompts)] == expected


def test_a_text_is_kept_and_token_ids_have_none() -> None:
    requests = _inputs().process(["ab", [5]])
    assert [request.prompt for request in requests] == ["ab", None]
    assert requests[0].eos_token_ids == (EOS,)


def test_ids_are_unique_over_calls() -> None:
    inputs = _inputs()
    ids = [request.request_id for request in inputs.process(["a", "b"]) + inputs.process("c")]
    assert len(set(ids)) == 3


def test_a_rendered_chat_gets_no_second_start_mark() -> None:
    assert _inputs().process("a", add_special_tokens=False)[0].prompt_token_ids == [97]


def test_cache_salt_and_priority_reach_the_core_request() -> None:
    requests = _inputs().process([{"prompt": "a", "cache_salt": "s"}, "b"], priority=[3, 4])
    core = [request.sequences()[0] for request in requests]
    assert [(request.cache_salt, request.priority) for request in core] == [("s", 3), (None, 4)]


def test_sampling_params_are_shared_or_one_each() -> None:
    one, two = SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)
    assert [r.sampling.max_tokens for r in _inputs().process(["a", "b"], one)] == [1, 1]
    assert [r.sampling.max_tokens for r in _inputs().process(["a", "b"], [one, two])] == [1, 2]
    assert _inputs().process("a")[0].sampling == SamplingParams()
    with pytest.raises(RequestError, match="2 prompts, but 1 sampling_params"):
        _inputs().process(["a", "b"], [one])
    with pytest.raises(RequestError, match="sampling_params is 5"):
        _inputs().process("a", 5)  # type: ignore[arg-type]


def test_n_completions_are_n_sequences_with_seeds_of_their_own() -> None:
    sampling = SamplingParams(n=3, seed=10, prompt_logprobs=0, max_tokens=4)
    sequences = _inputs().process("ab", sampling)[0].sequences()
    assert len({sequence.request_id for sequence in sequences}) == 3
    assert [sequence.sampling.seed for sequence in sequences] == [10, 11, 12]
    assert [sequence.sampling.n for sequence in sequences] == [1, 1, 1]
    assert [sequence.sampling.prompt_logprobs for sequence in sequences] == [0, None, None]
    assert [s.sampling.seed for s in _inputs().process("ab", SamplingParams(n=2))[0].sequences()] == [None, None]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("", r"^The prompt is empty\. Give it at least one character"),
        ([[]], r"^The prompt is empty"),
        ({"prompt_token_ids": []}, r"^The prompt is empty"),
        (["a", ""], r"^prompts\[1\] \(of 2\): The prompt is empty"),
        (["a", 5.5, "b"], r"^prompts\[1\] \(of 3\): The prompt 5\.5 is neither"),
        ([True], r"neither text nor token ids"),
        (5, r"^Prompts cannot be read from a int"),
        (b"x", r"^Prompts cannot be read from a bytes"),
        (b"", r"^Prompts cannot be read from a bytes"),
        (bytearray(b"x"), r"^Prompts cannot be read from a bytearray"),
        (memoryview(b"x"), r"^Prompts cannot be read from a memoryview"),
        (UserString("x"), r"^Prompts cannot be read from a UserString"),
        (None, r"^Prompts cannot be read from a NoneType"),
        (["a", b"x"], r"^prompts\[1\] \(of 2\): The prompt b'x' is neither"),
        ({"prompt_token_ids": b"x"}, "neither text nor token ids"),
        ({"prompt": b"x"}, "in the wrong place"),
        ("a\ud800b", r"^The prompt has a lone surrogate \(U\+D800 at position 1\)"),
        ({"prompt": "\udfff"}, r"^The prompt has a lone surrogate \(U\+DFFF at position 0\)"),
        (["a", "b\udc80"], r"^prompts\[1\] \(of 2\): The prompt has a lone surrogate \(U\+DC80"),
        ({"prompt": "a", "cache_salt": "\ud800"}, "cache_salt has a lone surrogate"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "not exactly one of"),
        ({"promt": "a"}, "unknown key 'promt'"),
        ({"prompt": [1, 2]}, "in the wrong place"),
        ({"prompt_token_ids": "abc"}, "in the wrong place"),
        ({"prompt_token_ids": 5}, "neither text nor token ids"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt is ''"),
        ({"prompt": "a", "cache_salt": 5}, "cache_salt is 5"),
    ],
)
def test_what_is_no_prompt_is_refused_by_number(prompts: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        _inputs().process(prompts)


def test_the_index_of_the_bad_prompt_is_there_for_programs() -> None:
    with pytest.raises(RequestError) as caught:
        _inputs().process(["a", "b", ""])
    assert caught.value.numbers["prompt_index"] == 2


def test_an_over_long_prompt_is_refused_with_both_numbers_and_the_remedies_work() -> None:
    prompt = [65] * 10
    with pytest.raises(RequestError, match=r"10 tokens.*may have 10 .*at most 9 tokens.*at least 11\.") as caught:
        _inputs(max_model_len=10).process(prompt)
    assert caught.value.numbers == {"num_prompt_tokens": 10, "max_model_len": 10}
    assert _inputs(max_model_len=11).process(prompt)
    assert _inputs(max_model_len=10).process(prompt[:9])


def test_no_longer_maximum_is_offered_than_the_model_was_made_for() -> None:
    with pytest.raises(RequestError) as caught:
        _inputs(max_model_len=10, max_position=10).process([65] * 10)
    assert "max-model-len" not in caught.value.remedy


def test_a_length_that_fits_no_prompt_offers_none() -> None:
    with pytest.raises(RequestError, match=r"No prompt leaves room for output\.$"):
        _inputs(max_model_len=1, max_position=1).process("a")


@pytest.mark.parametrize(("max_tokens", "expected"), [(None, 7), (500, 7), (7, 7), (3, 3)])
def test_max_tokens_is_what_the_length_leaves_at_most(max_tokens: int | None, expected: int) -> None:
    request = _inputs(max_model_len=10).process([65, 66, 67], SamplingParams(max_tokens=max_tokens))[0]
    assert request.sampling.max_tokens == expected


def test_min_tokens_above_the_room_is_refused() -> None:
    sampling = SamplingParams(min_tokens=9, max_tokens=None)
    with pytest.raises(RequestError, match=r"min_tokens is 9, but beside 3 prompt tokens .* of 10 leaves 7.*at most 7"):
        _inputs(max_model_len=10).process([65, 66, 67], sampling)


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match="detokenize=False"):
        _inputs().process("a", SamplingParams(stop=("x",), detokenize=False))


@pytest.mark.parametrize(
    ("num_kept", "max_tokens", "expected"),
    [(2, 16, b"ef"), (6, 16, b"abcdef"), (50, 16, b"abcdef"), (-1, 16, b"cdef"), (-1, None, b"abcdef"), (-1, 20, b"f")],
)
def test_a_prompt_is_cut_at_its_beginning(num_kept: int, max_tokens: int | None, expected: bytes) -> None:
    sampling = SamplingParams(truncate_prompt_tokens=num_kept, max_tokens=max_tokens)
    request = _inputs(max_model_len=20).process(list(b"abcdef"), sampling)[0]
    assert request.prompt_token_ids == list(expected)


def test_bad_words_become_token_ids_with_and_without_a_space() -> None:
    sampling = _inputs().process("a", SamplingParams(bad_words=("no",)))[0].sampling
    assert sampling.bad_words_token_ids == (tuple(b"no"), tuple(b" no"))


def test_a_bad_word_that_is_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match="bad_words is"):
        _inputs().process("a", SamplingParams(bad_words=("\ud800",)))


def test_characters_beyond_the_first_plane_are_no_surrogates() -> None:
    assert _inputs().process("\U0001f600")[0].prompt_token_ids == [BOS, *"\U0001f600".encode()]


def test_listing_prompts_does_not_split_a_text() -> None:
    assert list_prompts("abc") == ["abc"]
    assert list_prompts(iter(["a", "b"])) == ["a", "b"]  # type: ignore[arg-type]


def test_allowing_bad_words_alone_is_refused_and_one_more_token_mends_it() -> None:
    for bad in ({"bad_words_token_ids": [[97]]}, {"bad_words": "a", "bad_words_token_ids": [[98]]}):
        with pytest.raises(RequestError, match=r"Each of the 1 allowed tokens is a bad word as well\. Allow one more"):
            _inputs().process("x", SamplingParams(allowed_token_ids=[97], **bad))  # type: ignore[arg-type]
        assert _inputs().process("x", SamplingParams(allowed_token_ids=[97, 99], **bad))  # type: ignore[arg-type]
    # A longer bad word bans its last token only where its beginning stands before it.
    assert _inputs().process("x", SamplingParams(allowed_token_ids=(97,), bad_words_token_ids=((97, 97),)))


@pytest.mark.parametrize(
    ("prompt", "params", "what"),
    [("za", {}, "the prompt's text"), ([5], {"bad_words": ["az"]}, "the bad word 'az'")],
)
def test_a_tokenizer_that_is_larger_than_the_model_is_named(prompt: Any, params: dict[str, Any], what: str) -> None:
    inputs = InputProcessor(ByteTokenizer(), max_model_len=100, max_position=100, vocab_size=ord("z"))
    message = rf"^The tokenizer makes token 122 of {what}, but the model's vocabulary has 122 tokens.*--tokenizer\)\.$"
    with pytest.raises(RequestError, match=message):
        inputs.process([prompt], SamplingParams(**params), add_special_tokens=False)
    assert inputs.process(["abc"], add_special_tokens=False)[0].prompt_token_ids == [97, 98, 99]
