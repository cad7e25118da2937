"""Runs a workload with llama.cpp's batch interface: several sequences in one context, prompts in batches of 2,048.

Where all prompts begin alike, that beginning is computed once and given to every sequence, as llama.cpp's own parallel
example does. The most likely token is found by numpy, which is faster than llama.cpp's greedy sampler.
"""

from __future__ import annotations

import ctypes
import os

import llama_cpp
import numpy as np
import numpy.typing as npt

from benchmarks.peers.prompt_rows import Row, prompt_rows
from benchmarks.peers.run_report import Asked, RunClock, read_arguments

BATCH_TOKENS = 2048
PARALLEL_TOKENS = 512


class Context:
    """One model with one context. Owns: both, and the batch. Never: chooses what runs."""

    def __init__(self, asked: Asked) -> None:
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            os.fsencode(asked.weights), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {asked.weights}")
        params = llama_cpp.llama_context_default_params()
        num_tokens = len(prompt_rows(asked.prompts)) + sum(asked.counts)
        params.n_ctx = -(-(num_tokens + 64) // 256) * 256
        params.n_batch = BATCH_TOKENS
        params.n_ubatch = PARALLEL_TOKENS
        params.n_seq_max = len(asked.prompts)
        params.n_threads = params.n_threads_batch = asked.num_threads
        params.kv_unified = True
        params.swa_full = False  # as its own programs: windowed layers keep their window alone
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        self.flags = {
            name: int(getattr(params, name))
            for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads", "kv_unified", "swa_full")
        }
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, len(asked.prompts))

    def decode(self, rows: list[Row]) -> list[int]:
        """Compute the rows; the most likely next token of each one whose logits are wanted."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token_id, position, sequences, wanted) in enumerate(rows):
            batch.token[index] = token_id
            batch.pos[index] = position
            batch.n_seq_id[index] = len(sequences)
            for place, sequence in enumerate(sequences):
                batch.seq_id[index][place] = sequence
            batch.logits[index] = wanted
        code = llama_cpp.llama_decode(self.context, batch)
        if code:
            raise SystemExit(f"llama.cpp could not decode {len(rows)} tokens: code {code}")
        return [int(np.argmax(self._logits(index))) for index, row in enumerate(rows) if row[3]]

    def _logits(self, index: int) -> npt.NDArray[np.float32]:
        pointer = llama_cpp.llama_get_logits_ith(self.context, index)
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self.vocab_size,))


def main() -> None:
    """Run what the command line says."""
    asked = read_arguments()
    context = Context(asked)
    clock = RunClock(len(asked.prompts))
    clock.ready()
    rows = prompt_rows(asked.prompts)
    for start in range(0, len(rows), BATCH_TOKENS):
        part = rows[start : start + BATCH_TOKENS]
        ends = [sequences[0] for _, _, sequences, wanted in part if wanted]
        for sequence, token_id in zip(ends, context.decode(part), strict=True):
            clock.token(sequence, [token_id])
    while running := [index for index, output in enumerate(clock.outputs) if len(output) < asked.counts[index]]:
        step: list[Row] = [
            (clock.outputs[index][-1], len(asked.prompts[index]) + len(clock.outputs[index]) - 1, [index], True)
            for index in running
        ]
        for index, token_id in zip(running, context.decode(step), strict=True):
            clock.token(index, [token_id])
    clock.report(
        "llamacpp",
        version=llama_cpp.__version__,
        dtype=asked.weights.stem,
        num_threads=asked.num_threads,
        flags=context.flags,
    )


if __name__ == "__main__":
    main()
