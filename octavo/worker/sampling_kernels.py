"""From one row of logits to a token, or to log probabilities. Compiled by numba into the jobs of `sampling_job`.

A row is widened into a float32 work row, edited, restricted, and a token is drawn from what is left.

**Drawing.** Token i waits for an exponential time E_i of rate exp(x_i), x = logit / temperature; the first to arrive is
drawn. That is the Gumbel-max trick: the arg max of x_i - log(E_i) has the distribution softmax(x). E_i is a hash of
(key of the request, output position, i), so a request draws the same tokens alone, in any batch, and after a
preemption, and a rounding difference in the logits changes a draw as rarely as it can. Blocks whose shortest waiting
time cannot win any more are skipped after comparing 32 bits of hash; whoever remains gets 64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from octavo.worker.row_kernels import (
    BLOCK,
    MINUS_INF,
    Array,
    block_maxima,
    count_before,
    exp32,
    first_at_least,
    gather_at_least,
    multiply,
    select_head,
    shift_right,
    sum_exp,
    widen,
    xor,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])

inlined = cast(
    Callable[[_Function], _Function],
    numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True),
)
"""Decorator: compiled into the jobs that use the function, and kept on disk with them alone."""

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


class WorkRows(NamedTuple):
    """One thread's working memory."""

    row: Array
    """float32 [vocab]."""
    values: Array
    """float32 [vocab]."""
    ids: Array
    """int32 [vocab]."""
    counts: Array
    """int32 [vocab], all 0 between rows."""
    maxima: Array
    """float32 [blocks]."""


class Raw(NamedTuple):
    """One row of logits as bits, under both readings; `is_wide` says which is meant."""

    wide: Array
    """int32 [vocab]: float32."""
    narrow: Array
    """int16 [vocab]: bfloat16."""
    is_wide: bool


COLDEST = 1e-5
"""Temperatures below this are greedy."""

_NEAR = 8.0
"""Distance from the peak, in units of the temperature, that top-p searches first."""
_NUM_BINS = 512
_BINS_PER_NAT = np.float32(8.0)

_SIXTEEN, _FIFTEEN = np.uint32(16), np.uint32(15)
_MULTIPLIER_1, _MULTIPLIER_2 = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_TWO_32 = 4294967296.0


@inlined
def _hash(token: Word, key_1: Word, key_2: Word) -> Word:
    """32 random bits: Wellons' `lowbias32` with a key before each of its multiplications."""
    x = xor(token, key_1)
    x = xor(x, shift_right(x, _SIXTEEN))
    x = xor(multiply(x, _MULTIPLIER_1), key_2)
    x = xor(x, shift_right(x, _FIFTEEN))
    x = multiply(x, _MULTIPLIER_2)
    return xor(x, shift_right(x, _SIXTEEN))


@inlined
def _waiting_time(token: int, key_1: Word, key_2: Word) -> float:
    """E of a token: -log(1 - u), u in (0, 1) of 64 bits, the upper 32 being `_hash(token, key_1, key_2)`."""
    upper = _hash(np.uint32(token), key_1, key_2)
    lower = _hash(np.uint32(token), np.uint32(~key_2), key_1)
    uniform = (np.float64(upper) + (np.float64(lower) + 0.5) / _TWO_32) / _TWO_32
    return -math.log1p(-uniform)


@inlined
def draw(row: Array, maxima: Array, first: int, temperature: float, key: int) -> int:
    """A token with probability proportional to exp(row / temperature), `first` being the most likely one. Blocks whose
    maximum is minus infinity are left out."""
    key_1, key_2 = np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))
    peak, winner = np.float64(row[first]), first
    best = -math.log(_waiting_time(first, key_1, key_2))
    for block in range(maxima.shape[0]):
        if maxima[block] == MINUS_INF:
            continue
        lead = (np.float64(maxima[block]) - peak) / temperature
        # The block's token i can win only when E_i < exp(x_i - best) <= exp(lead - best).
        longest = math.exp(min(lead - best, 50.0))
        limit = np.uint32(min(-math.expm1(-longest) * _TWO_32, _TWO_32 - 1.0))
        start = block * BLOCK
        chunk = row[start : start + BLOCK]
        shortest: Word = np.uint32(0xFFFFFFFF)
        for i in range(chunk.shape[0]):
            shortest = min(shortest, _hash(np.uint32(start + i), key_1, key_2))
        if shortest > limit:
            continue
        for i in range(chunk.shape[0]):
            if chunk[i] > MINUS_INF and _hash(np.uint32(start + i), key_1, key_2) <= limit:
                time = _waiting_time(start + i, key_1, key_2)
                score = (np.float64(chunk[i]) - peak) / temperature - math.log(time)
                if score > best:
                    best, winner = score, start + i
    return winner


