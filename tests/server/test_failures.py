"""Every error has a status and OpenAI's shape."""

from __future__ import annotations

import msgspec
import pytest

from octavo.errors import EngineDeadError, ExecutorError, RequestError
from octavo.server.failures import ServerError, failure_of


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("x", parameter="n"), 400, "invalid_request_error"),
        (EngineDeadError("x"), 503, "service_unavailable"),
        (ExecutorError("x"), 500, "server_error"),
        (TimeoutError(), 504, "timeout"),
        (KeyError("secret"), 500, "server_error"),
        (ServerError(418, "x", kind="tea"), 418, "tea"),
    ],
)
def test_what_clients_are_told(error: Exception, status: int, kind: str) -> None:
    failure = failure_of(error)
    response = failure.response()
    assert response.status_code == status
    document = msgspec.json.decode(bytes(response.body))["error"]
    assert set(document) == {"message", "type", "param", "code"}
    assert document["type"] == kind
    assert "secret" not in document["message"]
    assert ("retry-after" in response.headers) == (status == 503)


def test_a_refusal_names_its_field_and_its_code() -> None:
    assert failure_of(RequestError("x", parameter="top_p")).param == "top_p"
    long = failure_of(RequestError("x", num_prompt_tokens=9, max_model_len=8))
    assert long.code == "context_length_exceeded"
