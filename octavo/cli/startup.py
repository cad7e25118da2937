"""Starting an engine for a command: told on stderr, and given up before weights are read where it can be told by then.

The model's libraries take seconds to import. Meanwhile another thread finds the model's files, reads its config and its
tokenizer, and makes of the command's input what the engine will be asked.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

from rich.console import Console

from octavo.cli.plan_view import plan_view
from octavo.cli.process_clock import seconds_since_start
from octavo.cli.stage_log import StageLog
from octavo.config import EngineConfig
from octavo.engine.engine_args import engine_config_from
from octavo.importing import collect_from_now, import_torch

ENGINE_FLAGS = (
    "model", "tokenizer", "revision", "dtype", "quantization", "max_model_len", "load_format",
    "device", "tensor_parallel_size", "pipeline_parallel_size", "pipeline_layers",
    "distributed_executor_backend", "data_parallel_size", "kv_memory", "memory_utilization", "block_size",
    "num_blocks_override", "kv_cache_dtype", "max_num_batched_tokens", "max_num_seqs", "trust_remote_code",
    "enable_prefix_caching",
)  # fmt: skip
"""Flags that are keywords of `LLM`."""

_DEVICE_NAMES = {"cpu": "CPU", "cuda": "GPU"}
"""How log lines call a device."""

T = TypeVar("T")


def start(
    flags: Mapping[str, Any],
    make_ready: Callable[[Any, EngineConfig], T],
    *,
    verbose: bool,
    quiet: bool,
    stages: StageLog | None = None,
) -> tuple[Any, T]:
    """The loaded `LLM` that `flags` describe, and what `make_ready` made of the `Prepared` model and the config.

    Raises what `make_ready` and `LLM` raise; when `make_ready` refuses, no weights have been read. `quiet` shows no
    spinner and no plan, `verbose` each stage; `stages` is where they are noted, for who wants them afterwards.
    """
    options = {name: flags[name] for name in ENGINE_FLAGS if name in flags}
    config = engine_config_from(options)
    stages = stages or StageLog(tells=verbose)
    stages.note("start_python", seconds_since_start(), "flags and input read")
    console = Console(stderr=True)
    spinner = console.status(f"Loading {options['model']}") if not (verbose or quiet) else nullcontext()
    with spinner if console.is_terminal else nullcontext():
        before = seconds_since_start()
        preparation = importlib.import_module("octavo.engine.preparation")
        stages.note("import_readers", seconds_since_start() - before, "numpy, numba, and what reads a model's files")

        def prepare() -> tuple[Any, T]:
            prepared = preparation.prepare(config, stages)
            return prepared, make_ready(prepared, config)

        try:
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="preparation") as pool:
                preparing = pool.submit(prepare)
                before = seconds_since_start()
                import_torch()
                stages.note("import_torch", seconds_since_start() - before, "without its compiler's operators")
                before = seconds_since_start()
                llm_class = importlib.import_module("octavo.engine.llm").LLM
                if preparing.done():
                    preparing.result()  # What was refused is told at once.
                importlib.import_module("octavo.executor.registry").chosen_executor(config.parallel)
                stages.note("import_libraries", seconds_since_start() - before, "what else models need")
                collect_from_now()
                before = seconds_since_start()
                prepared, ready = preparing.result()
                stages.note("await_readers", seconds_since_start() - before, "config, tokenizer and prompts are read")
            llm = llm_class(**options, on_stage=stages, prepared=prepared)
        finally:
            preparation.stop_reading()
    stages.note("ready", seconds_since_start(), "since the start of the process")
    if not quiet:
        view = plan_view(llm.plan, model_name=llm.model_name, device=_DEVICE_NAMES[llm.device])
        Console(stderr=True, highlight=False).print(view, soft_wrap=True)
    return llm, ready
