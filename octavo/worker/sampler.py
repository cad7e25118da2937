"""From a step's logits to its tokens, and to the log probabilities that requests asked for.

Requests of any parameters are mixed in one call. The order of steps is: allowed ids, biases and bans, penalties;
then greedy, or temperature, min-p, top-k, top-p and a draw. Log probabilities are the model's own (log softmax of the
raw logits), whatever the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from octavo.errors import ExecutorError
from octavo.messages import TokenLogprobs
from octavo.worker.row_kernels import BLOCK
from octavo.worker.sampling_kernels import Described, Rules, Workspace, argmax_rows, describe_rows, sample_rows
from octavo.worker.sampling_table import Int32Array, Int64Array, SamplingTable

_NO_RULES = Rules(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32))

RawLogits = tuple[npt.NDArray[np.int16] | npt.NDArray[np.int32], int]
"""Bits of the logits, and by how many bits to shift them left to make a float32."""


class Sampler:
    """Chooses tokens on the host, in one thread per lane.

    Owns: work rows of one vocabulary per lane. Never: state of requests; see `SamplingTable`.
    """

    def __init__(self, *, vocab_size: int, num_threads: int) -> None:
        lanes = max(1, num_threads)
        self._work = Workspace(
            row=np.empty((lanes, vocab_size), dtype=np.float32),
            values=np.empty((lanes, vocab_size), dtype=np.float32),
            ids=np.empty((lanes, vocab_size), dtype=np.int32),
            counts=np.zeros((lanes, vocab_size), dtype=np.int32),
            maxima=np.empty((lanes, -(-vocab_size // BLOCK)), dtype=np.float32),
        )

    def sample(
        self, logits: torch.Tensor, table: SamplingTable, rows: Int64Array, history: Int32Array, num_tokens: Int64Array
    ) -> Int64Array:
        """The next token of each request.

        logits: `[N, vocab]` of any float dtype; request i is row `rows[i]` of `table` and of `history` (int32 token
        ids, prompt then output), of which `num_tokens[i]` are known.

        Raises `ExecutorError` when a logit is NaN.
        """
        tokens = np.empty(len(rows), dtype=np.int64)
        plain = table.is_plain[rows]
        if plain.all():
            argmax_rows(_raw_bits(logits), _infinity(logits.dtype), np.arange(len(rows)), tokens)
        else:
            raw, shift = _raw_logits(logits)
            if plain.any():
                argmax_rows(raw, _infinity(torch.bfloat16 if shift else torch.float32), np.flatnonzero(plain), tokens)
            which = np.flatnonzero(~plain)
            options = table.step_options(rows[which], num_tokens[which])
            rules = self._collect_rules(table, options, history)
            sample_rows(raw, shift, which, options, history, rules, self._work, tokens)
        if tokens.min(initial=0) < 0:
            raise _not_a_number()
        return tokens

    def describe(self, logits: torch.Tensor, tokens: Int64Array, wanted: Int32Array) -> list[TokenLogprobs]:
        """Log probabilities of each row of `logits`: of `tokens[i]`, and of the `wanted[i]` best tokens.

        Raises `ExecutorError` when a logit is NaN.
        """
        raw, shift = _raw_logits(logits)
        wanted = np.minimum(wanted, raw.shape[1])
        width = int(wanted.max(initial=0))
        out = Described(
            ids=np.zeros((len(tokens), width + 1), dtype=np.int32),
            logprobs=np.full((len(tokens), width + 1), -np.inf, dtype=np.float32),
            ranks=np.zeros(len(tokens), dtype=np.int64),
        )
        out.ids[:, 0] = tokens
        describe_rows(raw, shift, wanted, self._work, out)
        if out.ranks.min(initial=0) < 0:
            raise _not_a_number()
        order = np.lexsort((out.ids[:, 1:], -out.logprobs[:, 1:]), axis=1)
        ids = np.take_along_axis(out.ids[:, 1:], order, axis=1)
        logprobs = np.take_along_axis(out.logprobs[:, 1:], order, axis=1)
        return [
            TokenLogprobs(
                token_ids=[int(out.ids[i, 0]), *ids[i, :count].tolist()],
                logprobs=[float(out.logprobs[i, 0]), *logprobs[i, :count].tolist()],
                rank=int(out.ranks[i]),
            )
            for i, count in enumerate(wanted.tolist())
        ]

    @staticmethod
    def _collect_rules(table: SamplingTable, options: npt.NDArray[np.void], history: Int32Array) -> Rules:
        """The rules of the step's rows one after the other; `options` learn where each row's own lie."""
        edit_ids: list[Sequence[int] | Int32Array] = []
        edit_values: list[npt.NDArray[np.float32]] = []
        allow_ids: list[Int32Array] = []
        num_edits = num_allowed = 0
        for i, row in enumerate(options["row"].tolist()):
            rules = table.rules[row]
            if rules is None:
                continue
            banned = rules.banned(history[row, options["num_prompt"][i] : options["num_tokens"][i]])
            edit_ids += [rules.bias_ids, np.array(banned, dtype=np.int32)]
            edit_values += [rules.bias_values, np.full(len(banned), -np.inf, dtype=np.float32)]
            allow_ids.append(rules.allowed)
            options["edit_start"][i], options["allow_start"][i] = num_edits, num_allowed
            num_edits += rules.bias_ids.size + len(banned)
            num_allowed += rules.allowed.size
            options["edit_stop"][i], options["allow_stop"][i] = num_edits, num_allowed
        if not edit_ids:
            return _NO_RULES
        return Rules(np.concatenate(edit_ids), np.concatenate(edit_values), np.concatenate(allow_ids))


def _raw_bits(logits: torch.Tensor) -> npt.NDArray[np.int16] | npt.NDArray[np.int32]:
    """The bits of `logits` on the host, without a copy when they are there and contiguous."""
    bits: npt.NDArray[np.int16] | npt.NDArray[np.int32] = (
        logits.detach().cpu().contiguous().view(torch.int16 if logits.itemsize == 2 else torch.int32).numpy()
    )
    return bits


def _raw_logits(logits: torch.Tensor) -> RawLogits:
    """As `_raw_bits`, in a format that a shift widens to float32: other formats than bfloat16 are converted."""
    if logits.dtype is torch.bfloat16:
        return _raw_bits(logits), 16
    return _raw_bits(logits.float()), 0


def _infinity(dtype: torch.dtype) -> int:
    """The bits of infinity in `dtype`."""
    return {torch.bfloat16: 0x7F80, torch.float16: 0x7C00, torch.float32: 0x7F800000}[dtype]


def _not_a_number() -> ExecutorError:
    return ExecutorError(
        "The model computed logits that are not numbers (NaN).",
        remedy="Run it with --dtype float32; if that changes nothing, its weights are damaged: download them again.",
    )
