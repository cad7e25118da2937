"""Keys are compared whole, and make the salts of their owners."""

from __future__ import annotations

import pytest

from octavo.server.access import Access
from octavo.server.failures import ServerError


def test_without_keys_everybody_is_nobody() -> None:
    access = Access([], shares_prefixes=False)
    assert access.identify(None) is access.identify("Bearer x") is None
    assert access.salt_of(None, None) is None
    assert access.salt_of(None, "s") == "s"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer a", "Bearer key-1x", "Basic key-1", "key-1"])
def test_a_wrong_header_is_401(header: str | None) -> None:
    with pytest.raises(ServerError) as caught:
        Access(["key-1", "key-2"], shares_prefixes=False).identify(header)
    assert caught.value.status == 401
    assert "key-1" not in caught.value.message


def test_each_owner_has_a_salt_of_its_own_that_tells_no_key() -> None:
    access = Access(["key-1", "key-2"], shares_prefixes=False)
    one, two = access.identify("Bearer key-1"), access.identify("bearer  key-2")
    salts = {access.salt_of(owner, salt) for owner in (one, two) for salt in (None, "s", "t")}
    assert len(salts) == 6
    assert not any("key" in str(salt) for salt in salts)
    shared = Access(["key-1"], shares_prefixes=True)
    assert shared.salt_of(shared.identify("Bearer key-1"), "s") == "s"


def test_public_requests_of_all_owners_have_one_salt_that_is_nobodys_own() -> None:
    access = Access(["key-1", "key-2"], shares_prefixes=False)
    one, two = access.identify("Bearer key-1"), access.identify("Bearer key-2")
    for salt in (None, "s"):
        assert access.salt_of(one, salt, is_public=True) == access.salt_of(two, salt, is_public=True)
    salts = {access.salt_of(owner, salt) for owner in (one, two, None) for salt in (None, "s")}
    assert access.salt_of(one, None, is_public=True) not in salts
    assert access.salt_of(one, "s", is_public=True) not in salts
    assert access.salt_of(None, "s", is_public=True) == "s"
