"""What the plan will say, from the config alone: a cache that cannot hold one request is refused before weights are
read, which takes minutes for a large model."""

from __future__ import annotations

from octavo.config import EngineConfig, ModelConfig
from octavo.errors import LayoutError
from octavo.formats.kv_specs import kv_cache_specs
from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.kv.stages import of_stage, split_layers
from octavo.models.parallel.rank_config import rank_model_config
from octavo.worker.device import check_cache_dtype, choose_device, choose_dtype
from octavo.worker.memory_budget import cpu_budget


def refuse_too_little_memory(config: EngineConfig, model_config: ModelConfig, options: PlanOptions) -> None:
    """Raises the `PlanError` that planning would raise for too small a budget, `ConfigError` for a device, a dtype or a
    budget that there is not, and `UnsupportedModelError` for ranks that heads cannot be divided over.

    The specs come from the config, where ranks report their own, and what is free is what is free now, when weights
    take nothing yet: so nothing is refused here that would have run. On other devices than a CPU only a budget that
    was asked for is known so early.
    """
    check_cache_dtype(config.cache.kv_cache_dtype)
    rank_model_config(model_config, config.parallel.tensor_parallel_size)
    device = choose_device(config.parallel.device, 0)
    dtype, wanted = choose_dtype(config.model.dtype, device), config.cache.kv_cache_dtype
    parallel = config.parallel
    stages = split_layers(model_config.num_layers, parallel.pipeline_parallel_size, parallel.pipeline_layers)
    budgets: list[int] = []
    for number in range(len(stages)):
        cache = config.cache_of(number * parallel.tensor_parallel_size)
        budget = cpu_budget(cache, parallel.num_local_ranks)[0] if device.type == "cpu" else cache.kv_memory_bytes
        if budget is None:
            return
        budgets.append(budget)
    specs, shared = kv_cache_specs(
        model_config,
        block_size=config.cache.block_size,
        dtype=str(dtype).removeprefix("torch.") if wanted == "auto" else wanted,
        tensor_parallel_size=parallel.tensor_parallel_size,
    )
    by_stage = [of_stage(specs, layers) for layers in stages]
    shared_by_stage = [of_stage(shared, layers) for layers in stages]
    try:
        plan_kv_cache(by_stage, budgets, options, shared_layers_by_rank=shared_by_stage)
    except LayoutError:  # of what this model's layers are, its loader says more
        return
