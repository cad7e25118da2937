"""Rows of logits to tokens and log probabilities. Compiled by numba, cached on disk.

A row is widened into a float32 work row, edited, restricted, and a token is drawn from what is left. Work rows belong
to lanes: lane w handles rows w, w + num_lanes, ... beside the others, so memory does not grow with the batch.

**Drawing.** Token i waits for an exponential time E_i of rate exp(x_i), x = logit / temperature; the first to arrive is
drawn. That is the Gumbel-max trick: the arg max of x_i - log(E_i) has the distribution softmax(x). E_i is a hash of
(key of the request, output position, i), so a request draws the same tokens alone, in any batch, and after a
preemption, and a rounding difference in the logits changes a draw as rarely as it can. Blocks whose shortest waiting
time cannot win any more are skipped after comparing 32 bits of hash; whoever remains gets 64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from octavo.worker.row_kernels import (
    BLOCK,
    MINUS_INF,
    Array,
    argmax,
    block_maxima,
    compiled,
    compiled_in_parallel,
    count_before,
    first_at_least,
    gather_at_least,
    multiply,
    select_head,
    shift_right,
    sum_exp,
    widen,
    xor,
)

Options = Any
"""A record of `sampling_table.OPTIONS`: what one row asks for."""

Word = Any
"""A scalar whose width in bits matters."""


class Rules(NamedTuple):
    """Edits of the step's rows, one after the other; a row's options say where its own lie."""

    edit_ids: Array
    """int32: tokens whose logit changes."""
    edit_values: Array
    """float32: what is added; minus infinity bans the token."""
    allow_ids: Array
    """int32: the only tokens that may be chosen, for rows that have any."""


class Workspace(NamedTuple):
    """Work rows, one of each kind per lane."""

    row: Array
    """float32 [lanes, vocab]."""
    values: Array
    """float32 [lanes, vocab]."""
    ids: Array
    """int32 [lanes, vocab]."""
    counts: Array
    """int32 [lanes, vocab], all 0 between calls."""
    maxima: Array
    """float32 [lanes, blocks]."""


class Described(NamedTuple):
    """Log probabilities of rows, most of them unsorted."""

    ids: Array
    """int32 [N, 1 + most wanted]: the token asked about, then the best ones in any order."""
    logprobs: Array
    """float32 [N, 1 + most wanted]."""
    ranks: Array
    """int64 [N]: place of the token asked about in the order, from 1; -1 where a logit is NaN."""


COLDEST = 1e-5
"""Temperatures below this are greedy."""

_SIXTEEN, _FIFTEEN = np.uint32(16), np.uint32(15)
_MULTIPLIER_1, _MULTIPLIER_2 = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_TWO_32 = 4294967296.0


@compiled
def _hash(token: Word, key_1: Word, key_2: Word) -> Word:
    """32 random bits: Wellons' `lowbias32` with a key before each of its multiplications."""
    x = xor(np.uint32(token), key_1)
    x = xor(x, shift_right(x, _SIXTEEN))
    x = xor(multiply(x, _MULTIPLIER_1), key_2)
    x = xor(x, shift_right(x, _FIFTEEN))
    x = multiply(x, _MULTIPLIER_2)
    return xor(x, shift_right(x, _SIXTEEN))


@compiled
def _waiting_time(token: Word, key_1: Word, key_2: Word) -> float:
    """E of a token: -log(1 - u), u in (0, 1) of 64 bits, the upper 32 being `_hash(token, key_1, key_2)`."""
    upper = _hash(token, key_1, key_2)
    lower = _hash(token, np.uint32(~key_2), key_1)
    uniform = (np.float64(upper) + (np.float64(lower) + 0.5) / _TWO_32) / _TWO_32
    return -math.log1p(-uniform)


@compiled
def draw(row: Array, maxima: Array, first: int, temperature: float, key: int) -> int:
    """A token with probability proportional to exp(row / temperature). `first` is the most likely one."""
    key_1, key_2 = np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))
    peak, winner = np.float64(row[first]), first
    best = -math.log(_waiting_time(first, key_1, key_2))
    for block in range(maxima.shape[0]):
        lead = (np.float64(maxima[block]) - peak) / temperature
        # The block's token i can win only when E_i < exp(x_i - best) <= exp(lead - best).
        longest = math.exp(min(lead - best, 50.0))
        limit = np.uint32(min(-math.expm1(-longest) * _TWO_32, _TWO_32 - 1.0))
        start = block * BLOCK
        chunk = row[start : start + BLOCK]
        shortest: Word = np.uint32(0xFFFFFFFF)
        for i in range(chunk.shape[0]):
            shortest = min(shortest, _hash(np.uint32(start + i), key_1, key_2))
        if shortest > limit or lead == -np.inf:
            continue
        for i in range(chunk.shape[0]):
            if chunk[i] > MINUS_INF and _hash(np.uint32(start + i), key_1, key_2) <= limit:
                time = _waiting_time(start + i, key_1, key_2)
                score = (np.float64(chunk[i]) - peak) / temperature - math.log(time)
                if score > best:
                    best, winner = score, start + i
    return winner


