"""What `octavo generate` does once its flags are read.

Whatever can be refused is refused first: flags and prompts before anything is imported, what depends on the model's
config or tokenizer before its weights are read.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from octavo.cli.live import Screen
from octavo.cli.process_clock import seconds_since_start
from octavo.cli.prompts import PromptSource, gather_prompts
from octavo.cli.report import closing_line, heading, json_document, label_of, progress_line, shortened
from octavo.cli.stage_log import StageLog
from octavo.cli.startup import ENGINE_FLAGS, start
from octavo.config import EngineConfig
from octavo.engine.engine_args import engine_config_from
from octavo.errors import RequestError
from octavo.request import SamplingParams

SAMPLING_FLAGS = (
    "n", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos", "logprobs",
)  # fmt: skip
"""Flags that are fields of `SamplingParams`."""

_FLAG_OF = {name: "--" + name.replace("_", "-") for name in (*SAMPLING_FLAGS, "max_tokens")} | {
    "stop_token_ids": "--stop-token-id"
}
"""Field -> the flag that sets it."""


def run(flags: Mapping[str, Any]) -> None:
    """Load the model, generate, and print. Raises `OctavoError` for every mistake of the user."""
    engine_config_from({name: flags[name] for name in ENGINE_FLAGS})
    if flags["logprobs"] is not None and not flags["json"]:
        raise RequestError("--logprobs is given, but a text has no place for them.", remedy="Add --json.")
    sampling = sampling_from(flags)
    sources = gather_prompts(
        flags["prompts"] or [], flags["prompt_file"] or [], sys.stdin, one_per_line=flags["prompt_lines"]
    )
    given = conversations(sources, flags["system"]) if flags["chat"] else completions(sources, flags["system"])

    def make_ready(prepared: Any, config: EngineConfig) -> list[Any]:
        preparation = importlib.import_module("octavo.engine.preparation")
        prompts = preparation.render_chat(prepared.tokenizer, given) if flags["chat"] else given
        salted = [with_salt(*each, flags["cache_salt"]) for each in zip(prompts, sources, strict=True)]
        with naming_flags():
            preparation.check_prompts(prepared, config, salted, sampling, add_special_tokens=not flags["chat"])
        return salted

    stages = StageLog(tells=flags["verbose"])
    llm, prompts = start(flags, make_ready, verbose=flags["verbose"], quiet=flags["json"], stages=stages)
    with llm:
        load_s = seconds_since_start()
        current = llm.start_run(prompts, sampling, add_special_tokens=not flags["chat"])
        if flags["json"]:
            outputs = current.finish()
            figures = current.figures(load_s=load_s, num_blocks=llm.plan.figures.num_blocks)
            sys.stdout.write(json_document(outputs, figures, stages.facts()) + "\n")
        else:
            _show(llm, current, [label_of(source) for source in sources], load_s)


@contextlib.contextmanager
def naming_flags() -> Iterator[None]:
    """An error about a field of `SamplingParams` raised inside this speaks of the flag instead."""
    try:
        yield
    except RequestError as error:
        field, _, rest = error.fact.partition(" ")
        if field not in _FLAG_OF:
            raise
        raise RequestError(f"{_FLAG_OF[field]} {rest}", remedy=error.remedy, **error.numbers) from None


def sampling_from(flags: Mapping[str, Any]) -> SamplingParams:
    """Raises `RequestError` for an impossible value. `max_tokens` 0 is no limit but the length."""
    if flags["max_tokens"] < 0:
        raise RequestError(
            f"--max-tokens is {flags['max_tokens']}.",
            remedy="It must be at least 1, or 0 for as many as --max-model-len leaves.",
        )
    fields = {name: flags[name] for name in SAMPLING_FLAGS}
    with naming_flags():
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
