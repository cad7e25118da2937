"""What a process does in which a rank lives, however calls reach it."""

from __future__ import annotations

import importlib
from typing import Any

from octavo.error_report import report_of
from octavo.executor.rank_calls import RankStart, decode_call, encode_error, encode_result


def find_rank_class(path: str) -> Any:
    """The class that `module:Class` names. Raises `ImportError` or `AttributeError` when there is none."""
    module_name, _, name = path.partition(":")
    return getattr(importlib.import_module(module_name), name)


class RankHost:
    """One rank, made at its first call, so that an error of its constructor is an answer like any other.

    Owns: the rank. Never: lets an error out.
    """

    def __init__(self, start: RankStart, make_rank: Any) -> None:
        self._start = start
        self._make_rank = make_rank
        self._rank: Any = None

    def answer(self, frame: bytes) -> tuple[str, bytes]:
        """(the method that was called, the frame that answers)."""
        method, number = "a call", self._start.global_rank
        try:
            method, arguments = decode_call(frame)
            if self._rank is None:
                self._rank = self._make_rank(self._start.config, global_rank=number, local_rank=self._start.local_rank)
            return method, encode_result(getattr(self._rank, method)(*arguments))
        except Exception as error:  # whatever it is, the caller is to hear of it
            return method, encode_error(report_of(error, doing=f"Rank {number} failed in {method}"))
