"""The page at /, in a headless Chromium where there is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.server.page import page
from tests.server import browser
from tests.server.running import RunningServer

needs_chromium = pytest.mark.skipif(browser.CHROMIUM is None, reason="there is no Chromium on this machine")


def test_the_page_takes_nothing_from_elsewhere(server: RunningServer) -> None:
    answer = server.http.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert not re.search(r"https?://|src=|@import|innerHTML|<link", answer.text)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(re.findall(r"sha256-[\w+/]{43}=", policy)) == 2
    assert page().body.decode() == answer.text


@needs_chromium
@pytest.mark.slow
def test_a_conversation_in_a_browser(server: RunningServer, tmp_path: Path) -> None:
    with browser.opened(tmp_path) as chromium:
        chromium.call("Page.navigate", url=f"{server.url}/")
        assert chromium.until("document.readyState === 'complete' && model") == "fake"
        chromium.value("at('text').value = '<i>hi</i>'; at('form').requestSubmit()")
        chromium.until("!running && document.querySelectorAll('.turn.assistant small').length === 1")
        said = chromium.value("document.querySelector('.turn.assistant span').textContent")
        assert said == "<user><i>hi</i><assistant>"[::-1]
        assert "prompt tokens" in chromium.value("document.querySelector('.turn.assistant small').textContent")
        assert chromium.value("document.querySelectorAll('.turn i').length") == 0
        assert chromium.until("at('kv').textContent.includes('%')")
        chromium.value("at('text').value = 'x'.repeat(3000); at('form').requestSubmit()")
        assert "3" in chromium.until("document.querySelector('.turn.error span')?.textContent")
        chromium.value("at('reset').click()")
        assert chromium.value("document.querySelectorAll('.turn').length + messages.length") == 0
