"""From a model's files and an inquiry to what the engine would allocate, and what that holds."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from octavo.config import ModelConfig, ModelSource, format_bytes, read_environment
from octavo.errors import ConfigError, PlanError
from octavo.formats.kv_specs import kv_cache_specs
from octavo.formats.model_config import load_model_config, read_hf_config
from octavo.formats.source import ModelFiles, locate
from octavo.kv.planner import KVCachePlan, PlanOptions, try_plan
from octavo.kv.specs import LayerSpec
from octavo.kv.stages import of_stage, split_layers
from octavo.planning.cache_dtype import RUNNABLE, cache_format, with_format
from octavo.planning.inquiry import Inquiry, check_inquiry
from octavo.planning.machine import RankBudget, rank_budget, runtime_bytes
from octavo.planning.reference import ReferenceAnswer, ask_reference, beside_states, state_rule, without_groups
from octavo.planning.weights import Weights, find_weights


class Subject(NamedTuple):
    """The model that is asked about."""

    files: ModelFiles
    config: Mapping[str, Any]
    """In transformers' terms."""
    model: ModelConfig


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What `octavo plan` knows about a model, an inquiry and a machine."""

    model: ModelConfig
    inquiry: Inquiry
    compute_dtype: str
    cache_dtype: str
    cache_bytes: str
    """How K and V are stored, for people."""
    stages: tuple[range, ...]
    tensor_parallel_size: int
    weights: Weights | None
    budgets: tuple[RankBudget, ...]
    is_budget_given: bool
    """False where nothing was said of the machine: then the plan is for one request."""
    options: PlanOptions
    specs_by_rank: tuple[dict[str, LayerSpec], ...]
    shared_by_rank: tuple[dict[str, str], ...]
    plan: KVCachePlan
    refusal: Any = None
    """The `PlanError` where one request does not fit; else None."""
    reference: ReferenceAnswer
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.refusal is None

    @property
    def heaviest_rank(self) -> int:
        """The rank on which one request takes most."""
        costs = [rank.ideal_bytes for rank in self.plan.figures.ranks]
        return costs.index(max(costs))

    def blocks_of(self, num_tokens: int, chunk_tokens: int | None = None) -> int:
        """Blocks reserved for a request of `num_tokens`, over all groups; by default in steps as planned."""
        chunk = chunk_tokens or self.plan.figures.max_chunk_tokens
        overlap = self.options.max_overlapping_steps
        return sum(
            group.spec.max_blocks(num_tokens, chunk_tokens=min(overlap * chunk, num_tokens))
            for group in self.plan.groups
        )

    def concurrency(self, num_tokens: int) -> float:
        """Requests of `num_tokens` that fit at once; 0 where nothing is cached."""
        blocks = self.blocks_of(num_tokens)
        return self.plan.figures.usable_blocks / blocks if blocks else 0.0


def find_subject(model: str, revision: str | None = None) -> Subject:
    """The model called `model`, of a hub id the config alone. Raises `ModelFileError` and `UnsupportedModelError`."""
    source = ModelSource(model=model, revision=revision)
    files = locate(source, read_environment(), config_only=True)
    return Subject(files, read_hf_config(files), load_model_config(files))


def forecast(subject: Subject, inquiry: Inquiry) -> Forecast:
    """What the engine would plan.

    Raises `ConfigError` for what can be said of no model, `UnsupportedModelError` for what Octavo cannot divide, and
    `LayoutError`. That a request does not fit is no error here: see `Forecast.refusal`.
    """
    check_inquiry(inquiry)
    model, notes = subject.model, list[str]()
    compute_dtype = _compute_dtype(model, inquiry, notes)
    cache = cache_format(inquiry.kv_cache_dtype, compute_dtype)
    if cache.dtype not in RUNNABLE:
        notes.append(f"{cache.quantization or cache.dtype} is planned here; this engine cannot run it yet.")
    tensor = inquiry.num_ranks_of_stage
    stages = split_layers(model.num_layers, inquiry.pipeline_parallel_size, inquiry.pipeline_layers)
    specs, shared = kv_cache_specs(
        model, block_size=inquiry.block_size, dtype=compute_dtype, tensor_parallel_size=tensor
    )
    specs = with_format(specs, cache)
    specs_by_rank = [of_stage(specs, layers) for layers in stages for _ in range(tensor)]
    shared_by_rank = [of_stage(shared, layers) for layers in stages for _ in range(tensor)]
    options = plan_options(model, inquiry, notes)
    weights, budgets = _budgets(subject, inquiry, stages, compute_dtype)
    if budgets is None:
        budgets = _one_request(specs_by_rank, shared_by_rank, options)
        notes.append("Nothing was said of the machine, so this is the least that holds one request.")
    available = [budget.kv_bytes for budget in budgets]
    attempt = try_plan(specs_by_rank, available, options, shared_by_rank)
    reference = functools.partial(
        ask_reference,
        specs_by_rank,
        available,
        shared=shared_by_rank,
        in_flight_tokens=inquiry.max_in_flight_tokens or inquiry.max_num_batched_tokens,
        states=state_rule(model.model_type, specs, compute_dtype, tensor),
    )
    answer = reference(options)
    if options.hybrid and any(spec.drops_blocks for spec in specs.values()):
        notes += without_groups(answer, reference(msgspec.structs.replace(options, hybrid=False)))
    notes += beside_states(attempt.plan.groups, answer)
    return Forecast(
        model=model,
        inquiry=inquiry,
        compute_dtype=compute_dtype,
        cache_dtype=cache.dtype,
        cache_bytes=cache.quantization or cache.dtype,
        stages=stages,
        tensor_parallel_size=tensor,
        weights=weights,
        budgets=tuple(budgets),
        is_budget_given=has_machine(inquiry),
        options=options,
        specs_by_rank=tuple(specs_by_rank),
        shared_by_rank=tuple(shared_by_rank),
        plan=attempt.plan,
        refusal=attempt.refusal,
        reference=answer,
        notes=tuple(notes),
    )


def _compute_dtype(model: ModelConfig, inquiry: Inquiry, notes: list[str]) -> str:
    """`auto` is the checkpoint's where that has two bytes, else bfloat16: accelerators are not used in float32."""
    if inquiry.dtype != "auto":
        return inquiry.dtype
    if model.dtype in ("bfloat16", "float16"):
        return model.dtype
    notes.append(f"The checkpoint is in {model.dtype}; planned is bfloat16. Give --dtype for another one.")
    return "bfloat16"