@inlined
def _keep_head(row: Array, maxima: Array, value: float, token: Word) -> None:
    """Leave out every token after `(value, token)` in the order: minus infinity in `row`, or in `maxima` for a whole
    block."""
    last = np.float32(value)
    for block in range(maxima.shape[0]):
        start = block * BLOCK
        chunk = row[start : start + BLOCK]
        if maxima[block] < last:
            maxima[block] = MINUS_INF
            continue
        for i in range(chunk.shape[0]):
            if chunk[i] < last or (chunk[i] == last and start + i > token):
                chunk[i] = MINUS_INF


@inlined
def _bound_for(maxima: Array, wanted: Word, values: Array, ids: Array) -> float:
    """A value that at least `wanted` tokens reach: the `wanted`-th greatest block maximum. Uses `values` and `ids`."""
    count = maxima.shape[0]
    if wanted > count:
        return -np.inf
    for i in range(count):
        values[i] = maxima[i]
        ids[i] = i
    return float(values[select_head(values, ids, count, float(wanted), 0.0, 0.0)])


@inlined
def _head_by_mass(
    row: Array, maxima: Array, peak: float, temperature: float, share: float, values: Array, ids: Array
) -> int:
    """The last member of the shortest head of the order that has `share` of the probability; its index in `values`.

    Most often it is near the peak, and few tokens need be looked at. Otherwise tokens are binned by their distance
    from the peak, and only the bin in which the head ends is looked at.
    """
    inverse = 1.0 / temperature
    target = share * sum_exp(row, peak, inverse)
    count = gather_at_least(row, maxima, peak - _NEAR * temperature, values, ids)
    if sum_exp(values[:count], peak, inverse) >= target:
        return select_head(values, ids, count, target, peak, inverse)
    bins, weights, masses = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.float32), np.zeros(_NUM_BINS)
    for start in range(0, row.shape[0], BLOCK):
        chunk = row[start : start + BLOCK]
        _bin(chunk, peak, inverse, bins, weights)
        for i in range(chunk.shape[0]):
            masses[bins[i]] += weights[i]
    end = 0
    while end < _NUM_BINS - 1 and masses[end] < target:
        target -= masses[end]
        end += 1
    count = 0
    for start in range(0, row.shape[0], BLOCK):
        chunk = row[start : start + BLOCK]
        _bin(chunk, peak, inverse, bins, weights)
        for i in range(chunk.shape[0]):
            values[count] = chunk[i]
            ids[count] = start + i
            count += bins[i] == end
    return select_head(values, ids, count, target, peak, inverse)


@inlined
def _bin(chunk: Array, peak: float, inverse_temperature: float, bins: Array, weights: Array) -> None:
    """Write each token's bin and its weight, as of `select_head`."""
    top, factor, last = np.float32(peak), np.float32(inverse_temperature), np.float32(_NUM_BINS - 1)
    for i in range(chunk.shape[0]):
        distance = (top - chunk[i]) * factor
        bins[i] = np.int32(min(distance * _BINS_PER_NAT, last))
        weights[i] = exp32(-distance)


@inlined
def restrict(row: Array, maxima: Array, peak: float, options: Options, values: Array, ids: Array) -> None:
    """Apply min-p, then top-k, then top-p: leave out what is not kept, as `_keep_head` does.

    min-p keeps tokens of at least `min_p` times the best one's probability; top-k the first k of the order; top-p the
    shortest head whose probability, among the tokens still there, is at least p.
    """
    bound, end = -np.inf, -1
    if options.min_p > 0.0:
        bound = peak + options.temperature * math.log(options.min_p)
    if 0 < options.top_k < row.shape[0]:
        least = _bound_for(maxima, options.top_k, values, ids)
        count = gather_at_least(row, maxima, max(bound, least), values, ids)
        end = select_head(values, ids, count, float(options.top_k), peak, 0.0)
    elif bound > -np.inf:
        end = gather_at_least(row, maxima, bound, values, ids) - 1
    if options.top_p < 1.0:
        if end >= 0:
            inverse = 1.0 / options.temperature
            target = options.top_p * sum_exp(values[: end + 1], peak, inverse)
            end = select_head(values, ids, end + 1, target, peak, inverse)
        else:
            end = _head_by_mass(row, maxima, peak, options.temperature, options.top_p, values, ids)
    if 0 < options.top_k < row.shape[0] or options.top_p < 1.0:
        _keep_head(row, maxima, float(values[end]), ids[end])
    elif bound > -np.inf:
        _keep_head(row, maxima, bound, np.int32(row.shape[0]))


@inlined
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


@inlined
def _allow_only(row: Array, keep: Array, allowed: Array) -> None:
    """Minus infinity for every token outside `allowed`. `keep` is a work row of any content."""
    for i in range(allowed.shape[0]):
        if 0 <= allowed[i] < row.shape[0]:
            keep[i] = row[allowed[i]]
    row[:] = MINUS_INF
    for i in range(allowed.shape[0]):
        if 0 <= allowed[i] < row.shape[0]:
            row[allowed[i]] = keep[i]


