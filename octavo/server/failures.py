"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}` and a status."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import msgspec
from fastapi import Response

from octavo.errors import EngineDeadError, OctavoError, RequestError

RETRY_AFTER_S = 2
"""What clients are told to wait where the load, or a restart, is in their way."""


class ServerError(Exception):
    """A request is answered with an error of the server's own, not the engine's.

    Parameters:
        kind: OpenAI's `type`, such as `invalid_request_error`.
        retry_after_s: when to come again, where that may help.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole answer."""
        headers = {} if self.retry_after_s is None else {"Retry-After": str(math.ceil(self.retry_after_s))}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(msgspec.json.encode(self.body()), self.status, headers, "application/json")


@contextlib.contextmanager
def speaking_of(field: str, **names: str) -> Iterator[None]:
    """Inside, what the engine refuses without naming a field is refused as `field`; and a field that a client called
    otherwise, such as `max_tokens="max_completion_tokens"`, by the client's name."""
    try:
        yield
    except RequestError as error:
        found = error.parameter or field
        name = names.get(found, found)
        fact = error.fact.replace(found, name, 1)
        raise RequestError(fact, remedy=error.remedy, parameter=name, **error.numbers) from None


def failure_of(error: Exception) -> ServerError:
    """What a client is told of `error`. Of an accident, only that it was one: the log has the rest."""
    match error:
        case ServerError():
            return error
        case RequestError():
            too_long = "num_prompt_tokens" in error.numbers and "max_model_len" in error.numbers
            code = "context_length_exceeded" if too_long else None
            return ServerError(400, str(error), param=error.parameter, code=code)
        case EngineDeadError():
            return ServerError(
                503, str(error), kind="service_unavailable", code="engine_unavailable", retry_after_s=RETRY_AFTER_S
            )
        case TimeoutError():
            return ServerError(504, "The request took longer than it may.", kind="timeout", code="request_timeout")
        case OctavoError():
            return ServerError(500, str(error), kind="server_error")
    return ServerError(500, "The server failed by accident; its log has the details.", kind="server_error")
