"""What `octavo bench` says about a run: one document, as JSON or as lines for people."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo import __version__
from octavo.cli.stage_log import StageLog
from octavo.cli.workload import Workload
from octavo.config import EngineConfig, format_bytes
from octavo.engine.outputs import RequestOutput

_LIBRARIES = ("torch", "transformers", "numba", "numpy")
"""Libraries whose version a figure may depend on."""


def document_of(
    workload: Workload,
    run: Any,
    llm: Any,
    config: EngineConfig,
    stages: StageLog,
    *,
    load_s: float,
    start_to_first_token_s: float,
) -> dict[str, Any]:
    """Everything about a finished `octavo.engine.run.Run`: workload, settings, figures, times, outputs."""
    outputs: list[RequestOutput] = run.outputs()
    figures = run.figures(load_s=load_s, num_blocks=llm.plan.figures.num_blocks)
    return {
        "workload": {
            "name": workload.name,
            "seed": workload.seed,
            "note": workload.note,
            "num_requests": len(workload.requests),
            "prompt_tokens": workload.num_prompt_tokens,
            "output_tokens": workload.num_output_tokens,
        },
        "model": {"model": config.model.model, "name": llm.model_name},
        "settings": _settings(llm, config, stages),
        "figures": {
            **msgspec.to_builtins(figures),
            "start_to_first_token_s": start_to_first_token_s,
            "peak_used_blocks": run.meter.peak_used_blocks,
            "requests": request_times(outputs),
        },
        "stages": [{"name": stage.name, "rank": stage.rank, "seconds": stage.seconds} for stage in stages.stages],
        "outputs": [
            {
                "token_ids": output.outputs[0].token_ids,
                "num_cached_tokens": output.num_cached_tokens,
                "first_token_s": output.metrics.first_token_s,
                "finished_s": output.metrics.finished_s,
            }
            for output in outputs
        ],
    }


def request_times(outputs: Sequence[RequestOutput]) -> dict[str, dict[str, float]]:
    """Over the requests: seconds to the first token, to the last, and between tokens after the first."""
    times = [
        (output.metrics.first_token_s, output.metrics.finished_s, len(output.outputs[0].token_ids))
        for output in outputs
        if output.metrics.first_token_s is not None and output.metrics.finished_s is not None
    ]
    return {
        "first_token_s": spread([first for first, _, _ in times]),
        "latency_s": spread([last for _, last, _ in times]),
        "token_s": spread([(last - first) / (count - 1) for first, last, count in times if count > 1]),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, median, and the values that 90 and 99 in 100 do not exceed (the nearest rank); nothing of nothing."""
    if not values:
        return {}
    ordered = sorted(values)
    at = {f"p{percent}": ordered[-(-len(ordered) * percent // 100) - 1] for percent in (50, 90, 99)}
    return {"mean": math.fsum(ordered) / len(ordered), **at, "max": ordered[-1]}


def _settings(llm: Any, config: EngineConfig, stages: StageLog) -> dict[str, Any]:
    plan = llm.plan
    versions = {"octavo": __version__, "python": platform.python_version()}
    return {
        **stages.facts(),
        "block_sizes": sorted({group.spec.block_size for group in plan.configs[0].groups}),
        "num_blocks": plan.figures.num_blocks,
        "pool_bytes": sum(tensor.size_bytes for tensor in plan.configs[0].tensors),
        "max_model_len": llm.max_model_len,
        "max_num_batched_tokens": config.scheduler.max_num_batched_tokens,
        "max_num_seqs": config.scheduler.max_num_seqs,
        "enable_prefix_caching": config.cache.enable_prefix_caching,
        "kv_cache_dtype": config.cache.kv_cache_dtype,
        "versions": versions | {name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def in_json(document: dict[str, Any]) -> str:
    """One line of JSON."""
    return msgspec.json.encode(document).decode() + "\n"


def in_lines(document: dict[str, Any]) -> str:
    """The document for people, without stages and outputs."""
    workload, settings, figures = document["workload"], document["settings"], document["figures"]
    versions = ", ".join(f"{name} {version}" for name, version in settings["versions"].items())
    lines = [
        f"workload {workload['name']}: {workload['num_requests']} requests, {workload['prompt_tokens']:,} prompt "
        f"tokens, {workload['output_tokens']:,} output tokens, of {document['model']['name']}",
        f"settings: {settings.get('num_threads', '?')} threads, {settings.get('dtype', '?')}, "
        f"{settings.get('attention_backend', '?')}, {settings['num_blocks']:,} blocks of "
        f"{' and '.join(map(str, settings['block_sizes']))} tokens, {format_bytes(settings['pool_bytes'])} of cache, "
        f"{versions}",
        f"wall {figures['wall_s']:.3f} s | output {figures['output_tokens_per_s']:.1f} tok/s | "
        f"prefill {figures['prefill_tokens_per_s']:.1f} tok/s | decode {figures['decode_tokens_per_s']:.1f} tok/s | "
        f"hit tokens {figures['hit_tokens']:,} | peak RSS {format_bytes(figures['peak_rss_bytes'])}",
        f"ready after {figures['load_s']:.2f} s, first token {figures['start_to_first_token_s']:.2f} s after the start "
        "of the process",
    ]
    for name, label in (("first_token_s", "first token"), ("latency_s", "last token"), ("token_s", "between tokens")):
        values = figures["requests"][name]
        if values:
            cells = ", ".join(f"{key} {1000 * value:.1f}" for key, value in values.items())
            lines.append(f"{label}, ms over requests: {cells}")
    return "\n".join(lines) + "\n"
