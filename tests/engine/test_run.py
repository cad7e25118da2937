"""A batch runs to its end, in order; whatever happens, nothing of it stays behind in the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from octavo.engine.input_processor import InputProcessor
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.run import Run
from octavo.errors import InvariantError, RequestError
from octavo.messages import EngineCoreOutputs, EngineCoreRequest
from octavo.request import SamplingParams
from tests.engine.byte_tokenizer import EOS, ByteTokenizer
from tests.engine.fake_core import FakeCore


def _upper(request: EngineCoreRequest) -> Sequence[int]:
    """The prompt in capitals, then the end."""
    return [*bytes(request.prompt_token_ids[1:]).upper(), EOS]


class _Front:
    """What an LLM holds: a core, a tokenizer, the two processors."""

    def __init__(self, **core: Any) -> None:
        self.core = FakeCore(_upper, **core)
        self.outputs = OutputProcessor(ByteTokenizer())
        self._inputs = InputProcessor(ByteTokenizer(), max_model_len=1000, max_position=1000, vocab_size=300)

    def run(self, prompts: Any, sampling: Any = None) -> Run:
        sampling = sampling or SamplingParams(max_tokens=100)
        return Run(self.core, self.outputs, self._inputs.process(prompts, sampling))

    def assert_idle(self) -> None:
        assert self.core.running == {}
        assert self.outputs.num_unfinished == 0


def test_outputs_come_in_the_order_of_the_prompts() -> None:
    front = _Front()
    outputs = front.run(["long one", "b", "mid"]).finish()
    assert [output.outputs[0].text for output in outputs] == ["LONG ONE", "B", "MID"]
    assert [output.prompt for output in outputs] == ["long one", "b", "mid"]
    front.assert_idle()


def test_updates_stream_the_text() -> None:
    front = _Front()
    run = front.run("ab")
    assert [update.text for update in run.updates()] == ["A", "B", ""]
    assert run.num_finished == run.num_prompts == 1


def test_a_stop_string_ends_the_sequence_in_the_core() -> None:
    front = _Front()
    outputs = front.run(["abcd", "xy"], SamplingParams(max_tokens=100, stop="BC")).finish()
    assert [output.outputs[0].text for output in outputs] == ["A", "XY"]
    assert front.core.aborted == ["0"]
    front.assert_idle()


def test_n_completions_run_together_with_seeds_of_their_own() -> None:
    front = _Front()
    outputs = front.run("ab", SamplingParams(n=3, seed=5, max_tokens=9)).finish()
    assert [completion.text for completion in outputs[0].outputs] == ["AB", "AB", "AB"]
    assert [request.sampling.seed for request in front.core.added] == [5, 6, 7]
    assert front.core.num_steps == 3


@pytest.mark.parametrize("refused", ["0", "1", "2"])
def test_a_prompt_that_the_core_refuses_is_named_and_takes_the_others_along(refused: str) -> None:
    front = _Front(refuse=refused)
    with pytest.raises(RequestError, match=rf"^prompts\[{refused}\] \(of 3\): The core refuses it\. Ask for less\.$"):
        front.run(["a", "b", "c"]).finish()
    front.assert_idle()
    assert [o.outputs[0].text for o in front.run(["d", "e"]).finish()] == ["D", "E"], "the engine is still usable"


def test_a_prompt_that_fails_on_the_way_is_named_and_takes_the_others_along() -> None:
    front = _Front(fail="1")
    with pytest.raises(RequestError, match=r"^prompts\[1\] \(of 2\): It broke\.$"):
        front.run(["aaaa", "b"]).finish()
    front.assert_idle()


def test_ctrl_c_leaves_nothing_running() -> None:
    front = _Front()
    run = front.run(["aaaa", "bbbb"])
    step = front.core.step

    def interrupted() -> EngineCoreOutputs:
        if front.core.num_steps == 2:
            raise KeyboardInterrupt
        return step()

    front.core.step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.finish()
    front.assert_idle()


def test_a_caller_who_stops_listening_leaves_nothing_running() -> None:
    front = _Front()
    updates = front.run(["aaaa", "bbbb"]).updates()
    next(updates)
    updates.close()  # type: ignore[attr-defined]
    front.assert_idle()


def test_a_core_that_forgets_a_request_is_a_bug_that_shows() -> None:
    front = _Front()
    run = front.run(["aaaa"])
    updates = run.updates()
    next(updates)
    front.core.running.clear()
    with pytest.raises(InvariantError, match="requests 0 have not ended"):
        list(updates)


def test_the_figures_are_those_of_this_run() -> None:
    run = _Front().run(["ab", "cde"])
    run.finish()
    figures = run.figures(load_s=1.5, num_blocks=100)
    assert (figures.prompt_tokens, figures.output_tokens, figures.hit_tokens) == (7, 7, 6)
    assert (figures.load_s, figures.num_blocks) == (1.5, 100)
    assert figures.wall_s >= figures.ttft_s > 0
    assert figures.decode_tokens_per_s > 0
    assert figures.prefill_tokens_per_s > 0


def test_no_prompts_are_no_work() -> None:
    front = _Front()
    assert front.run([]).finish() == []
    assert front.core.num_steps == 0
