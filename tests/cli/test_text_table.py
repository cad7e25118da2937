from __future__ import annotations

from octavo.cli.text_table import table


def test_numbers_are_set_to_the_right_and_words_to_the_left() -> None:
    assert table([["what", "size"], ["a", "1 B"], ["longer", "1,024 B"]]) == (
        "  what       size\n  a           1 B\n  longer  1,024 B"
    )


def test_a_column_with_a_word_in_it_is_set_to_the_left() -> None:
    assert table([["x", "y"], ["1", "none"], ["2", "3"]], indent=0) == "x  y\n1  none\n2  3"
