"""Models on machines that are not here: the plan, the list of configs that each rank gets, and thousands of steps of
the real scheduler on ranks that allocate nothing."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from octavo.config import CacheConfig, EngineConfig, ModelSource, ParallelConfig, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.executor.executor import Executor
from octavo.executor.multiproc import MultiprocExecutor
from octavo.kv.planner import KVCachePlan
from octavo.kv.specs import LayerSpec
from octavo.messages import EngineCoreRequest
from octavo.planning.library import ask
from octavo.request import FinishReason, SamplingParams
from tests.executor.planned_ranks import TOKEN, RanksHere, layers_of

PUBLISHED = Path(__file__).parent.parent / "data" / "published"


class Machine(NamedTuple):
    """A model, and what it is to run on."""

    model: str
    gpus: str
    tensor: int
    stages: int
    weights: str | None
    """Where the files would say more than the config: the published weights are in 8 bits."""
    num_layers: int
    heads_of_rank: int | None
    """KV heads of a layer on one rank; None for a latent, which is whole on each."""
    page_bytes: dict[str, int]
    """Of one block of 16 tokens, by kind: heads * (K + V) * head size * 2 bytes * 16, or a latent and a rotary key."""


MACHINES = [
    pytest.param(
        Machine("llama-3.1-405b", "h200x16", 8, 2, None, 126, 1, {"full": 1 * 2 * 128 * 2 * 16}), id="llama-3.1-405b"
    ),
    pytest.param(
        Machine("deepseek-v3", "h200x16", 8, 2, "671GB", 61, None, {"mla": (512 + 64) * 2 * 16}), id="deepseek-v3"
    ),
    pytest.param(
        Machine(
            "gemma-3-27b", "h200x2", 2, 1, None, 62, 8,
            {"full": 8 * 2 * 128 * 2 * 16, "sliding_window": 8 * 2 * 128 * 2 * 16},
        ),
        id="gemma-3-27b",
    ),
]  # fmt: skip


class Simulated(NamedTuple):
    """A machine, what `octavo plan` says of it, and the config of an engine on it."""

    machine: Machine
    plan: KVCachePlan
    budgets: list[int]
    config: EngineConfig


@pytest.fixture(params=MACHINES)
def simulated(request: pytest.FixtureRequest, tmp_path: Path) -> Simulated:
    machine: Machine = request.param
    folder = tmp_path / machine.model
    shutil.copytree(PUBLISHED / machine.model, folder)
    asked = ask(
        folder,
        gpu=machine.gpus,
        tensor_parallel_size=machine.tensor,
        pipeline_parallel_size=machine.stages,
        weights=machine.weights,
    )
    budgets = [budget.kv_bytes for budget in asked.budgets]
    (folder / "budgets.json").write_text(json.dumps(budgets))
    config = EngineConfig(
        model=ModelSource(model=str(folder), load_format="dummy"),
        cache=CacheConfig(block_size=16),
        scheduler=SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=128),
        parallel=ParallelConfig(
            tensor_parallel_size=machine.tensor, pipeline_parallel_size=machine.stages, executor="mp", device="cpu"
        ),
    )
    return Simulated(machine, asked.plan, budgets, config)


def check_configs(simulated: Simulated, core: EngineCore) -> None:
    """What must hold of the list of configs, whatever planned it."""
    machine, configs = simulated.machine, list(core.plan.configs)
    num_ranks = machine.tensor * machine.stages
    assert len(configs) == num_ranks == len(simulated.budgets)
    assert configs == list(simulated.plan.configs), "octavo plan says the same of each rank"
    (num_blocks,) = {config.num_blocks for config in configs}
    cached: dict[int, list[str]] = {place: [] for place in range(machine.tensor)}
    block_bytes = []
    for rank, config in enumerate(configs):
        specs: dict[str, LayerSpec] = {name: group.spec for group in config.groups for name in group.layer_names}
        layers = layers_of(rank, machine.num_layers, machine.tensor, machine.stages)
        assert specs.keys() == {f"layers.{index}" for index in layers}
        cached[rank % machine.tensor] += specs
        assert {spec.kind: spec.page_bytes for spec in specs.values()} == machine.page_bytes
        if machine.heads_of_rank is not None:
            assert {spec.num_kv_heads for spec in specs.values()} == {machine.heads_of_rank}  # type: ignore[union-attr]
        pool = sum(tensor.size_bytes for tensor in config.tensors)
        block_bytes.append(pool // num_blocks)
        assert pool == num_blocks * block_bytes[-1] <= simulated.budgets[rank]
        assert sorted(name for tensor in config.tensors for name in tensor.shared_by) == sorted(specs)
    for layers in cached.values():
        assert sorted(layers) == sorted(f"layers.{index}" for index in range(machine.num_layers)), "each exactly once"
    assert num_blocks == min(budget // size for budget, size in zip(simulated.budgets, block_bytes, strict=True)), (
        "the rank with the least room decides, and fills it"
    )
    reports = core.report_memory()
    assert [report.num_blocks for report in reports] == [num_blocks] * num_ranks
    assert [report.storage_bytes for report in reports] == [num_blocks * size for size in block_bytes]


def drive(core: EngineCore, num_steps: int, seed: int = 0) -> int:
    """Keep the engine busy with prompts of all lengths, some of which share beginnings, for so many steps; the requests
    that have ended. Every one has all its tokens, and nothing is held at the end."""
    dice = random.Random(seed)
    shared = [[dice.randrange(1000) for _ in range(60_000)] for _ in range(3)]
    wanted: dict[str, int] = {}
    got: dict[str, int] = {}
    num_ended = num_sent = 0
    for _ in range(num_steps):
        while len(wanted) < 24:
            beginning = dice.choice(shared)[: dice.choice((0, 16, 1000, 20_000, 60_000))]
            length = max(1, int(2 ** dice.uniform(0, 13)))
            prompt = beginning + [dice.randrange(1000) for _ in range(length)]
            name, num_sent = str(num_sent), num_sent + 1
            wanted[name], got[name] = dice.randint(1, 120), 0
            sampling = SamplingParams(max_tokens=wanted[name], ignore_eos=True)
            core.add_request(EngineCoreRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))
        news = core.step()
        stats = news.stats
        assert stats.num_free_blocks + stats.num_cached_blocks + stats.num_used_blocks + 1 == stats.num_blocks
        for output in news.outputs:
            assert output.error is None
            assert set(output.new_token_ids) <= {TOKEN}
            got[output.request_id] += len(output.new_token_ids)
            if output.finish_reason is not None:
                assert output.finish_reason is FinishReason.LENGTH
                assert got[output.request_id] == wanted.pop(output.request_id)
                num_ended += 1
    core.abort_requests(list(wanted))
    core.step()
    stats = core.stats()
    assert stats.num_used_blocks == 0
    assert stats.prefix_hit_tokens > 0
    return num_ended


def run(simulated: Simulated, executor: Executor, num_steps: int) -> None:
    core = EngineCore(simulated.config, executor=executor)
    try:
        check_configs(simulated, core)
        assert drive(core, num_steps) > num_steps // 60
    finally:
        core.shutdown()


@pytest.mark.slow
def test_the_machine_in_one_process(simulated: Simulated) -> None:
    run(simulated, RanksHere(simulated.config), 300)


@pytest.mark.long
def test_the_machine_with_a_process_for_each_rank(simulated: Simulated) -> None:
    rank_class = "tests.executor.planned_ranks:PlannedRank"
    run(simulated, MultiprocExecutor(simulated.config, rank_class=rank_class), 3000)
