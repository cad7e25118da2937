from __future__ import annotations

from typing import Any

import pytest

from octavo.engine.conversation import list_conversations
from octavo.errors import RequestError

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER], [[USER]]),
        ((USER, USER), [[USER, USER]]),
        ([[USER], (USER, USER)], [[USER], [USER, USER]]),
        (iter([USER]), [[USER]]),
        ([], []),
    ],
)
def test_one_conversation_or_several(messages: Any, expected: Any) -> None:
    assert list_conversations(messages) == expected


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]},
        {"role": "assistant", "tool_calls": [{"name": "f"}]},
        {"role": "user", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, "you"]},
        {"role": "a role of the model's own", "content": "hi"},
    ],
)
def test_what_templates_understand_is_let_through(message: Any) -> None:
    assert list_conversations([message]) == [[message]]


@pytest.mark.parametrize(
    ("messages", "fact"),
    [
        (None, r"^messages is None, which is no list of messages\."),
        (5, r"^messages is 5, which is no list"),
        ("hi", r"^messages is 'hi', which is no list"),
        (b"hi", r"^messages is b'hi', which is no list"),
        (USER, r"^messages is \{'role'.*which is no list"),
        ([{}], r"^messages\[0\] has no role\."),
        ([["a"]], r"^messages\[0\]\[0\] is 'a', which is no message\."),
        (["a"], r"^messages\[0\] is 'a', which is no list of messages"),
        ([None], r"^messages\[0\] is None, which is no list of messages"),
        ([[]], r"^The conversation messages\[0\] has no messages\."),
        ([USER, [USER]], r"^messages\[1\] is \[.*, which is no message\."),
        ([[USER], USER], r"^messages\[0\] is \[.*, which is no message\."),
        ([[USER], [USER, 5]], r"^messages\[1\]\[1\] is 5, which is no message\."),
        ([{"role": 5, "content": "a"}], r"^The role of messages\[0\] is 5, which is no name\."),
        ([{"role": "", "content": "a"}], r"^The role of messages\[0\] is '', which is no name\."),
        ([{"role": None, "content": "a"}], r"^The role of messages\[0\] is None"),
        ([{"role": "user"}], r"^messages\[0\] has no content\."),
        ([{"role": "user", "content": None}], r"^messages\[0\] has no content\."),
        ([{"role": "user", "content": 5}], r"^The content of messages\[0\] is 5, which is no text\."),
        ([{"role": "user", "content": [5]}], r"^The content of messages\[0\] is \[5\], which is no text\."),
        ([USER, {"role": "user", "content": {"a": 1}}], r"^The content of messages\[1\] is \{'a': 1\}"),
    ],
)
def test_what_is_no_message_is_named_with_what_one_looks_like(messages: Any, fact: str) -> None:
    with pytest.raises(RequestError, match=fact):
        list_conversations(messages)
    with pytest.raises(RequestError, match=r'A message is \{"role": "user", "content": text\}'):
        list_conversations(messages)
