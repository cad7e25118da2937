"""`octavo chat --url` against a running server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from octavo.cli.partners import ServerPartner
from octavo.errors import ConfigError, OctavoError
from octavo.request import SamplingParams
from tests.cli.terminal import run_octavo
from tests.engine.fake_process import install_fake_process
from tests.server.running import RunningServer, running

SAMPLING = SamplingParams(temperature=0.5, max_tokens=50)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with pytest.MonkeyPatch.context() as patch:
        install_fake_process(patch)
        with running(served_model_names=("fake", "other"), api_keys=("k",)) as server:
            yield server


def partner(url: str, model: str | None = None, key: str | None = "k") -> ServerPartner:
    return ServerPartner(url, SAMPLING, model=model, api_key=key)


def test_a_server_is_talked_with(monkeypatch: pytest.MonkeyPatch, server: RunningServer) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "k")
    said = run_octavo(monkeypatch, ["chat", "--url", server.url], "a\nb\n")
    first = "<user>a<assistant>"[::-1]
    assert said.out == f"{first}\n" + f"<user>a<assistant>{first}<user>b<assistant>"[::-1] + "\n"
    assert said.code == 0


def test_the_address_may_be_written_in_several_ways(server: RunningServer) -> None:
    for url in (server.url, f"{server.url}/", f"{server.url}/v1", server.url.removeprefix("http://")):
        assert partner(url).name == f"fake at {server.url}"
    talker = partner(server.url, "other")
    assert "".join(talker.answer([{"role": "user", "content": "a"}])) == "<user>a<assistant>"[::-1]
    assert talker.note() == "prompt 18 tokens, 3 of them cached; output 19 tokens"


def test_what_a_server_refuses_is_one_sentence(server: RunningServer) -> None:
    with pytest.raises(ConfigError, match="has fake, other"):
        partner(server.url, "gpt-9")
    with pytest.raises(OctavoError, match="status 401"):
        partner(server.url, key="wrong")
    with pytest.raises(OctavoError, match="status 400"):
        list(partner(server.url).answer([{"role": "user", "content": "x" * 3000}]))
    for url in ("ftp://x", "http://"):
        with pytest.raises(ConfigError, match="no address of a server"):
            partner(url)


def test_no_server_and_one_that_breaks_are_told() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConfigError, match="No server answers"):
            partner(url)
        listener.listen()

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.recv(100_000)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(ConfigError, match="No server answers"):
            partner(url)
        thread.join()
