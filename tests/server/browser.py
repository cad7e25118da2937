"""A headless Chromium, driven through its own protocol over two pipes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page in it. Owns: the pipes. Never: goes on after `opened` ends."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = os.fdopen(to_browser, "wb", 0), os.fdopen(from_browser, "rb", 0)
        self._rest = b""
        self._last = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **params: Any) -> Any:
        """The result of a method of the protocol."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> Any:
        while b"\0" not in self._rest:
            piece = self._in.read(1 << 16)
            assert piece, "the browser has ended"
            self._rest += piece
        frame, _, self._rest = self._rest.partition(b"\0")
        return json.loads(frame)

    def value(self, expression: str) -> Any:
        """What JavaScript makes of `expression` in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Its value, once it is true."""
        deadline = time.monotonic() + 30
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline, (
                f"{expression} never came about: {self.value('document.body.innerText')}"
            )
            time.sleep(0.05)
        return value

    def close(self) -> None:
        self._out.close()
        self._in.close()


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Browser]:
    """A browser with a fresh profile in that folder."""
    assert CHROMIUM is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    command += [f"--user-data-dir={profile}", "--no-first-run", "--disable-dev-shm-usage"]

    def place() -> None:
        a, b = os.dup(to_read), os.dup(from_write)
        os.dup2(a, 3)
        os.dup2(b, 4)

    process = subprocess.Popen(
        command, preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(from_write)
    browser = None
    try:
        browser = Browser(to_write, from_read)
        yield browser
    finally:
        process.terminate()
        process.wait(20)
        if browser is not None:
            browser.close()
