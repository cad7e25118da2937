"""Windows score every id once, and each with as much before it as is promised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import RequestError
from octavo.evaluate.windows import DEFAULT_WINDOW, lay_windows


@given(st.integers(2, 300), st.integers(0, 2), st.integers(4, 60), st.data())
def test_each_id_is_scored_once_with_the_promised_context(
    num_tokens: int, num_marks: int, window: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, window - num_marks))
    windows = lay_windows(num_tokens, [7] * num_marks, longest=60, window=window, stride=stride)
    scored: list[int] = []
    starts = range(0, num_tokens, stride) if stride == window else [0]
    unscored = [] if num_marks else list(starts)
    for number, (begin, first, end) in enumerate(windows.spans()):
        assert begin == number * stride
        assert begin <= first < end <= num_tokens
        assert num_marks + end - begin <= window
        assert end == num_tokens or num_marks + end - begin == window
        assert num_marks + first - begin >= (1 if number == 0 else max(1, window - stride))
        scored += range(first, end)
    assert scored == [place for place in range(num_tokens) if place not in unscored]
    assert list(windows.unscored) == unscored
    assert windows.num_scored == len(scored)


def test_windows_that_do_not_overlap_leave_out_the_first_id_of_each() -> None:
    assert list(lay_windows(9, [], longest=99, window=4, stride=4).spans()) == [(0, 1, 4), (4, 5, 8)]
    assert list(lay_windows(9, [2], longest=99, window=5, stride=4).spans()) == [(0, 0, 4), (4, 4, 8), (8, 8, 9)]


def test_defaults_are_2048_tokens_and_half_of_them() -> None:
    windows = lay_windows(10_000, [2], longest=32_767)
    assert (windows.window, windows.stride) == (DEFAULT_WINDOW, 1024) == (2048, 1024)
    assert list(windows.spans())[:2] == [(0, 0, 2047), (1024, 2047, 3071)]
    assert lay_windows(10_000, [], longest=99).window == 99


@pytest.mark.parametrize(
    ("num_tokens", "marks", "options", "message"),
    [
        (0, [2], {}, r"The text has 0 tokens, so there is none to score\. Give a longer text\."),
        (1, [], {}, r"The text has 1 token, so"),
        (50, [2], {"window": 101}, r"The window is 101 tokens\. It must be from 3 to 100, one less than max_model_len"),
        (50, [], {"window": 1}, r"The window is 1 tokens\. It must be from 2 to 100"),
        (50, [], {"window": 10, "stride": 11}, r"The stride is 11 tokens\. It must be from 1 to 10 for a window of 10"),
        (50, [2], {"stride": 0}, r"The stride is 0 tokens\. It must be from 1 to 99"),
    ],
)
def test_what_cannot_be_laid_is_refused(
    num_tokens: int, marks: list[int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        lay_windows(num_tokens, marks, longest=100, **options)
