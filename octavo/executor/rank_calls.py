"""What travels between an executor and a rank in a process of its own: calls down, answers up, as msgpack.

The annotations of `Rank` are the schema: arguments and results are decoded to the types that they name, so a
method that ranks answer to is declared once. Nothing is pickled.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.error_report import ErrorReport, error_from
from octavo.errors import InvariantError
from octavo.worker.rank import Rank

_encoder = msgspec.msgpack.Encoder()
_NIL = b"\xc0"
"""None, as msgpack has it."""


class RankStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a rank: who it is."""

    config: EngineConfig
    global_rank: int
    local_rank: int


class RankCall(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Call one method; `arguments` are encoded apart, since their types follow from the method."""

    method: str
    arguments: msgspec.Raw


class RankAnswer(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What came of a call: a result, or an error instead."""

    result: msgspec.Raw = msgspec.Raw(_NIL)
    error: ErrorReport | None = None


_starts = msgspec.msgpack.Decoder(RankStart)
_calls = msgspec.msgpack.Decoder(RankCall)
_answers = msgspec.msgpack.Decoder(RankAnswer)


def encode_start(start: RankStart) -> bytes:
    """The first frame of a connection."""
    return _encoder.encode(start)


def decode_start(frame: bytes) -> RankStart:
    """Raises `msgspec.DecodeError` for anything else."""
    return _starts.decode(frame)


def encode_call(method: str, arguments: Sequence[Any]) -> bytes:
    """A call for any number of ranks. Raises `InvariantError` when ranks do not answer to `method`."""
    _schema(method)
    return _encoder.encode(RankCall(method=method, arguments=msgspec.Raw(_encoder.encode(list(arguments)))))


def decode_call(frame: bytes) -> tuple[str, tuple[Any, ...]]:
    """(method, arguments). Raises `msgspec.DecodeError` or `InvariantError` for what is no call of a known method."""
    call = _calls.decode(frame)
    return call.method, _schema(call.method)[0].decode(call.arguments)


def encode_result(result: Any) -> bytes:
    """The answer of a call that went well."""
    return _encoder.encode(RankAnswer(result=msgspec.Raw(_encoder.encode(result))))


def encode_error(error: ErrorReport) -> bytes:
    """The answer of a call that failed."""
    return _encoder.encode(RankAnswer(error=error))


def is_error(frame: bytes) -> bool:
    """Whether an answer is an error."""
    return _answers.decode(frame).error is not None


def decode_answer(method: str, frame: bytes) -> Any:
    """The result of `method`, or the `ErrorReport` that came instead."""
    answer = _answers.decode(frame)
    if answer.error is not None:
        return answer.error
    return _schema(method)[1].decode(answer.result)


def decode_answers(method: str, frames: Iterable[bytes]) -> list[Any]:
    """The results of `method`, in the order of `frames`. Raises the first error that is among them."""
    results = [decode_answer(method, frame) for frame in frames]
    for result in results:
        if isinstance(result, ErrorReport):
            raise error_from(result)
    return results


def decode_last(method: str, frames: Sequence[bytes]) -> Any:
    """The result of `method` in the last of `frames`; of the others only errors are looked for, which are raised."""
    errors = [frame for frame in frames if is_error(frame)]
    return decode_answers(method, errors or frames[-1:])[-1]


@cache
def _schema(method: str) -> tuple[msgspec.msgpack.Decoder[Any], msgspec.msgpack.Decoder[Any]]:
    """Decoders of the arguments and of the result of a method of `Rank`."""
    function = getattr(Rank, method, None)
    if method.startswith("_") or not inspect.isfunction(function):
        raise InvariantError(f"ranks do not answer to {method!r}")
    hints = typing.get_type_hints(function)
    result = hints.pop("return")
    return msgspec.msgpack.Decoder(tuple[tuple(hints.values())]), msgspec.msgpack.Decoder(result)  # type: ignore[misc]
