"""How each number of a forecast comes about: a formula, the same with its inputs, and the value.

Expressions are arithmetic that anybody can evaluate; a test does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from octavo.kv.base import dtype_bytes
from octavo.kv.specs import (
    AttentionSpec,
    ChunkedLocalSpec,
    KVCacheGroupSpec,
    LayerSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowSpec,
)
from octavo.planning.forecast import Forecast


class Step(NamedTuple):
    """One number."""

    name: str
    formula: str
    """In words."""
    expression: str
    """With its inputs, in Python's arithmetic; `//` rounds down, and `-(-a // b)` rounds up."""
    value: int | float


def explain(asked: Forecast) -> tuple[Step, ...]:
    """Every number of the forecast, in the order in which they follow from each other."""
    return (*_budget(asked), *_kinds(asked), *_pool(asked), *_request(asked), *_reference(asked))


def _budget(asked: Forecast) -> Iterator[Step]:
    for rank, budget in enumerate(asked.budgets):
        if budget.total_bytes is None or (rank and budget == asked.budgets[rank - 1]):
            continue
        share = asked.inquiry.machine.memory_utilization
        yield Step(
            f"usable bytes, rank {rank}",
            "memory * share",
            f"int({budget.total_bytes} * {share})",
            budget.usable_bytes or 0,
        )
        yield Step(
            f"KV cache bytes, rank {rank}",
            "usable - weights - runtime, at least 0",
            f"max(0, {budget.usable_bytes} - {budget.weight_bytes} - {budget.runtime_bytes})",
            budget.kv_bytes,
        )


def _kinds(asked: Forecast) -> Iterator[Step]:
    kinds: dict[LayerSpec, KVCacheGroupSpec] = {group.spec: group for group in asked.plan.groups}
    length = asked.plan.figures.max_model_len
    chunk = min(asked.options.max_overlapping_steps * asked.plan.figures.max_chunk_tokens, length)
    for spec in kinds:
        name = kind_name(spec)
        if isinstance(spec, MambaSpec):
            sizes = " + ".join(
                " * ".join(map(str, (*shape, dtype_bytes(dtype))))
                for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
            )
            yield Step(f"{name}: bytes of a state", "sum of shapes * itemsize", sizes, spec.content_bytes)
        else:
            yield _token(name, spec)
            yield Step(
                f"{name}: bytes of a page",
                "tokens of a block * bytes of a token" + (", padded" if spec.page_size_padded else ""),
                str(spec.page_size_padded) if spec.page_size_padded else f"{spec.block_size} * {spec.token_bytes}",
                spec.page_bytes,
            )
        yield _blocks(name, spec, length, chunk)


def _token(name: str, spec: LayerSpec) -> Step:
    title = f"{name}: bytes of a token and layer"
    if isinstance(spec, MLASpec) and spec.packed_token_bytes is None:
        return Step(title, "latent * itemsize", f"{spec.latent_size} * {dtype_bytes(spec.dtype)}", spec.token_bytes)
    if isinstance(spec, AttentionSpec) and spec.packed_head_bytes is None:
        scales = f" + {spec.scale_bytes}" if spec.scale_bytes else ""
        inputs = f"{spec.num_kv_heads} * (({spec.head_size} + {spec.value_size}) * {dtype_bytes(spec.dtype)}{scales})"
        words = "KV heads of a rank * ((size of K + size of V) * itemsize" + (" + scales)" if scales else ")")
        return Step(title, words, inputs, spec.token_bytes)
    return Step(title, "packed", str(getattr(spec, "token_bytes", 0)), getattr(spec, "token_bytes", 0))


def _blocks(name: str, spec: LayerSpec, length: int, chunk: int) -> Step:
    title, size = f"{name}: blocks of one request", spec.block_size
    value = spec.max_blocks(length, chunk_tokens=chunk)
    if isinstance(spec, SlidingWindowSpec):
        touched = f"min({spec.window} - 1 + {chunk} + {size} - 1, {length})"
        return Step(
            title, "window before a step and its sure tokens, at the worst place", f"-(-{touched} // {size})", value
        )
    if isinstance(spec, MambaSpec):
        return Step(title, "the running state", str(value), value)
    if isinstance(spec, ChunkedLocalSpec):
        return Step(title, "the attention chunk and a step's sure tokens, at the worst place", str(value), value)
    return Step(title, "length / tokens of a block, rounded up", f"-(-{length} // {size})", value)


