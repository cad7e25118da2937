"""Float32 greedy output of a pipeline of stages equals transformers', however the engine runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo import SamplingParams, plan_kv_cache
from octavo.attention.numba_cpu import NumbaCPU
from octavo.config import parse_bytes
from octavo.errors import ConfigError, PlanError
from tests.parity.reference import greedy
from tests.parity.staged import StagedExecutor
from tests.parity.tiny import HYBRID, VOCAB_SIZE
from tests.parity.toy import Toy

LENGTHS = (1, 2, 8, 10, 17, 19, 33, 70)
FORKS = (16, 36, 36)
EXECUTOR = f"{StagedExecutor.__module__}:{StagedExecutor.__name__}"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("hybrid"), HYBRID, lengths=LENGTHS, forks=FORKS)


def staged(num_stages: int, **options: Any) -> dict[str, Any]:
    return {"pipeline_parallel_size": num_stages, "distributed_executor_backend": EXECUTOR} | options


@pytest.mark.parametrize(
    "num_stages", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_prompts_in_chunks_and_prefix_hits(toy: Toy, num_stages: int) -> None:
    order = list(range(len(toy.prompts)))
    with toy.llm(**staged(num_stages), max_num_batched_tokens=37, block_size=4) as llm:
        assert len(StagedExecutor.last.workers) == num_stages
        toy.check(llm, order)
        assert toy.check(llm, order) > 100
        assert llm.plan.configs[0].num_blocks == llm.plan.configs[-1].num_blocks


@pytest.mark.slow
@pytest.mark.parametrize("layers", [(1, 4), (4, 1), (2, 3)])
def test_uneven_stages(toy: Toy, layers: tuple[int, int]) -> None:
    with toy.llm(**staged(2, pipeline_layers=layers)) as llm:
        assert [len(worker.get_kv_cache_specs()) for worker in StagedExecutor.last.workers] == list(layers)
        toy.check(llm, list(range(len(toy.prompts))))


@pytest.mark.slow
def test_preemption(toy: Toy) -> None:
    order = [index for index, prompt in enumerate(toy.prompts) if 17 <= len(prompt) <= 33]
    references = [greedy(toy.model, toy.prompts[index], 40) for index in order]
    options: dict[str, Any] = {"max_model_len": 80, "block_size": 2, "max_num_batched_tokens": 16}
    options = staged(2, **options)
    with toy.llm(**options, num_blocks_override=toy.smallest_pool(**options)) as llm:
        toy.check(llm, order * 2, references=references * 2)
        assert llm.stats().num_preemptions > 0


def test_samples_forks_and_log_probabilities_are_those_of_one_rank(toy: Toy) -> None:
    sampling = SamplingParams(
        temperature=1.0, seed=3, n=3, top_k=40, max_tokens=8, ignore_eos=True, logprobs=2, prompt_logprobs=1,
        presence_penalty=0.5,
    )  # fmt: skip
    prompts = [{"prompt_token_ids": prompt} for prompt in toy.prompts[3:8]]
    found = []
    for options in ({}, staged(2)):
        with toy.llm(**options, max_num_batched_tokens=50, block_size=4) as llm:
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            found.append(
                [
                    (output.prompt_logprobs, [(each.token_ids, each.logprobs) for each in output.outputs])
                    for output in outputs
                ]
            )
    assert found[0] == found[1]
    assert len({tuple(token_ids) for token_ids, _ in found[0][0][1]}) > 1


def test_few_tokens_are_one_program_in_every_stage(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    with toy.llm(**staged(3)) as llm:
        toy.check(llm, [0, 1])
        # A layer's own forward would call the kernel: none of these steps of two tokens does.
        calls: list[str] = []
        original = NumbaCPU.attend
        monkeypatch.setattr(
            NumbaCPU, "attend", lambda self, layer, *args: calls.append(layer.name) or original(self, layer, *args)
        )
        prompts = [{"prompt_token_ids": [7]}, {"prompt_token_ids": [9]}]
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), use_tqdm=False)
        assert calls == []


WITHOUT_CACHE: dict[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 64,
    "layers_block_type": ["attention", "mlp", "mlp", "attention", "mlp"],
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}
"""Two of five layers attend."""


def test_a_stage_without_cached_layers(tmp_path: Path) -> None:
    toy = Toy(tmp_path, WITHOUT_CACHE, lengths=(3, 17, 30), forks=(16,))
    with toy.llm(**staged(3, pipeline_layers=(1, 2, 2)), max_num_batched_tokens=20, block_size=4) as llm:
        assert [[group.layer_names for group in config.groups] for config in llm.plan.configs] == [
            [("layers.0",)],
            [()],
            [("layers.3",)],
        ]
        assert llm.plan.configs[1].tensors == ()
        toy.check(llm, [0, 1, 2, 3, 0, 2])


@pytest.mark.parametrize("budget", ["3MiB", ("3MiB", "1MiB"), "1MiB,3MiB"])
def test_what_ranks_allocate_is_the_plan_to_the_byte(toy: Toy, budget: Any) -> None:
    """Stages of three and two layers with unequal memory: all take the fewest blocks that one holds."""
    with toy.llm(**staged(2), kv_memory=budget, max_model_len=200) as llm:
        configs, workers = llm.plan.configs, StagedExecutor.last.workers
        sizes = budget.split(",") if isinstance(budget, str) else list(budget)
        foreseen = plan_kv_cache(
            str(toy.folder), kv_memory=sizes, pipeline_parallel_size=2, max_model_len=200, max_num_batched_tokens=2048,
            dtype="float32",
        )  # fmt: skip
        assert foreseen.configs == configs
        assert len({config.num_blocks for config in configs}) == 1
        for config, worker in zip(configs, workers, strict=True):
            planned = sum(tensor.size_bytes for tensor in config.tensors)
            report = worker.report_memory()
            assert (report.storage_bytes, report.num_blocks) == (planned, config.num_blocks)
            assert report.num_views == 2 * sum(len(group.layer_names) for group in config.groups)
        bounds = [size // len(configs[rank].tensors) for rank, size in enumerate(_bytes(sizes))]
        page = configs[0].groups[0].spec.page_bytes
        assert configs[0].num_blocks == min(bounds) // page


def _bytes(sizes: list[str]) -> list[int]:
    sizes = sizes * 2 if len(sizes) == 1 else sizes
    return [parse_bytes(size) for size in sizes]


def test_budgets_of_another_number_than_ranks_are_refused(toy: Toy) -> None:
    with pytest.raises(
        ConfigError, match=r"--kv-memory is 1\.00 MiB, 1\.00 MiB, 1\.00 MiB\. It must be one size, or one for"
    ):
        toy.llm(**staged(2), kv_memory="1MiB,1MiB,1MiB")
    with pytest.raises(ConfigError, match="--pipeline-layers is 1,1: 2 stages of 2 layers"):
        toy.llm(**staged(2, pipeline_layers=[1, 1]))


def test_a_budget_too_small_for_one_stage_is_refused_before_weights_are_read(toy: Toy) -> None:
    told: list[str] = []
    with pytest.raises(PlanError, match="rank 1"):
        toy.llm(**staged(2), kv_memory="3MiB,20KiB", on_stage=lambda report: told.append(report.name))
    assert "read_config" in told and "start_executor" not in told
