"""Messages, in every form a caller may give them, to checked conversations for a chat template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.errors import RequestError

Message = Mapping[str, Any]
"""One turn of a conversation: `{"role": "user", "content": text}`."""

_FORMS = (
    'A message is {"role": "user", "content": text}, a conversation is a list of messages; give one conversation, or '
    "a list of several."
)


def list_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[list[Message]]:
    """`messages` as a list of conversations: messages alone are one, no messages at all are none.

    What roles there are is for the model's template to judge. A content may be a list of parts, and lack where a
    message calls tools. Raises `RequestError` that names the first message that is none.
    """
    listed = _items(messages, "messages")
    if listed and not any(isinstance(item, Mapping) for item in listed):
        return [_conversation(item, f"messages[{index}]") for index, item in enumerate(listed)]
    return [_conversation(listed, "messages")] if listed else []


def _conversation(given: Any, where: str) -> list[Message]:
    messages = _items(given, where)
    if not messages:
        raise RequestError(f"The conversation {where} has no messages.", remedy=_FORMS)
    for index, message in enumerate(messages):
        _check_message(message, f"{where}[{index}]")
    return messages


def _items(given: Any, where: str) -> list[Any]:
    if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise RequestError(f"{where} is {given!r:.60}, which is no list of messages.", remedy=_FORMS)
    return list(given)


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is {message!r:.60}, which is no message.", remedy=_FORMS)
    if "role" not in message:
        raise RequestError(f"{where} has no role.", remedy=_FORMS)
    role, content = message["role"], message.get("content")
    if not isinstance(role, str) or not role:
        raise RequestError(f"The role of {where} is {role!r:.60}, which is no name.", remedy=_FORMS)
    if content is None:
        if not message.get("tool_calls"):
            raise RequestError(f"{where} has no content.", remedy=_FORMS)
    elif not isinstance(content, str) and not _is_parts(content):
        raise RequestError(f"The content of {where} is {content!r:.60}, which is no text.", remedy=_FORMS)


def _is_parts(content: Any) -> bool:
    return isinstance(content, list | tuple) and all(isinstance(part, str | Mapping) for part in content)
