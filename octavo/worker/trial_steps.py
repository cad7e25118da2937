"""Real steps without real requests: to compile what requests will need, and to see what a step needs at its peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.kv.specs import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, LayerSpec
from octavo.messages import CachedRequests, NewRequestData, SchedulerOutput
from octavo.worker.model_runner import ModelRunner

_BLOCK = 1
"""The block that trial requests use in every group: nobody else holds one yet, and its content is never read again."""

_WARM_UP_TOKENS = 4

_SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 0, "top_k": 2, "logprobs": 1, "prompt_logprobs": 0},
)
"""One request for each way through the sampler: greedy, and everything else."""


def run_warm_up(runner: ModelRunner) -> int:
    """Prefill and then decode a short request for each way through the sampler; how many steps that took.

    The requests run together, or one after the other where the batch has too few rows.
    """
    rows = len(runner.batch.num_tokens)
    return sum(_warm_up(runner, _SAMPLINGS[first : first + rows]) for first in range(0, len(_SAMPLINGS), rows))


def _warm_up(runner: ModelRunner, samplings: tuple[dict[str, Any], ...]) -> int:
    block_size = min((group.block_size for group in runner.groups), default=_WARM_UP_TOKENS + 1)
    num_tokens = max(1, min(_WARM_UP_TOKENS, block_size - 1, runner.max_model_len - 1))
    requests = [
        _request(f"warm-up {i}", num_tokens, sampling, [[_BLOCK]] * len(runner.groups))
        for i, sampling in enumerate(samplings)
    ]
    names = [request.request_id for request in requests]
    steps = [_step(dict.fromkeys(names, num_tokens), new=requests)]
    if num_tokens < min(block_size, runner.max_model_len):
        cached = CachedRequests(request_ids=names, num_computed_tokens=[num_tokens] * len(names))
        # Whatever was sampled: stages of a pipeline that did not, need a token all the same.
        steps.append(_step(dict.fromkeys(names, 1), cached=cached, earlier=dict.fromkeys(names, 0)))
    steps.append(_step({}, finished=names))
    for step in steps:
        runner.execute_model(step)
    return len(steps) - 1


def trial_config(specs: Mapping[str, LayerSpec], shared_layers: dict[str, str], num_tokens: int) -> KVCacheConfig:
    """The smallest cache in which a trial step of `num_tokens` tokens runs: null block and trial block, each layer in a
    group and a tensor of its own."""
    return KVCacheConfig(
        num_blocks=_BLOCK + 1,
        groups=tuple(KVCacheGroupSpec(layer_names=(name,), spec=spec) for name, spec in specs.items()),
        tensors=tuple(
            KVCacheTensor(size_bytes=(_BLOCK + 1) * spec.page_bytes, shared_by=(name,)) for name, spec in specs.items()
        ),
        shared_layers=shared_layers,
        max_model_len=num_tokens,
        max_chunk_tokens=num_tokens,
    )


def run_largest(runner: ModelRunner, *, num_tokens: int, num_requests: int) -> None:
    """One step of `num_tokens` tokens over as many requests as may run, each of which samples."""
    num_requests = min(num_requests, num_tokens)
    shares = [num_tokens // num_requests + (i < num_tokens % num_requests) for i in range(num_requests)]
    requests = []
    for i, share in enumerate(shares):
        tables = [[_BLOCK] * -(-share // group.block_size) for group in runner.groups]
        requests.append(_request(f"trial {i}", share, _SAMPLINGS[0], tables))
    names = [request.request_id for request in requests]
    runner.execute_model(_step(dict(zip(names, shares, strict=True)), new=requests))
    runner.execute_model(_step({}, finished=names))


def _request(name: str, num_tokens: int, sampling: dict[str, Any], block_ids: list[list[int]]) -> NewRequestData:
    fields = {
        "request_id": name,
        "token_ids": [0] * num_tokens,
        "num_prompt_tokens": num_tokens,
        "sampling": sampling,
        "eos_token_ids": (),
        "num_computed_tokens": 0,
        "block_ids": tuple(block_ids),
    }
    return msgspec.convert(fields, NewRequestData)


def _step(
    counts: dict[str, int],
    *,
    new: list[NewRequestData] | None = None,
    cached: CachedRequests | None = None,
    finished: list[str] | None = None,
    earlier: dict[str, int] | None = None,
) -> SchedulerOutput:
    return SchedulerOutput(
        step=0,
        num_scheduled_tokens=counts,
        new_requests=new or [],
        cached_requests=cached or CachedRequests(),
        finished_request_ids=finished or [],
        earlier_tokens=earlier or {},
    )
