"""From a step's logits to its tokens, and to the log probabilities that requests asked for.

Requests of any parameters are mixed in one call. The order of steps is: mask, allowed ids, biases and bans, penalties;
then greedy, or temperature, min-p, top-k, top-p and a draw. Where nothing is left, bans yield first, then the allowed
ids; the mask never does. Log probabilities are the model's own (log softmax of the raw logits, of those of the mask
where there is one), whatever the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from octavo.attention.team import Team, make_team
from octavo.errors import ExecutorError
from octavo.messages import TokenLogprobs
from octavo.worker.sampling_job import Job, argmax_entry, describe_entry, sample_entry
from octavo.worker.sampling_kernels import Rules
from octavo.worker.sampling_table import Int32Array, Int64Array, SamplingTable
from octavo.worker.token_masks import TokenMasks, no_masks

_NO_RULES = Rules(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32))

Bits = npt.NDArray[np.int16] | npt.NDArray[np.int32]
"""Logits `[N, vocab]` as the bits of their floats."""

_BITS_OF = {2: torch.int16, 4: torch.int32}


class Sampler:
    """Chooses tokens on the host.

    Owns: working memory for each of its threads. Never: state of requests; see `SamplingTable`.

    Parameters:
        num_threads: threads that share the rows of one call.
        team: runs them; None is torch's own.
    """

    def __init__(self, *, vocab_size: int, num_threads: int, team: Team | None = None) -> None:
        self._team = make_team() if team is None else team
        self._num_threads = max(1, num_threads)
        self._job = Job(vocab_size, self._num_threads)

    def sample(
        self,
        logits: torch.Tensor,
        table: SamplingTable,
        rows: Int64Array,
        history: Int32Array,
        num_tokens: Int64Array,
        masks: TokenMasks | None = None,
    ) -> Int64Array:
        """The next token of each request, among those of its mask.

        logits: `[N, vocab]` of any float dtype; request i is row `rows[i]` of `table` and of `history` (int32 token
        ids, prompt then output), of which `num_tokens[i]` are known.

        Raises `ExecutorError` when a logit is NaN.
        """
        tokens = np.empty(len(rows), dtype=np.int64)
        masks = no_masks(len(rows)) if masks is None else masks
        plain = table.is_plain[rows] & (masks.places < 0)
        if plain.all():
            self._argmax(_bits(logits), _infinity(logits.dtype), np.arange(len(rows)), tokens)
        else:
            bits = _widenable_bits(logits)
            if plain.any():
                infinity = _infinity(torch.bfloat16 if bits.itemsize == 2 else torch.float32)
                self._argmax(bits, infinity, np.flatnonzero(plain), tokens)
            which = np.flatnonzero(~plain)
            options = table.step_options(rows[which], num_tokens[which])
            rules = _collect_rules(table, options, history)
            self._job.set_rows(bits, len(which))
            self._set_masks(masks := masks.of(which))
            self._job.set(which=which, tokens=tokens, options=options, history=history, history_width=history.shape[1])
            self._job.set(edit_ids=rules.edit_ids, edit_values=rules.edit_values, num_edits=rules.edit_ids.size)
            self._job.set(allow_ids=rules.allow_ids, num_allowed=rules.allow_ids.size)
            self._run(sample_entry(), len(which))
        if tokens.min(initial=0) < 0:
            raise _not_a_number()
        return tokens

    def describe(
        self, logits: torch.Tensor, tokens: Int64Array, wanted: Int32Array, masks: TokenMasks | None = None
    ) -> list[TokenLogprobs]:
        """Log probabilities of each row of `logits`, among the tokens of its mask: of `tokens[i]`, and of the
        `wanted[i]` best tokens, or as many as there are.

        Raises `ExecutorError` when a logit is NaN.
        """
        bits = _widenable_bits(logits)
        wanted = np.minimum(wanted, bits.shape[1])
        width = 1 + int(wanted.max(initial=0))
        ids = np.zeros((len(tokens), width), dtype=np.int32)
        ids[:, 0] = tokens
        logprobs = np.full((len(tokens), width), -np.inf, dtype=np.float32)
        ranks = np.zeros(len(tokens), dtype=np.int64)
        masks = no_masks(len(tokens)) if masks is None else masks
        self._job.set_rows(bits, len(tokens))
        self._set_masks(masks)
        self._job.set(wanted=wanted, ids=ids, logprobs=logprobs, ranks=ranks, width=width)
        self._run(describe_entry(), len(tokens))
        if ranks.min(initial=0) < 0:
            raise _not_a_number()
        order = np.lexsort((ids[:, 1:], -logprobs[:, 1:]), axis=1)
        best_ids = np.take_along_axis(ids[:, 1:], order, axis=1)
        best_logprobs = np.take_along_axis(logprobs[:, 1:], order, axis=1)
        if len(masks.words):
            wanted = np.where(masks.places < 0, wanted, np.minimum(wanted, np.isfinite(best_logprobs).sum(axis=1)))
        return [
            TokenLogprobs(
                token_ids=[int(ids[i, 0]), *best_ids[i, :count].tolist()],
                logprobs=[float(logprobs[i, 0]), *best_logprobs[i, :count].tolist()],
                rank=int(ranks[i]),
            )
            for i, count in enumerate(wanted.tolist())
        ]

    def _set_masks(self, masks: TokenMasks) -> None:
        self._job.set(masks=masks.words, mask_words=masks.words.shape[1], places=masks.places)

    def _argmax(self, bits: Bits, infinity: int, which: Int64Array, tokens: Int64Array) -> None:
        self._job.set_rows(bits, len(which))
        self._job.set(infinity=infinity, which=which, tokens=tokens)
        self._run(argmax_entry(), len(which))

    def _run(self, entry: int, num_rows: int) -> None:
        self._team.run(entry, self._job.address, min(self._num_threads, num_rows))


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


def _bits(logits: torch.Tensor) -> Bits:
    """The bits of `logits` on the host, without a copy when they are there and contiguous."""
    bits: Bits = logits.detach().cpu().contiguous().view(_BITS_OF[logits.itemsize]).numpy()
    return bits


def _widenable_bits(logits: torch.Tensor) -> Bits:
    """As `_bits`, in bfloat16 or float32, which a shift makes float32; other dtypes are converted."""
    return _bits(logits if logits.dtype is torch.bfloat16 else logits.float())


def _infinity(dtype: torch.dtype) -> int:
    """The bits of infinity in `dtype`."""
    return {torch.bfloat16: 0x7F80, torch.float16: 0x7C00, torch.float32: 0x7F800000}[dtype]


def _not_a_number() -> ExecutorError:
    return ExecutorError(
        "The model computed logits that are not numbers (NaN).",
        remedy="Run it with --dtype float32; if that changes nothing, its weights are damaged: download them again.",
    )
