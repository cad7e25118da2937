"""GET /: a page to try the model with. It is one file, takes nothing from elsewhere, and shows text as text."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

from fastapi.responses import HTMLResponse

_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


@cache
def _page() -> tuple[str, str]:
    """The page, and a policy under which a browser runs its own script and asks this server alone."""
    html = resources.files("octavo.server").joinpath("page.html").read_text("utf-8")
    hashes = {
        kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for kind, text in _INLINE.findall(html)
    }
    policy = (
        f"default-src 'none'; connect-src 'self'; style-src 'sha256-{hashes['style']}'; "
        f"script-src 'sha256-{hashes['script']}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy


def page() -> HTMLResponse:
    """The answer to GET /."""
    html, policy = _page()
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    return HTMLResponse(html, headers=headers)
