"""Runs a workload with OpenVINO GenAI's continuous batching, converting the model once into a folder beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.run_report import RunClock, read_arguments

MODEL = "openvino_model.xml"


def converted(weights: Path) -> Path:
    """The model in OpenVINO's format, made the first time. Its weights are float16 in the file: every bfloat16 of
    these models fits one but for values too small to matter; they are computed with in the dtype asked for."""
    folder = weights.with_name("openvino")
    if not (folder / MODEL).is_file():
        command = [Path(sys.executable).with_name("optimum-cli"), "export", "openvino", "--model", weights]
        subprocess.run([*map(str, command), "--task", "text-generation-with-past", "--weight-format", "fp16", folder],
                       check=True, stdout=sys.stderr)  # fmt: skip
    return folder


def main() -> None:
    """Run what the command line says."""
    asked = read_arguments()
    folder = converted(asked.weights)
    clock = RunClock(len(asked.prompts))
    scheduling = {
        "cache_size": max(1, -(-asked.kv_bytes // 2**30)),
        "enable_prefix_caching": True,
        "max_num_batched_tokens": 2048,
    }
    scheduler = openvino_genai.SchedulerConfig()
    for name, value in scheduling.items():
        setattr(scheduler, name, value)
    precision = {"bfloat16": "bf16", "float32": "f32"}[asked.dtype]
    properties = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": asked.num_threads,
        "KV_CACHE_PRECISION": precision,
        "CACHE_DIR": str(folder / "cache"),
    }
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties)
    clock.ready()
    handles = []
    for index, (prompt, count) in enumerate(zip(asked.prompts, asked.counts, strict=True)):
        config = openvino_genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        ids = openvino.Tensor(np.asarray([prompt], dtype=np.int64))
        handles.append(pipeline.add_request(index, ids, config))
    while pipeline.has_non_finished_requests():
        pipeline.step()
        for index, handle in enumerate(handles):
            if handle.can_read():
                for output in handle.read().values():
                    clock.token(index, list(output.generated_ids))
    clock.report(
        "openvino",
        version=openvino_genai.__version__,
        dtype=asked.dtype,
        num_threads=asked.num_threads,
        flags={**scheduling, **properties},
    )


if __name__ == "__main__":
    main()
