"""Log lines for programs are JSON, one a record."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from octavo.engine.log_format import JsonLines, current_format, set_up_logging


def test_a_record_is_one_line_with_its_trace() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("octavo.x", logging.ERROR, "f", 1, "it %s\n", ("broke",), sys.exc_info())
    line = JsonLines().format(record)
    assert "\n" not in line
    document = json.loads(line)
    assert (document["level"], document["logger"], document["message"]) == ("error", "octavo.x", "it broke\n")
    assert "ValueError" in document["trace"]
    assert document["time"].endswith("Z")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_root_logger_writes_to_stderr(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        set_up_logging(log_format, access=False)
        assert current_format() == log_format
        logging.getLogger("octavo.test").info("hello")
        logging.getLogger("uvicorn.access").info("GET /")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "hello" in said.err
