"""Who may ask, and whose prefixes are whose."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from octavo.server.failures import ServerError

OPEN_PATHS = frozenset({"/", "/health", "/ping", "/version", "/metrics"})
"""Paths that need no key: they tell nothing of what is asked and answered."""

PUBLIC = "public"
"""Stands for every owner in a salt; no owner is called so, because owners are hexadecimal numbers."""


class Access:
    """Owns: the API keys, as digests. Never: keeps or logs a key that a client sent."""

    def __init__(self, api_keys: Sequence[str], *, shares_prefixes: bool) -> None:
        self._digests = [_digest(key) for key in api_keys]
        self._shares_prefixes = shares_prefixes

    def identify(self, authorization: str | None) -> str | None:
        """The owner that a request's `Authorization` header speaks for; None where no keys are asked for.

        Raises `ServerError` (401) unless the header has one of the keys. Each key is compared in constant time, and all
        of them are compared, whichever fits.
        """
        if not self._digests:
            return None
        kind, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        fits = [hmac.compare_digest(given, digest) for digest in self._digests]
        if kind.lower() != "bearer" or not any(fits):
            raise ServerError(
                401,
                "No API key was given." if not authorization else "The API key is wrong.",
                kind="authentication_error",
                code="invalid_api_key",
            )
        return given.hex()[:32]

    def salt_of(self, owner: str | None, cache_salt: str | None, *, is_public: bool = False) -> str | None:
        """The salt of a request's prefixes: other owners' requests, and other salts', find none of them.

        A request that `is_public` shares them with the public requests of all owners, and with no others.
        """
        if owner is None or self._shares_prefixes:
            return cache_salt
        whose = PUBLIC if is_public else owner
        return whose if cache_salt is None else f"{whose}:{cache_salt}"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()
