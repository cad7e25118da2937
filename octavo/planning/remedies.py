"""What to try when one request does not fit, each with its effect computed by planning anew."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from octavo.config import format_bytes
from octavo.errors import OctavoError
from octavo.kv.planner import try_plan
from octavo.planning.cache_dtype import RUNNABLE
from octavo.planning.devices import known_devices
from octavo.planning.forecast import Forecast, Subject, forecast
from octavo.planning.inquiry import Inquiry

NUM_REMEDIES = 3

LITTLE_STEP = 512
"""Tokens of a small step."""


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to try."""

    flags: str
    """What to add to the command or to change in it."""
    effect: str
    """What that does, with numbers."""
    fits: bool
    max_model_len: int
    """The longest request that fits then, up to the length that was asked for."""
    max_concurrency: float
    """Requests of `max_model_len` tokens at once."""


def find_remedies(subject: Subject, asked: Forecast) -> tuple[Remedy, ...]:
    """Up to `NUM_REMEDIES` things to try, one of each kind, those that mend it first; none where the plan fits."""
    if asked.fits:
        return ()
    found = [remedy for changes in _kinds(asked) if (remedy := _first_that_mends(subject, asked, changes)) is not None]
    found.sort(key=lambda remedy: not remedy.fits)
    return tuple(found[:NUM_REMEDIES])


def _first_that_mends(subject: Subject, asked: Forecast, changes: Iterator[tuple[str, Inquiry]]) -> Remedy | None:
    """The first of `changes` that mends it, else the one with the longest request; None where all hold nothing."""
    best: Remedy | None = None
    for flags, inquiry in changes:
        try:
            remedy = _try(subject, asked, flags, inquiry)
        except OctavoError:  # a change that this model does not allow
            continue
        if remedy.fits:
            return remedy
        if remedy.max_model_len > (best.max_model_len if best else 0):
            best = remedy
    return best


def longest_length(asked: Forecast) -> int:
    """The longest request that fits, up to the length that was asked for; 0 where none does."""
    options = msgspec.structs.replace(asked.options, auto_fit=True)
    available = [budget.kv_bytes for budget in asked.budgets]
    attempt = try_plan(asked.specs_by_rank, available, options, asked.shared_by_rank)
    return attempt.plan.figures.max_model_len if attempt.refusal is None else 0


def _try(subject: Subject, asked: Forecast, flags: str, inquiry: Inquiry) -> Remedy:
    tried = forecast(subject, inquiry)
    length = tried.plan.figures.max_model_len if tried.fits else longest_length(tried)
    if not tried.fits and length:
        tried = forecast(subject, msgspec.structs.replace(inquiry, max_model_len=length))
    concurrency = tried.plan.figures.max_concurrency if length else 0.0
    fits = length >= (inquiry.max_model_len or asked.options.max_model_len)
    kv = format_bytes(min(budget.kv_bytes for budget in tried.budgets))
    effect = f"holds {concurrency:.2f} requests of {length:,} tokens in {kv} of cache"
    if not fits:
        effect = f"still short: holds up to {length:,} tokens, in {kv} of cache"
    return Remedy(flags=flags, effect=effect, fits=fits, max_model_len=length, max_concurrency=concurrency)


def _kinds(asked: Forecast) -> Iterator[Iterator[tuple[str, Inquiry]]]:
    """For each kind of remedy its changes, as flags and the inquiry that they make; those that ask least come first."""
    inquiry = asked.inquiry
    longest = longest_length(asked)
    if longest:
        yield iter([(f"--max-model-len {longest}", msgspec.structs.replace(inquiry, max_model_len=longest))])
    if asked.cache_dtype in RUNNABLE:
        yield iter([("--kv-cache-dtype fp8", msgspec.structs.replace(inquiry, kv_cache_dtype="fp8"))])
    yield _more_devices(asked)
    yield _more_memory(asked)
    yield _more_stages(asked)
    if asked.weights is not None and inquiry.max_num_batched_tokens > LITTLE_STEP:
        yield iter([_smaller_steps(inquiry)])


