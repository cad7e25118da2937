"""The sampler through its public door, against every rule written down directly in float64."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ExecutorError
from octavo.messages import NewRequestData
from octavo.request import SamplingParams
from octavo.worker.sampler import Sampler
from octavo.worker.sampling_table import SamplingTable
from octavo.worker.token_masks import TokenMasks, gather_masks
from tests.worker.direct_sampling import distribution, edited_logits

VOCAB = 600
"""Two blocks and a part of one."""
SAMPLER = Sampler(vocab_size=VOCAB, num_threads=2)

Case = tuple[SamplingParams, list[int], list[int]]
"""Parameters, prompt, output so far."""


def run(
    logits: torch.Tensor,
    cases: list[Case],
    *,
    names: list[str] | None = None,
    seed: int = 0,
    masks: TokenMasks | None = None,
) -> list[int]:
    """The next token of each case; the rows of the table are in another order than the logits'."""
    num_rows = len(cases)
    table = SamplingTable(num_rows=num_rows, seed=seed)
    history = np.zeros((num_rows, 64), dtype=np.int32)
    rows = np.arange(num_rows)[::-1].copy()
    num_tokens = np.zeros(num_rows, dtype=np.int64)
    for i, (row, (sampling, prompt, output)) in enumerate(zip(rows, cases, strict=True)):
        tokens = prompt + output
        history[row, : len(tokens)] = tokens
        num_tokens[i] = len(tokens)
        data = NewRequestData(
            request_id=names[i] if names else str(i),
            token_ids=tokens,
            num_prompt_tokens=len(prompt),
            sampling=sampling,
            eos_token_ids=(1, 2),
            num_computed_tokens=0,
            block_ids=(),
        )
        table.set_row(int(row), data)
    return SAMPLER.sample(logits, table, rows, history, num_tokens, masks).tolist()


def masks_of(wanted: list[set[int] | None]) -> TokenMasks:
    """A mask of these tokens for each row that is not None."""
    bits = np.zeros((len(wanted), VOCAB), dtype=np.uint8)
    for row, tokens in enumerate(wanted):
        bits[row, list(tokens or ())] = 1
    packed = {str(row): np.packbits(bits[row], bitorder="little").tobytes() for row in range(len(wanted))}
    masks = {name: mask for name, mask in packed.items() if wanted[int(name)] is not None}
    return gather_masks(masks, [str(row) for row in range(len(wanted))], VOCAB)


def random_logits(num_rows: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


GREEDY = SamplingParams(temperature=0.0)


# -- greedy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_greedy_is_the_arg_max_and_ties_go_to_the_lowest_id(dtype: torch.dtype) -> None:
    logits = random_logits(40).to(dtype)
    logits[3, [7, 300, 599]] = 50.0
    found = run(logits, [(GREEDY, [5], [])] * 40)
    assert found == np.argmax(logits.float().numpy(), axis=1).tolist()
    assert found[3] == 7


def test_rows_that_are_not_contiguous_are_read_right() -> None:
    logits = random_logits(8)[::2]
    assert run(logits, [(GREEDY, [5], [])] * 4) == logits.argmax(1).tolist()


@given(
    seed=st.integers(0, 1000),
    repetition=st.sampled_from([1.0, 1.3, 0.8]),
    presence=st.sampled_from([0.0, 1.5, -1.0]),
    frequency=st.sampled_from([0.0, 0.7, -0.7]),
    bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-20, 20), max_size=3),
    allowed=st.one_of(st.none(), st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=5)),
    min_tokens=st.integers(0, 4),
    bad_words=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=3),
    output=st.lists(st.integers(0, 9), max_size=6),
)
@settings(max_examples=60)
def test_greedy_with_every_rule_is_the_arg_max_of_the_edited_logits(
    seed, repetition, presence, frequency, bias, allowed, min_tokens, bad_words, output
) -> None:
    sampling = SamplingParams(
        temperature=0.0,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
        allowed_token_ids=None if allowed is None else tuple(allowed),
        min_tokens=min_tokens,
        stop_token_ids=(7,),
        bad_words_token_ids=tuple(map(tuple, bad_words)),
    )
    logits = random_logits(1, seed)
    logits[0, :10] += 4.0
    prompt = [3, 4, 4]
    edited = edited_logits(logits[0].numpy(), sampling, prompt, output, eos=(1, 2))
    if np.isinf(edited.max()):
        return
    (found,) = run(logits, [(sampling, prompt, output)])
    assert edited[found] == pytest.approx(edited.max(), abs=1e-5)


