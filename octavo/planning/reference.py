"""What the reference engine would plan for the same bytes, counted as it counts: its grouping, the whole batch in
flight for every windowed group, and the null block as if it could be handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from octavo.errors import LayoutError, PlanError
from octavo.formats.config_fields import config_table
from octavo.kv.base import ceil_div
from octavo.kv.planner import KVCachePlan, PlanOptions, try_plan
from octavo.kv.specs import KVCacheGroupSpec, LayerSpec, MambaSpec, MLASpec

MLA_ALIGNMENT = 128
"""Blocks beside states are a multiple of the configured block, or of this with latents."""


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
    state_dtype: str,
) -> ReferenceAnswer:
    """The answer to the question that `options` asks of Octavo."""
    asked = msgspec.structs.replace(
        options, reference=True, max_num_batched_tokens=in_flight_tokens, max_chunk_tokens=None, max_overlapping_steps=1
    )
    try:
        specs = [reference_specs(specs, state_dtype, options.max_model_len) for specs in specs_by_rank]
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
        told.append("keeps more states, so that prefixes are found again, which the reference does not in such models")
    if {spec.dtypes for spec in ours} != {spec.dtypes for spec in plain}:
        dtypes = [" and ".join(dict.fromkeys(spec.dtypes)) for spec in (ours[0], plain[0])]
        told.append(f"keeps states in {dtypes[0]}, as they are computed (the reference: {dtypes[1]})")
    return [f"Beside the reference engine, this plan {'; it '.join(told)}."] if told else []


def reference_specs(specs: Mapping[str, LayerSpec], state_dtype: str, max_model_len: int) -> dict[str, LayerSpec]:
    """`specs` as the reference makes them beside states: one state for each request, and blocks of tokens long enough
    for a page to hold it. `state_dtype` is that of recurrences; a convolution has the cache's."""
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    attention = [spec for spec in specs.values() if not isinstance(spec, MambaSpec)]
    if not states:
        return dict(specs)
    plain = [_plain_state(spec, state_dtype, max_model_len) for spec in states]
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
            state = _plain_state(spec, state_dtype, max_model_len)
            changed[name] = msgspec.structs.replace(
                state, page_size_padded=None if page == state.content_bytes else page
            )
        else:
            changed[name] = msgspec.structs.replace(spec, block_size=block or spec.block_size)
    return changed


def _plain_state(spec: MambaSpec, state_dtype: str, max_model_len: int) -> MambaSpec:
    first, *others = spec.dtypes
    dtypes = (first, *(state_dtype for _ in others)) if others else (first,)
    return msgspec.structs.replace(spec, dtypes=dtypes, cache_mode="none", block_size=max_model_len)


def recurrence_dtype(model_type: str, specs: Mapping[str, LayerSpec], compute_dtype: str) -> str:
    """In which dtype the reference keeps recurrences: those of Mamba 2, one matrix for each head, in float32, others
    in the compute dtype. The fields of the type's config tell Mamba from linear attention."""
    shapes = [spec.shapes[-1] for spec in specs.values() if isinstance(spec, MambaSpec) and len(spec.shapes) > 1]
    has_matrices = any(len(shape) == 3 for shape in shapes)
    facts = config_table().get(model_type)
    is_linear = facts is not None and any(field.startswith("linear_") for field in facts.defaults)
    return "float32" if has_matrices and not is_linear else compute_dtype


def _sentence(error: PlanError | None) -> str:
    return "" if error is None else str(error)
