"""What `octavo generate` says about a run: for people in lines, for machines as one JSON document."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from octavo.cli.prompts import PromptSource
from octavo.engine.figures import Figures, RunMeter
from octavo.engine.outputs import CompletionOutput, RequestOutput


def progress_line(run: Any, *, usable_blocks: int) -> str:
    """Where an `octavo.engine.run.Run` stands now."""
    meter: RunMeter = run.meter
    seconds = max(time.perf_counter() - run.started, 1e-9)
    parts = [f"prompt {meter.num_computed_prompt_tokens:,} tokens"]
    if run.num_prompts > 1:
        parts = [f"{run.num_finished} of {run.num_prompts} prompts done", *parts]
    parts.append(f"output {meter.num_output_tokens:,} tokens, {meter.num_output_tokens / seconds:.1f} tok/s")
    parts.append(f"running {meter.num_running}, waiting {meter.num_waiting}")
    parts.append(f"KV cache {_share(meter.num_used_blocks, usable_blocks)}")
    return " | ".join(parts)


def closing_line(figures: Figures, meter: RunMeter, *, usable_blocks: int) -> str:
    """The figures of a finished run in one line."""
    return (
        f"prompt {figures.prompt_tokens:,} tokens at {figures.prefill_tokens_per_s:.1f} tok/s | "
        f"output {figures.output_tokens:,} tokens at {figures.output_tokens_per_s:.1f} tok/s "
        f"(decode {figures.decode_tokens_per_s:.1f}) | "
        f"KV cache use at most {meter.peak_used_blocks:,} of {usable_blocks:,} blocks "
        f"({_share(meter.peak_used_blocks, usable_blocks)}) | hit tokens {figures.hit_tokens:,} | "
        f"ready after {figures.load_s:.2f} s, first token {figures.ttft_s:.2f} s later"
    )


def heading(index: int, labels: Sequence[str], completion: CompletionOutput, *, num_completions: int) -> str:
    """The line above a completion of prompt number `index`, where there are several."""
    which = f"prompt {index + 1} of {len(labels)}"
    if num_completions > 1:
        which += f", completion {completion.index + 1} of {num_completions}"
    return f"--- {which}: {shortened(labels[index])}"


def label_of(source: PromptSource) -> str:
    """What a person would call the prompt: its text, or the last turn of its conversation, or its token ids."""
    if isinstance(source, str):
        return source
    if "messages" in source:
        return str(source["messages"][-1].get("content", "")) if source["messages"] else ""
    return str(source["prompt"]) if "prompt" in source else f"token ids {list(source['prompt_token_ids'])[:30]}"


def shortened(text: str, *, width: int = 60) -> str:
    """`text` in one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."


def json_document(outputs: Sequence[RequestOutput], figures: Figures, settings: Mapping[str, str | int]) -> str:
    """`{"outputs": [...], "figures": {...}, "settings": {...}}`, one output per (prompt, completion), on one line.

    `settings` are what the start-up found, such as the dtype and the bytes of the weights by how they are kept.

    `logprobs` is null, or for each output token `{token id: {"logprob", "rank", "decoded_token"}}`.
    """
    listed = [
        _json_output(index, output, completion) for index, output in enumerate(outputs) for completion in output.outputs
    ]
    return msgspec.json.encode({"outputs": listed, "figures": figures, "settings": settings}).decode()


def _json_output(index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
    return {
        "prompt_index": index,
        "index": completion.index,
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "num_cached_tokens": completion.num_cached_tokens,
        "logprobs": completion.logprobs,
    }


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "0%"
