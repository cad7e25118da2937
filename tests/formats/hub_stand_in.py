"""A model hub on this machine: the routes of the real one that its client uses for models, over HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """One repository, `org/name`, with a branch `main` and a tag `v1`.

    **Owns:** its files and the record of what was asked for. Large files (`.safetensors`, `.gguf`) come by a redirect,
    as those that the real hub keeps apart. **Never:** another repository; asked for one it says so, `org/gated` needs
    permission.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.asked: list[tuple[str, str]] = []
        """(method, path) of each request, in order."""
        self.broken_downloads = 0
        """How many downloads of large files still to cut off in the middle."""
        self.endpoint = ""
        self.storage = ""
        """Where large files lie: under another name of this machine, to which the client follows no HEAD."""

    def downloads(self) -> list[str]:
        """The files whose contents were sent, sorted."""
        sent = [path for method, path in self.asked if method == "GET" and "/api/" not in path]
        return sorted({path.rpartition("/")[2] for path in sent})


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` at `hub.endpoint` inside this."""

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    hub.storage = f"http://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: Hub
    protocol_version = "HTTP/1.1"

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlparse(self.path).path)
        self.served.asked.append((self.command, path))
        parts = path.strip("/").split("/")
        if parts[0] == "api":
            self._answer_api(parts[2:])
        elif parts[0] == "blobs":
            self._send_blob(parts[1])
        elif parts[:2] != ["org", "name"]:
            self._refuse("/".join(parts[:2]))
        else:
            self._resolve(parts[3], "/".join(parts[4:]))

    def _answer_api(self, parts: list[str]) -> None:
        repository, rest = "/".join(parts[:2]), parts[2:]
        if repository != "org/name":
            self._refuse(repository)
        elif rest[:1] == ["tree"]:
            self._send_json([self._entry(name) for name in self.served.files])
        elif rest[:1] == ["revision"] and rest[1] not in ("main", "v1", COMMIT):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            self._send_json({"id": repository, "modelId": repository, "sha": COMMIT, "siblings": []})

    def _entry(self, name: str) -> dict[str, object]:
        data = self.served.files[name]
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
        if _is_large(name):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return entry

    def _refuse(self, repository: str) -> None:
        if repository == "org/gated":
            self._send(403, b'{"error": "gated"}', {"X-Error-Code": "GatedRepo"})
        else:
            self._send(401, b'{"error": "none"}', {"X-Error-Code": "RepoNotFound"})

    def _resolve(self, revision: str, name: str) -> None:
        if revision not in ("main", "v1", COMMIT):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        if name not in self.served.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        data = self.served.files[name]
        common = {"X-Repo-Commit": COMMIT, "ETag": f'"{_etag(data)}"'}
        if not _is_large(name):
            self._send(200, data, common)
            return
        digest = hashlib.sha256(data).hexdigest()
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
        self._send(302, b"", common | linked | {"Location": f"{self.served.storage}/blobs/{name}"})

    def _send_blob(self, name: str) -> None:
        data = self.served.files[name]
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if self.command == "GET" and self.served.broken_downloads > 0:
            self.served.broken_downloads -= 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self._send(206 if first else 200, data[first:], headers)

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


def _is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf"))


def _etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
