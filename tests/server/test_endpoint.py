"""What both endpoints do alike is tested through them; here, that choices are numbered prompt by prompt."""

from __future__ import annotations

from octavo.engine.input_processor import PromptRequest
from octavo.engine.outputs import CompletionOutput
from octavo.request import SamplingParams
from octavo.server.bodies import ChatBody
from octavo.server.chat import ChatAnswer
from octavo.server.turn_reading import TurnReading

PLAIN = TurnReading(
    tools=None, reasoning=None, has_begun_reasoning=False, has_ended_reasoning=False, shows_reasoning=False
)


def test_completions_of_one_prompt_stand_together() -> None:
    requests = [
        PromptRequest(request_id=str(i), prompt=None, prompt_token_ids=[1, 2], sampling=SamplingParams(n=3))
        for i in range(2)
    ]
    answer = ChatAnswer("m", requests, ChatBody(messages=[{}]), PLAIN)
    places = [(p, i) for p in range(2) for i in range(3)]
    assert [answer.number(p, CompletionOutput(index=i, text="", token_ids=[])) for p, i in places] == list(range(6))
    assert answer.usage.document()["prompt_tokens"] == 4
    assert answer.envelope("x", [])["model"] == "m"
