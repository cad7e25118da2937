"""A fake core in a process of its own: `python -m tests.engine.fake_core_process ADDRESS`.

Its answer is the prompt backwards, a token a step. The model's name says how it behaves: `fake`, or `fake-` and some of
`slow` (20 ms a step), `unplannable` (the start-up fails with numbers), `bug` (it fails by accident), `dies` (at start).
A prompt that begins with a NUL byte kills the process at the second step, one that begins with byte 1 breaks the core,
one that begins with byte 2 is refused, one with byte 3 holds the core in a step, one with byte 4 gets no tokens and
lets others have none, and with one of byte 5 nobody can run.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from unittest.mock import patch

from octavo.config import EngineConfig, ModelConfig
from octavo.engine.core_socket import serve
from octavo.errors import CacheTooSmallError, RequestError
from octavo.messages import EngineCoreOutputs, EngineCoreRequest, StageReport
from octavo.sched.inspection import stuck
from tests.engine.byte_tokenizer import BOS, EOS
from tests.engine.fake_core import FakeCore
from tests.engine.fake_plan import FAKE_PLAN

FAKE_MODEL = ModelConfig(
    name="fake",
    architecture="FakeForCausalLM",
    model_type="fake",
    dtype="float32",
    num_layers=4,
    hidden_size=8,
    num_heads=1,
    vocab_size=320,
    max_position=2000,
    layers=(),
)


def backwards(request: EngineCoreRequest) -> Sequence[int]:
    """The prompt's tokens, last first, then the end."""
    return [*[token for token in request.prompt_token_ids if token != BOS][::-1], EOS]


class ProcessCore(FakeCore):
    """Misbehaves as the prompts ask it to."""

    def __init__(self, *, seconds_a_step: float) -> None:
        super().__init__(backwards)
        self.plan, self.model_config = FAKE_PLAN, FAKE_MODEL
        self._seconds_a_step = seconds_a_step

    def add_request(self, request: EngineCoreRequest) -> None:
        if _first(request) == 2:
            raise RequestError("The core refuses it.", remedy="Ask for less.", parameter="n", asked=7)
        super().add_request(request)

    def step(self) -> EngineCoreOutputs:
        time.sleep(self._seconds_a_step if self.running else 0)
        for request, tokens in self.running.values():
            if _first(request) == 0 and tokens:
                os.kill(os.getpid(), signal.SIGKILL)
            if _first(request) == 1:
                raise ValueError("a bug")
            if _first(request) == 3:
                time.sleep(60)
            if _first(request) == 4:
                return EngineCoreOutputs(outputs=[], stats=self.stats())
            if _first(request) == 5:
                raise stuck(self.state())
        admitted = [name for name, (_, tokens) in self.running.items() if not tokens]
        outputs = super().step()
        return EngineCoreOutputs(
            outputs=outputs.outputs, stats=self.stats(), num_prompt_tokens=outputs.num_prompt_tokens, admitted=admitted
        )


def _first(request: EngineCoreRequest) -> int:
    return next(token for token in request.prompt_token_ids if token != BOS)


def make_core(config: EngineConfig, on_stage: Callable[[StageReport], None]) -> ProcessCore:
    """The core that the model's name asks for."""
    habits = config.model.model.split("-")[1:]
    on_stage(StageReport(name="load_model", seconds=0.5, result="nothing to load"))
    if "unplannable" in habits:
        raise CacheTooSmallError("It needs 7 bytes.", remedy="Give 8.", needed_bytes=7, sizes=(1, 2))
    if "bug" in habits:
        raise ZeroDivisionError("by accident")
    if "talks" in habits:
        logging.getLogger("octavo.fake").warning("I am\nready.")
    if "dies" in habits:
        os.kill(os.getpid(), signal.SIGKILL)
    return ProcessCore(seconds_a_step=0.02 if "slow" in habits else 0.0005)


if __name__ == "__main__":
    with patch("logging.Logger.exception"):
        sys.exit(serve(sys.argv[1], make_core, *sys.argv[2:]))