def _smaller_steps(inquiry: Inquiry) -> tuple[str, Inquiry]:
    """Less memory for activations and logits."""
    seqs = min(inquiry.max_num_seqs, LITTLE_STEP // 16)
    return (
        f"--max-num-batched-tokens {LITTLE_STEP} --max-num-seqs {seqs}",
        msgspec.structs.replace(inquiry, max_num_batched_tokens=LITTLE_STEP, max_num_seqs=seqs),
    )


def _more_devices(asked: Forecast) -> Iterator[tuple[str, Inquiry]]:
    """Twice, four times ... as many tensor-parallel ranks, to be tried until one mends it."""
    inquiry, machine = asked.inquiry, asked.inquiry.machine
    for factor in (2, 4, 8, 16):
        size = factor * asked.tensor_parallel_size
        devices = size * inquiry.pipeline_parallel_size
        flags = f"--tensor-parallel-size {size}"
        if machine.device is not None:
            flags = f"--gpu {machine.device.name}x{devices}"
        more = msgspec.structs.replace(machine, num_devices=max(devices, machine.num_devices))
        yield flags, msgspec.structs.replace(inquiry, tensor_parallel_size=size, machine=more)


def _more_stages(asked: Forecast) -> Iterator[tuple[str, Inquiry]]:
    """The same for pipeline stages."""
    inquiry, machine = asked.inquiry, asked.inquiry.machine
    if inquiry.pipeline_layers or len(set(machine.memory_bytes or machine.kv_memory_bytes)) > 1:
        return  # the stages are as the user wants them
    for factor in (2, 4, 8, 16):
        size, tensor = factor * inquiry.pipeline_parallel_size, asked.tensor_parallel_size
        flags = f"--pipeline-parallel-size {size}"
        if machine.device is not None:
            flags = f"--gpu {machine.device.name}x{size * tensor} {flags}"
        more = msgspec.structs.replace(machine, num_devices=max(size * tensor, machine.num_devices))
        yield (
            flags,
            msgspec.structs.replace(inquiry, pipeline_parallel_size=size, tensor_parallel_size=tensor, machine=more),
        )


def _more_memory(asked: Forecast) -> Iterator[tuple[str, Inquiry]]:
    """The least that mends it: of the cache where that was given, else of a device, known or not."""
    machine = asked.inquiry.machine
    smallest = asked.refusal.numbers["smallest_budget_bytes"]
    if machine.kv_memory_bytes:
        more = msgspec.structs.replace(machine, kv_memory_bytes=(smallest,))
        yield f"--kv-memory {smallest}", msgspec.structs.replace(asked.inquiry, machine=more)
        return
    total, ranks = memory_needed(asked), asked.tensor_parallel_size * asked.inquiry.pipeline_parallel_size
    inquiry = msgspec.structs.replace(asked.inquiry, tensor_parallel_size=asked.tensor_parallel_size)
    enough = [device for device in known_devices().values() if device.memory_bytes >= total]
    if enough:
        device = min(enough, key=lambda device: device.memory_bytes)
        more = msgspec.structs.replace(machine, memory_bytes=(), device=device, num_devices=ranks)
        count = f"x{ranks}" if ranks > 1 else ""
        yield f"--gpu {device.name}{count}", msgspec.structs.replace(inquiry, machine=more)
    more = msgspec.structs.replace(machine, memory_bytes=(total,), device=None, num_devices=ranks)
    yield f"--memory {total}", msgspec.structs.replace(inquiry, machine=more)


def memory_needed(asked: Forecast) -> int:
    """The least memory of a device, the same on every rank, on which one request fits beside weights and runtime."""
    smallest = asked.refusal.numbers["smallest_budget_bytes"]
    used = max((budget.weight_bytes or 0) + (budget.runtime_bytes or 0) for budget in asked.budgets)
    share = asked.inquiry.machine.memory_utilization
    total = int((smallest + used) / share)
    while int(total * share) < smallest + used:
        total += 1
    return total
