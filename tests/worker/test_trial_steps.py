"""Steps without real requests: they reach every kernel and leave nothing behind."""

from __future__ import annotations

import pytest
import torch

from octavo.config import layer_name
from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.kv.specs import FullAttentionSpec, LayerSpec
from octavo.messages import ModelRunnerOutput, SchedulerOutput
from octavo.worker.kv_memory import allocate, bind, view
from octavo.worker.model_runner import ModelRunner
from octavo.worker.trial_steps import run_largest, run_warm_up, trial_config
from tests.worker.recalling_model import RecallingModel, sizes

CPU = torch.device("cpu")


class WatchedRunner(ModelRunner):
    """Keeps what it was asked and what it answered."""

    steps: list[tuple[SchedulerOutput, ModelRunnerOutput]]

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        output = super().execute_model(step)
        self.steps = [*getattr(self, "steps", []), (step, output)]
        return output


def runner_of(*, block_size: int = 4, num_layers: int = 2, max_model_len: int = 16) -> WatchedRunner:
    spec = FullAttentionSpec(**sizes(block_size))
    model = RecallingModel({layer_name(i): spec for i in range(num_layers)})
    options = PlanOptions(max_model_len=max_model_len, max_num_batched_tokens=max_model_len)
    config = plan_kv_cache([model.kv_cache_specs()], [10**4], options).configs[0]
    tensors = allocate(config, CPU)
    views = view(config, tensors)
    groups = bind(config, views, model.attention_layers)
    return WatchedRunner(
        model,
        config,
        tensors=tensors,
        views=views,
        groups=groups,
        device=CPU,
        max_num_seqs=4,
        num_threads=1,
        seed=0,
    )


@pytest.mark.parametrize(
    ("block_size", "max_model_len", "tokens_by_step"),
    [(4, 16, [3, 1]), (16, 64, [4, 1]), (2, 16, [1, 1]), (1, 16, [1]), (16, 1, [1])],
)
def test_warm_up_prefills_and_decodes_inside_one_block(
    block_size: int, max_model_len: int, tokens_by_step: list[int]
) -> None:
    runner = runner_of(block_size=block_size, max_model_len=max_model_len)
    assert run_warm_up(runner) == len(tokens_by_step)
    steps = runner.steps[:-1]
    assert [set(step.num_scheduled_tokens.values()) for step, _ in steps] == [{count} for count in tokens_by_step]
    for step, output in steps:
        assert output.sampled.keys() == step.num_scheduled_tokens.keys(), "both ways through the sampler are taken"
        assert len(output.logprobs) == 1
    assert runner.batch.num_requests == 0, "nothing is left behind"
    assert not any(cache.key[2:].any() for cache in runner.kv_caches.values()), "only block 1 was written"


def test_warm_up_needs_no_cached_layer() -> None:
    runner = runner_of(num_layers=0)
    assert run_warm_up(runner) == 2


def test_a_trial_cache_holds_any_step_in_two_blocks() -> None:
    specs: dict[str, LayerSpec] = {
        layer_name(0): FullAttentionSpec(**sizes(4)),
        layer_name(1): FullAttentionSpec(**{**sizes(4), "head_size": 2}),
    }
    config = trial_config(specs, {}, 14)
    assert [tensor.size_bytes for tensor in config.tensors] == [2 * spec.page_bytes for spec in specs.values()]
    model = RecallingModel({layer_name(i): FullAttentionSpec(**sizes(4)) for i in range(2)})
    config = trial_config(model.kv_cache_specs(), {}, 14)
    views = view(config, allocate(config, CPU))
    groups = bind(config, views, model.attention_layers)
    runner = ModelRunner(
        model, config, tensors=[], views=views, groups=groups, device=CPU, max_num_seqs=2, num_threads=1, seed=0
    )
    run_largest(runner, num_tokens=14, num_requests=1)
    assert all(layer.num_calls == 1 for layer in model.attention_layers.values())


def test_the_largest_step_has_every_token_and_request() -> None:
    runner = runner_of()
    run_largest(runner, num_tokens=14, num_requests=4)
    step, output = runner.steps[0]
    assert sorted(step.num_scheduled_tokens.values()) == [3, 3, 4, 4]
    assert len(output.sampled) == 4
    assert runner.batch.num_requests == 0


def test_the_largest_step_of_few_tokens_has_fewer_requests() -> None:
    runner = runner_of()
    run_largest(runner, num_tokens=2, num_requests=4)
    assert list(runner.steps[0][0].num_scheduled_tokens.values()) == [1, 1]
