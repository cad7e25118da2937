"""HTTP requests are counted by route and class of status; nothing that a client makes up becomes a label."""

from __future__ import annotations

import re

import httpx

from tests.server.running import RunningServer, running


def _counts(server: RunningServer) -> dict[tuple[str, str, str], float]:
    """(handler, method, status) -> requests."""
    pattern = r'http_requests_total\{handler="([^"]*)",method="([^"]*)",status="([^"]*)"\} (.*)'
    return {found[:3]: float(found[3]) for found in re.findall(pattern, httpx.get(f"{server.url}/metrics").text)}


def test_requests_are_counted_by_route_and_status(fake_process: None) -> None:
    with running() as server:
        for stream in (False, True):
            assert server.post("/v1/completions", prompt="ab", stream=stream).status_code == 200
        assert server.post("/v1/completions", prompt=5).status_code == 400
        for path in ("/health", "/metrics", "/ping", "/version", "/load"):
            assert server.http.get(path).status_code == 200
        for path in ("/made/up", "/v1/models/made-up"):
            assert server.http.get(path).status_code == 404
        assert server.http.request("MADEUP", "/v1/completions").status_code == 405
        assert server.http.get("/v1/models/fake").status_code == 200
        assert _counts(server) == {
            ("/v1/completions", "POST", "2xx"): 2,
            ("/v1/completions", "POST", "4xx"): 1,
            ("/v1/completions", "other", "4xx"): 1,
            ("/v1/models/{name:path}", "GET", "2xx"): 1,
            ("/v1/models/{name:path}", "GET", "4xx"): 1,
            ("none", "GET", "4xx"): 1,
        }
        text = server.http.get("/metrics").text
        assert 'http_request_duration_seconds_count{handler="/v1/completions",method="POST"} 3.0' in text


def test_an_accident_is_counted_as_one(fake_process: None) -> None:
    with running() as server:
        server.engine.prepare = lambda *_, **__: 1 // 0  # type: ignore[assignment, method-assign]
        assert server.post("/v1/completions", prompt="a").status_code == 500
        assert _counts(server) == {("/v1/completions", "POST", "5xx"): 1}
