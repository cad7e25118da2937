"""One rank from its device to its first tokens: on a recalling model, and on a tiny model from disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from octavo.config import CacheConfig, EngineConfig, ModelSource, ParallelConfig, SchedulerConfig, layer_name
from octavo.errors import ConfigError, InvariantError
from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.kv.specs import FullAttentionSpec, KVCacheConfig, SlidingWindowSpec
from octavo.messages import NewRequestData, SchedulerOutput
from octavo.request import SamplingParams
from octavo.worker import worker as module
from octavo.worker.worker import Worker
from tests.parity.tiny import HYBRID, build_model
from tests.worker.recalling_model import RecallingModel, next_token, sizes

MIB = 2**20
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def config_of(model: str = "unused", **cache: object) -> EngineConfig:
    return EngineConfig(
        model=ModelSource(model=model, dtype="float32", max_model_len=64),
        cache=CacheConfig(**{"block_size": 4, "kv_memory_bytes": MIB, **cache}),
        scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4),
        parallel=ParallelConfig(device="cpu"),
    )


def plan_for(worker: Worker) -> KVCacheConfig:
    plan = plan_kv_cache(
        [worker.get_kv_cache_specs()],
        [worker.determine_available_memory()],
        PlanOptions(max_model_len=64, max_num_batched_tokens=64),
        shared_layers_by_rank=[worker.get_shared_layers()],
    )
    return plan.configs[0]


def first_step(tokens: list[int], num_groups: int, sampling: SamplingParams = GREEDY) -> SchedulerOutput:
    num_blocks = -(-len(tokens) // 4)
    data = NewRequestData(
        request_id="r",
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        sampling=sampling,
        eos_token_ids=(),
        num_computed_tokens=0,
        block_ids=tuple([100 * group + i + 1 for i in range(num_blocks)] for group in range(num_groups)),
    )
    return SchedulerOutput(
        step=0,
        num_scheduled_tokens={"r": len(tokens)},
        new_requests=[data],
        finished_request_ids=[],
    )


@pytest.fixture
def make_worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[EngineConfig], Worker]:
    """Workers that load a recalling model."""
    window = SlidingWindowSpec(**sizes(4), window=5)
    specs = {layer_name(0): FullAttentionSpec(**sizes(4)), layer_name(1): window}

    def make(config: EngineConfig) -> Worker:
        model = RecallingModel(specs, shared={layer_name(2): layer_name(1)})
        monkeypatch.setattr(module, "open_model", lambda *args, **kwargs: (None, model))
        return Worker(config, global_rank=0, local_rank=0)

    return make


def test_a_start_up_binds_every_layer_and_reports_each_stage(make_worker: Callable[[EngineConfig], Worker]) -> None:
    worker = make_worker(config_of())
    worker.init_device()
    worker.load_model()
    assert list(worker.get_kv_cache_specs()) == [layer_name(0), layer_name(1)]
    assert worker.get_shared_layers() == {layer_name(2): layer_name(1)}
    config = plan_for(worker)
    worker.initialize_from_config(config)
    assert worker.num_blocks == config.num_blocks
    worker.warm_up()
    assert [report.name for report in worker.reports] == [
        "init_device",
        "load_model",
        "determine_available_memory",
        "allocate_kv_cache",
        "view_kv_cache",
        "bind_kv_cache",
        "compile_attention",
        "first_steps",
    ]
    told = {report.name: report.result for report in worker.reports}
    assert told["init_device"].startswith("cpu, float32, ")
    assert told["load_model"].startswith("3 attention layers on ")
    facts = {name: value for report in worker.reports for name, value in report.facts.items()}
    assert told["init_device"] == "{device}, {dtype}, {num_threads} threads".format(**facts)
    assert f" on {facts['attention_backend']}, " in told["load_model"]
    assert int(facts["weight_bytes"]) >= 0
    assert told["determine_available_memory"].startswith("1.00 MiB as asked, of ")
    assert told["view_kv_cache"] == f"3 layers of {config.num_blocks} blocks, no copy"
    assert told["bind_kv_cache"] == f"3 layers in {len(config.groups)} groups"
    assert told["first_steps"] == "2 steps"
    assert all(report.rank == 0 and report.seconds >= 0 for report in worker.reports)
    assert worker._model is not None
    layers = worker._model.attention_layers.values()
    assert all(layer.kv_cache is not None and layer.num_calls == 0 for layer in layers)
    tokens = [1, 2, 3, 4, 5, 6, 7]
    output = worker.execute_model(first_step(tokens, len(config.groups)))
    assert output.sampled == {"r": next_token(tokens, [None, 5, 5])}
    assert all(layer.num_calls == 1 for layer in layers)


def test_shutdown_frees_the_cache_and_may_come_twice(make_worker: Callable[[EngineConfig], Worker]) -> None:
    worker = make_worker(config_of())
    worker.init_device()
    worker.load_model()
    worker.initialize_from_config(plan_for(worker))
    assert worker._model is not None
    layers = worker._model.attention_layers
    worker.shutdown()
    worker.shutdown()
    assert all(layer.kv_cache is None and layer.group is None for layer in layers.values())
    assert worker._tensors == []


def test_a_call_out_of_order_is_a_bug(make_worker: Callable[[EngineConfig], Worker]) -> None:
    worker = make_worker(config_of())
    with pytest.raises(InvariantError, match="rank 0 was asked for its model before load_model"):
        worker.get_kv_cache_specs()
    with pytest.raises(InvariantError, match="rank 0 was asked to run before initialize_from_config"):
        worker.execute_model(first_step([1], 1))


def test_more_memory_than_there_is_is_refused(make_worker: Callable[[EngineConfig], Worker]) -> None:
    worker = make_worker(config_of(kv_memory_bytes=2**50))
    worker.init_device()
    with pytest.raises(ConfigError, match=r"--kv-memory is 1024\.0 TiB .* but only"):
        worker.determine_available_memory()


def test_dtypes_and_devices_are_checked_before_anything_is_loaded(
    make_worker: Callable[[EngineConfig], Worker],
) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-dtype is int3"):
        make_worker(config_of(kv_cache_dtype="int3")).init_device()
    wrong = msgspec.structs.replace(config_of(), parallel=ParallelConfig(device="tpu"))
    with pytest.raises(ConfigError, match="--device is 'tpu'"):
        make_worker(wrong).init_device()


def test_a_gpu_leaves_room_for_what_the_largest_step_needs(
    make_worker: Callable[[EngineConfig], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile run is a real step in a small cache, which is let go; here its peak is made up."""
    worker = make_worker(config_of(kv_memory_bytes=None))
    worker.init_device()
    worker.load_model()
    peaks = iter((0, 3 * MIB))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (13 * MIB, 80 * MIB))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(peaks))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(peaks))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert worker._model is not None
    layers = worker._model.attention_layers.values()
    assert worker._profile() == 3 * MIB
    assert all(layer.num_calls == 1 for layer in layers), "one step ran"
    assert all(layer.kv_cache is None and layer.group is None for layer in layers)
    peaks = iter((0, 3 * MIB))
    worker._device = torch.device("cuda", 0)
    monkeypatch.setattr(worker, "_profile", lambda: 3 * MIB)
    assert worker.determine_available_memory() == 5 * MIB


