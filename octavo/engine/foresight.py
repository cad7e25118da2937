"""What the plan will say, from the config alone: a cache that cannot hold one request is refused before weights are
read, which takes minutes for a large model."""

from __future__ import annotations

from octavo.config import EngineConfig, ModelConfig
from octavo.errors import LayoutError
from octavo.formats.kv_specs import kv_cache_specs
from octavo.kv.planner import PlanOptions, plan_kv_cache
from octavo.worker.device import check_cache_dtype, choose_device, choose_dtype
from octavo.worker.memory_budget import cpu_budget


def refuse_too_little_memory(config: EngineConfig, model_config: ModelConfig, options: PlanOptions) -> None:
    """Raises the `PlanError` that planning would raise for too small a budget, and `ConfigError` for a device, a dtype
    or a budget that there is not.

    The specs come from the config, where ranks report their own, and what is free is what is free now, when weights
    take nothing yet: so nothing is refused here that would have run. On other devices than a CPU only a budget that
    was asked for is known so early, and the layers of a pipeline's stage are not.
    """
    check_cache_dtype(config.cache.kv_cache_dtype)
    device = choose_device(config.parallel.device, 0)
    dtype, wanted = choose_dtype(config.model.dtype, device), config.cache.kv_cache_dtype
    budget = config.cache.kv_memory_bytes
    if device.type == "cpu":
        budget = cpu_budget(config.cache, config.parallel.num_local_ranks)[0]
    if budget is None or config.parallel.pipeline_parallel_size > 1:
        return
    specs, shared = kv_cache_specs(
        model_config,
        block_size=config.cache.block_size,
        dtype=str(dtype).removeprefix("torch.") if wanted == "auto" else wanted,
        tensor_parallel_size=config.parallel.tensor_parallel_size,
    )
    try:
        plan_kv_cache([specs], [budget], options, shared_layers_by_rank=[shared])
    except LayoutError:  # of what this model's layers are, its loader says more
        return
