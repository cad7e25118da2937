"""What a running engine was told and what its caches take: so that a plan made elsewhere can be compared with it."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.engine.async_llm import AsyncLLM
from octavo.kv.planner import KVCachePlan


async def memory_document(engine: AsyncLLM) -> dict[str, Any]:
    """The settings that decide the plan, under the names of `octavo.plan_kv_cache`; the plan's tensors by rank; and
    what the live tensors take, for each rank of each core."""
    reports = await engine.report_memory()
    return {
        "model": engine.config.model.model,
        "revision": engine.config.model.revision,
        "settings": settings_of(engine),
        "planned": [
            {
                "rank": rank,
                "num_blocks": config.num_blocks,
                "pool_bytes": sum(tensor.size_bytes for tensor in config.tensors),
                "tensors": [msgspec.to_builtins(tensor) for tensor in config.tensors],
            }
            for rank, config in enumerate(engine.plan.configs)
        ],
        "ranks": [msgspec.to_builtins(report) for report in reports],
    }


def settings_of(engine: AsyncLLM) -> dict[str, Any]:
    """The keywords that make the same plan. Bytes that the engine found for itself are those that it took."""
    config, plan = engine.config, engine.plan
    cache, scheduler, parallel = config.cache, config.scheduler, config.parallel
    pools = [sum(tensor.size_bytes for tensor in own.tensors) for own in plan.configs]
    dtype = cache_dtype(plan)
    return {
        "kv_memory": cache.kv_memory_by_rank or ([cache.kv_memory_bytes] if cache.kv_memory_bytes else pools),
        "dtype": dtype,
        "kv_cache_dtype": dtype,
        "max_model_len": engine.max_model_len,
        "block_size": cache.block_size,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "num_blocks_override": cache.num_blocks_override,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_chunk_tokens": scheduler.max_chunk_tokens,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "pipeline_layers": list(parallel.pipeline_layers) or None,
    }


def cache_dtype(plan: KVCachePlan) -> str:
    """Of K and V, or of states where there is nothing else."""
    specs = [spec for group in plan.groups for spec in (group.layer_specs or (group.spec,))]
    found = [spec.dtype for spec in specs if hasattr(spec, "dtype")]
    return str(found[0]) if found else str(specs[0].dtypes[0]) if specs else "auto"  # type: ignore[union-attr]
