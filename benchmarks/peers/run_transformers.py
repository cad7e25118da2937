"""Runs a workload with transformers' continuous batching."""

from __future__ import annotations

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from benchmarks.peers.run_report import RunClock, read_arguments

PAGE_TOKENS = 256


def main() -> None:
    """Run what the command line says."""
    asked = read_arguments()
    torch.set_num_threads(asked.num_threads)
    clock = RunClock(len(asked.prompts))
    dtype = getattr(torch, asked.dtype)
    model = AutoModelForCausalLM.from_pretrained(asked.weights, dtype=dtype, attn_implementation="sdpa").eval()
    options = {
        "page_size": PAGE_TOKENS,
        "num_blocks": sum(
            -(-(len(prompt) + count) // PAGE_TOKENS) + 1
            for prompt, count in zip(asked.prompts, asked.counts, strict=True)
        ),
        "max_batch_tokens": 2048,
    }
    batching = ContinuousBatchingConfig(**options)
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=max(asked.counts))
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching, block=True, warmup=False
    ) as manager:
        clock.ready()
        for index, (prompt, count) in enumerate(zip(asked.prompts, asked.counts, strict=True)):
            manager.add_request(prompt, str(index), max_new_tokens=count, record_timestamps=True, eos_token_id=-1)
        num_finished = 0
        while num_finished < len(asked.prompts):
            result = manager.get_result(timeout=1)
            if result is None:
                if not manager.is_running():
                    raise SystemExit("transformers' continuous batching ended before its requests")
                continue
            if result.error is not None:
                raise SystemExit(f"transformers: {result.error}")
            if result.is_finished():
                num_finished += 1
                for token_id, at in zip(result.generated_tokens, result.timestamps, strict=True):
                    clock.token(int(result.request_id), [token_id], at)
    clock.report(
        "transformers",
        version=transformers.__version__,
        dtype=asked.dtype,
        num_threads=torch.get_num_threads(),
        flags={**options, "attn_implementation": "sdpa"},
    )


if __name__ == "__main__":
    main()
