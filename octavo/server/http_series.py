"""What is measured of HTTP requests, under the names that vLLM's dashboards ask for."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNCOUNTED = frozenset({"/health", "/ping", "/version", "/load", "/metrics"})
"""Asked by machines that look after the server: they would hide the others."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class HttpSeries:
    """ASGI middleware. Owns: the series. Never: changes a request or an answer.

    The label `handler` is the route, `none` where there is none, and strange methods are `other`: nothing that clients
    make up is a label.
    """

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        self._requests = Counter(
            "http_requests", "HTTP requests answered, by class of status.", ["handler", "method", "status"],
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "http_request_duration_seconds", "From a request to the end of its answer.", ["handler", "method"],
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and count it."""
        if scope["type"] != "http" or scope["path"] in UNCOUNTED:
            await self._app(scope, receive, send)
            return
        status, began = 0, time.perf_counter()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            status = status or 500  # which is what stands around this makes of it
            raise
        finally:
            if status:
                handler = getattr(scope.get("route"), "path", "none")
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self._requests.labels(handler, method, f"{status // 100}xx").inc()
                self._seconds.labels(handler, method).observe(time.perf_counter() - began)