@pytest.mark.parametrize(
    ("penalty", "output", "expected"),
    [
        ({"presence_penalty": 0.4}, [5, 5], 5),
        ({"presence_penalty": 0.6}, [5], 6),
        ({"presence_penalty": 0.6}, [], 5),
        ({"frequency_penalty": 0.4}, [5], 5),
        ({"frequency_penalty": 0.4}, [5, 9, 5], 6),
        ({"presence_penalty": 0.3, "frequency_penalty": 0.3}, [5], 6),
        ({"repetition_penalty": 1.15}, [5], 5),
        ({"repetition_penalty": 1.25}, [5], 6),
        ({"repetition_penalty": 1.25}, [], 5),
        ({"presence_penalty": -0.6}, [6], 6),
    ],
)
def test_each_penalty_by_itself(penalty: dict[str, float], output: list[int], expected: int) -> None:
    """Token 5 leads by 0.5 of 3.0; the prompt has neither."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 5], logits[0, 6] = 3.0, 2.5
    assert run(logits, [(SamplingParams(temperature=0.0, **penalty), [1], output)]) == [expected]


def test_repetition_counts_the_prompt_too_and_negative_logits_are_multiplied() -> None:
    logits = torch.full((1, VOCAB), -9.0)
    logits[0, 5], logits[0, 6] = -2.0, -2.5
    assert run(logits, [(SamplingParams(temperature=0.0, repetition_penalty=1.2), [5], [])]) == [5]
    assert run(logits, [(SamplingParams(temperature=0.0, repetition_penalty=1.3), [5], [])]) == [6]
    assert run(logits, [(SamplingParams(temperature=0.0, presence_penalty=2.0), [5], [])]) == [5], "presence does not"


def test_rules_that_leave_nothing_let_bans_yield_before_the_allowed_set() -> None:
    logits = random_logits(1)
    sampling = SamplingParams(temperature=1.0, allowed_token_ids=(4, 9), bad_words_token_ids=((4,), (9,)), seed=1)
    assert run(logits, [(sampling, [5], [])])[0] in (4, 9)


def test_ids_outside_the_vocabulary_change_nothing() -> None:
    logits = random_logits(1)
    best = int(logits.argmax())
    sampling = SamplingParams(
        temperature=0.0, logit_bias={VOCAB: 100.0, 10**6: 100.0}, min_tokens=1, stop_token_ids=(10**6,)
    )
    assert best not in (1, 2)
    assert run(logits, [(sampling, [5], [])]) == [best]


# -- drawing ----------------------------------------------------------------------------------------------------------


def draws(logits: torch.Tensor, sampling: SamplingParams, num_draws: int) -> np.ndarray:
    """How often each token is drawn by as many requests, each with a key of its own."""
    found = run(logits.expand(num_draws, -1), [(sampling, [3, 4], [5])] * num_draws)
    return np.bincount(found, minlength=VOCAB)


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Standard deviations between Pearson's statistic and its mean, over bins of at least 10 expected draws."""
    expected = probabilities * counts.sum()
    large = expected >= 10
    seen = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    degrees = len(seen) - 1
    return float((((seen - wanted) ** 2 / wanted).sum() - degrees) / np.sqrt(2 * max(degrees, 1)))


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=3.0),
        SamplingParams(temperature=1.0, top_k=7),
        SamplingParams(temperature=1.5, top_k=300),
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=4.0, top_p=0.97),
        SamplingParams(temperature=1.0, min_p=0.1),
        SamplingParams(temperature=1.3, top_k=40, top_p=0.9, min_p=0.02),
        SamplingParams(temperature=1.0, repetition_penalty=1.4, presence_penalty=1.0, frequency_penalty=0.5, top_k=20),
        SamplingParams(temperature=1.0, logit_bias={3: 6.0, 599: 8.0}, top_p=0.9),
    ],
    ids=lambda sampling: ", ".join(
        f"{name}={getattr(sampling, name)}" for name in ("temperature", "top_k", "top_p", "min_p")
    ),
)
def test_draws_have_the_distribution(sampling: SamplingParams) -> None:
    logits = random_logits(1, scale=2.0)
    expected = distribution(edited_logits(logits[0].numpy(), sampling, [3, 4], [5]), sampling)
    counts = draws(logits, sampling, 6000)
    assert counts[expected == 0].sum() == 0, "a token that is left out was drawn"
    assert chi_square(counts, expected) < 5.0


def test_the_test_of_distributions_notices_a_wrong_one() -> None:
    logits = random_logits(1, scale=2.0)
    wrong = distribution(logits[0].numpy().astype(np.float64), SamplingParams(temperature=1.1))
    assert chi_square(draws(logits, SamplingParams(temperature=1.0), 6000), wrong) > 5.0


