"""What log lines look like: for people, or one JSON object each."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec

FORMATS = ("text", "json")


class JsonLines(logging.Formatter):
    """A record as one line of JSON: `time` in UTC, `level`, `logger`, `message`, and `trace` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(document).decode()


def current_format() -> str:
    """The format in which this process logs, for those that it starts."""
    return (
        "json" if any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers) else "text"
    )


def set_up_logging(log_format: str, *, access: bool = False) -> None:
    """Let this process log to stderr from INFO on; `access` includes a line for each HTTP request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines() if log_format == "json" else logging.Formatter("%(levelname)s %(asctime)s [%(name)s] %(message)s")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO if access else logging.WARNING)
