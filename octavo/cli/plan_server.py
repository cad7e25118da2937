"""`octavo plan --check --server URL`: what a running server says of its cache, read over its own API."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import msgspec

from octavo.cli.plan_check import Found
from octavo.errors import ConfigError

TIMEOUT_S = 10.0
PATH = "/kv_cache"


class _Rank(msgspec.Struct):
    rank: int
    num_blocks: int
    num_views: int
    num_storages: int
    storage_bytes: int
    resident_bytes: int
    engine: int = 0


class RunningServer(msgspec.Struct):
    """What the server was told, and what its caches take."""

    model: str
    settings: dict[str, Any]
    """Keywords of `octavo.plan_kv_cache`."""
    ranks: list[_Rank]
    revision: str | None = None

    def found(self) -> list[Found]:
        """The caches."""
        return [Found(**{name: getattr(rank, name) for name in Found._fields}) for rank in self.ranks]


def ask_server(url: str, api_key: str | None) -> RunningServer:
    """Read `URL/kv_cache`. Raises `ConfigError` for a server that is not there, or does not answer as one of Octavo."""
    address = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(f"--server is {url!r:.80}.", remedy="Write it as http://127.0.0.1:8000.")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = address.rstrip("/").removesuffix("/v1")
    try:
        request = urllib.request.Request(base + PATH, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(), type=RunningServer)
    except urllib.error.HTTPError as error:
        remedy = "Give its key with --api-key." if error.code == 401 else f"It must be an Octavo server with {PATH}."
        raise ConfigError(f"The server at {base} answered with status {error.code}.", remedy=remedy) from None
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"The server at {base} does not answer as one of Octavo: {error}.", remedy="Check --server."
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"The server at {base} cannot be asked: {reason}.", remedy="Check --server, and that it runs."
        ) from None
