"""What is printed is true: lengths and budgets are borders, for random models, budgets, lengths and ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from octavo.errors import OctavoError
from octavo.kv.planner import PlanOptions, try_plan
from octavo.planning.forecast import Forecast
from octavo.planning.remedies import longest_length
from octavo.request import SamplingParams
from tests.formats.published import CONFIGS
from tests.machines.test_exact_pool import Run, schedule_all
from tests.planning.build import planned
from tests.sched.harness import make_request

NUM_CASES = 2000


def random_case(dice: random.Random) -> tuple[str, int, dict[str, Any]]:
    """A model, bytes for each rank, and settings."""
    model = dice.choice(list(CONFIGS))
    more = {
        "max_model_len": int(2 ** dice.uniform(4, 18)),
        "tensor_parallel_size": dice.choice([1, 1, 2, 4, 8]),
        "pipeline_parallel_size": dice.choice([1, 1, 1, 2, 3]),
        "block_size": dice.choice([16, 16, 16, 8, 32, 64]),
        "max_num_batched_tokens": dice.choice([64, 512, 2048, 16384]),
        "kv_cache_dtype": dice.choice(["auto", "auto", "fp8"]),
    }
    return model, int(2 ** dice.uniform(20, 36)), more


def fits(asked: Forecast, length: int, available: Sequence[int], **options: Any) -> bool:
    """Whether one request of `length` fits, by planning it."""
    wanted = msgspec.structs.replace(asked.options, max_model_len=length, **options)
    return try_plan(asked.specs_by_rank, available, wanted, asked.shared_by_rank).refusal is None


def check_borders(asked: Forecast, available: list[int], dice: random.Random) -> int:
    """The printed longest length and smallest budget; the longest."""
    length = asked.options.max_model_len
    longest = length if asked.fits else longest_length(asked)
    assert longest == 0 or fits(asked, longest, available)
    assert longest == length or not fits(asked, longest + 1, available)
    for _ in range(2):
        shorter = dice.randint(1, length)
        assert fits(asked, shorter, available) == (shorter <= longest)
    if asked.refusal is not None:
        smallest = asked.refusal.numbers["smallest_budget_bytes"]
        assert fits(asked, length, [smallest] * len(available))
        assert not fits(asked, length, [smallest - 1] * len(available))
    else:
        need = sum(asked.plan.figures.blocks_per_request) + 1
        assert fits(asked, length, available, num_blocks_override=need)
        assert not fits(asked, length, available, num_blocks_override=need - 1)
    return longest


def check_monotone(asked: Forecast, available: list[int], dice: random.Random) -> None:
    """More memory never holds less."""
    more = [int(num_bytes * dice.uniform(1, 2)) for num_bytes in available]
    options: PlanOptions = asked.options
    richer = try_plan(asked.specs_by_rank, more, options, asked.shared_by_rank)
    if asked.fits:
        assert richer.refusal is None
        own, larger = asked.plan.figures, richer.plan.figures
        assert larger.usable_blocks * sum(own.blocks_per_request) >= own.usable_blocks * sum(larger.blocks_per_request)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_printed_numbers_are_borders(part: int) -> None:
    dice = random.Random(part)
    planned_cases = 0
    while planned_cases < NUM_CASES // 8:
        model, num_bytes, more = random_case(dice)
        try:
            asked = planned(model, num_bytes, **more)
        except OctavoError:  # heads or states that cannot be divided so
            continue
        planned_cases += 1
        available = [budget.kv_bytes for budget in asked.budgets]
        check_borders(asked, available, dice)
        check_monotone(asked, available, dice)


@pytest.mark.slow
@pytest.mark.parametrize("caching", [True, False])
def test_a_sample_of_models_with_states_really_runs(caching: bool) -> None:
    """The scheduler and the cache manager, from the budget that a refusal prints."""
    dice, ran = random.Random(11), 0
    while ran < 40:
        _, _, more = random_case(dice)
        model = dice.choice(["Granite-4.0-H-Small", "Qwen3-Next-80B-A3B", "Jamba-v0.1"])
        more |= {"max_model_len": dice.randint(40, 9000), "pipeline_parallel_size": 1, "enable_prefix_caching": caching}
        try:
            short = planned(model, 1, **more)
            asked = planned(model, short.refusal.numbers["smallest_budget_bytes"], **more)
        except OctavoError:
            continue
        ran += 1
        length = more["max_model_len"]
        sampling = SamplingParams(max_tokens=8, ignore_eos=True)
        request = make_request("r", [1] * (length - 8), max_tokens=8, sampling=sampling)
        config, batched = asked.plan.configs[0], more["max_num_batched_tokens"]
        assert config.num_blocks == sum(asked.plan.figures.blocks_per_request) + 1
        _, chunks = schedule_all(config, [request], batched, caching=caching)
        assert request.num_preemptions == 0
        assert sum(chunks) == length - 1


@pytest.mark.slow
def test_a_sample_really_runs_at_full_length_in_exactly_the_printed_pool() -> None:
    """The scheduler over a null rank that checks every read, from the budget that a refusal prints and no byte more."""
    dice, ran = random.Random(7), 0
    while ran < 40:
        model, _, more = random_case(dice)
        more |= {"max_model_len": dice.randint(40, 3000), "pipeline_parallel_size": 1}
        try:
            short = planned(model, 1, **more)
            if any(group.spec.kind == "mamba" for group in short.plan.groups):
                continue  # the null rank models tokens, not states
            asked = planned(model, short.refusal.numbers["smallest_budget_bytes"], **more)
        except OctavoError:
            continue
        ran += 1
        length = more["max_model_len"]
        run = Run(asked.plan.configs[0], more["max_num_batched_tokens"])
        request = run.serve("r", [dice.randrange(60) for _ in range(length - 8)], 8)
        assert request.num_preemptions == 0
        assert sum(run.chunks) == length - 1