@pytest.mark.slow
def test_a_tiny_model_from_disk_gives_transformers_tokens_and_log_probabilities(tmp_path: Path) -> None:
    reference = build_model(tmp_path, HYBRID)
    worker = Worker(config_of(str(tmp_path)), global_rank=0, local_rank=0)
    worker.init_device()
    worker.load_model()
    config = plan_for(worker)
    worker.initialize_from_config(config)
    worker.warm_up()
    tokens = torch.randint(3, 300, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    sampling = SamplingParams(temperature=0.0, logprobs=3, prompt_logprobs=1)
    output = worker.execute_model(first_step(tokens, len(config.groups), sampling))
    with torch.inference_mode():
        expected = torch.log_softmax(reference(torch.tensor([tokens])).logits[0].double(), dim=1)
    assert output.sampled == {"r": expected[-1].argmax().item()}
    assert output.logprobs["r"].token_ids[1:] == expected[-1].topk(3).indices.tolist()
    assert output.logprobs["r"].logprobs[1:] == pytest.approx(expected[-1].topk(3).values.tolist(), abs=1e-4)
    told = output.prompt_logprobs["r"]
    assert [entry.token_ids[0] for entry in told] == tokens[1:]
    assert [entry.token_ids[1] for entry in told] == expected[:-1].argmax(1).tolist()
    chosen = expected[torch.arange(39), torch.tensor(tokens[1:])]
    assert [entry.logprobs[0] for entry in told] == pytest.approx(chosen.tolist(), abs=1e-4)
    ranks = (expected[:-1] > chosen[:, None]).sum(1) + 1
    assert [entry.rank for entry in told] == ranks.tolist()
