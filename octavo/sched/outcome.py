"""What a step meant for one request: whether it ended, and what the front end hears of it."""

from __future__ import annotations

from octavo.messages import EngineCoreOutput, ModelRunnerOutput
from octavo.request import FinishReason, Request
from octavo.sched.queue import Entry


def find_finish(request: Request, token_id: int, *, must_stop: bool = False) -> tuple[FinishReason | None, int | None]:
    """Why `request` ends with `token_id`, its newest token: (reason, stop reason), or (None, None) to go on.

    From `min_tokens` output tokens on, an end-of-sequence token ends it unless `ignore_eos`, and a token of
    `stop_token_ids` ends it always; the latter is the stop reason. `max_output_tokens` ends it in any case,
    and so does `must_stop`: nothing can follow what it has.
    """
    num_output = request.num_output_tokens
    sampling = request.sampling
    if num_output >= sampling.min_tokens:
        if token_id in request.eos_token_ids and not sampling.ignore_eos:
            return FinishReason.STOP, None
        if token_id in sampling.stop_token_ids:
            return FinishReason.STOP, token_id
    if must_stop:
        return FinishReason.STOP, None
    if num_output >= request.max_output_tokens:
        return FinishReason.LENGTH, None
    return None, None


def news_of(entry: Entry, output: ModelRunnerOutput, token_id: int | None, start: int) -> EngineCoreOutput:
    """The news of `entry`, which computed tokens from number `start` on and perhaps sampled `token_id`.

    Prompt log probabilities that a resumed request computes again are cut; `entry` counts what was delivered.
    """
    request = entry.request
    request_id = request.request_id
    prompt_logprobs = output.prompt_logprobs.get(request_id, [])
    if prompt_logprobs:
        prompt_logprobs = prompt_logprobs[max(0, entry.num_prompt_logprobs - start) :]
        entry.num_prompt_logprobs += len(prompt_logprobs)
    logprobs = output.logprobs.get(request_id)
    return EngineCoreOutput(
        request_id=request_id,
        new_token_ids=[] if token_id is None else [token_id],
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        last_is_text=request.finish_reason is FinishReason.STOP and token_id not in entry.enders,
        num_cached_tokens=request.num_cached_tokens,
        logprobs=() if logprobs is None else (logprobs,),
        prompt_logprobs=tuple(prompt_logprobs),
    )


def plain_news(request: Request, token_id: int) -> EngineCoreOutput:
    """As `news_of` a request that goes on and reports no log probabilities: all but a few, and often many."""
    return EngineCoreOutput(
        request_id=request.request_id, new_token_ids=[token_id], num_cached_tokens=request.num_cached_tokens
    )


def failure_of(request: Request, message: str) -> EngineCoreOutput:
    """The last news of a request that ends because its step failed."""
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=[],
        finish_reason=FinishReason.ERROR,
        num_cached_tokens=request.num_cached_tokens,
        error=message,
    )