def has_machine(inquiry: Inquiry) -> bool:
    """Whether the inquiry says how many bytes there are."""
    machine = inquiry.machine
    return bool(machine.kv_memory_bytes or machine.memory_bytes or machine.device)


def plan_options(model: ModelConfig, inquiry: Inquiry, notes: list[str]) -> PlanOptions:
    """The planner's options; what is worth telling about them is added to `notes`."""
    wanted = inquiry.max_model_len
    if wanted == -1 and not has_machine(inquiry):
        raise ConfigError(
            "--max-model-len auto asks for the longest that fits, and nothing says how much memory there is.",
            remedy="Give --gpu, --memory or --kv-memory.",
        )
    length = model.max_position if wanted in (None, -1) else wanted
    assert length is not None
    if length > model.max_position:
        notes.append(
            f"{length:,} tokens are more than the {model.max_position:,} that {model.name} was made for; the engine "
            "would refuse that length."
        )
    return PlanOptions(
        max_model_len=length,
        auto_fit=wanted == -1,
        max_num_batched_tokens=inquiry.max_num_batched_tokens,
        max_chunk_tokens=inquiry.max_chunk_tokens,
        max_overlapping_steps=inquiry.pipeline_parallel_size,
        num_blocks_override=inquiry.num_blocks_override,
        enable_prefix_caching=inquiry.enable_prefix_caching,
        hybrid=inquiry.hybrid,
    )


def _budgets(
    subject: Subject, inquiry: Inquiry, stages: Sequence[range], dtype: str
) -> tuple[Weights | None, list[RankBudget] | None]:
    machine, tensor = inquiry.machine, inquiry.num_ranks_of_stage
    num_ranks = len(stages) * tensor
    if machine.kv_memory_bytes:
        given = _by_rank("--kv-memory", machine.kv_memory_bytes, len(stages), num_ranks)
        empty = RankBudget(total_bytes=None, usable_bytes=None, weight_bytes=None, runtime_bytes=None, kv_bytes=0)
        return None, [msgspec.structs.replace(empty, kv_bytes=num_bytes) for num_bytes in given]
    if machine.device is None and not machine.memory_bytes:
        return None, None
    sizes = machine.memory_bytes or (machine.device.memory_bytes if machine.device else 0,)
    totals = _by_rank("--memory", sizes, len(stages), num_ranks)
    weights = find_weights(
        subject.files, subject.config, subject.model, stages, tensor_parallel_size=tensor, dtype=dtype,
        given=machine.weight_bytes,
    )  # fmt: skip
    runtime = machine.runtime_bytes
    if runtime is None:
        runtime = runtime_bytes(
            subject.model, dtype, num_tokens=inquiry.max_num_batched_tokens, num_seqs=inquiry.max_num_seqs,
            tensor_parallel_size=tensor,
        )  # fmt: skip
    return weights, [
        rank_budget(total, machine.memory_utilization, own, runtime)
        for total, own in zip(totals, weights.by_rank, strict=True)
    ]


def _by_rank(flag: str, given: Sequence[int], num_stages: int, num_ranks: int) -> list[int]:
    """`given` for every rank: one number is all ranks', and as many as stages are the stages'."""
    if len(given) == 1:
        return list(given) * num_ranks
    if len(given) == num_ranks:
        return list(given)
    if len(given) == num_stages:
        return [num_bytes for num_bytes in given for _ in range(num_ranks // num_stages)]
    raise ConfigError(
        f"{flag} has {len(given)} sizes: {', '.join(map(format_bytes, given))}.",
        remedy=f"Give one, or one for each of the {num_stages} stages, or of the {num_ranks} ranks.",
    )


def _one_request(
    specs_by_rank: Sequence[dict[str, LayerSpec]], shared: Sequence[dict[str, str]], options: PlanOptions
) -> list[RankBudget]:
    """The least that holds one request, on every rank."""
    refusal: PlanError | None = try_plan(specs_by_rank, [0] * len(specs_by_rank), options, shared).refusal
    least = refusal.numbers["smallest_budget_bytes"] if refusal is not None else 0
    budget = RankBudget(total_bytes=None, usable_bytes=None, weight_bytes=None, runtime_bytes=None, kv_bytes=least)
    return [budget] * len(specs_by_rank)
