"""What `octavo eval` does once its flags are read."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.cli.live import Screen
from octavo.cli.prompts import read_exactly
from octavo.cli.startup import start
from octavo.config import INT32_MAX, EngineConfig


def run_perplexity(flags: Mapping[str, Any]) -> None:
    """Read the text, load the model, score, and print. Raises `OctavoError` for every mistake of the user."""
    text = read_exactly(flags["file"], sys.stdin)
    asked, window = flags["max_model_len"], flags["window"]
    if window is None and asked is not None and asked > 0:
        window = asked - 1
    # A length that nobody asked for need not be the model's own: the longest that fits will do. A window that cannot be
    # is refused as one, once the model's length is known.
    wanted = window + 1 if window is not None and 0 < window < INT32_MAX else -1
    options = {**flags, "max_model_len": wanted if asked is None else asked}

    def make_ready(prepared: Any, config: EngineConfig) -> Any:
        token_ids = prepared.tokenizer.encode(text, add_special_tokens=False)
        length, longest = config.model.max_model_len or -1, prepared.model_config.max_position
        return importlib.import_module("octavo.evaluate.windows").lay_windows(
            len(token_ids),
            prepared.tokenizer.prefix_ids,
            longest=(longest if length < 0 else min(length, longest)) - 1,
            window=window,
            stride=flags["stride"],
        )

    llm, windows = start(options, make_ready, verbose=flags["verbose"], quiet=True)
    with llm:
        evaluate = importlib.import_module("octavo.evaluate.perplexity")
        num_scored = 0

        def note(num_tokens: int) -> None:
            nonlocal num_scored
            num_scored = num_tokens

        with Screen(lambda: f"{num_scored:,} of {windows.num_scored:,} tokens scored").running():
            result = evaluate.perplexity(llm, text, window=window, stride=flags["stride"], on_progress=note)
    if flags["json"]:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        return
    sys.stdout.write(
        f"perplexity {result.perplexity:.4f} | {result.nats_per_token:.6f} nats per token, "
        f"{result.bits_per_byte:.4f} bits per byte | {result.num_tokens:,} tokens of {result.num_bytes:,} bytes in "
        f"{result.num_windows:,} windows of {result.window:,}, stride {result.stride:,} | {result.seconds:.1f} s\n"
    )
