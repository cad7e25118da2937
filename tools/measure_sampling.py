"""Microseconds per row of sampling: greedy, and with each parameter and all of them in use.

    python -m tools.measure_sampling [rows] [vocabulary] [threads]

Rows are bfloat16 logits of normal size. Every way is timed in turn, several rounds, so that all see the same machine;
printed are the median and the least of the rounds.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import torch

from octavo.messages import NewRequestData
from octavo.request import SamplingParams
from octavo.worker.sampler import Sampler
from octavo.worker.sampling_table import SamplingTable

_ROUNDS = 9
_NUM_PROMPT, _NUM_OUTPUT = 1000, 200

WAYS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.0},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "bias, bad words, min tokens": {
        "logit_bias": {3: 1.0, 9: -1.0},
        "bad_words_token_ids": ((5, 6), (7,)),
        "min_tokens": 1000,
        "max_tokens": 2000,
    },
    "all": {
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "logit_bias": {3: 1.0, 9: -1.0},
        "bad_words_token_ids": ((5, 6), (7,)),
        "min_tokens": 1000,
        "max_tokens": 2000,
    },
}


def main() -> None:
    """Measure and print."""
    num_rows, vocab, num_threads = ([int(text) for text in sys.argv[1:]] + [64, 262_144, 1])[:3]
    logits = (torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(0)) * 3).bfloat16()
    sampler = Sampler(vocab_size=vocab, num_threads=num_threads)
    history = np.random.default_rng(0).integers(0, vocab, (num_rows, _NUM_PROMPT + _NUM_OUTPUT)).astype(np.int32)
    rows, num_tokens = np.arange(num_rows), np.full(num_rows, history.shape[1])
    tables = {name: _table(num_rows, history, SamplingParams(**fields)) for name, fields in WAYS.items()}  # type: ignore[arg-type]
    seconds: dict[str, list[float]] = {name: [] for name in [*WAYS, "logprobs 5"]}
    for _ in range(_ROUNDS + 1):
        for name, table in tables.items():
            started = time.perf_counter()
            tokens = sampler.sample(logits, table, rows, history, num_tokens)
            seconds[name].append(time.perf_counter() - started)
        started = time.perf_counter()
        sampler.describe(logits, tokens, np.full(num_rows, 5, dtype=np.int32))
        seconds["logprobs 5"].append(time.perf_counter() - started)
    print(f"{num_rows} rows, {vocab} words, {num_threads} threads; us per row: median (least)")
    for name, found in seconds.items():
        per_row = [1e6 * each / num_rows for each in found[1:]]
        print(f"{name:<30} {statistics.median(per_row):8.1f} ({min(per_row):.1f})")


def _table(num_rows: int, history: np.ndarray, sampling: SamplingParams) -> SamplingTable:
    table = SamplingTable(num_rows=num_rows, seed=0)
    for row in range(num_rows):
        data = NewRequestData(
            request_id=str(row),
            token_ids=history[row].tolist(),
            num_prompt_tokens=_NUM_PROMPT,
            sampling=sampling,
            eos_token_ids=(1,),
            num_computed_tokens=0,
            block_ids=(),
        )
        table.set_row(row, data)
    return table


if __name__ == "__main__":
    main()
