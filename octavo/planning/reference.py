"""What the reference engine would plan for the same bytes, counted as it counts: its grouping, the whole batch in
flight for every windowed group, and the null block as if it could be handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from octavo.errors import LayoutError, PlanError
from octavo.formats.config_fields import config_table
from octavo.kv.base import ceil_div
from octavo.kv.planner import KVCachePlan, PlanOptions, try_plan
from octavo.kv.specs import KVCacheGroupSpec, LayerSpec, MambaSpec, MLASpec

MLA_ALIGNMENT = 128
"""Blocks beside states are a multiple of the configured block, or of this with latents."""


class StateRule(NamedTuple):
    """How the reference keeps the states of a model."""

    dtype: str
    """Of recurrences; a convolution has the cache's."""
    is_mamba_2: bool = False
    """Whether beside its heads' inputs the convolution has those of groups, which ranks may have to copy."""
    num_ranks: int = 1
    """Tensor-parallel ranks, over which it divides states."""


class ReferenceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The reference engine's plan, or why it has none."""

    plan: KVCachePlan | None
    in_flight_tokens: int
    refusal: str = ""
    """Why one request does not fit, or no plan exists; empty where it does."""


def ask_reference(
    specs_by_rank: Sequence[Mapping[str, LayerSpec]],
    available_bytes: Sequence[int],
    options: PlanOptions,
    shared: Sequence[Mapping[str, str]],
    *,
    in_flight_tokens: int,
    states: StateRule,
) -> ReferenceAnswer:
    """The answer to the question that `options` asks of Octavo."""
    asked = msgspec.structs.replace(
        options, reference=True, max_num_batched_tokens=in_flight_tokens, max_chunk_tokens=None, max_overlapping_steps=1
    )
    try:
        specs = [reference_specs(specs, states, options.max_model_len) for specs in specs_by_rank]
        attempt = try_plan(specs, available_bytes, asked, shared)
    except LayoutError as error:
        return ReferenceAnswer(plan=None, in_flight_tokens=in_flight_tokens, refusal=str(error))
    return ReferenceAnswer(plan=attempt.plan, in_flight_tokens=in_flight_tokens, refusal=_sentence(attempt.refusal))


def without_groups(on: ReferenceAnswer, off: ReferenceAnswer) -> list[str]:
    """What to tell where the reference holds no less with its hybrid manager switched off, windows planned as full."""
    if on.plan is None or off.plan is None or off.refusal:
        return []
    grouped, plain = on.plan.figures, off.plan.figures
    if not on.refusal and plain.capacity_tokens < grouped.capacity_tokens:
        return []
    return [
        f"With {on.in_flight_tokens:,} tokens in flight the reference engine gains nothing by its groups: it holds "
        f"{grouped.capacity_tokens:,} tokens, and {plain.capacity_tokens:,} with --disable-hybrid-kv-cache-manager."
    ]


def beside_states(groups: Sequence[KVCacheGroupSpec], answer: ReferenceAnswer) -> list[str]:
    """What to tell where states are kept otherwise than the reference keeps them, so that the two are not alike."""
    ours = [group.spec for group in groups if isinstance(group.spec, MambaSpec)]
    theirs = [group.spec for group in answer.plan.groups] if answer.plan is not None else []
    plain = [spec for spec in theirs if isinstance(spec, MambaSpec)]
    if not ours or not plain:
        return []
    told = []
    if any(spec.cache_mode != "none" for spec in ours):
        told.append("keeps more states while there is room, so that prefixes are found again")
    if {spec.dtypes for spec in ours} != {spec.dtypes for spec in plain}:
        dtypes = [" and ".join(dict.fromkeys(spec.dtypes)) for spec in (ours[0], plain[0])]
        told.append(f"keeps states in {dtypes[0]}, as they are computed (the reference: {dtypes[1]})")
    if {spec.shapes for spec in ours} != {spec.shapes for spec in plain}:
        told.append("keeps whole states on each rank (the reference divides them)")
    return [f"Beside the reference engine, this plan {'; it '.join(told)}."] if told else []


