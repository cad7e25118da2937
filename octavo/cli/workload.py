"""Workload files: what a benchmark asks of an engine, to the token.

    {"name": "w1", "seed": 0, "note": "one stream", "requests": [{"prompt": [5, 17, 9], "max_tokens": 256}]}

Prompts are token ids and outputs have fixed lengths, so that every engine that runs a file does the same work.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from octavo.errors import RequestError

_FORM = 'Write {"name": text, "requests": [{"prompt": [token ids], "max_tokens": count}, ...]}.'

_INT32 = 2**31


class WorkloadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sequence: what goes in, and how many tokens come out."""

    prompt: list[int]
    max_tokens: int


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that are handed in at once."""

    name: str
    requests: list[WorkloadRequest]
    seed: int = 0
    """What the prompts were drawn with."""
    note: str = ""

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        return sum(request.max_tokens for request in self.requests)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output."""
        return max(len(request.prompt) + request.max_tokens for request in self.requests)


def load_workload(path: Path) -> Workload:
    """The workload in `path`. Raises `RequestError` when it cannot be read, or asks for what no engine could do."""
    try:
        workload = msgspec.json.decode(path.read_bytes(), type=Workload)
    except OSError as error:
        raise RequestError(
            f"The workload file {path} cannot be read: {error.strerror or error}.", remedy="Give the path of a file."
        ) from None
    except msgspec.ValidationError as error:
        raise RequestError(f"{path} is no workload: {error}.", remedy=_FORM) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"{path} is not JSON: {error}.", remedy=_FORM) from None
    if not workload.requests:
        raise RequestError(f"{path} has no requests.", remedy=_FORM)
    for index, request in enumerate(workload.requests):
        _check(f"{path}: requests[{index}]", request)
    return workload


def _check(where: str, request: WorkloadRequest) -> None:
    if not request.prompt:
        raise RequestError(f"{where} has an empty prompt.", remedy="Give it at least one token id.")
    wrong = next((token_id for token_id in request.prompt if not 0 <= token_id < _INT32), None)
    if wrong is not None:
        raise RequestError(
            f"{where} has the token id {wrong}.", remedy=f"Token ids are whole numbers from 0 to {_INT32 - 1}."
        )
    if not 1 <= request.max_tokens < _INT32:
        raise RequestError(
            f"{where} has max_tokens {request.max_tokens}.", remedy=f"It must be from 1 to {_INT32 - 1}."
        )
