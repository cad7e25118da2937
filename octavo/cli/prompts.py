"""Where prompts come from: arguments, files, standard input."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from octavo.errors import RequestError

STDIN = "-"
"""As an argument or file name: read standard input."""

JSON_KEYS = ("prompt", "prompt_token_ids", "messages", "cache_salt")
"""What an object in a JSONL file may hold."""

_HOW_TO_GIVE = (
    "Give one as an argument (an option such as --stop takes the text behind it), with --prompt-file FILE, or on "
    "standard input."
)

PromptSource = str | Mapping[str, Any]
"""A text, or an object with keys of `JSON_KEYS`."""


def gather_prompts(
    arguments: Sequence[str], files: Sequence[str], stdin: TextIO | None, *, one_per_line: bool
) -> list[PromptSource]:
    """All prompts in order: arguments, then files, then standard input if it was named, or if nothing else was and
    it is no terminal.

    A text of a file or of standard input is one prompt, without a byte order mark and without its last line end; with
    `one_per_line` each line that is not blank is one. A file named `*.jsonl` has a JSON value a line: a text, or an
    object with one of `prompt`, `prompt_token_ids` and `messages`, and perhaps `cache_salt`.
    Raises `RequestError` when a file cannot be read or a line cannot be understood, and when there is no prompt.
    """
    prompts: list[PromptSource] = []
    names = [*(name for name in arguments if name == STDIN), *files]
    prompts.extend(text for text in arguments if text != STDIN)
    if not prompts and not names:
        if stdin is not None and stdin.isatty():
            raise RequestError("There is no prompt.", remedy=_HOW_TO_GIVE)
        piped = _without_mark(_read_stdin(stdin))
        if not piped.strip("\r\n"):
            # Not "the prompt is empty": in a script nobody may have meant to pipe anything.
            raise RequestError("There is no prompt, and standard input is empty.", remedy=_HOW_TO_GIVE)
        stdin = io.StringIO(piped, newline="")
        names = [STDIN]
    for name in names:
        text = read_text(name, stdin)
        if name.endswith(".jsonl"):
            prompts.extend(_parse_line(name, number, line) for number, line in _lines(text))
        elif one_per_line:
            prompts.extend(line for _, line in _lines(text))
        else:
            prompts.append(text.removesuffix("\n").removesuffix("\r"))
    if any(prompt == "" for prompt in prompts):
        raise RequestError("The prompt is empty.", remedy="Give it at least one character.")
    if not prompts:
        raise RequestError(
            f"There is no prompt in {', '.join(names)}.", remedy="Write at least one line that is not blank."
        )
    return prompts


def read_text(name: str, stdin: TextIO | None) -> str:
    """A prompt: of a file, or of standard input where `name` is `-`; without a byte order mark, lines end in line
    feeds.

    Raises `RequestError` when it cannot be read or is not UTF-8.
    """
    return _without_mark(read_exactly(name, stdin).replace("\r\n", "\n").replace("\r", "\n"))


def read_exactly(name: str, stdin: TextIO | None) -> str:
    """The same with every character that is there."""
    return _read_stdin(stdin) if name == STDIN else _read(name)


def _without_mark(text: str) -> str:
    """`text` without the byte order mark that some editors put before it."""
    return text.removeprefix("\ufeff")


def _lines(text: str) -> list[tuple[int, str]]:
    # Only line feeds part lines: str.splitlines would also part at rarer characters inside a prompt.
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _read(name: str) -> str:
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise RequestError(
            f"The file {name} cannot be read: {error.strerror}.", remedy="Give the path of a text file."
        ) from None
    return _decoded(content, f"The file {name}")


def _read_stdin(stdin: TextIO | None) -> str:
    """All of standard input, which Python has as None where it is closed; UTF-8 whatever the terminal speaks."""
    if stdin is None:
        raise RequestError("There is nothing to read: standard input is closed.", remedy=_HOW_TO_GIVE)
    try:
        return _decoded(stdin.buffer.read(), "Standard input") if hasattr(stdin, "buffer") else stdin.read()
    except OSError as error:
        raise RequestError(f"Standard input cannot be read: {error.strerror}.", remedy=_HOW_TO_GIVE) from None


def _decoded(content: bytes, what: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{what} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}.",
            remedy="Convert it, e.g. with iconv -t UTF-8.",
        ) from None


def _parse_line(name: str, number: int, line: str) -> PromptSource:
    try:
        value: Any = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise RequestError(
            f"{name}, line {number} is not JSON: {error}.", remedy="Write one JSON value a line."
        ) from None
    if isinstance(value, str):
        return value
    contents = [key for key in JSON_KEYS[:3] if key in value] if isinstance(value, dict) else []
    turns = value.get("messages", []) if isinstance(value, dict) else None
    is_conversation = isinstance(turns, list) and all(isinstance(turn, dict) for turn in turns)
    if not is_conversation or len(contents) != 1 or any(key not in JSON_KEYS for key in value):
        raise RequestError(
            f"{name}, line {number} is no prompt: {line:.60}.",
            remedy=f"Write a text, or an object with one of {', '.join(JSON_KEYS[:3])}, and perhaps cache_salt.",
        )
    prompt: PromptSource = value
    return prompt
