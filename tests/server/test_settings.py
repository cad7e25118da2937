"""What a server does when it is told nothing is safe."""

from __future__ import annotations

from octavo.server.settings import ServerSettings


def test_the_defaults_listen_to_this_machine_alone_and_bound_everything() -> None:
    settings = ServerSettings()
    assert settings.host == "127.0.0.1"
    assert not settings.shares_prefixes
    assert 0 < settings.max_waiting < 10_000
    assert 0 < settings.max_request_bytes < 2**30
    assert 0 < settings.max_completions <= 1024
    assert 0 <= settings.max_logprobs <= 1000
