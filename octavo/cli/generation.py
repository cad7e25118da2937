"""What `octavo generate` does once its flags are read.

Whatever can be refused is refused first: the model's libraries take seconds to import, so they come after the flags
and the prompts have been checked.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from rich.console import Console

from octavo.cli.live import Screen
from octavo.cli.plan_view import plan_view
from octavo.cli.process_clock import seconds_since_start
from octavo.cli.prompts import PromptSource, gather_prompts
from octavo.cli.report import closing_line, heading, json_document, label_of, progress_line, shortened
from octavo.engine.engine_args import engine_config_from
from octavo.errors import RequestError
from octavo.messages import StageReport
from octavo.request import SamplingParams

_DEVICE_NAMES = {"cpu": "CPU", "cuda": "GPU"}
"""How log lines call a device."""

ENGINE_FLAGS = (
    "model", "tokenizer", "revision", "dtype", "max_model_len", "load_format", "device", "tensor_parallel_size",
    "kv_memory", "memory_utilization", "block_size", "num_blocks_override", "kv_cache_dtype", "max_num_batched_tokens",
    "max_num_seqs", "trust_remote_code", "enable_prefix_caching",
)  # fmt: skip
"""Flags that are keywords of `LLM`."""

SAMPLING_FLAGS = (
    "n", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos", "logprobs",
)  # fmt: skip
"""Flags that are fields of `SamplingParams`."""


def run(flags: Mapping[str, Any]) -> None:
    """Load the model, generate, and print. Raises `OctavoError` for every mistake of the user."""
    engine_options = {name: flags[name] for name in ENGINE_FLAGS}
    engine_config_from(engine_options)
    sampling = sampling_from(flags)
    sources = gather_prompts(
        flags["prompts"] or [], flags["prompt_file"] or [], sys.stdin, one_per_line=flags["prompt_lines"]
    )
    prompts = conversations(sources, flags["system"]) if flags["chat"] else completions(sources, flags["system"])
    with _start(engine_options, verbose=flags["verbose"], quiet=flags["json"]) as llm:
        load_s = seconds_since_start()
        if flags["verbose"]:
            _tell("ready", load_s, "since the start of the process")
        if not flags["json"]:
            _print_plan(llm)
        if flags["chat"]:
            prompts = llm.render_chat(prompts)
        salted = [with_salt(*each, flags["cache_salt"]) for each in zip(prompts, sources, strict=True)]
        current = llm.start_run(salted, sampling, add_special_tokens=not flags["chat"])
        if flags["json"]:
            outputs = current.finish()
            figures = current.figures(load_s=load_s, num_blocks=llm.plan.figures.num_blocks)
            sys.stdout.write(json_document(outputs, figures) + "\n")
        else:
            _show(llm, current, [label_of(source) for source in sources], load_s)


def sampling_from(flags: Mapping[str, Any]) -> SamplingParams:
    """Raises `RequestError` for an impossible value. `max_tokens` 0 is no limit but the length."""
    if flags["max_tokens"] < 0:
        raise RequestError(
            f"--max-tokens is {flags['max_tokens']}.",
            remedy="It must be at least 1, or 0 for as many as --max-model-len leaves.",
        )
    fields = {name: flags[name] for name in SAMPLING_FLAGS}
    return SamplingParams(**fields, max_tokens=flags["max_tokens"] or None)


def conversations(sources: Sequence[PromptSource], system: str | None) -> list[Any]:
    """A conversation for each source: a text is a user's turn, behind the system's where there is one.

    Raises `RequestError` for token ids, which no template takes.
    """
    found: list[Any] = []
    for number, source in enumerate(sources, 1):
        if isinstance(source, Mapping) and "messages" in source:
            turns = list(source["messages"])
        elif isinstance(source, Mapping) and "prompt" not in source:
            raise RequestError(
                f"Prompt {number} is token ids, which a chat template cannot take.", remedy="Leave out --chat."
            )
        else:
            turns = [{"role": "user", "content": source["prompt"] if isinstance(source, Mapping) else source}]
        found.append([{"role": "system", "content": system}, *turns] if system is not None else turns)
    return found


def completions(sources: Sequence[PromptSource], system: str | None) -> list[Any]:
    """The sources as prompts to complete. Raises `RequestError` for what only a chat template can read."""
    for number, source in enumerate(sources, 1):
        if system is not None or (isinstance(source, Mapping) and "messages" in source):
            what = "--system is given" if system is not None else f"Prompt {number} is a list of messages"
            raise RequestError(f"{what}, but prompts are completed as they are.", remedy="Add --chat.")
    return list(sources)


def with_salt(prompt: Any, source: PromptSource, cache_salt: str | None) -> Any:
    """`prompt` with the salt that its source brings, else with `cache_salt`."""
    own = source.get("cache_salt") if isinstance(source, Mapping) else None
    salt = cache_salt if own is None else own
    if salt is None:
        return prompt
    return {**(prompt if isinstance(prompt, Mapping) else {"prompt": prompt}), "cache_salt": salt}


def _start(engine_options: dict[str, Any], *, verbose: bool, quiet: bool) -> Any:
    """The loaded engine; its start-up told on stderr."""
    if verbose:
        _tell("start_python", seconds_since_start(), "flags and prompts read")
    console = Console(stderr=True)
    spinner = console.status(f"Loading {engine_options['model']}") if not (verbose or quiet) else nullcontext()
    with spinner if console.is_terminal else nullcontext():
        before = seconds_since_start()
        llm_class = importlib.import_module("octavo.engine.llm").LLM
        if verbose:
            _tell("import_libraries", seconds_since_start() - before, "torch and what else models need")
        return llm_class(**engine_options, on_stage=_tell_stage if verbose else None)


def _tell_stage(stage: StageReport) -> None:
    _tell(stage.name if stage.rank is None else f"rank {stage.rank} {stage.name}", stage.seconds, stage.result)


def _tell(name: str, seconds: float, result: str) -> None:
    """One line: time on the process's clock, the stage, how long it took, what came out."""
    sys.stderr.write(f"{seconds_since_start():6.2f} s  {name:<28} {seconds:6.2f} s  {result}\n")


def _print_plan(llm: Any) -> None:
    view = plan_view(llm.plan, model_name=llm.model_name, device=_DEVICE_NAMES[llm.device])
    Console(stderr=True, highlight=False).print(view, soft_wrap=True)


def _show(llm: Any, current: Any, labels: Sequence[str], load_s: float) -> None:
    """The text of one completion as it comes; of several, each prompt's as soon as it and those before it are done."""
    usable_blocks = llm.plan.figures.usable_blocks
    screen = Screen(lambda: progress_line(current, usable_blocks=usable_blocks))
    single = current.meter.num_sequences == 1
    if single:
        sys.stderr.write(f"prompt: {shortened(labels[0], width=90)}\n")
    num_shown = 0
    with screen.running():
        for update in current.updates():
            if single:
                screen.write(update.text)
                continue
            while update.finish_reason is not None and (output := current.output_of(num_shown)) is not None:
                for completion in output.outputs:
                    title = heading(num_shown, labels, completion, num_completions=len(output.outputs))
                    screen.write(f"{title}\n{completion.text}\n")
                num_shown += 1
        if single:
            screen.write("\n")
    figures = current.figures(load_s=load_s, num_blocks=llm.plan.figures.num_blocks)
    sys.stdout.flush()
    sys.stderr.write(closing_line(figures, current.meter, usable_blocks=usable_blocks) + "\n")
