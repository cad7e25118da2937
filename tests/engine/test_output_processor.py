"""Tokens become texts, completions and log probabilities; stop strings end a sequence in the core too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from octavo.engine.input_processor import InputProcessor, PromptRequest
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.outputs import RequestOutput
from octavo.errors import InvariantError
from octavo.messages import EngineCoreOutput, TokenLogprobs
from octavo.request import FinishReason, SamplingParams
from tests.engine.byte_tokenizer import EOS, ByteTokenizer


def _request(prompt: str = "hi", **sampling: Any) -> PromptRequest:
    params = SamplingParams(**{"max_tokens": 100, **sampling})
    return InputProcessor(ByteTokenizer(), max_model_len=1000, max_position=1000, vocab_size=300).process(
        prompt, params
    )[0]


def _news(token_ids: Sequence[int], request_id: str = "0", **fields: Any) -> EngineCoreOutput:
    return EngineCoreOutput(request_id=request_id, new_token_ids=list(token_ids), **fields)


def _run(text: bytes | Sequence[int], reason: FinishReason = FinishReason.LENGTH, **sampling: Any) -> Any:
    """(output, core ids to abort, streamed text) after one token a step, the last with `reason`."""
    processor = OutputProcessor(ByteTokenizer())
    processor.add_request(_request(**sampling), now=0.0)
    streamed, tokens = "", list(text)
    for number, token in enumerate(tokens):
        last = number == len(tokens) - 1
        step = processor.process([_news([token], finish_reason=reason if last else None)], now=float(number + 1))
        streamed += "".join(update.text for update in step.updates)
        if step.finished:
            assert processor.num_unfinished == 0
            return step.finished[0], step.abort, streamed
    raise AssertionError("never finished")


def test_text_grows_token_by_token() -> None:
    output, abort, streamed = _run("né".encode())
    assert isinstance(output, RequestOutput)
    completion = output.outputs[0]
    assert (completion.text, streamed, completion.token_ids) == ("né", "né", list("né".encode()))
    assert (completion.finish_reason, completion.stop_reason, abort) == ("length", None, [])
    assert output.finished
    assert completion.finished()
    assert (output.prompt, output.prompt_token_ids) == ("hi", [256, 104, 105])


def test_times_are_counted_from_the_handing_in() -> None:
    output, _, _ = _run(b"abc")
    assert (output.metrics.first_token_s, output.metrics.finished_s) == (1.0, 3.0)


def test_a_stop_string_over_token_borders_cuts_the_text_and_aborts_in_the_core() -> None:
    output, abort, streamed = _run(b"abc STOP more", stop=("ST", "STOP"))
    completion = output.outputs[0]
    assert (completion.text, streamed) == ("abc ", "abc ")
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "ST")
    assert completion.token_ids == list(b"abc ST")
    assert abort == ["0"]


def test_a_stop_string_in_the_last_token_needs_no_abort() -> None:
    output, abort, _ = _run(b"abST", stop=("ST",))
    assert (output.outputs[0].text, output.outputs[0].finish_reason, abort) == ("ab", "stop", [])


def test_the_stop_string_stays_when_asked_for() -> None:
    output, _, _ = _run(b"abSTcd", stop=("ST",), include_stop_str_in_output=True)
    assert output.outputs[0].text == "abST"


@pytest.mark.parametrize("prompt", ["say STOP", "say ST"])
def test_a_stop_string_in_the_prompt_or_begun_there_does_not_count(prompt: str) -> None:
    processor = OutputProcessor(ByteTokenizer())
    processor.add_request(_request(prompt, stop=("STOP",)), now=0.0)
    texts = [processor.process([_news([token])], now=1.0).updates[0].text for token in b"OP on"]
    assert texts == ["O", "P", " ", "o", "n"], "and nothing is held back for it"


def test_a_stop_string_of_several_bytes_a_character_is_found_in_the_token_that_completes_it() -> None:
    output, abort, streamed = _run("a🙂b漢字c".encode(), stop=("漢字",))
    assert (output.outputs[0].text, streamed, abort) == ("a🙂b", "a🙂b", ["0"])
    assert output.outputs[0].token_ids == list("a🙂b漢字".encode())


def test_a_stop_string_below_min_tokens_does_not_count() -> None:
    output, _, _ = _run(b"STabSTc", stop=("ST",), min_tokens=3)
    assert output.outputs[0].text == "STab"


def test_tokens_after_a_stop_string_in_one_step_are_dropped() -> None:
    processor = OutputProcessor(ByteTokenizer())
    processor.add_request(_request(stop=("b",), logprobs=0), now=0.0)
    places = [TokenLogprobs(token_ids=[token], logprobs=[-1.0], rank=1) for token in b"abc"]
    step = processor.process([_news(b"abc", logprobs=places)], now=1.0)
    completion = step.finished[0].outputs[0]
    assert (completion.text, completion.token_ids, completion.cumulative_logprob) == ("a", list(b"ab"), -2.0)
    assert completion.logprobs is not None
    assert len(completion.logprobs) == 2


def test_end_of_sequence_is_a_token_without_text() -> None:
    output, _, _ = _run([*b"ab", EOS], FinishReason.STOP, skip_special_tokens=False)
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("ab", [*b"ab", EOS])


def test_a_stop_token_has_text_only_when_asked_for() -> None:
    assert _run(b"ab.", FinishReason.STOP)[0].outputs[0].text == "ab"
    assert _run(b"ab.", FinishReason.STOP, include_stop_str_in_output=True)[0].outputs[0].text == "ab."


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    assert _run([*b"a", 0xE2])[0].outputs[0].text == "a\ufffd"


def test_without_detokenizing_there_are_only_tokens() -> None:
    completion = _run(b"abc", detokenize=False)[0].outputs[0]
    assert (completion.text, completion.token_ids) == ("", list(b"abc"))


def test_logprobs_hold_the_chosen_token_and_the_best_ones_with_their_ranks() -> None:
    processor = OutputProcessor(ByteTokenizer())
    processor.add_request(_request(logprobs=2), now=0.0)
    places = [
        TokenLogprobs(token_ids=[97, 98, 97], logprobs=[-1.5, -0.5, -1.5], rank=2),
        TokenLogprobs(token_ids=[99, 98, 97], logprobs=[-9.0, -0.1, -2.0], rank=77),
    ]
    news = _news([97, 99], logprobs=places, finish_reason=FinishReason.LENGTH)
    completion = processor.process([news], now=1.0).finished[0].outputs[0]
    assert completion.logprobs is not None
    first, second = completion.logprobs
    assert [(key, entry.rank, entry.decoded_token) for key, entry in first.items()] == [(97, 2, "a"), (98, 1, "b")]
    assert [(key, entry.rank, entry.logprob) for key, entry in second.items()] == [
        (99, 77, -9.0),
        (98, 1, -0.1),
        (97, 2, -2.0),
    ]
    assert completion.cumulative_logprob == -10.5


def test_prompt_logprobs_gather_over_steps() -> None:
    processor = OutputProcessor(ByteTokenizer())
    processor.add_request(_request("hi", prompt_logprobs=0), now=0.0)
    place = TokenLogprobs(token_ids=[104], logprobs=[-1.0], rank=1)
    processor.process([_news([], prompt_logprobs=[place])], now=1.0)
    last = _news([97], prompt_logprobs=[place], finish_reason=FinishReason.LENGTH)
    output = processor.process([last], now=2.0).finished[0]
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [list(entry) for entry in output.prompt_logprobs[1:] if entry] == [[104], [104]]


def test_missing_prompt_logprobs_are_a_bug_that_shows() -> None:
    processor = OutputProcessor(ByteTokenizer())
    processor.add_request(_request("hi", prompt_logprobs=0), now=0.0)
    with pytest.raises(InvariantError, match="1 prompt log probabilities came for 3"):
        processor.process([_news([97], finish_reason=FinishReason.LENGTH)], now=1.0)


def test_completions_of_one_prompt_end_together_and_in_order() -> None:
    processor = OutputProcessor(ByteTokenizer())
    first, second = processor.add_request(_request(n=2), now=0.0)
    done = _news(b"x", second.request_id, finish_reason=FinishReason.LENGTH, num_cached_tokens=2)
    step = processor.process([done, _news(b"a", first.request_id)], now=1.0)
    assert step.finished == []
    assert processor.num_unfinished == 1
    step = processor.process([_news(b"b", first.request_id, finish_reason=FinishReason.STOP)], now=2.0)
    output = step.finished[0]
    assert [(c.index, c.text, c.num_cached_tokens) for c in output.outputs] == [(0, "a", 0), (1, "x", 2)]
    assert output.num_cached_tokens == 0


def test_aborting_names_the_sequences_that_still_run() -> None:
    processor = OutputProcessor(ByteTokenizer())
    first, second = processor.add_request(_request(n=2), now=0.0)
    processor.process([_news(b"x", second.request_id, finish_reason=FinishReason.LENGTH)], now=1.0)
    assert processor.abort_requests(["0", "unknown"]) == [first.request_id]
    assert processor.num_unfinished == 0
    assert processor.process([_news(b"y", first.request_id)], now=2.0).updates == []


def test_a_failure_takes_all_completions_of_the_prompt_with_it() -> None:
    processor = OutputProcessor(ByteTokenizer())
    first, second = processor.add_request(_request(n=2), now=0.0)
    broken = _news([], first.request_id, finish_reason=FinishReason.ERROR, error="It broke.")
    step = processor.process([broken], now=1.0)
    ((failed, error),) = step.failed
    assert (failed, str(error), step.abort) == ("0", "It broke.", [second.request_id])
    assert processor.num_unfinished == 0