@inlined
def apply_mask(row: Array, words: Array) -> None:
    """Minus infinity for every token whose bit in `words` (int32, as of `TokenMasks`) is 0; no words allow all."""
    for i in range(words.shape[0]):
        bits = words[i]
        if bits != -1:
            chunk = row[32 * i : 32 * i + 32]
            for j in range(chunk.shape[0]):
                if (bits >> np.int32(j)) & np.int32(1) == 0:
                    chunk[j] = MINUS_INF


@inlined
def _first_allowed(words: Array, vocab_size: int) -> int:
    """The first token whose bit is 1; 0 where there is none."""
    for token in range(vocab_size):
        if (words[token >> 5] >> np.int32(token & 31)) & np.int32(1):
            return token
    return 0


@inlined
def _edit(
    work: WorkRows, history: Array, options: Options, rules: Rules, words: Array, allowed: Array, bans: Word
) -> None:
    """Mask, allowed ids where there are any, biases and bans, then penalties. `bans` is minus infinity, or 0 to leave
    them out."""
    row = work.row
    apply_mask(row, words)
    if allowed.shape[0] > 0:
        _allow_only(row, work.values, allowed)
    for i in range(options.edit_start, options.edit_stop):
        token, value = rules.edit_ids[i], rules.edit_values[i]
        if 0 <= token < row.shape[0]:
            row[token] += bans if value == MINUS_INF else value
    if options.repetition != 1.0 or options.frequency != 0.0 or options.presence != 0.0:
        _penalise(row, work.counts, history, options)


@inlined
def sample_row(work: WorkRows, raw: Raw, history: Array, options: Options, rules: Rules, words: Array) -> int:
    """The token that `options` choose from a row of logits, among those of the mask `words`; -1 where a logit is
    NaN."""
    row, maxima = work.row, work.maxima
    if widen_row(raw, row):
        return -1
    allowed = rules.allow_ids[options.allow_start : options.allow_stop]
    _edit(work, history, options, rules, words, allowed, MINUS_INF)
    peak = block_maxima(row, maxima)
    if peak == -np.inf:
        # The rules leave nothing: those that forbid single tokens yield, the allowed set stays.
        widen_row(raw, row)
        _edit(work, history, options, rules, words, allowed, np.float32(0.0))
        peak = block_maxima(row, maxima)
    if peak == -np.inf and words.shape[0] > 0:
        # The mask comes before everything: the allowed set yields too, and so do logits of minus infinity.
        widen_row(raw, row)
        _edit(work, history, options, rules, words, allowed[:0], np.float32(0.0))
        peak = block_maxima(row, maxima)
        if peak == -np.inf:
            return _first_allowed(words, row.shape[0])
    first = first_at_least(row, maxima, peak)
    if options.temperature < COLDEST or math.isinf(peak):
        return first
    restrict(row, maxima, peak, options, work.values, work.ids)
    return draw(row, maxima, first, options.temperature, options.key)


@inlined
def describe_row(work: WorkRows, raw: Raw, wanted: int, ids: Array, logprobs: Array, words: Array) -> int:
    """Log probabilities of a row of logits as they are, among the tokens of the mask `words`: of token `ids[0]`, and
    of the best `wanted` tokens, which are written behind it in any order. Returns the place of `ids[0]` in the order,
    from 1; -1 where a logit is NaN, or the greatest one infinite."""
    row, maxima = work.row, work.maxima
    if widen_row(raw, row):
        return -1
    apply_mask(row, words)
    peak = block_maxima(row, maxima)
    if peak == -np.inf and words.shape[0] > 0:
        widen_row(raw, row)  # the model gives the tokens of the mask no probability at all
        peak = block_maxima(row, maxima)
    if math.isinf(peak):
        return -1
    log_total = peak + math.log(sum_exp(row, peak, 1.0))
    logprobs[0] = row[ids[0]] - log_total
    if wanted > 0:
        count = gather_at_least(
            row, maxima, _bound_for(maxima, np.int64(wanted), work.values, work.ids), work.values, work.ids
        )
        select_head(work.values, work.ids, count, float(wanted), peak, 0.0)
        for i in range(wanted):
            ids[i + 1] = work.ids[i]
            logprobs[i + 1] = work.values[i] - log_total
    return count_before(row, ids[0]) + 1


@inlined
def widen_row(raw: Raw, row: Array) -> bool:
    """Write the logits of `raw` into `row`; whether any is NaN."""
    bits = row.view(np.int32)
    return widen(raw.wide, 0, bits) if raw.is_wide else widen(raw.narrow, 16, bits)
