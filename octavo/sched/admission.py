"""Who is refused: requests that could never run to their end, whatever else goes on.

All checks are made once, when a request arrives, so the scheduler never meets a request that blocks the others.
"""

from __future__ import annotations

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.config import SchedulerConfig
from octavo.errors import RequestError
from octavo.request import Request


def step_limit(config: SchedulerConfig) -> int:
    """Most tokens one request may be given in one step."""
    if config.max_chunk_tokens is None:
        return config.max_num_batched_tokens
    return min(config.max_chunk_tokens, config.max_num_batched_tokens)


def id_in_use(request_id: str) -> RequestError:
    """The refusal of an id that an unfinished request has."""
    return RequestError(f"Request id {request_id!r} is in use.", remedy="Choose an id that no unfinished request has.")


def check_request(
    request: Request, manager: KVCacheManager, *, max_model_len: int, whole_prompt_limit: int | None
) -> None:
    """Raise `RequestError`, with both numbers and the remedy, when `request` can never be served in full.

    `whole_prompt_limit`: most prompt tokens where a prompt may not be spread over steps; None where it may.
    """
    name, num_prompt, num_output = request.request_id, request.num_prompt_tokens, request.max_output_tokens
    if num_prompt == 0:
        raise RequestError(f"Request {name!r} has an empty prompt.", remedy="Give it at least one token.")
    if num_prompt >= max_model_len:
        raise RequestError(
            f"The prompt of request {name!r} has {num_prompt} tokens; with at least one token of output this is more "
            f"than the {max_model_len} of --max-model-len.",
            remedy=f"Shorten the prompt to {max_model_len - 1} tokens or raise --max-model-len.",
            num_prompt_tokens=num_prompt,
            max_model_len=max_model_len,
        )
    if num_prompt + num_output > max_model_len:
        raise RequestError(
            f"Request {name!r} asks for {num_prompt} prompt tokens + {num_output} output tokens = "
            f"{num_prompt + num_output}, more than the {max_model_len} of --max-model-len.",
            remedy=f"Lower max_tokens to {max_model_len - num_prompt} or raise --max-model-len.",
            num_prompt_tokens=num_prompt,
            max_tokens=num_output,
            max_model_len=max_model_len,
        )
    if whole_prompt_limit is not None and num_prompt > whole_prompt_limit:
        raise RequestError(
            f"The prompt of request {name!r} has {num_prompt} tokens; without chunked prefill it must fit one step of "
            f"{whole_prompt_limit} tokens.",
            remedy="Shorten the prompt, raise --max-num-batched-tokens or allow chunked prefill.",
            num_prompt_tokens=num_prompt,
            whole_prompt_limit=whole_prompt_limit,
        )
    _check_blocks(request, manager)


def _check_blocks(request: Request, manager: KVCacheManager) -> None:
    longest = request.num_prompt_tokens + request.max_output_tokens - 1
    if manager.can_ever_fit(longest):
        return
    fitting = _longest_fitting(manager, longest)
    num_output = fitting + 1 - request.num_prompt_tokens
    needed, usable = manager.max_blocks_of(longest), manager.num_blocks - 1
    if num_output >= 1:
        advice = f"Lower max_tokens to {num_output} or give"
    elif fitting >= 1:
        advice = f"Shorten the prompt to {fitting} tokens and ask for max_tokens 1, or give"
    else:
        advice = "Give"
    raise RequestError(
        f"Request {request.request_id!r} may need {needed} blocks for its {longest} tokens; the whole KV cache has "
        f"{usable}.",
        remedy=f"{advice} the KV cache more memory (--kv-memory).",
        needed_blocks=needed,
        usable_blocks=usable,
        fitting_tokens=fitting,
    )


def _longest_fitting(manager: KVCacheManager, too_long: int) -> int:
    """Largest number of tokens below `too_long` that fits the empty pool; 0 when none does."""
    low, high = 0, too_long
    while high - low > 1:
        middle = (low + high) // 2
        if manager.can_ever_fit(middle):
            low = middle
        else:
            high = middle
    return low
