"""Numbers and sizes as people write them."""

from __future__ import annotations

import pytest
import typer

from octavo.cli.flags import parse_count, parse_length, parse_size


@pytest.mark.parametrize(
    ("text", "number"),
    [("1000", 1000), ("1_000", 1000), ("1k", 1000), ("1K", 1024), ("2m", 2_000_000), ("2M", 2 * 2**20), ("2.5k", 2500),
     ("-1", -1), ("0", 0), (77, 77)],
)  # fmt: skip
def test_counts_may_have_a_unit(text: str | int, number: int) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "k", "one", "1.5", "0.0001k", "1kk", "1 GiB", "nan", "1e3"])
def test_what_is_no_whole_number_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="It must be a whole number"):
        parse_count(text)


def test_a_length_may_be_fitted() -> None:
    assert parse_length("auto") == parse_length("-1") == -1
    assert parse_length("32K") == 32768


def test_a_size_has_a_unit() -> None:
    assert parse_size("1GiB") == 2**30
    with pytest.raises(typer.BadParameter, match=r"is big\. Write a number with a unit"):
        parse_size("big")
