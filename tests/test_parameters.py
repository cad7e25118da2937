"""Fields are read as callers write them, or refused in one sentence."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np
import pytest

from octavo.errors import RequestError
from octavo.parameters import NUMBER, TEXTS, WHOLE, KeywordParameters, check_bounds, read_fields, shown


class Recipe(msgspec.Struct, frozen=True, kw_only=True, metaclass=KeywordParameters):
    """A struct with one field of each sort."""

    eggs: int
    salt: float = 0.5
    names: tuple[str, ...] = ()

    REFUSED: ClassVar[dict[str, str]] = {"butter": "Use oil."}

    def __post_init__(self) -> None:
        read_fields(self, {"eggs": WHOLE, "salt": NUMBER, "names": TEXTS}, optional=())
        check_bounds(self, ((self.eggs > 0, "eggs", "above 0"),))


def test_fields_become_plain_values() -> None:
    recipe = Recipe(eggs=np.int64(3), salt=1, names=["a"])  # type: ignore[arg-type]
    assert (recipe.eggs, recipe.salt, recipe.names) == (3, 1.0, ("a",))
    assert [type(value) for value in (recipe.eggs, recipe.salt, recipe.names)] == [int, float, tuple]
    assert Recipe(eggs=1, names="b", butter=None).names == ("b",)  # type: ignore[call-arg, arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"eggs": 1, "sallt": 2}, r"^Recipe has no field 'sallt'\. Did you mean salt\?$"),
        ({"eggs": 1, "zzz": 2}, r"^Recipe has no field 'zzz'\. Its fields are eggs, salt, names\.$"),
        ({"eggs": 1, "butter": 2}, r"^butter is not supported\. Use oil\.$"),
        ({}, r"^Recipe lacks eggs\. Write eggs=\.\.\.$"),
        ({"eggs": 0}, r"^eggs is 0\. It must be above 0\.$"),
        ({"eggs": 1.5}, r"^eggs is 1\.5\. It must be a whole number\.$"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Recipe(**fields)  # type: ignore[arg-type]


def test_fields_are_given_by_name() -> None:
    with pytest.raises(RequestError, match=r"^Recipe takes its fields by name\. Write eggs=\.\.\. and so on\.$"):
        Recipe(3)  # type: ignore[misc]


def test_long_values_are_quoted_shortly() -> None:
    assert len(shown("x" * 1000)) == 80
    assert shown(10**400) == "a number of 1329 bits"