def test_one_draw_in_many_blocks_is_not_correlated_with_the_next() -> None:
    """Draws of one request at successive positions from a flat distribution: pairs are as likely as any others."""
    sampling = SamplingParams(temperature=1.0, allowed_token_ids=(0, 299, 300, 599), seed=11)
    cases = [(sampling, [1], [0] * length) for length in range(60)]
    found: list[int] = []
    for seed in range(60):
        varied = [
            (SamplingParams(temperature=1.0, allowed_token_ids=(0, 299, 300, 599), seed=seed), p, o)
            for _, p, o in cases
        ]
        found += run(torch.zeros(60, VOCAB), varied)
    index = np.searchsorted([0, 299, 300, 599], found).reshape(60, 60)
    pairs = np.bincount((index[:, :-1] * 4 + index[:, 1:]).ravel(), minlength=16)
    assert chi_square(pairs, np.full(16, 1 / 16)) < 5.0


def test_a_temperature_near_zero_is_greedy_and_a_great_one_does_not_overflow() -> None:
    logits = random_logits(2)
    cold, hot = SamplingParams(temperature=1e-9), SamplingParams(temperature=1e30)
    found = run(logits, [(cold, [5], []), (hot, [5], [])])
    assert found[0] == int(logits[0].argmax())
    assert 0 <= found[1] < VOCAB


def test_extreme_logits_are_drawn_from() -> None:
    logits = torch.full((1, VOCAB), -1e30)
    logits[0, [5, 400]] = 3e38
    counts = draws(logits, SamplingParams(temperature=1.0), 200)
    assert counts[5] + counts[400] == 200
    assert min(counts[5], counts[400]) > 60
    infinite = torch.zeros(1, VOCAB)
    infinite[0, [9, 300]] = torch.inf
    assert draws(infinite, SamplingParams(temperature=1.0, top_p=0.5), 20)[9] == 20, "the first that is certain"
    minus_infinity = torch.full((1, VOCAB), -torch.inf)
    minus_infinity[0, 77] = 0.0
    assert draws(minus_infinity, SamplingParams(temperature=1.0, top_p=0.9), 20)[77] == 20


# -- seeds ------------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_tokens_alone_in_any_batch_and_under_any_id() -> None:
    logits = random_logits(6, seed=4)
    seeded = [(SamplingParams(temperature=1.0, seed=i, top_p=0.95), [3, i], [4] * i) for i in range(6)]
    alone = [run(logits[i : i + 1], [case])[0] for i, case in enumerate(seeded)]
    assert run(logits, seeded, names=[f"other-{i}" for i in range(6)], seed=99) == alone
    mixed = [(SamplingParams(temperature=1.0), [3], []), *seeded, (GREEDY, [3], [])]
    assert run(torch.cat([logits[:1], logits, logits[:1]]), mixed)[1:7] == alone


def test_a_seed_gives_other_tokens_at_other_positions_and_other_seeds_others() -> None:
    logits = torch.zeros(100, VOCAB)
    by_position = run(
        logits,
        [(SamplingParams(temperature=1.0, seed=1), [3], [4] * i) for i in range(60)] * 1 + [(GREEDY, [3], [])] * 40,
    )[:60]
    by_seed = run(logits, [(SamplingParams(temperature=1.0, seed=i), [3], []) for i in range(100)])
    assert len(set(by_position)) > 50
    assert len(set(by_seed)) > 80


def test_without_a_seed_the_engines_seed_and_the_request_id_decide() -> None:
    logits = torch.zeros(50, VOCAB)
    cases = [(SamplingParams(temperature=1.0), [3], [])] * 50
    first = run(logits, cases)
    assert run(logits, cases) == first, "the same engine seed and ids"
    assert run(logits, cases, seed=1) != first
    assert len(set(first)) > 40, "ids make requests differ"


# -- log probabilities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_log_probabilities_are_the_log_softmax_of_the_raw_logits(dtype: torch.dtype) -> None:
    logits = random_logits(5, seed=2).to(dtype)
    tokens, wanted = np.array([0, 599, 17, 300, 4]), np.array([0, 3, 600, 10**6, 1], dtype=np.int32)
    expected = torch.log_softmax(logits.double(), dim=1).numpy()
    for i, found in enumerate(SAMPLER.describe(logits, tokens, wanted)):
        order = np.lexsort((np.arange(VOCAB), -expected[i]))
        count = min(int(wanted[i]), VOCAB)
        assert found.token_ids == [tokens[i], *order[:count].tolist()]
        assert found.logprobs == pytest.approx(expected[i][found.token_ids], abs=2e-6)
        assert found.rank == order.tolist().index(tokens[i]) + 1


