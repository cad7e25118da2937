"""The names and shapes that users of vLLM know."""

from __future__ import annotations

import msgspec

from octavo.engine.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.request import FinishReason

KNOWN_REQUEST_FIELDS = {
    "request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "outputs", "finished", "num_cached_tokens",
    "metrics",
}  # fmt: skip
KNOWN_COMPLETION_FIELDS = {
    "index", "text", "token_ids", "cumulative_logprob", "logprobs", "finish_reason", "stop_reason",
}  # fmt: skip


def test_outputs_have_the_known_fields() -> None:
    assert {field.name for field in msgspec.structs.fields(RequestOutput)} >= KNOWN_REQUEST_FIELDS
    assert {field.name for field in msgspec.structs.fields(CompletionOutput)} >= KNOWN_COMPLETION_FIELDS
    assert {field.name for field in msgspec.structs.fields(Logprob)} == {"logprob", "rank", "decoded_token"}


def test_a_finish_reason_compares_as_text() -> None:
    completion = CompletionOutput(index=0, text="a", token_ids=[97], finish_reason=FinishReason.STOP)
    assert completion.finish_reason == "stop"
    assert completion.finished()
    assert not CompletionOutput(index=0, text="", token_ids=[]).finished()


def test_an_output_is_json_as_it_is() -> None:
    completion = CompletionOutput(
        index=0, text="a", token_ids=[97], logprobs=[{97: Logprob(logprob=-0.5, rank=1, decoded_token="a")}]
    )
    output = RequestOutput(request_id="0", prompt="p", prompt_token_ids=[1], outputs=[completion], finished=True)
    again = msgspec.json.decode(msgspec.json.encode(output), type=RequestOutput)
    assert again == output