def _pool(asked: Forecast) -> Iterator[Step]:
    figures, groups = asked.plan.figures, asked.plan.configs
    for rank, (config, own, budget) in enumerate(zip(groups, figures.ranks, asked.budgets, strict=True)):
        if rank % asked.tensor_parallel_size or not own.bytes_per_block:
            continue
        pages = [tensor.size_bytes // max(figures.num_blocks, 1) for tensor in config.tensors]
        yield Step(
            f"bytes of a block, rank {rank}",
            "a page in each tensor: as many as the widest group has layers",
            f"{len(pages)} * {pages[0]}" if len(set(pages)) == 1 and pages[0] else str(own.bytes_per_block),
            own.bytes_per_block,
        )
        if asked.options.num_blocks_override is None:
            yield Step(
                f"blocks that rank {rank} holds",
                "KV cache bytes / bytes of a block, rounded down; the plan has the fewest of all ranks",
                f"{budget.kv_bytes} // {own.bytes_per_block}",
                budget.kv_bytes // own.bytes_per_block,
            )


def _request(asked: Forecast) -> Iterator[Step]:
    figures = asked.plan.figures
    own, length = figures.ranks[asked.heaviest_rank], figures.max_model_len
    counts = Counter(figures.blocks_per_request)
    total = sum(figures.blocks_per_request)
    if not total:
        return
    parts = " + ".join(f"{count} * {blocks}" for blocks, count in counts.items())
    yield Step("blocks of one request", "over all groups", parts, total)
    yield Step("reserved bytes", "blocks * bytes of a block", f"{total} * {own.bytes_per_block}", own.one_request_bytes)
    layers = asked.specs_by_rank[asked.heaviest_rank].values()
    fixed, slope = _sum(spec.fixed_bytes for spec in layers), _sum(spec.bytes_per_token for spec in layers)
    yield Step("a: fixed bytes", "layers with a window or state * what each keeps", fixed, own.fixed_bytes)
    yield Step("b: bytes per token", "layers that keep every token * bytes of a token", slope, own.bytes_per_token)
    if own.ideal_bytes == own.fixed_bytes + own.bytes_per_token * length:
        ideal = f"{own.fixed_bytes} + {own.bytes_per_token} * {length}"
        yield Step("ideal bytes", "a + b * length", ideal, own.ideal_bytes)
    at_once, tokens = f"{figures.usable_blocks} / {total}", f"{figures.usable_blocks} * {length} // {total}"
    words = "(blocks - null block) / blocks of one request"
    yield Step("requests at once", words, at_once, figures.max_concurrency)
    yield Step("capacity in tokens", "the same * length, rounded down", tokens, figures.capacity_tokens)


def _reference(asked: Forecast) -> Iterator[Step]:
    plan = asked.reference.plan
    if plan is None or not sum(plan.figures.blocks_per_request):
        return
    figures, in_flight = plan.figures, asked.reference.in_flight_tokens
    for spec in dict.fromkeys(group.spec for group in plan.groups):
        value = spec.reference_max_blocks(figures.max_model_len, in_flight_tokens=in_flight)
        if isinstance(spec, SlidingWindowSpec):
            span = f"min({spec.window} - 1 + {in_flight}, {figures.max_model_len})"
            expression = f"-(-{span} // {spec.block_size}) + 1"
            yield Step(
                f"reference, {kind_name(spec)}: blocks of one request",
                "window and tokens in flight, rounded up, and one",
                expression,
                value,
            )
    total = sum(figures.blocks_per_request)
    yield Step(
        "reference: requests at once",
        "blocks, null block and all / blocks of one request",
        f"{figures.num_blocks} / {total}",
        figures.max_concurrency,
    )


def kind_name(spec: LayerSpec) -> str:
    """`full`, `sliding_window 1024` and so on, with the block size where it is needed to tell two apart."""
    width = getattr(spec, "window", None) or getattr(spec, "chunk", None)
    return spec.kind + (f" {width}" if width else "")


def _sum(values: Iterable[int]) -> str:
    """Equal ones as a product."""
    return " + ".join(f"{count} * {value}" for value, count in Counter(filter(None, values)).items()) or "0"
