"""POST /v1/chat/completions, through HTTP and OpenAI's own client: the answer is the prompt backwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo import AsyncLLM, SamplingParams
from tests.engine.fake_process import install_fake_process
from tests.server.running import RunningServer, running
from tests.server.test_completions import events

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
PROMPT = "<user>hi<assistant>"
CHAT = "/v1/chat/completions"


def test_a_turn_is_answered(server: RunningServer) -> None:
    document = server.post(CHAT, messages=MESSAGES, max_tokens=99).json()
    assert document["object"] == "chat.completion"
    (choice,) = document["choices"]
    assert choice["message"] == {"role": "assistant", "content": PROMPT[::-1], "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert document["usage"]["prompt_tokens"] == len(PROMPT)


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(server: RunningServer) -> None:
    answer = server.post(CHAT, messages=MESSAGES, stream=True, stream_options={"include_usage": True})
    first, *rest, usage = events(answer.text)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(piece["choices"][0]["delta"].get("content", "") for piece in rest) == PROMPT[::-1]
    assert [piece["choices"][0]["finish_reason"] for piece in rest] == [None] * (len(rest) - 1) + ["stop"]
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == len(PROMPT)


def test_the_template_gets_tools_and_variables(server: RunningServer) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    body: dict[str, Any] = {
        "messages": MESSAGES,
        "tools": tools,
        "chat_template_kwargs": {"mood": "dry", "tools": 3, "self": 4},
    }
    content = server.post(CHAT, **body).json()["choices"][0]["message"]["content"]
    assert content[::-1] == f"<tool>look<mood>dry{PROMPT}"
    content = server.post(CHAT, **body, tool_choice="none").json()["choices"][0]["message"]["content"]
    assert content[::-1] == f"<mood>dry{PROMPT}"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
        ({"messages": MESSAGES, "response_format": {"type": "json_schema"}}, "response_format"),
        ({"messages": MESSAGES, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": MESSAGES, "max_tokens": 0}, "max_tokens"),
        ({"messages": MESSAGES, "tool_choice": 5}, "tool_choice"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ],
)
def test_what_is_refused(server: RunningServer, body: Any, param: str) -> None:
    answer = server.post(CHAT, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert param in error["message"]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openais_client_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2, max_completion_tokens=3, stop=["x"]
    )
    assert [choice.message.content for choice in answer.choices] == [PROMPT[::-1][:3]] * 2
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert (logprobs.content[0].token, logprobs.content[0].bytes) == (">", [62])
    assert [top.token for top in logprobs.content[0].top_logprobs] == ["A", ">"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_openais_client_streams_side_by_side(server: RunningServer) -> None:
    async def one(client: openai.AsyncOpenAI, text: str) -> str:
        messages: list[Any] = [{"role": "user", "content": text}]
        stream = await client.chat.completions.create(model="fake", messages=messages, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            texts = [f"number {index}" for index in range(40)]
            answers = await asyncio.gather(*(one(client, text) for text in texts))
            assert answers == [f"<user>{text}<assistant>"[::-1] for text in texts]

    asyncio.run(main())


def test_openais_client_completes_and_lists(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="abc", echo=True, logprobs=1, max_tokens=1)
    assert answer.choices[0].text == "abcc"
    assert [model.id for model in client.models.list()] == ["fake", "other"]
    assert client.models.retrieve("other").id == "other"


def test_openais_client_knows_our_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="top_p is"):
        client.completions.create(model="fake", prompt="a", top_p=7)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-9", prompt="a")


LOOK: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "look", "arguments": {"word": "tea"}}</tool_call>'


@pytest.fixture(scope="module")
def caller() -> Iterator[openai.OpenAI]:
    """A client of a server that reads tool calls and reasoning."""
    with pytest.MonkeyPatch.context() as patch:
        install_fake_process(patch)
        with (
            running(tool_call_parser="hermes", reasoning_parser="think", served_model_names=("fake",)) as server,
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        ):
            yield client


def saying(text: str, role: str = "user") -> list[Any]:
    """Messages to which the fake model answers with `text` between a mark before and behind it."""
    return [{"role": role, "content": text[::-1]}]


def test_tool_calls_are_parsed_out(caller: openai.OpenAI) -> None:
    answer = caller.chat.completions.create(model="fake", messages=saying(CALL + CALL), tools=[LOOK])
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    calls: list[Any] = choice.message.tool_calls or []
    assert [(call.type, call.function.name, call.function.arguments) for call in calls] == [
        ("function", "look", '{"word": "tea"}')
    ] * 2
    assert len({call.id for call in calls}) == 2
    assert choice.message.content == ">tnatsissa<>resu<kool>loot<"


def test_tool_calls_are_streamed_whole(caller: openai.OpenAI) -> None:
    chunks = list(
        caller.chat.completions.create(model="fake", messages=saying(f"{CALL} so {CALL}"), tools=[LOOK], stream=True)
    )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert [call.index for call in calls] == [0, 1]
    assert [call.function.arguments for call in calls if call.function] == ['{"word": "tea"}'] * 2
    assert "".join(delta.content or "" for delta in deltas) == ">tnatsissa<so>resu<kool>loot<"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("more", [{}, {"tools": [LOOK], "tool_choice": "none"}])
def test_calls_stay_text_when_no_tools_are_offered(caller: openai.OpenAI, more: Any) -> None:
    (choice,) = caller.chat.completions.create(model="fake", messages=saying(CALL), **more).choices
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"
    assert CALL in (choice.message.content or "")


def test_reasoning_is_split_off(server: RunningServer, caller: openai.OpenAI) -> None:
    # The prompt ends within reasoning: the answer goes on with it.
    messages: list[Any] = [{"role": "system", "content": "ok>kniht/<mh"}, {"role": "user<think>", "content": ""}]
    asked: dict[str, Any] = {"model": "fake", "messages": messages, "extra_body": {"add_generation_prompt": False}}
    messages[1]["role"], messages[1]["content"] = "user", "<think>"
    message: Any = caller.chat.completions.create(**asked).choices[0].message
    assert message.reasoning == message.reasoning_content == ">kniht<>resu<hm"
    assert message.content == "ko>metsys<"
    asked["extra_body"]["include_reasoning"] = False
    message = caller.chat.completions.create(**asked).choices[0].message
    assert (message.content, hasattr(message, "reasoning")) == ("ko>metsys<", False)
    asked["extra_body"]["separate_reasoning"] = False
    assert "</think>" in str(caller.chat.completions.create(**asked).choices[0].message.content)
    body = {"messages": messages, "add_generation_prompt": False, "separate_reasoning": True}
    assert "reasoning" not in server.post(CHAT, **body).json()["choices"][0]["message"]


def test_a_form_waits_for_the_end_of_reasoning_that_has_begun(caller: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "<think>"}]
    asked: dict[str, Any] = {"model": "fake", "response_format": {"type": "json_object"}, "messages": messages}
    template: dict[str, Any] = {"add_generation_prompt": False}
    message = caller.chat.completions.create(**asked, extra_body=template).choices[0].message
    assert (message.content, message.model_dump()["reasoning"]) == ("", ">kniht<>resu<")
    caller.chat.completions.create(**asked, extra_body={**template, "separate_reasoning": False})


@pytest.mark.usefixtures("fake_process")
def test_the_models_sampling_defaults_hold_where_a_request_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.25, "top_p": 0.5, "max_new_tokens": 2}')
    seen: list[SamplingParams] = []
    prepare = AsyncLLM.prepare

    async def watched(self: AsyncLLM, prompts: Any, sampling: SamplingParams, **more: Any) -> Any:
        seen.append(sampling)
        return await prepare(self, prompts, sampling, **more)

    monkeypatch.setattr(AsyncLLM, "prepare", watched)
    messages = [{"role": "user", "content": "abcdef"}]
    with running(generation_config=str(tmp_path)) as server:
        answer = server.post("/v1/chat/completions", messages=messages).json()
        assert answer["usage"]["completion_tokens"] == 2
        server.post("/v1/chat/completions", messages=messages, temperature=1, max_tokens=3, top_p=None)
        server.post("/v1/completions", prompt="abc")
    assert [(one.temperature, one.top_p, one.max_tokens) for one in seen] == [
        (0.25, 0.5, 2),
        (1, 0.5, 3),
        (0.25, 0.5, 16),
    ]