@compiled
def _keep_head(row: Array, maxima: Array, value: float, token: int) -> None:
    """Set every token after `(value, token)` in the order to minus infinity, and `maxima` to match."""
    last = np.float32(value)
    for block in range(maxima.shape[0]):
        start = block * BLOCK
        chunk = row[start : start + BLOCK]
        if maxima[block] < last:
            chunk[:] = MINUS_INF
            maxima[block] = MINUS_INF
            continue
        for i in range(chunk.shape[0]):
            if chunk[i] < last or (chunk[i] == last and start + i > token):
                chunk[i] = MINUS_INF


@compiled
def _bound_for(maxima: Array, wanted: int) -> float:
    """A value that at least `wanted` tokens reach: the `wanted`-th greatest block maximum."""
    if wanted > maxima.shape[0]:
        return -np.inf
    return float(np.partition(maxima, maxima.shape[0] - wanted)[maxima.shape[0] - wanted])


@compiled
def restrict(row: Array, maxima: Array, peak: float, options: Options, values: Array, ids: Array) -> None:
    """Apply min-p, then top-k, then top-p to `row`: what is not kept becomes minus infinity.

    min-p keeps tokens of at least `min_p` times the best one's probability; top-k the first k of the order; top-p the
    shortest head whose probability, among the tokens still there, is at least p.
    """
    inverse, bound, count = 1.0 / options.temperature, -np.inf, 0
    if options.min_p > 0.0:
        bound = peak + options.temperature * math.log(options.min_p)
    if 0 < options.top_k < row.shape[0]:
        count = gather_at_least(row, maxima, max(bound, _bound_for(maxima, options.top_k)), values, ids)
        count = select_head(values, ids, count, float(options.top_k), peak, 0.0) + 1
    if options.top_p < 1.0:
        if count > 0:
            total = sum_exp(values[:count], peak, inverse)
        elif bound > -np.inf:
            count = gather_at_least(row, maxima, bound, values, ids)
            total = sum_exp(values[:count], peak, inverse)
        else:
            total = sum_exp(row, peak, inverse)
            for distance in (4.0, 8.0, 16.0, np.inf):
                count = gather_at_least(row, maxima, peak - distance * options.temperature, values, ids)
                if sum_exp(values[:count], peak, inverse) >= options.top_p * total:
                    break
        count = select_head(values, ids, count, options.top_p * total, peak, inverse) + 1
    if count > 0:
        _keep_head(row, maxima, values[count - 1], ids[count - 1])
    elif bound > -np.inf:
        _keep_head(row, maxima, bound, row.shape[0])


@compiled
def _penalise(row: Array, counts: Array, history: Array, options: Options) -> None:
    """Repetition penalty for the tokens of prompt and output; presence and frequency for those of the output.

    A token's logit becomes l / r (l > 0) or l * r, minus frequency * (times in the output), minus presence once.
    `counts` is a work row of zeros, and is one again afterwards.
    """
    num_prompt, vocab_size = options.num_prompt, row.shape[0]
    for i in range(num_prompt, options.num_tokens):
        if 0 <= history[i] < vocab_size:
            counts[history[i]] += 1
    start = 0 if options.repetition != 1.0 else num_prompt
    for i in range(start, options.num_tokens):
        token = history[i]
        if 0 <= token < vocab_size and counts[token] >= 0:
            value = row[token]
            value = value / options.repetition if value > 0.0 else value * options.repetition
            if counts[token] > 0:
                value -= options.frequency * counts[token] + options.presence
            row[token] = value
            counts[token] = -1
    for i in range(start, options.num_tokens):
        if 0 <= history[i] < vocab_size:
            counts[history[i]] = 0


@compiled
def _allow_only(row: Array, keep: Array, allowed: Array) -> None:
    """Minus infinity for every token outside `allowed`. `keep` is a work row of any content."""
    for i in range(allowed.shape[0]):
        if 0 <= allowed[i] < row.shape[0]:
            keep[i] = row[allowed[i]]
    row[:] = MINUS_INF
    for i in range(allowed.shape[0]):
        if 0 <= allowed[i] < row.shape[0]:
            row[allowed[i]] = keep[i]


