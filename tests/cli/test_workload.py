"""Workload files: what is read, and one sentence for everything that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.cli.workload import load_workload
from octavo.errors import RequestError


def _file(folder: Path, text: str | bytes) -> Path:
    path = folder / "w.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_workload_is_counted(tmp_path: Path) -> None:
    requests = '[{"prompt": [1, 2, 3], "max_tokens": 5}, {"prompt": [4], "max_tokens": 9}]'
    workload = load_workload(_file(tmp_path, f'{{"name": "w", "seed": 3, "note": "n", "requests": {requests}}}'))
    assert (workload.name, workload.seed, workload.note) == ("w", 3, "n")
    assert (workload.num_prompt_tokens, workload.num_output_tokens, workload.longest) == (4, 14, 10)


def _one(prompt: str = "[1]", max_tokens: str = "1") -> str:
    return f'{{"name": "w", "requests": [{{"prompt": {prompt}, "max_tokens": {max_tokens}}}]}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"w\.json is not JSON: "),
        ("{", r"w\.json is not JSON: "),
        (b"\xff\xfe", r"w\.json is not JSON: "),
        ("[" * 100_000, r"w\.json is (not JSON|no workload): "),
        ("[]", r"w\.json is no workload: "),
        ('{"requests": []}', r"w\.json is no workload: .*`name`"),
        ('{"name": "w"}', r"w\.json is no workload: .*`requests`"),
        ('{"name": "w", "requests": [], "output": 5}', r"w\.json is no workload: .*`output`"),
        ('{"name": "w", "requests": []}', r"w\.json has no requests\. Write \{"),
        (_one(prompt='"hello"'), r"no workload: .*requests\[0\]\.prompt"),
        (_one(prompt="[1, 2.5]"), r"no workload: .*prompt"),
        (_one(prompt="[]"), r"requests\[0\] has an empty prompt\. Give it "),
        (_one(prompt="[5, -1]"), r"requests\[0\] has the token id -1\. .* from 0 to 2147483647"),
        (_one(prompt="[2147483648]"), r"requests\[0\] has the token id 2147483648\. "),
        (_one(max_tokens="0"), r"requests\[0\] has max_tokens 0\. It must be from 1 "),
        (_one(max_tokens="null"), r"no workload: .*max_tokens"),
    ],
)
def test_what_is_wrong_is_named_in_one_sentence(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        load_workload(_file(tmp_path, text))
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=re.escape(f"{tmp_path} cannot be read: Is a directory. Give the path")):
        load_workload(tmp_path)
