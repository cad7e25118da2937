"""The engine core with requests whose outputs have a form, beside others that have none."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import RequestError
from octavo.messages import SchedulerOutput
from octavo.request import FinishReason
from octavo.structured_outputs import StructuredOutputsParams
from tests.engine.byte_tokenizer import EOS
from tests.engine.test_core import Engine, alone
from tests.engine.toy_grammars import COMPILER, TOKENIZER
from tests.parity.tiny import HYBRID

PAIRS = {
    "regex": "([ab][cd]){20}",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({**HYBRID, "architectures": ["Gemma3ForCausalLM"]}))
    return tmp_path


def engine_of(folder: Path, **options: Any) -> Engine:
    engine = Engine(folder, **options)
    engine.core.grammars.compiler = COMPILER
    return engine


def text(engine: Engine, name: str) -> str:
    tokens = TOKENIZER.token_bytes()
    return b"".join(tokens[token] for token in engine.tokens(name) if token != EOS).decode(errors="replace")


def test_outputs_keep_their_form_through_preemptions_and_others_get_what_they_get_alone(folder: Path) -> None:
    engine = engine_of(folder, max_model_len=100, available_bytes=110_000, scheduler={"max_chunk_tokens": 9})
    prompts = [range(start, start + 30) for start in range(0, 240, 40)]
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt, max_tokens=60, form=PAIRS if number % 2 else None, eos_token_ids=(EOS,))
    engine.run()
    for number, prompt in enumerate(prompts):
        if number % 2:
            assert re.fullmatch(PAIRS["regex"], text(engine, str(number)))
            assert engine.news[str(number)][-1].finish_reason is FinishReason.STOP
            assert engine.news[str(number)][-1].last_is_text
        else:
            expected = alone(prompt, 60)
            found = engine.tokens(str(number))
            assert found == expected[: len(found)]
    assert engine.core.stats().num_preemptions > 0
    assert engine.core.stats().num_used_blocks == 0


def test_the_completions_of_a_prompt_go_their_own_ways_and_the_ranks_never_see_a_form(folder: Path) -> None:
    engine = engine_of(folder)
    seen: list[SchedulerOutput] = []
    engine.executor.before_step = seen.append
    for index in range(3):
        engine.add(f"n.{index}", [1, 2, 3 + index], form=PAIRS, parent_id="n.0" if index else None, max_tokens=50)
    engine.run()
    texts = {text(engine, f"n.{index}") for index in range(3)}
    assert all(re.fullmatch(PAIRS["regex"], found) for found in texts)
    assert len(texts) == 3
    assert all(new.sampling.structured_outputs is None for step in seen for new in step.new_requests)


def test_an_output_that_is_cut_has_the_beginning_of_its_form(folder: Path) -> None:
    engine = engine_of(folder)
    engine.add("r", [5], form=PAIRS, max_tokens=7)
    engine.run()
    assert re.fullmatch(r"([ab][cd]){3}[ab]", text(engine, "r"))
    last = engine.news["r"][-1]
    assert (last.finish_reason, last.last_is_text) == (FinishReason.LENGTH, False)


def test_one_whose_matcher_breaks_ends_alone(folder: Path) -> None:
    engine = engine_of(folder)
    engine.add("broken", [5], form=PAIRS, max_tokens=30)
    engine.add("fine", [6], form=PAIRS, max_tokens=50)
    engine.add("plain", [7], max_tokens=20)
    while len(engine.tokens("broken")) < 2:
        engine.step()
    engine.core.grammars.follow({"broken": 0})  # a token that cannot be
    engine.run()
    last = engine.news["broken"][-1]
    assert last.finish_reason is FinishReason.ERROR
    assert "is too large to follow" in (last.error or "")
    assert last.error_parameter == "structured_outputs"
    assert re.fullmatch(PAIRS["regex"], text(engine, "fine"))
    assert engine.tokens("plain") == alone([7], 20)
    assert engine.core.stats().num_used_blocks == 0


class _SlowCompiler:
    def __init__(self) -> None:
        self.gate = threading.Event()

    def matcher(self, form: StructuredOutputsParams) -> Any:
        assert self.gate.wait(10)
        return COMPILER.matcher(form)


def test_steps_of_others_go_on_while_a_grammar_is_compiled(folder: Path) -> None:
    engine = engine_of(folder)
    compiler: Any = _SlowCompiler()
    engine.core.grammars.compiler = compiler
    engine.add("slow", [5], form=PAIRS, max_tokens=50)
    engine.add("gone", [5], form=PAIRS)
    engine.add("plain", [7], max_tokens=20)
    with pytest.raises(RequestError, match="in use"):
        engine.add("gone", [5])
    for _ in range(20):
        engine.step()
    assert engine.tokens("plain") == alone([7], 20)
    assert engine.tokens("slow") == []
    assert engine.core.has_unfinished_requests()
    started = time.process_time()
    engine.step()  # nothing to run: it waits a little, and does not spin
    assert time.process_time() - started < 0.02
    engine.core.abort_requests(["gone"])
    compiler.gate.set()
    engine.run()
    assert re.fullmatch(PAIRS["regex"], text(engine, "slow"))
    assert engine.news["gone"] == []


def test_what_only_the_core_finds_wrong_ends_the_request_with_an_error(folder: Path) -> None:
    engine = engine_of(folder)
    engine.add("r", [5], form={"regex": "(a"})
    with pytest.raises(RequestError, match="not in the vocabulary"):
        engine.add("s", [5000], form=PAIRS)
    engine.run()
    (news,) = engine.news["r"]
    assert news.finish_reason is FinishReason.ERROR
    assert "regular expression" in (news.error or "")


def test_a_grammar_that_never_gets_ready_is_seen_as_a_stall(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(folder)
    may_go_on = threading.Event()
    compile_one = COMPILER.matcher

    def slow(form: StructuredOutputsParams) -> Any:
        may_go_on.wait(30)
        return compile_one(form)

    monkeypatch.setattr(COMPILER, "matcher", slow)
    engine.add("a", range(10), form=PAIRS, eos_token_ids=(EOS,))
    engine.step()
    state = engine.core.state()
    assert (state.num_compiling, state.stats.num_waiting, state.stats.num_parked) == (1, 1, 1)
    assert state.is_stuck
    engine.add("b", range(10), max_tokens=3)
    engine.step()
    state = engine.core.state()
    assert (state.stats.num_running, state.stats.num_waiting) == (1, 1)
    assert engine.core.stats() == state.stats
    assert not state.is_stuck
    may_go_on.set()
    engine.run()
    assert engine.core.state().num_compiling == 0


def test_an_output_reasons_first_and_then_has_its_form(folder: Path) -> None:
    engine = engine_of(folder, max_model_len=220, available_bytes=4 << 20)
    form = {"choice": ["yes", "no"], "reasoning_end": "e"}
    for number in range(12):
        engine.add(str(number), range(number, number + 10), max_tokens=200, form=form, eos_token_ids=(EOS,))
    engine.run()
    ends = []
    for number in range(12):
        reasoning, mark, answer = text(engine, str(number)).partition("e")
        ended = engine.news[str(number)][-1].finish_reason is FinishReason.STOP
        assert ended == (bool(mark) and answer.strip() in ("yes", "no"))
        assert len(reasoning) >= 1
        ends.append(ended)
    assert {True, False} == set(ends), "some of these came to their mark, and none ended before"