@compiled
def _edit(row: Array, keep: Array, counts: Array, history: Array, options: Options, rules: Rules, bans: Word) -> None:
    """Allowed ids, biases and bans, then penalties. `bans` is minus infinity, or 0 to leave bans out."""
    if options.allow_stop > options.allow_start:
        _allow_only(row, keep, rules.allow_ids[options.allow_start : options.allow_stop])
    for i in range(options.edit_start, options.edit_stop):
        token, value = rules.edit_ids[i], rules.edit_values[i]
        if 0 <= token < row.shape[0]:
            row[token] += bans if value == MINUS_INF else value
    if options.repetition != 1.0 or options.frequency != 0.0 or options.presence != 0.0:
        _penalise(row, counts, history, options)


@compiled
def _sample_row(
    raw: Array, shift: int, options: Options, history: Array, rules: Rules, work: Workspace, lane: int
) -> int:
    row, maxima = work.row[lane], work.maxima[lane]
    if widen(raw, shift, row.view(np.int32)):
        return -1
    _edit(row, work.values[lane], work.counts[lane], history, options, rules, MINUS_INF)
    peak = block_maxima(row, maxima)
    if peak == -np.inf:
        # The rules leave nothing: those that forbid single tokens yield, the allowed set stays.
        widen(raw, shift, row.view(np.int32))
        _edit(row, work.values[lane], work.counts[lane], history, options, rules, np.float32(0.0))
        peak = block_maxima(row, maxima)
    first = first_at_least(row, maxima, peak)
    if options.temperature < COLDEST or peak == -np.inf:
        return first
    restrict(row, maxima, peak, options, work.values[lane], work.ids[lane])
    return draw(row, maxima, first, options.temperature, options.key)


@compiled_in_parallel
def sample_rows(
    raw: Array,
    shift: int,
    which: Array,
    options: Array,
    history: Array,
    rules: Rules,
    work: Workspace,
    tokens: Array,
) -> None:
    """Choose a token for each row `which[i]` of `raw` [N, vocab], as `options[i]` says, and write it into
    `tokens[which[i]]`; -1 where a logit is NaN."""
    lanes = work.row.shape[0]
    for lane in numba.prange(lanes):
        for i in range(lane, which.shape[0], lanes):
            row = raw[which[i]]
            tokens[which[i]] = _sample_row(row, shift, options[i], history[options[i].row], rules, work, lane)


@compiled_in_parallel
def argmax_rows(raw: Array, infinity: int, which: Array, tokens: Array) -> None:
    """Write the first greatest element of each row `which[i]` of `raw` [N, vocab] into `tokens[which[i]]`; -1 where
    one is NaN."""
    for i in numba.prange(which.shape[0]):
        tokens[which[i]] = argmax(raw[which[i]], infinity)


@compiled
def _describe_row(raw: Array, shift: int, wanted: int, work: Workspace, lane: int, out: Described, i: int) -> None:
    row, maxima = work.row[lane], work.maxima[lane]
    token = out.ids[i, 0]
    if widen(raw, shift, row.view(np.int32)):
        out.ranks[i] = -1
        return
    peak = block_maxima(row, maxima)
    log_total = peak + math.log(sum_exp(row, peak, 1.0))
    out.logprobs[i, 0] = row[token] - log_total
    out.ranks[i] = count_before(row, token) + 1
    if wanted > 0:
        values, ids = work.values[lane], work.ids[lane]
        count = gather_at_least(row, maxima, _bound_for(maxima, wanted), values, ids)
        select_head(values, ids, count, float(wanted), peak, 0.0)
        for j in range(wanted):
            out.ids[i, j + 1] = ids[j]
            out.logprobs[i, j + 1] = values[j] - log_total


@compiled_in_parallel
def describe_rows(raw: Array, shift: int, wanted: Array, work: Workspace, out: Described) -> None:
    """Log probabilities of each row of `raw` [N, vocab]: of the token in `out.ids[i, 0]`, and of the best `wanted[i]`.

    They are those of the model itself: log softmax of the raw logits, at temperature 1 and before any rule.
    """
    lanes = work.row.shape[0]
    for lane in numba.prange(lanes):
        for i in range(lane, raw.shape[0], lanes):
            _describe_row(raw[i], shift, wanted[i], work, lane, out, i)