def test_ranks_of_equal_tokens_go_by_id() -> None:
    (found,) = SAMPLER.describe(torch.zeros(1, VOCAB), np.array([5]), np.array([3], dtype=np.int32))
    assert (found.token_ids, found.rank) == ([5, 0, 1, 2], 6)
    assert found.logprobs == pytest.approx([-np.log(VOCAB)] * 4)


# -- what cannot be sampled -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.0)])
def test_nan_is_refused_with_a_remedy(sampling: SamplingParams) -> None:
    logits = random_logits(3)
    logits[1, 500] = torch.nan
    with pytest.raises(ExecutorError, match=r"logits that are not numbers.*--dtype float32"):
        run(logits, [(sampling, [5], [])] * 3)
    with pytest.raises(ExecutorError, match="not numbers"):
        SAMPLER.describe(logits, np.zeros(3, np.int64), np.zeros(3, np.int32))
    logits[1, 500] = torch.inf
    with pytest.raises(ExecutorError, match="not numbers"):
        SAMPLER.describe(logits, np.zeros(3, np.int64), np.zeros(3, np.int32))


# -- masks ------------------------------------------------------------------------------------------------------------

ALLOWED = {0, 3, 31, 32, 300, 599}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.5), SamplingParams(top_k=2, top_p=0.7)])
def test_a_masked_row_gets_a_token_of_its_mask_and_the_others_what_they_get_without(
    dtype: torch.dtype, sampling: SamplingParams
) -> None:
    logits = random_logits(8).to(dtype)
    cases: list[Case] = [(sampling, [1, 2], [])] * 8
    wanted = [ALLOWED if row % 2 else None for row in range(8)]
    found, without = run(logits, cases, masks=masks_of(wanted)), run(logits, cases)
    assert found[::2] == without[::2]
    assert set(found[1::2]) <= ALLOWED
    if sampling.greedy:
        order = sorted(ALLOWED)
        assert found[1::2] == [order[int(row[order].float().argmax())] for row in logits[1::2]]
    # What the mask leaves out weighs nothing: the draw is that of the allowed ids.
    as_allowed = run(logits, [(msgspec.structs.replace(sampling, allowed_token_ids=tuple(ALLOWED)), [1, 2], [])] * 8)
    assert found[1::2] == as_allowed[1::2]


@pytest.mark.parametrize(
    ("sampling", "wanted", "possible"),
    [
        (SamplingParams(allowed_token_ids=[3, 4]), ALLOWED, {3}),
        (SamplingParams(allowed_token_ids=[4, 5]), ALLOWED, ALLOWED),  # the allowed ids yield
        (SamplingParams(bad_words_token_ids=[[3], [31]]), {3, 31, 32}, {32}),
        (SamplingParams(bad_words_token_ids=[[3], [31]]), {3, 31}, {3, 31}),  # the bans yield
        (SamplingParams(min_tokens=5), {1, 7}, {7}),
        (SamplingParams(min_tokens=5), {1, 2}, {1, 2}),  # these end an output, but nothing else may follow
        (SamplingParams(logit_bias={7: 1e30, 3: 100.0}), ALLOWED, {3}),
        (SamplingParams(allowed_token_ids=[7], bad_words_token_ids=[[3]]), {3, 5}, {3, 5}),
    ],
)
def test_the_mask_comes_before_every_other_rule(sampling: SamplingParams, wanted: set[int], possible: set[int]) -> None:
    count = 40
    cases: list[Case] = [(sampling, [9], [])] * count
    assert set(run(random_logits(count), cases, masks=masks_of([wanted] * count))) <= possible


def test_a_mask_of_tokens_that_the_model_gives_no_probability_still_holds() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, list(ALLOWED)] = -torch.inf
    found = run(logits, [(GREEDY, [1], []), (SamplingParams(), [1], [])], masks=masks_of([ALLOWED - {0}] * 2))
    assert found == [3, 3]
    SAMPLER.describe(logits, np.array([3, 3]), np.zeros(2, np.int32), masks_of([ALLOWED] * 2))


def test_log_probabilities_of_a_masked_row_are_among_its_mask() -> None:
    logits = random_logits(2)
    order = sorted(ALLOWED)
    expected = torch.log_softmax(logits[0, order].double(), 0)
    found, plain = SAMPLER.describe(
        logits, np.array([300, 300]), np.array([VOCAB, 3], np.int32), masks_of([ALLOWED, None])
    )
    best = torch.argsort(expected, descending=True).tolist()
    assert found.token_ids == [300, *(order[place] for place in best)]
    np.testing.assert_allclose(found.logprobs[1:], expected[best], atol=1e-5)
    assert found.rank == 1 + best.index(order.index(300))
    (alone,) = SAMPLER.describe(logits[1:], np.array([300]), np.array([3], np.int32))
    assert plain == alone
