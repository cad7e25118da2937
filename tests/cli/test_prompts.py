"""Prompts from arguments, files and standard input, in that order."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.prompts import gather_prompts
from octavo.errors import RequestError


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _gather(
    arguments: list[str], files: list[Path | str] | None = None, stdin: str | None = "piped", *, lines: bool = False
) -> list[Any]:
    source = _Terminal() if stdin is None else io.StringIO(stdin)
    return gather_prompts(arguments, [str(file) for file in files or []], source, one_per_line=lines)


def _write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_arguments_are_prompts_and_stdin_is_left_alone() -> None:
    assert _gather(["a", "b"]) == ["a", "b"]


def test_stdin_is_read_when_nothing_else_is_there_or_when_named() -> None:
    assert _gather([], stdin="one\ntwo\n") == ["one\ntwo"]
    assert _gather(["a", "-"], stdin="piped\n") == ["a", "piped"]
    assert _gather(["a"], ["-"]) == ["a", "piped"]


def test_a_text_file_is_one_prompt_without_its_last_line_end(tmp_path: Path) -> None:
    path = _write(tmp_path, "p.txt", " one\n\ntwo \n")
    assert _gather([], [path]) == [" one\n\ntwo "]
    assert _gather(["a"], [_write(tmp_path, "q.txt", "b\r\n")]) == ["a", "b"]


def test_lines_may_each_be_a_prompt(tmp_path: Path) -> None:
    path = _write(tmp_path, "p.txt", "one\n \ntwo\u2028still two\n")
    assert _gather([], [path], lines=True) == ["one", "two\u2028still two"]
    assert _gather([], stdin="x\ny", lines=True) == ["x", "y"]


def test_jsonl_has_texts_ids_and_messages(tmp_path: Path) -> None:
    lines = ['"text"', '{"prompt": "a", "cache_salt": "s"}', '{"prompt_token_ids": [1, 2]}', "", '{"messages": []}']
    assert _gather([], [_write(tmp_path, "p.jsonl", "\n".join(lines))]) == [
        "text",
        {"prompt": "a", "cache_salt": "s"},
        {"prompt_token_ids": [1, 2]},
        {"messages": []},
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", '"a"\n{oops\n', r"line 2 is not JSON"),
        ("p.jsonl", "5\n", r"line 1 is no prompt: 5"),
        ("p.jsonl", '{"promt": "a"}\n', r"line 1 is no prompt"),
        ("p.jsonl", '{"prompt": "a", "messages": []}\n', r"line 1 is no prompt"),
        ("p.jsonl", '{"messages": "hi"}\n', r"line 1 is no prompt"),
        ("p.jsonl", '{"messages": ["hi"]}\n', r"line 1 is no prompt"),
        ("p.jsonl", "[1, 2]\n", r"line 1 is no prompt"),
        ("p.jsonl", "\n\n", r"There is no prompt in .*p\.jsonl"),
        ("p.txt", "", r"The prompt is empty"),
        ("p.txt", b"ab\xffcd", r"is not UTF-8: byte 2 is 0xff"),
    ],
)
def test_a_file_that_holds_no_prompt_is_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        _gather([], [_write(tmp_path, name, content)])


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"nowhere\.txt cannot be read: No such file"):
        _gather([], [tmp_path / "nowhere.txt"])
    with pytest.raises(RequestError, match=r"cannot be read: Is a directory"):
        _gather([], [tmp_path])


def test_no_prompt_at_a_terminal_says_what_to_do() -> None:
    with pytest.raises(RequestError, match=r"There is no prompt\. Give one as an argument"):
        _gather([], stdin=None)


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    text, lines, twice = tmp_path / "p.txt", tmp_path / "p.jsonl", tmp_path / "twice.txt"
    text.write_bytes(b"\xef\xbb\xbfone\n")
    lines.write_bytes(b'\xef\xbb\xbf"two"\n"three"\n')
    twice.write_bytes(b"\xef\xbb\xbffour \xef\xbb\xbf\n")
    assert _gather([], [text, lines, twice]) == ["one", "two", "three", "four \ufeff"]
    assert _gather([], stdin="\ufeffpiped\n") == ["piped"]


@pytest.mark.parametrize("stdin", ["", "\n", "\ufeff"])
def test_no_prompt_and_an_empty_standard_input_says_that_both_were_empty(stdin: str) -> None:
    with pytest.raises(
        RequestError, match=r"^There is no prompt, and standard input is empty\. Give one as an argument"
    ):
        _gather([], stdin=stdin)
    with pytest.raises(RequestError, match=r"^There is no prompt, and standard input is empty\."):
        _gather([], stdin=stdin, lines=True)


@pytest.mark.parametrize(("arguments", "stdin"), [([""], "x"), (["a", ""], "x"), (["-"], ""), (["a", "-"], "\n")])
def test_an_empty_prompt_is_refused_before_anything_loads(arguments: list[str], stdin: str) -> None:
    with pytest.raises(RequestError, match="The prompt is empty"):
        _gather(arguments, stdin=stdin)


class _Bytes:
    """Standard input as the system has it: bytes behind a text layer that may speak another encoding."""

    def __init__(self, content: bytes | OSError) -> None:
        self.content = content
        self.buffer = self

    def isatty(self) -> bool:
        return False

    def read(self) -> bytes:
        if isinstance(self.content, OSError):
            raise self.content
        return self.content


@pytest.mark.parametrize(
    ("content", "prompt"), [(b"a\r\nb\r\n", "a\nb"), (b"a\0b", "a\0b"), (b"\xef\xbb\xbfe\xcc\x81\n", "e\u0301")]
)
def test_files_and_standard_input_are_read_alike(tmp_path: Path, content: bytes, prompt: str) -> None:
    stdin: Any = _Bytes(content)
    assert gather_prompts([], [], stdin, one_per_line=False) == [prompt]
    assert _gather([], [_write(tmp_path, "p.txt", content)]) == [prompt]


def test_standard_input_that_cannot_be_read_is_one_sentence() -> None:
    for content, message in (
        (b"ab\xff", r"^Standard input is not UTF-8: byte 2 is 0xff\."),
        (OSError(5, "I/O"), r"read: I/O"),
    ):
        stdin: Any = _Bytes(content)
        with pytest.raises(RequestError, match=message):
            gather_prompts([], [], stdin, one_per_line=False)
    for arguments in ([], ["-"]):
        with pytest.raises(RequestError, match=r"^There is nothing to read: standard input is closed\."):
            gather_prompts(arguments, [], None, one_per_line=False)
    assert gather_prompts(["a"], [], None, one_per_line=False) == ["a"]
