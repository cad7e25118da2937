"""Parameters as callers write them: what each may be, and one clear sentence for what it may not be."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple, cast

import msgspec

from octavo.errors import RequestError

INT32 = 2**31
"""Token ids and lengths are int32."""


class Field(NamedTuple):
    """How one field is read."""

    read: Callable[[Any], Any]
    """A plain value of what a caller may write: numbers of numpy, lists, a single text where several are declared.
    Raises `TypeError`, `ValueError` or `OverflowError` for anything else."""
    kind: str
    """What such a value is called."""


class KeywordParameters(msgspec.StructMeta):
    """Metaclass of structs that callers fill in by keyword: an unknown name is refused with the nearest known one.

    A class may name, in `REFUSED`, fields that users know from elsewhere: the remedy for each says what to do instead.
    None stands for "not asked for" there, too, and is passed over.
    """

    def __call__(cls, *args: Any, **fields: Any) -> Any:  # noqa: N805
        known = cls.__struct_fields__
        if args:
            raise RequestError(f"{cls.__name__} takes its fields by name.", remedy=f"Write {known[0]}=... and so on.")
        refused: Mapping[str, str] = getattr(cls, "REFUSED", {})
        for name in [name for name in fields if name not in known]:
            if name not in refused:
                raise RequestError(f"{cls.__name__} has no field {name!r}.", remedy=_nearest(name, known))
            if fields.pop(name) not in (None, False):
                raise RequestError(f"{name} is not supported.", remedy=refused[name], parameter=name)
        try:
            return super().__call__(**fields)
        except TypeError:
            needed = [field.name for field in msgspec.structs.fields(cast(type[msgspec.Struct], cls)) if field.required]
            missing = [name for name in needed if name not in fields]
            if not missing:
                raise
            raise RequestError(
                f"{cls.__name__} lacks {' and '.join(missing)}.", remedy=f"Write {missing[0]}=...", parameter=missing[0]
            ) from None


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"Did you mean {' or '.join(close)}?" if close else f"Its fields are {', '.join(known)}."


def read_fields(struct: msgspec.Struct, readers: Mapping[str, Field], *, optional: Iterable[str]) -> None:
    """Replace each field of a frozen struct by its plain value, in `__post_init__`. Those of `optional` may be None.

    Raises `RequestError` that names the first field of the wrong kind.
    """
    for name, (read, kind) in readers.items():
        value = getattr(struct, name)
        if value is None and name in optional:
            continue
        try:
            msgspec.structs.force_setattr(struct, name, read(value))
        except RequestError:  # of a struct inside this one: it knows better
            raise
        except (TypeError, ValueError, OverflowError):
            raise RequestError(f"{name} is {shown(value)}.", remedy=f"It must be {kind}.", parameter=name) from None


def check_bounds(struct: msgspec.Struct, rules: Iterable[tuple[bool, str, str]]) -> None:
    """Raise `RequestError` for the first (holds, field, what is allowed) that does not hold."""
    for holds, name, allowed in rules:
        if not holds:
            raise RequestError(
                f"{name} is {shown(getattr(struct, name))}.", remedy=f"It must be {allowed}.", parameter=name
            )


def shown(value: Any) -> str:
    """`value` as Python writes it, cut where it is long."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} of very many levels"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _items(value: Any) -> Iterable[Any]:
    """What is in a list, a tuple, a set or an array."""
    if isinstance(value, str | bytes | Mapping):
        raise TypeError
    items: Iterable[Any] = value
    return items


def _texts(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(_items(() if value is None else value))
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    for text in texts:
        text.encode()  # half a surrogate pair is no character
    return texts


def _token_id(value: Any) -> int:
    token_id = _whole(value)
    if not 0 <= token_id < INT32:
        raise ValueError
    return token_id


def _token_ids(value: Any) -> tuple[int, ...]:
    return tuple(map(_token_id, _items(value)))


def _token_ids_or_none(value: Any) -> tuple[int, ...]:
    return () if value is None else _token_ids(value)


def _token_id_lists(value: Any) -> tuple[tuple[int, ...], ...]:
    return () if value is None else tuple(map(_token_ids, _items(value)))


def _biases(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_token_id(token_id): _number(bias) for token_id, bias in value.items()}


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError
    return dict(value)


_IDS = f"a list of token ids, whole numbers from 0 to {INT32 - 1}"

WHOLE = Field(_whole, "a whole number")
NUMBER = Field(_number, "a number")
FLAG = Field(_flag, "True or False")
TEXTS = Field(_texts, "a text or a list of texts")
"""None is no text."""
IDS = Field(_token_ids, _IDS)
IDS_OR_NONE = Field(_token_ids_or_none, _IDS)
"""None is no id."""
ID_LISTS = Field(_token_id_lists, "a list of lists of token ids")
BIASES = Field(_biases, "a mapping of token ids to numbers")
MAPPING = Field(_mapping, "a mapping of names to values")
