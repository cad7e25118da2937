"""`GET /kv_cache`, and who asks it."""

from __future__ import annotations

import msgspec
import pytest

from octavo.cli.plan_server import ask_server
from octavo.errors import ConfigError
from tests.server.running import RunningServer, running

WITH_KEY = {"Authorization": "Bearer secret"}


def test_the_route_tells_settings_tensors_and_storages(server: RunningServer) -> None:
    told = server.http.get("/kv_cache").json()
    assert set(told) == {"model", "revision", "settings", "planned", "ranks"}
    assert told["model"] == "fake"
    assert told["settings"]["block_size"] == 16
    assert told["settings"]["max_model_len"] == server.engine.max_model_len
    assert [rank["storage_bytes"] for rank in told["ranks"]] == [819200]
    tensors = msgspec.json.decode(msgspec.json.encode(server.engine.plan.configs[0].tensors))
    assert told["planned"][0]["tensors"] == tensors


@pytest.mark.usefixtures("fake_process")
def test_the_route_asks_for_a_key() -> None:
    with running(api_keys=("secret",)) as server:
        assert server.http.get("/kv_cache").status_code == 401
        assert server.http.get("/kv_cache", headers=WITH_KEY).status_code == 200
        with pytest.raises(ConfigError, match="status 401"):
            ask_server(server.url, "wrong")
        assert ask_server(f"{server.url}/v1/", "secret").model == "fake"
