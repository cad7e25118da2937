"""What `octavo bench offline` does once its flags are read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from octavo.cli.bench_report import document_of, in_json, in_lines
from octavo.cli.live import Screen
from octavo.cli.process_clock import seconds_since_start
from octavo.cli.report import progress_line
from octavo.cli.stage_log import StageLog
from octavo.cli.startup import start
from octavo.cli.workload import Workload, load_workload
from octavo.errors import RequestError
from octavo.request import SamplingParams


def run(flags: Mapping[str, Any]) -> None:
    """Load the model, run the workload, and print. Raises `OctavoError` for every mistake of the user."""
    workload = load_workload(Path(flags["workload"]))
    measure(flags, lambda _: workload)


def measure(flags: Mapping[str, Any], make_workload: Callable[[Any], Workload]) -> None:
    """Load the model, run what `make_workload` makes for the `Prepared` model, and print. Raises as `run`."""
    stages = StageLog(tells=flags["verbose"])
    llm, (workload, config) = start(
        flags,
        lambda prepared, config: (make_workload(prepared), config),
        verbose=flags["verbose"],
        quiet=True,
        stages=stages,
    )
    with llm:
        load_s = seconds_since_start()
        _check_lengths(workload, llm.max_model_len)
        current = llm.start_run(
            [{"prompt_token_ids": request.prompt} for request in workload.requests],
            [_sampling(request.max_tokens) for request in workload.requests],
        )
        if flags["json"]:
            current.finish()
        else:
            _watch(current, llm.plan.figures.usable_blocks)
        since_start = seconds_since_start() - time.perf_counter() + current.started
        stages.note("hand_in", since_start - load_s, f"{len(workload.requests)} requests")
        first = min(output.metrics.first_token_s for output in current.outputs())
        stages.note("first_token", first, f"{since_start + first:.2f} s after the start of the process")
        document = document_of(
            workload,
            current,
            llm,
            config,
            stages,
            load_s=load_s,
            start_to_first_token_s=since_start + first,
        )
    sys.stdout.write(in_json(document) if flags["json"] else in_lines(document))


def _sampling(num_tokens: int) -> SamplingParams:
    """Greedy, and exactly so many tokens; nobody reads a text."""
    return SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)


def _check_lengths(workload: Workload, max_model_len: int) -> None:
    """Raises `RequestError` for a request that would end early: a shorter run would pass for a faster one."""
    if workload.longest > max_model_len:
        raise RequestError(
            f"The longest request of workload {workload.name} has {workload.longest} tokens, prompt and output, but "
            f"there may be {max_model_len} (max_model_len).",
            remedy="Raise --max-model-len, or use a model with a longer context.",
            longest=workload.longest,
            max_model_len=max_model_len,
        )


def _watch(current: Any, usable_blocks: int) -> None:
    """Run to the end, with a live line of progress."""
    with Screen(lambda: progress_line(current, usable_blocks=usable_blocks)).running():
        current.finish()
