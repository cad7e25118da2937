"""An error states the fact and the remedy, and holds its numbers."""

from __future__ import annotations

import inspect

import octavo.errors as errors


def test_an_error_is_one_sentence_for_the_fact_and_one_for_the_remedy() -> None:
    error = errors.CacheTooSmallError("It needs 2 bytes, 1 is there.", remedy="Give 2.", needed_bytes=2)
    assert str(error) == "It needs 2 bytes, 1 is there. Give 2."
    assert (error.fact, error.remedy, error.numbers) == (
        "It needs 2 bytes, 1 is there.",
        "Give 2.",
        {"needed_bytes": 2},
    )


def test_without_a_remedy_only_the_fact_is_said() -> None:
    assert str(errors.OctavoError("It is so.")) == "It is so."


def test_the_tree_is_the_one_that_the_module_draws() -> None:
    assert errors.__doc__ is not None
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if kind.__module__ == errors.__name__:
            assert name in errors.__doc__, f"{name} is not drawn"
            assert issubclass(kind, errors.OctavoError) or issubclass(kind, errors.InvariantError)


def test_users_mistakes_are_also_value_errors() -> None:
    assert issubclass(errors.RequestError, ValueError)
    assert issubclass(errors.ConfigError, ValueError)
    assert not issubclass(errors.InvariantError, errors.OctavoError)
