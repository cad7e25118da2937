"""Where each running request stands in the grammar that its output must follow.

A request that asks for a form waits beside the line until its grammar is compiled, in a thread, so that the steps of
others go on. From then on it has a matcher, which a preemption does not touch: it follows the tokens that came out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import msgspec

from octavo.engine.grammar_compiler import GrammarCompiler, Matcher
from octavo.errors import OctavoError
from octavo.messages import SchedulerOutput
from octavo.request import Request
from octavo.sched.admission import id_in_use
from octavo.structured_outputs import StructuredOutputsParams


class Ready(NamedTuple):
    """A request whose grammar was compiled, or could not be."""

    request: Request
    error: OctavoError | None


class GrammarTable:
    """Owns: the matchers of unfinished requests, those that wait for one, and the thread that compiles.
    Never: chooses tokens, or who runs."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self.compiler = compiler
        """Makes the matchers."""
        self._waiting: dict[str, tuple[Request, Future[Matcher]]] = {}
        self._running: dict[str, tuple[Request, Matcher]] = {}
        self._broken: dict[str, str] = {}
        """Requests of the step under way whose matcher met a limit, and what it was."""
        self._pool: ThreadPoolExecutor | None = None

    @property
    def num_waiting(self) -> int:
        """Requests whose grammars are being compiled."""
        return len(self._waiting)

    def check_id(self, request_id: str) -> None:
        """Raises `RequestError` when a request of this id waits here."""
        if request_id in self._waiting:
            raise id_in_use(request_id)

    def add(self, request: Request, form: StructuredOutputsParams) -> None:
        """Let `request` have a matcher; `take_ready` gives it back. It forgets its form: the ranks get masks."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        request.sampling = msgspec.structs.replace(request.sampling, structured_outputs=None)
        self._waiting[request.request_id] = (request, self._pool.submit(self.compiler.matcher, form))

    def take_ready(self, timeout_s: float = 0.0) -> list[Ready]:
        """The requests whose grammars have been compiled, in order of their arrival; waits for the first one, so long
        at most."""
        if timeout_s and self._waiting:
            wait([next(iter(self._waiting.values()))[1]], timeout=timeout_s)
        ready: list[Ready] = []
        for request_id, (request, future) in list(self._waiting.items()):
            if not future.done():
                break  # one thread compiles them in order
            del self._waiting[request_id]
            error = future.exception()
            if error is None:
                self._running[request_id] = (request, future.result())
            elif not isinstance(error, OctavoError):
                error = OctavoError(f"The grammar could not be compiled: {type(error).__name__}: {error}")
            ready.append(Ready(request, error))
        return ready

    def discard(self, request_ids: Iterable[str]) -> None:
        """Forget these; others are skipped."""
        if not self._running and not self._waiting:
            return
        for request_id in request_ids:
            self._running.pop(request_id, None)
            waiting = self._waiting.pop(request_id, None)
            if waiting is not None:
                waiting[1].cancel()

    def masked(self, step: SchedulerOutput) -> SchedulerOutput:
        """`step` with the tokens that may come next, for each request of a grammar that samples in it. One whose
        matcher meets a limit has none, and is in `take_broken`."""
        if not self._running:
            return step
        masks: dict[str, bytes] = {}
        for request_id in step.num_scheduled_tokens.keys() & self._running.keys():
            request, matcher = self._running[request_id]
            if request.num_computed_tokens < request.num_tokens:
                continue
            mask = matcher.compute_bitmask()
            if matcher.is_error():
                self._broken[request_id] = _short(matcher.get_error())
            else:
                masks[request_id] = _without_ends(mask, request) if request.sampling.ignore_eos else mask
        return msgspec.structs.replace(step, token_masks=masks) if masks else step

    def follow(self, sampled: Mapping[str, int]) -> frozenset[str]:
        """Go on by the tokens of a step; the requests that end with them, because nothing can follow."""
        if not self._running:
            return frozenset()
        ended = set()
        for request_id in sampled.keys() & self._running.keys():
            if request_id in self._broken:
                continue
            matcher = self._running[request_id][1]
            if not matcher.consume_token(sampled[request_id]):
                self._broken[request_id] = _short(matcher.get_error())
            elif matcher.is_stopped():
                ended.add(request_id)
        return frozenset(ended)

    def take_broken(self) -> dict[str, str]:
        """The requests that cannot go on, and why."""
        broken, self._broken = self._broken, {}
        return broken

    def shutdown(self) -> None:
        """End the thread. May be called twice."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _without_ends(mask: bytes, request: Request) -> bytes:
    """`mask` without the tokens that end an output, as long as another one may follow."""
    bits = bytearray(mask)
    for token_id in request.eos_token_ids:
        bits[token_id >> 3] &= ~(1 << (token_id & 7)) & 0xFF
    return bytes(bits) if bits.strip(b"\0") else mask


def _short(reason: str) -> str:
    text = " ".join(reason.partition("<non-verbose/>")[0].split())
    return f"The form in structured_outputs is too large to follow: {text[:200].rstrip('.')}. Ask for a simpler one."