def reference_specs(specs: Mapping[str, LayerSpec], rule: StateRule, max_model_len: int) -> dict[str, LayerSpec]:
    """`specs` as the reference makes them beside states: one state for each request, divided over ranks, and blocks of
    tokens long enough for a page to hold it. Raises `LayoutError` for states that cannot be divided."""
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    attention = [spec for spec in specs.values() if not isinstance(spec, MambaSpec)]
    if not states:
        return dict(specs)
    plain = [_plain_state(spec, rule, max_model_len) for spec in states]
    page = max(spec.content_bytes for spec in plain)
    block = None
    if attention:
        unit = MLA_ALIGNMENT if any(isinstance(spec, MLASpec) for spec in attention) else attention[0].block_size
        token_bytes = max(spec.token_bytes for spec in attention)
        block = unit * ceil_div(page, unit * token_bytes)
        page = block * token_bytes
    changed: dict[str, LayerSpec] = {}
    for name, spec in specs.items():
        if isinstance(spec, MambaSpec):
            state = _plain_state(spec, rule, max_model_len)
            changed[name] = msgspec.structs.replace(
                state, page_size_padded=None if page == state.content_bytes else page
            )
        else:
            changed[name] = msgspec.structs.replace(spec, block_size=block or spec.block_size)
    return changed


def _plain_state(spec: MambaSpec, rule: StateRule, max_model_len: int) -> MambaSpec:
    first, *others = spec.dtypes
    dtypes = (first, *(rule.dtype for _ in others)) if others else (first,)
    return msgspec.structs.replace(
        spec, shapes=_divided(spec.shapes, rule), dtypes=dtypes, cache_mode="none", block_size=max_model_len
    )


def _divided(shapes: tuple[tuple[int, ...], ...], rule: StateRule) -> tuple[tuple[int, ...], ...]:
    """One rank's part of a state: recurrences by heads or channels, a convolution by channels. Of Mamba 2's groups each
    rank has its own, or where they cannot be divided a copy of one."""
    ranks = rule.num_ranks
    if ranks == 1:
        return shapes
    recurrence = shapes[-1]
    if len(shapes) == 1 and len(recurrence) == 2:  # a convolution alone
        return ((recurrence[0], _part(recurrence[1], ranks)),)
    divided = (_part(recurrence[0], ranks), *recurrence[1:])
    if len(shapes) == 1:
        return (divided,)
    kernel, channels = shapes[0]
    if not rule.is_mamba_2:
        return ((kernel, _part(channels, ranks)), divided)
    heads, size, state = recurrence
    groups = (channels - heads * size) // (2 * state)
    own_groups = groups // ranks if groups % ranks == 0 else 1
    return ((kernel, divided[0] * size + 2 * own_groups * state), divided)


def _part(count: int, ranks: int) -> int:
    if count % ranks:
        raise LayoutError(
            f"The reference engine does not divide the {count} heads or channels of a state over {ranks} ranks.",
            remedy=f"Use a number of ranks that divides {count}.",
        )
    return count // ranks


def state_rule(model_type: str, specs: Mapping[str, LayerSpec], compute_dtype: str, num_ranks: int) -> StateRule:
    """How the reference keeps the states of a model: recurrences of Mamba 2, one matrix for each head, in float32,
    others in the compute dtype. The fields of the type's config tell Mamba from linear attention."""
    shapes = [spec.shapes[-1] for spec in specs.values() if isinstance(spec, MambaSpec) and len(spec.shapes) > 1]
    has_matrices = any(len(shape) == 3 for shape in shapes)
    facts = config_table().get(model_type)
    is_linear = facts is not None and any(field.startswith("linear_") for field in facts.defaults)
    is_mamba_2 = has_matrices and not is_linear
    return StateRule("float32" if is_mamba_2 else compute_dtype, is_mamba_2, num_ranks)


def _sentence(error: PlanError | None) -> str:
    return "" if error is None else str(error)
