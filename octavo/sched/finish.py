"""When a request ends."""

from __future__ import annotations

from octavo.request import FinishReason, Request


def find_finish(request: Request, token_id: int) -> tuple[FinishReason | None, int | None]:
    """Why `request` ends with `token_id`, its newest token: (reason, stop reason), or (None, None) to go on.

    From `min_tokens` output tokens on, an end-of-sequence token ends it unless `ignore_eos`, and a token of
    `stop_token_ids` ends it always; the latter is the stop reason. `max_output_tokens` ends it in any case.
    """
    num_output = request.num_output_tokens
    sampling = request.sampling
    if num_output >= sampling.min_tokens:
        if token_id in request.eos_token_ids and not sampling.ignore_eos:
            return FinishReason.STOP, None
        if token_id in sampling.stop_token_ids:
            return FinishReason.STOP, token_id
    if num_output >= request.max_output_tokens:
        return FinishReason.LENGTH, None
    return None, None
