"""Fields of requests become sampling parameters; tests/server/test_completions.py sends them."""

from __future__ import annotations

import pytest

from octavo.request import SamplingParams
from octavo.server.bodies import PASSED_ON, ChatBody, CompletionBody, GenerationBody, check_limit
from octavo.server.failures import ServerError
from octavo.server.settings import ServerSettings
from octavo.structured_outputs import StructuredOutputsParams


def test_every_field_that_is_passed_on_is_one_of_both() -> None:
    assert set(PASSED_ON) <= set(SamplingParams.__struct_fields__)
    assert set(PASSED_ON) <= set(GenerationBody.model_fields)


def test_null_and_absent_are_the_engines_own_defaults() -> None:
    body = CompletionBody.model_validate({"prompt": "a", **dict.fromkeys(PASSED_ON)})
    assert body.sampling(ServerSettings(), {}) == SamplingParams()


def test_values_arrive_as_they_were_sent() -> None:
    body = ChatBody.model_validate(
        {"messages": [{}], "temperature": 0, "top_k": 3, "stop": "x", "logit_bias": {"7": -1}, "seed": 5, "what": 1}
    )
    sampling = body.sampling(ServerSettings(), {}, max_tokens=None)
    assert sampling == SamplingParams(
        temperature=0, top_k=3, stop=("x",), logit_bias={7: -1.0}, seed=5, max_tokens=None
    )
    assert body.model_extra == {"what": 1}


def test_limits_are_the_servers() -> None:
    body = CompletionBody(prompt="a")
    assert body.sampling(ServerSettings(max_logprobs=-1), {}, logprobs=-1).logprobs == -1
    with pytest.raises(ServerError, match="allows at most 3"):
        body.sampling(ServerSettings(max_logprobs=3), {}, prompt_logprobs=4)
    check_limit("n", 3, 3)


def test_a_form_is_handed_to_the_engine() -> None:
    body = ChatBody(messages=[{"role": "user"}], response_format={"type": "json_object"})
    assert body.sampling(ServerSettings(), {}).structured_outputs == StructuredOutputsParams(json_object=True)
    body = CompletionBody(prompt="a", structured_outputs={"choice": ["a"]})
    assert body.sampling(ServerSettings(), {}).structured_outputs == StructuredOutputsParams(choice=["a"])


def test_defaults_stand_for_what_is_not_given_and_for_null() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "max_tokens": 7}
    body = CompletionBody(prompt="a", temperature=0.1, top_k=None)
    sampling = body.sampling(ServerSettings(), defaults, max_tokens=16)
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.1, 20, 16)
