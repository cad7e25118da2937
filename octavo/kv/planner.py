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
from typing import Literal, NamedTuple

import msgspec

from octavo.errors import PlanError
from octavo.kv.arguments import (
    all_layers,
    check_layout,
    check_numbers,
    check_pages,
    check_ranks,
    check_shared,
    spread,
)
from octavo.kv.budget import Budget, Reservation
from octavo.kv.figures import Counts, PlanFigures, block_sizes, plan_figures
from octavo.kv.grouping import Fold, Stages, foldings
from octavo.kv.layout import pool_tensors, rank_groups
from octavo.kv.refusal import Question, refuse_fit, refuse_length, refuse_override
from octavo.kv.specs import KVCacheConfig, KVCacheGroupSpec, LayerSpec
from octavo.kv.state_plan import plan_states

SURE_CHUNK_TOKENS = 256
"""What a windowed group reserves for the tokens of one step. A longer chunk is computed faster, but it is given while
blocks are free; this is only what a full pool comes down to (docs/decisions/0031)."""


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user decides about the cache, beside the bytes."""

    max_model_len: int
    """Longest request in tokens; with `auto_fit` the most it may be lowered from."""
    auto_fit: bool = False
    """Lower `max_model_len` to the longest length that fits."""
    max_num_batched_tokens: int = 2048
    """Token budget of one step, over all requests."""
    max_chunk_tokens: int | None = None
    """Tokens of one request in one step that windowed groups reserve for; None is `SURE_CHUNK_TOKENS`, or whatever one
    step has where no group drops blocks. The scheduler gives a request more only from blocks that nobody needs."""
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


_NUMBERS = (
    "max_model_len",
    "max_num_batched_tokens",
    "max_chunk_tokens",
    "max_overlapping_steps",
    "num_blocks_override",
    "context_parallel_size",
)
"""Options that must be at least 1 where they are given."""


class KVCachePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A finished plan. Every rank takes `configs[global_rank]`."""

    configs: tuple[KVCacheConfig, ...]
    groups: tuple[KVCacheGroupSpec, ...]
    """The groups over all ranks; a rank's config has its own layers of each."""
    figures: PlanFigures


class PlanAttempt(NamedTuple):
    """A plan, and why it cannot be had."""

    plan: KVCachePlan
    refusal: PlanError | None
    """None where the plan holds."""


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
    attempt = try_plan(specs_by_rank, available_bytes, options, shared_layers_by_rank)
    if attempt.refusal is not None:
        raise attempt.refusal
    return attempt.plan


def try_plan(
    specs_by_rank: Sequence[Mapping[str, LayerSpec]],
    available_bytes: Sequence[int],
    options: PlanOptions,
    shared_layers_by_rank: Sequence[Mapping[str, str]] | None = None,
) -> PlanAttempt:
    """As `plan_kv_cache`, but where the bytes do not hold one request, the plan that would hold it in the fewest bytes
    comes with the refusal. Raises `ConfigError` and `LayoutError` as it does."""
    check_numbers({name: getattr(options, name) for name in _NUMBERS})
    check_ranks(specs_by_rank, available_bytes)
    check_layout(options.layout, reference=options.reference)
    shared = [dict(layers) for layers in shared_layers_by_rank or [{} for _ in specs_by_rank]]
    check_shared(shared, specs_by_rank)
    specs_by_rank = plan_states(
        specs_by_rank, reference=options.reference, enable_prefix_caching=options.enable_prefix_caching
    )
    specs_by_rank = [spread(specs, options.context_parallel_size) for specs in specs_by_rank]
    layers = all_layers(specs_by_rank)
    if not layers:
        return PlanAttempt(_plan_without_cache(len(specs_by_rank), available_bytes, options, shared), None)
    stages = Stages.of(specs_by_rank)
    heuristic = options.reference or options.grouping == "vllm"
    folds = foldings(layers, stages, hybrid=options.hybrid, reference=heuristic)
    budget = Budget(tuple(available_bytes), stages.of_rank, options.num_blocks_override)
    question = _question(folds, budget, options)
    refusal: PlanError | None = None
    fold: Fold | None = None
    if options.auto_fit:
        length = question.longest()
        if not length:
            refusal, fold = refuse_fit(question), question.thriftiest(1)
        question = question._replace(max_model_len=length or 1)
    length = question.max_model_len
    if fold is None:
        fold = _most_tokens(question)
        if not budget.fits(fold, question.reservation, length):
            refusal, fold = refuse_length(question), question.thriftiest(length)
        elif budget.override is not None and budget.override > budget._replace(override=None).num_blocks(fold):
            refusal = refuse_override(question, fold)
    return PlanAttempt(_finish(fold, question, specs_by_rank, options, shared), refusal)


def _question(folds: list[Fold], budget: Budget, options: PlanOptions) -> Question:
    in_flight = options.max_overlapping_steps * options.max_num_batched_tokens
    question = Question(
        folds=folds,
        budget=budget,
        reservation=Reservation(
            exact=not options.reference and options.reservation == "exact",
            chunk_tokens=options.max_overlapping_steps * _sure_chunk(folds, options),
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


def _sure_chunk(folds: Sequence[Fold], options: PlanOptions) -> int:
    """Tokens of one step that one request can always be given."""
    most = options.max_num_batched_tokens
    if options.max_chunk_tokens is not None:
        return min(options.max_chunk_tokens, most)
    drops = any(bucket.spec.drops_blocks for fold in folds for bucket in fold.buckets)
    # Of steps that overlap, each has its part: together they are no more than one.
    return min(max(1, SURE_CHUNK_TOKENS // options.max_overlapping_steps), most) if drops else most


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
        max_chunk_tokens=min(_sure_chunk(question.folds, options), length),
        blocks_per_request=tuple(blocks_of(group.spec) for group in groups),
        count_null_block=options.reference or options.count_null_block,
    )
    scheduler_block_size, hash_block_size = block_sizes(
        groups,
        enable_prefix_caching=options.enable_prefix_caching,
        context_parallel_size=options.context_parallel_size,
    )
    ranks = range(len(specs_by_rank))
    figures = plan_figures(
        counts,
        groups,
        specs_by_rank=specs_by_rank,
        available_bytes=question.budget.available,
        block_bytes=[question.budget.block_bytes(fold, rank) for rank in ranks],
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
    )
    configs = []
    for rank in ranks:
        own = rank_groups(groups, specs_by_rank[rank])
        check_pages(options.layout, own)
        configs.append(
            KVCacheConfig(
                num_blocks=counts.num_blocks,
                groups=own,
                tensors=pool_tensors(own, counts.num_blocks, equal_side_by_side=options.reference),
                shared_layers=shared[rank],
                max_model_len=length,
                max_chunk_tokens=counts.max_chunk_tokens,
            )
        )
    return KVCachePlan(configs=tuple(configs), groups=groups, figures=figures)


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
        scheduler_block_size=1,
        hash_block_size=1,
    )
    config = KVCacheConfig(
        num_blocks=1,
        groups=(),
        tensors=(),
        max_model_len=options.max_model_len,
        max_chunk_tokens=counts.max_chunk_tokens,
    )
    return KVCachePlan(
        configs=tuple(msgspec.structs.replace(config, shared_layers=layers) for layers in shared),
        groups=(),
        figures=figures,
    )
