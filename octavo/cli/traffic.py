"""What a benchmark asks of a server: prompts, output lengths and, where they are told, the times at which they come.

    random    lengths drawn evenly around a mean, token ids drawn from the vocabulary, behind a shared prefix if wanted
    prefix    a few long prefixes, each before many different ends
    sharegpt  a JSON list of conversations: the first turn is the prompt, the reply's length is the output's
    trace     lengths and times of recorded traffic; blocks with one number have the same tokens

Drawn from a seed, so that the same command asks for the same thing.
"""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from octavo.errors import ConfigError

TRACE_BLOCK = 512
"""Tokens that one number of a trace's `hash_ids` stands for."""


class TrafficRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    prompt: str | list[int]
    num_prompt_tokens: int
    max_tokens: int
    at: float | None = None
    """Seconds after the first one, where the dataset tells."""


class TrafficOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to draw. Lengths are in tokens."""

    dataset: str = "random"
    path: Path | None = None
    num_prompts: int = 100
    seed: int = 0
    input_len: int = 1024
    output_len: int = 128
    range_ratio: float = 0.0
    """Lengths are drawn from (1 - ratio) to (1 + ratio) times the mean."""
    prefix_len: int = 0
    """Tokens that all prompts of `random` begin with, or each of the prefixes of `prefix`."""
    num_prefixes: int = 10
    max_len: int | None = None
    """Longest sequence that the server takes: longer ones of a file are shortened to it."""


def draw_traffic(options: TrafficOptions, vocab_size: int, count: Callable[[str], int]) -> list[TrafficRequest]:
    """The requests. `count` gives the tokens of a text. Raises `ConfigError` for impossible options and bad files."""
    check_traffic(options)
    rng = np.random.default_rng(options.seed)
    if options.dataset == "sharegpt":
        found = list(_conversations(options, count))
    elif options.dataset == "trace":
        found = list(_recorded(options, vocab_size))
    else:
        found = list(_drawn(options, vocab_size, rng))
    if not found:
        raise ConfigError(f"{options.path} has no requests that can be sent.", remedy="Give another file.")
    return found


def arrivals(
    requests: Sequence[TrafficRequest], *, rate: float, burstiness: float, seed: int, speed: float = 1.0
) -> list[float]:
    """When each request is sent, in seconds from the first one.

    Those of a trace come at its own times, `speed` times as fast. Others come at `rate` a second on average, all at
    once where that is infinite; the times between them follow a gamma distribution of shape `burstiness` (1 is a
    Poisson process, less comes in bursts, more is more even).
    """
    if all(request.at is not None for request in requests):
        return [(request.at or 0.0) / speed for request in requests]
    if rate == float("inf"):
        return [0.0] * len(requests)
    gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), len(requests))
    return [0.0, *np.cumsum(gaps)[:-1].tolist()]


def check_traffic(options: TrafficOptions) -> None:
    """Raises `ConfigError` for options with which nothing can be drawn, whatever the files hold."""
    for name, flag, least in (
        ("num_prompts", "--num-prompts", 1), ("input_len", "--input-len", 1), ("output_len", "--output-len", 1),
        ("prefix_len", "--prefix-len", 0), ("num_prefixes", "--num-prefixes", 1),
        ("seed", "--seed", 0),
    ):  # fmt: skip
        if getattr(options, name) < least:
            raise ConfigError(f"{flag} is {getattr(options, name)}.", remedy=f"It must be at least {least}.")
    if not 0 <= options.range_ratio < 1:
        raise ConfigError(f"--range-ratio is {options.range_ratio}.", remedy="It must be at least 0 and below 1.")
    if options.dataset in ("sharegpt", "trace") and options.path is None:
        raise ConfigError(f"--dataset-name {options.dataset} has no file.", remedy="Give --dataset-path FILE.")


def _drawn(options: TrafficOptions, vocab_size: int, rng: np.random.Generator) -> Iterator[TrafficRequest]:
    num_prefixes = options.num_prefixes if options.dataset == "prefix" else 1
    prefixes = [_tokens(rng, vocab_size, options.prefix_len) for _ in range(num_prefixes)]
    for index in range(options.num_prompts):
        length = _length(rng, options.input_len, options.range_ratio)
        prompt = prefixes[index % num_prefixes] + _tokens(rng, vocab_size, length)
        yield TrafficRequest(
            prompt=prompt,
            num_prompt_tokens=len(prompt),
            max_tokens=_length(rng, options.output_len, options.range_ratio),
        )


def _length(rng: np.random.Generator, mean: int, ratio: float) -> int:
    return int(rng.integers(max(1, round(mean * (1 - ratio))), max(1, round(mean * (1 + ratio))) + 1))


def _tokens(rng: np.random.Generator, vocab_size: int, count: int) -> list[int]:
    """Ids from the middle of the vocabulary: marks of the format lie at its ends."""
    lowest = min(1000, vocab_size // 4)
    found: list[int] = rng.integers(lowest, max(lowest + 1, vocab_size - lowest), count).tolist()
    return found


def _conversations(options: TrafficOptions, count: Callable[[str], int]) -> Iterator[TrafficRequest]:
    document = _json(options)
    if not isinstance(document, list):
        raise ConfigError(f"{options.path} is no list of conversations.", remedy="Give a file of ShareGPT's form.")
    number = 0
    for entry in document:
        turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
        said = [turn.get("value") for turn in turns or [] if isinstance(turn, dict)][:2]
        texts = [text for text in said if isinstance(text, str) and text]
        if len(texts) < 2:
            continue
        lengths = [count(text) for text in texts]
        if options.max_len is not None and sum(lengths) > options.max_len:
            continue
        yield TrafficRequest(prompt=texts[0], num_prompt_tokens=lengths[0], max_tokens=max(1, lengths[1]))
        number += 1
        if number == options.num_prompts:
            return


def _recorded(options: TrafficOptions, vocab_size: int) -> Iterator[TrafficRequest]:
    """A trace as JSON lines (`timestamp` in ms, `input_length`, `output_length`, `hash_ids`), or as a table with times
    and token counts."""
    is_table = options.path is not None and options.path.suffix == ".csv"
    rows = _table_rows(options) if is_table else _line_rows(options)
    first: float | None = None
    for number, (at, num_input, num_output, hash_ids) in enumerate(rows):
        if number == options.num_prompts:
            return
        first = at if first is None else first
        longest = options.max_len or num_input + num_output
        num_output = min(max(1, num_output), max(1, longest // 2))
        num_input = min(max(1, num_input), longest - num_output)
        blocks = hash_ids or [-number - 1] * -(-num_input // TRACE_BLOCK)
        prompt: list[int] = []
        for place, block in enumerate(blocks):
            seed = [options.seed, abs(block), place if block < 0 else 0, int(block < 0)]
            prompt += _tokens(np.random.default_rng(seed), vocab_size, TRACE_BLOCK)
            if len(prompt) >= num_input:
                break
        prompt = prompt[:num_input]
        yield TrafficRequest(prompt=prompt, num_prompt_tokens=len(prompt), max_tokens=num_output, at=at - first)


def _line_rows(options: TrafficOptions) -> Iterator[tuple[float, int, int, list[int]]]:
    for number, line in enumerate(_text(options).splitlines(), 1):
        try:
            row = json.loads(line)
            hash_ids = [int(block) for block in row.get("hash_ids", [])]
            yield row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"]), hash_ids
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ConfigError(
                f"Line {number} of {options.path} is no request of a trace.",
                remedy="Write timestamp (ms), input_length, output_length and hash_ids.",
            ) from None


def _table_rows(options: TrafficOptions) -> Iterator[tuple[float, int, int, list[int]]]:
    for number, row in enumerate(csv.DictReader(_text(options).splitlines()), 2):
        try:
            at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield at, int(row["ContextTokens"]), int(row["GeneratedTokens"]), []
        except (ValueError, LookupError, TypeError):
            raise ConfigError(
                f"Line {number} of {options.path} is no request of a trace.",
                remedy="The columns are TIMESTAMP, ContextTokens and GeneratedTokens.",
            ) from None


def _json(options: TrafficOptions) -> Any:
    try:
        return json.loads(_text(options))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{options.path} is no JSON: {error}.", remedy="Give a file of ShareGPT's form.") from None


def _text(options: TrafficOptions) -> str:
    path = options.path or Path()
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dataset-path {path} cannot be read: {error}.", remedy="Give a text file.") from None
