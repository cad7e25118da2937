"""LLM offers what users of vLLM know. The core is a fake here; tests/test_tiny.py and tests/parity run real ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from octavo.engine import preparation
from octavo.engine.llm import LLM
from octavo.errors import ConfigError, ModelFileError, OctavoError, RequestError
from octavo.messages import StageReport
from octavo.request import SamplingParams
from tests.engine.byte_tokenizer import BOS
from tests.engine.fake_core import FakeCore
from tests.engine.fake_model import install_fake_model
from tests.engine.fake_plan import NUM_BLOCKS


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCore]:
    fake = install_fake_model(monkeypatch)
    yield fake
    assert fake.running == {}, "something was left running"


def test_generate_takes_texts_and_token_ids(core: FakeCore) -> None:
    llm = LLM(model="fake")
    params = SamplingParams(temperature=0, max_tokens=50)
    assert [o.outputs[0].text for o in llm.generate(["abc", "de"], params)] == ["cba", "ed"]
    assert llm.generate("abc", params)[0].outputs[0].text == "cba"
    assert llm.generate({"prompt_token_ids": [97, 98]}, params)[0].outputs[0].text == "ba"
    assert llm.generate([97, 98], params)[0].prompt is None
    assert llm.generate([], params) == []


def test_defaults_are_sixteen_tokens_and_stop_at_the_end(core: FakeCore) -> None:
    llm = LLM("fake")
    output = llm.generate("a" * 40)[0].outputs[0]
    assert (output.text, output.finish_reason, len(output.token_ids)) == ("a" * 16, "length", 16)
    assert llm.generate("ab")[0].outputs[0].finish_reason == "stop"


def test_outputs_have_logprobs_and_cached_tokens(core: FakeCore) -> None:
    output = LLM("fake").generate("abc", SamplingParams(logprobs=1, prompt_logprobs=0))[0]
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert list(completion.logprobs[0]) == [99, 65]
    assert completion.logprobs[0][99].rank == 2
    assert completion.cumulative_logprob == -1.5 * 4
    assert output.num_cached_tokens == 3
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids) == 4


def test_chat_renders_one_conversation_or_several(core: FakeCore) -> None:
    llm = LLM("fake")
    turns = [{"role": "user", "content": "hi"}]
    params = SamplingParams(max_tokens=100)
    (output,) = llm.chat(turns, params)
    assert output.prompt == "<user>hi<assistant>"
    assert output.prompt_token_ids[0] != BOS, "the template has the start mark, if any"
    assert output.outputs[0].text == "<user>hi<assistant>"[::-1]
    assert len(llm.chat([turns, turns], params)) == 2
    assert llm.chat(turns, params, add_generation_prompt=False)[0].prompt == "<user>hi"


@pytest.mark.parametrize("messages", [None, 5, "hi", [{}], [["a"]], [{"role": "user", "content": 5}]])
def test_messages_are_checked_before_a_template_is_looked_for(
    core: FakeCore, monkeypatch: pytest.MonkeyPatch, messages: Any
) -> None:
    llm = LLM("fake")
    monkeypatch.delattr(type(llm.get_tokenizer()), "apply_chat_template")
    with pytest.raises(RequestError, match=r'A message is \{"role"'):
        llm.chat(messages)


def test_a_bad_prompt_is_named_and_the_llm_stays_usable(core: FakeCore) -> None:
    llm = LLM("fake")
    with pytest.raises(RequestError, match=r"^prompts\[1\] \(of 3\): The prompt is empty"):
        llm.generate(["a", "", "c"])
    with pytest.raises(RequestError, match=r"1001 tokens.*may have 1000"):
        llm.generate("a" * 1000)
    assert llm.generate("ab")[0].outputs[0].text == "ba"


def test_what_is_not_supported_says_so(core: FakeCore) -> None:
    with pytest.raises(RequestError, match="LoRA"):
        LLM("fake").generate("a", lora_request=object())


def test_figures_speak_of_the_last_call(core: FakeCore) -> None:
    llm = LLM("fake")
    assert llm.figures is None
    llm.generate(["ab", "c"])
    assert llm.figures is not None
    assert (llm.figures.output_tokens, llm.figures.num_blocks) == (5, NUM_BLOCKS)
    assert llm.figures.load_s == llm.load_s


def test_an_unknown_keyword_names_the_nearest(core: FakeCore) -> None:
    with pytest.raises(ConfigError, match=r"max_model_length .*Did you mean .*max_model_len"):
        LLM("fake", max_model_length=5)  # type: ignore[call-arg]


def test_stages_are_reported_as_they_end(core: FakeCore) -> None:
    stages: list[StageReport] = []
    LLM("fake", on_stage=stages.append)
    assert {"prepare_files", "load_tokenizer"} <= {stage.name for stage in stages}


def test_a_broken_tokenizer_stops_the_core_again(core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(files: Any, **_: Any) -> Any:
        raise ModelFileError("tokenizer.json is damaged.")

    monkeypatch.setattr(preparation, "load_tokenizer", broken)
    with pytest.raises(ModelFileError, match="damaged"):
        LLM("fake")
    assert core.is_shut_down


def test_leaving_the_block_shuts_the_engine_down(core: FakeCore) -> None:
    with LLM("fake") as llm:
        assert llm.reset_prefix_cache()
        assert llm.get_tokenizer().vocab_size == 320
        assert (llm.model_name, llm.max_model_len, llm.device) == ("fake", 1000, "cpu")
        assert not core.is_shut_down
    assert core.is_shut_down


def test_calls_from_several_threads_run_one_after_the_other(core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("fake")
    step, busy = core.step, threading.Lock()

    def slow_step() -> Any:
        assert busy.acquire(blocking=False), "two threads were in the core at once"
        try:
            time.sleep(0.001)
            assert len(core.running) == 1, "two runs were in the core at once"
            return step()
        finally:
            busy.release()

    monkeypatch.setattr(core, "step", slow_step)
    turns = [{"role": "user", "content": "hi"}]
    params = SamplingParams(max_tokens=100)
    with ThreadPoolExecutor(max_workers=4) as pool:
        generated = [pool.submit(llm.generate, text, params) for text in ("abcdef", "ghi", "jklm")]
        chatted = [pool.submit(llm.chat, turns, params), pool.submit(llm.start_run("xyz", params).finish)]
        texts = [future.result(timeout=20)[0].outputs[0].text for future in generated + chatted]
    assert texts == ["fedcba", "ihg", "mlkj", "<user>hi<assistant>"[::-1], "zyx"]
    assert len({request.request_id for request in core.added}) == 5


def test_a_run_inside_a_run_is_refused_rather_than_waiting_for_itself(core: FakeCore) -> None:
    llm = LLM("fake")
    updates = llm.start_run("abc").updates()
    next(updates)
    with pytest.raises(RequestError, match="has not ended"):
        llm.generate("de")
    assert not llm.reset_prefix_cache()
    assert llm.stats().num_running == 1
    # A dropped stream may be collected by any thread.
    closer = threading.Thread(target=updates.close)  # type: ignore[attr-defined]
    closer.start()
    closer.join()
    assert llm.generate("de")[0].outputs[0].text == "ed"


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate("a"),
        lambda llm: llm.chat([{"role": "user", "content": "hi"}]),
        lambda llm: llm.start_run("a"),
        lambda llm: llm.stats(),
        lambda llm: llm.reset_prefix_cache(),
    ],
)
def test_after_shutdown_every_call_says_so(core: FakeCore, call: Callable[[LLM], object]) -> None:
    llm = LLM("fake")
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(OctavoError, match=r"^This LLM was shut down\. Make a new one\.$"):
        call(llm)
    assert core.added == []


def test_a_run_does_not_survive_the_shutdown(core: FakeCore, caplog: pytest.LogCaptureFixture) -> None:
    llm = LLM("fake")
    early, late = llm.start_run("abc").updates(), llm.start_run("abc").updates()
    next(early)
    llm.shutdown()
    steps = core.num_steps
    for updates in (early, late):
        with pytest.raises(OctavoError, match="shut down"):
            next(updates)
    assert core.num_steps == steps
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_shutdown_waits_for_the_call_of_another_thread(core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("fake")
    step, stepping = core.step, threading.Event()

    def slow_step() -> Any:
        stepping.set()
        time.sleep(0.005)
        assert not core.is_shut_down
        return step()

    monkeypatch.setattr(core, "step", slow_step)
    with ThreadPoolExecutor(max_workers=1) as pool:
        output = pool.submit(llm.generate, "abcdef")
        assert stepping.wait(timeout=20)
        llm.shutdown()
        assert output.result(timeout=20)[0].outputs[0].text == "fedcba"


def test_a_beam_search_wants_parameters_of_its_own(core: FakeCore) -> None:
    llm = LLM("any")
    with pytest.raises(RequestError, match=r"asked for with SamplingParams\. Give BeamSearchParams\(beam_width"):
        llm.beam_search("ab", SamplingParams(n=2))  # type: ignore[arg-type]
