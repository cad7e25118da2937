"""An engine core without a model: each sequence gets the tokens of a script, one a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from octavo.engine.core_client import EngineCoreClient
from octavo.errors import ExecutorError, RequestError
from octavo.messages import (
    CoreState,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    MemoryReport,
    SchedulerStats,
    TokenLogprobs,
)
from octavo.request import FinishReason

Script = Callable[[EngineCoreRequest], Sequence[int]]
"""The tokens that a sequence would get if nothing ended it."""


class FakeCore(EngineCoreClient):
    """Ends a sequence by its own rules as the real core does: end of sequence, stop token, length."""

    plan: Any = None
    model_config: Any = None
    max_model_len = 1000

    def __init__(self, script: Script, *, refuse: str = "", fail: str = "") -> None:
        self._script = script
        self._refuse, self._fail = refuse, fail
        self.running: dict[str, tuple[EngineCoreRequest, list[int]]] = {}
        self.added: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.num_steps = 0
        self.is_shut_down = False
        self.has_ranks = True

    def check_ranks(self) -> None:
        if not self.has_ranks:
            raise ExecutorError("All ranks were stopped.", remedy="Start the engine again.")

    def add_request(self, request: EngineCoreRequest) -> None:
        if request.request_id == self._refuse:
            raise RequestError("The core refuses it.", remedy="Ask for less.")
        self.added.append(request)
        self.running[request.request_id] = (request, [])

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            self.running.pop(request_id, None)

    def step(self) -> EngineCoreOutputs:
        self.num_steps += 1
        outputs = [self._advance(request, tokens) for request, tokens in list(self.running.values())]
        for output in outputs:
            if output.finish_reason is not None:
                del self.running[output.request_id]
        prompt_tokens = sum(
            len(request.prompt_token_ids) for request, tokens in self.running.values() if len(tokens) == 1
        )
        return EngineCoreOutputs(outputs=outputs, stats=self.stats(), num_prompt_tokens=prompt_tokens)

    def _advance(self, request: EngineCoreRequest, tokens: list[int]) -> EngineCoreOutput:
        if request.request_id == self._fail:
            return EngineCoreOutput(
                request_id=request.request_id, new_token_ids=[], finish_reason=FinishReason.ERROR, error="It broke."
            )
        script = self._script(request)
        token = script[len(tokens) % len(script)]
        tokens.append(token)
        reason, stop_reason = self._finish(request, tokens)
        first = len(tokens) == 1
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[token],
            finish_reason=reason,
            stop_reason=stop_reason,
            num_cached_tokens=3 if first else 0,
            logprobs=[] if request.sampling.logprobs is None else [_logprobs(token, request.sampling.logprobs)],
            prompt_logprobs=_prompt_logprobs(request) if first else [],
        )

    @staticmethod
    def _finish(request: EngineCoreRequest, tokens: list[int]) -> tuple[FinishReason | None, int | None]:
        sampling, token = request.sampling, tokens[-1]
        if token in request.eos_token_ids and not sampling.ignore_eos:
            return FinishReason.STOP, None
        if token in sampling.stop_token_ids:
            return FinishReason.STOP, token
        if len(tokens) == sampling.max_tokens:
            return FinishReason.LENGTH, None
        return None, None

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def reset_prefix_cache(self) -> bool:
        return not self.running

    def report_memory(self) -> list[MemoryReport]:
        return [
            MemoryReport(num_blocks=100, num_views=2, num_storages=1, storage_bytes=819200, resident_bytes=9, rank=0)
        ]

    def state(self) -> CoreState:
        stats = msgspec.structs.replace(self.stats(), num_running=0, num_waiting=len(self.running))
        return CoreState(
            stats=stats, num_steps=self.num_steps, max_num_seqs=9, max_num_batched_tokens=9, running=[], waiting=[]
        )

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=0,
            num_blocks=100,
            num_free_blocks=99 - len(self.running),
            num_cached_blocks=0,
            num_used_blocks=len(self.running),
            num_preemptions=0,
            prefix_query_tokens=0,
            prefix_hit_tokens=0,
        )

    def shutdown(self) -> None:
        self.is_shut_down = True


def _logprobs(token: int, num_best: int) -> TokenLogprobs:
    """The chosen token is always the second best."""
    best = [65, token, *range(66, 66 + num_best)][:num_best]
    return TokenLogprobs(
        token_ids=[token, *best], logprobs=[-1.5, *(-0.5 - index for index in range(len(best)))], rank=2
    )


def _prompt_logprobs(request: EngineCoreRequest) -> list[TokenLogprobs]:
    if request.sampling.prompt_logprobs is None:
        return []
    return [_logprobs(token, request.sampling.prompt_logprobs) for token in request.prompt_token_ids[1:]]
