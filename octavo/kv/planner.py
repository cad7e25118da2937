"""The plan: from what each layer caches and what each rank may spend, to one `KVCacheConfig` per rank.

Three independent choices make a plan (`PlanOptions`):

    grouping     which layers share a block table: the fewest bytes for one request, or the reference's heuristic
    reservation  what a windowed group must hold at once: exactly, or by the reference's formula
    null block   whether figures count block 0, which is never handed out

`reference=True` sets all three to what the reference engine does. Two of its failures are replaced by rules: a
pipeline stage without cached layers costs nothing and limits nothing, and `num_blocks_override` above the budget is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from octavo.errors import ConfigError, LayoutError
from octavo.kv.budget import Budget, Reservation
from octavo.kv.figures import Counts, PlanFigures, plan_figures
from octavo.kv.grouping import Fold, Stages, foldings
from octavo.kv.refusal import Question, refuse_fit, refuse_length, refuse_override
from octavo.kv.specs import (
    AttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    LayerSpec,
    MambaSpec,
    MLASpec,
)

LAYER_OUTERMOST = {"LBNHC": True, "NHD": True, "LBHNC": True, "HND": True, "LHBNC": False}
"""Memory layouts by the order of layer, block, head, token (N) and content; True where a page is one byte range."""


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user decides about the cache, beside the bytes."""

    max_model_len: int
    """Longest request in tokens; with `auto_fit` the most it may be lowered from."""
    auto_fit: bool = False
    """Lower `max_model_len` to the longest length that fits."""
    max_num_batched_tokens: int = 2048
    """Token budget of one step, over all requests."""
    max_chunk_tokens: int | None = None
    """Most tokens one request is given in one step; None is `max_num_batched_tokens`."""
    max_overlapping_steps: int = 1
    """Steps that may be under way at once: 1, or the number of pipeline stages."""
    num_blocks_override: int | None = None
    """Exactly this many blocks (null block included) instead of as many as fit."""
    enable_prefix_caching: bool = True
    hybrid: bool = True
    """Off: where full and windowed layers mix, windowed ones are planned as full (they compute as before)."""
    context_parallel_size: int = 1
    """Ranks over which the tokens of one request are spread."""
    layout: str = "LBNHC"
    """Order of layer, block, token, head and content in memory. Octavo's own is the default; the reference plans
    others too."""
    grouping: Literal["fewest-bytes", "vllm"] = "fewest-bytes"
    reservation: Literal["exact", "vllm"] = "exact"
    count_null_block: bool = False
    """Figures count block 0 as if it could be handed out."""
    reference: bool = False
    """Grouping, reservation, null accounting and the wording of failures as the reference has them."""


class KVCachePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A finished plan. Every rank takes `configs[global_rank]`."""

    configs: tuple[KVCacheConfig, ...]
    figures: PlanFigures


def plan_kv_cache(
    specs_by_rank: Sequence[Mapping[str, LayerSpec]],
    available_bytes: Sequence[int],
    options: PlanOptions,
    shared_layers_by_rank: Sequence[Mapping[str, str]] | None = None,
) -> KVCachePlan:
    """Plan the cache of all ranks.

    Parameters:
        specs_by_rank: for each rank its cached layers in model order; a rank may have none.
        available_bytes: for each rank what its cache may take.
        shared_layers_by_rank: for each rank the layers that read another layer's cache, and which; they cost nothing.

    All ranks get the same groups and the same number of blocks: the fewest that any rank holds. Raises `ConfigError`
    for impossible arguments and a `PlanError` where no plan exists, with the remedy.
    """
    _check_arguments(specs_by_rank, available_bytes, options)
    shared = [dict(layers) for layers in shared_layers_by_rank or [{} for _ in specs_by_rank]]
    specs_by_rank = [_spread(specs, options.context_parallel_size) for specs in specs_by_rank]
    layers = _all_layers(specs_by_rank)
    _check_layout(layers, options)
    _check_shared(shared, specs_by_rank)
    if not layers:
        return _plan_without_cache(len(specs_by_rank), available_bytes, options, shared)
    stages = Stages.of(specs_by_rank)
    heuristic = options.reference or options.grouping == "vllm"
    folds = foldings(layers, stages, hybrid=options.hybrid, reference=heuristic)
    budget = Budget(tuple(available_bytes), stages.of_rank, options.num_blocks_override)
    question = _question(folds, budget, options)
    if options.auto_fit:
        length = question.longest()
        if not length:
            raise refuse_fit(question)
        question = question._replace(max_model_len=length)
    fold = _most_tokens(question)
    if not budget.fits(fold, question.reservation, question.max_model_len):
        raise refuse_length(question)
    if budget.override is not None and budget.override > budget._replace(override=None).num_blocks(fold):
        raise refuse_override(question, fold)
    return _finish(fold, question, specs_by_rank, options, shared)


def _question(folds: list[Fold], budget: Budget, options: PlanOptions) -> Question:
    in_flight = options.max_overlapping_steps * options.max_num_batched_tokens
    chunk = min(options.max_chunk_tokens or in_flight, options.max_num_batched_tokens)
    question = Question(
        folds=folds,
        budget=budget,
        reservation=Reservation(
            exact=not options.reference and options.reservation == "exact",
            chunk_tokens=options.max_overlapping_steps * chunk,
            in_flight_tokens=in_flight,
        ),
        max_model_len=options.max_model_len,
        by_rank=options.reference,
    )
    if budget.override is None or len(folds) == 1:
        return question
    # A given number of blocks says nothing about bytes, so the grouping is chosen by the memory there is.
    best = _most_tokens(question._replace(budget=budget._replace(override=None)))
    return question._replace(folds=[best])


def _most_tokens(question: Question) -> Fold:
    """The fold that holds most requests of `max_model_len`, the null block not counted; of equals the first.

    Folds come in the order of their number of groups. In large pools this is the fold that reserves the fewest bytes
    for a request; in small ones the price of the null block and of the last, unfilled block counts as well.
    """
    best, best_usable, best_blocks = question.folds[0], -1, 1
    for fold in question.folds:
        usable = question.budget.num_blocks(fold) - 1
        blocks = question.reservation.blocks(fold, question.max_model_len)
        if fold is best or usable * best_blocks > best_usable * blocks:
            best, best_usable, best_blocks = fold, usable, blocks
    return best


def _finish(
    fold: Fold,
    question: Question,
    specs_by_rank: Sequence[Mapping[str, LayerSpec]],
    options: PlanOptions,
    shared: Sequence[dict[str, str]],
) -> KVCachePlan:
    groups = fold.groups()
    length = question.max_model_len
    blocks_of = question.reservation.blocks_of(length)
    counts = Counts(
        num_blocks=question.budget.num_blocks(fold),
        max_model_len=length,
        max_chunk_tokens=min(options.max_chunk_tokens or length, options.max_num_batched_tokens, length),
        blocks_per_request=tuple(blocks_of(group.spec) for group in groups),
        count_null_block=options.reference or options.count_null_block,
    )
    ranks = range(len(specs_by_rank))
    figures = plan_figures(
        counts,
        groups,
        specs_by_rank=specs_by_rank,
        available_bytes=question.budget.available,
        block_bytes=[question.budget.block_bytes(fold, rank) for rank in ranks],
        enable_prefix_caching=options.enable_prefix_caching,
    )
    configs = []
    for rank in ranks:
        own = tuple(_own_layers(group, specs_by_rank[rank]) for group in groups)
        configs.append(
            KVCacheConfig(
                num_blocks=counts.num_blocks,
                groups=own,
                tensors=_tensors(own, counts.num_blocks, by_page=options.reference),
                shared_layers=shared[rank],
                max_model_len=length,
                max_chunk_tokens=counts.max_chunk_tokens,
            )
        )
    return KVCachePlan(configs=tuple(configs), figures=figures)


def _own_layers(group: KVCacheGroupSpec, specs: Mapping[str, LayerSpec]) -> KVCacheGroupSpec:
    """`group` as a rank sees it that holds the layers of `specs`."""
    own = [name in specs for name in group.layer_names]
    return KVCacheGroupSpec(
        layer_names=tuple(name for name, held in zip(group.layer_names, own, strict=True) if held),
        spec=group.spec,
        layer_specs=group.layer_specs
        and tuple(spec for spec, held in zip(group.layer_specs, own, strict=True) if held),
    )


def _tensors(groups: Sequence[KVCacheGroupSpec], num_blocks: int, *, by_page: bool) -> tuple[KVCacheTensor, ...]:
    """One tensor for each slot index, shared by that layer of every group.

    A group with pages of different sizes is alone, and its tensors differ in size: in the order of its layers, or
    with equal pages side by side (`by_page`, as the reference lays them).
    """
    if groups[0].layer_specs is not None:
        pages = dict(zip(groups[0].layer_names, (spec.page_bytes for spec in groups[0].layer_specs), strict=True))
        names = list(pages)
        if by_page:
            first_seen = list(dict.fromkeys(pages.values()))
            names.sort(key=lambda name: first_seen.index(pages[name]))
        return tuple(KVCacheTensor(size_bytes=pages[name] * num_blocks, shared_by=(name,)) for name in names)
    return tuple(
        KVCacheTensor(
            size_bytes=groups[0].spec.page_bytes * num_blocks,
            shared_by=tuple(group.layer_names[i] for group in groups if i < len(group.layer_names)),
        )
        for i in range(max(len(group.layer_names) for group in groups))
    )


def _plan_without_cache(
    num_ranks: int, available_bytes: Sequence[int], options: PlanOptions, shared: Sequence[dict[str, str]]
) -> KVCachePlan:
    """The plan of a model that caches nothing: the null block alone, which takes no memory."""
    counts = Counts(
        num_blocks=1,
        max_model_len=options.max_model_len,
        max_chunk_tokens=min(options.max_num_batched_tokens, options.max_model_len),
        blocks_per_request=(),
        count_null_block=False,
    )
    figures = plan_figures(
        counts,
        (),
        specs_by_rank=[{}] * num_ranks,
        available_bytes=available_bytes,
        block_bytes=[0] * num_ranks,
        enable_prefix_caching=options.enable_prefix_caching,
    )
    config = KVCacheConfig(
        num_blocks=1,
        groups=(),
        tensors=(),
        max_model_len=options.max_model_len,
        max_chunk_tokens=counts.max_chunk_tokens,
    )
    return KVCachePlan(
        configs=tuple(msgspec.structs.replace(config, shared_layers=layers) for layers in shared), figures=figures
    )


def _spread(specs: Mapping[str, LayerSpec], context_parallel_size: int) -> Mapping[str, LayerSpec]:
    if context_parallel_size == 1:
        return specs
    return {
        name: msgspec.structs.replace(spec, context_parallel_size=context_parallel_size)
        if spec.uniform_key[0] == "every token"
        else spec
        for name, spec in specs.items()
    }


def _all_layers(specs_by_rank: Sequence[Mapping[str, LayerSpec]]) -> dict[str, LayerSpec]:
    """The layers of all ranks in rank order."""
    layers: dict[str, LayerSpec] = {}
    for rank, specs in enumerate(specs_by_rank):
        for name, spec in specs.items():
            if layers.setdefault(name, spec) != spec:
                raise LayoutError(
                    f"Layer {name} caches something else on rank {rank} than on a rank before it.",
                    remedy="Give every rank that holds a layer the same spec for it.",
                )
    return layers


def _check_layout(layers: Mapping[str, LayerSpec], options: PlanOptions) -> None:
    compact = LAYER_OUTERMOST.get(options.layout)
    if compact is None or not (options.reference or options.layout in ("LBNHC", "NHD")):
        raise LayoutError(
            f"Layout {options.layout} is not one that Octavo plans.", remedy="Use LBNHC: pages by layer and block."
        )
    shapes = {_head_shape(spec) for spec in layers.values()}
    if not compact and len(shapes) > 1:
        raise LayoutError(
            f"Layout {options.layout} keeps a head's blocks together, and the layers differ in their heads or pages.",
            remedy="Use LBNHC: pages by layer and block.",
        )


def _head_shape(spec: LayerSpec) -> tuple[int, int]:
    if isinstance(spec, MambaSpec | MLASpec):
        return 1, spec.page_bytes
    assert isinstance(spec, AttentionSpec)
    return spec.num_kv_heads, spec.page_bytes


def _check_shared(shared: Sequence[Mapping[str, str]], specs_by_rank: Sequence[Mapping[str, LayerSpec]]) -> None:
    for rank, (layers, specs) in enumerate(zip(shared, specs_by_rank, strict=True)):
        for name, target in layers.items():
            if name in specs or target not in specs:
                what = "has a cache of its own" if name in specs else f"reads the cache of {target}, which has none"
                raise LayoutError(
                    f"Layer {name} of rank {rank} {what} on that rank.",
                    remedy="Let a sharing layer name a cached layer of its own rank, and report no spec for it.",
                )


def _check_arguments(
    specs_by_rank: Sequence[Mapping[str, LayerSpec]], available_bytes: Sequence[int], options: PlanOptions
) -> None:
    if not specs_by_rank or len(specs_by_rank) != len(available_bytes):
        raise ConfigError(
            f"A plan needs specs and bytes for every rank, but there are {len(specs_by_rank)} and "
            f"{len(available_bytes)}.",
            remedy="Give one mapping of specs and one number of bytes for each rank.",
        )
    least = {
        "max_model_len": options.max_model_len,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_chunk_tokens": options.max_chunk_tokens,
        "max_overlapping_steps": options.max_overlapping_steps,
        "context_parallel_size": options.context_parallel_size,
        "num_blocks_override": options.num_blocks_override,
    }
    for name, value in least.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}.", remedy="It must be at least 1.")
    for specs in specs_by_rank:
        for layer, spec in specs.items():
            if spec.block_size < 1 or spec.content_bytes < 1 or spec.page_bytes < spec.content_bytes:
                raise ConfigError(
                    f"Layer {layer} has {spec.block_size} tokens per block, {spec.content_bytes} bytes of content and "
                    f"pages of {spec.page_bytes} bytes.",
                    remedy="Blocks and contents must be positive, and a page at least as large as its content.",
                )
