"""The client of a core in this process: the same verbs, passed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.config import EngineConfig, ModelSource
from octavo.engine import inproc_client
from octavo.engine.inproc_client import InprocClient
from octavo.errors import ModelFileError, RequestError
from octavo.messages import EngineCoreRequest
from octavo.request import SamplingParams
from tests.engine.test_core import Engine, alone, folder  # noqa: F401


@pytest.fixture
def client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> InprocClient:  # noqa: F811
    core = Engine(folder).core
    monkeypatch.setattr(inproc_client, "EngineCore", lambda config, on_stage: core)
    return InprocClient(core.config)


def test_a_run_through_the_client(client: InprocClient) -> None:
    prompt = list(range(3, 20))
    client.add_request(
        EngineCoreRequest(request_id="a", prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=5))
    )
    tokens: list[int] = []
    while client.has_unfinished_requests():
        for output in client.step().outputs:
            tokens += output.new_token_ids
    assert tokens == alone(prompt, 5)
    assert client.stats().num_cached_blocks > 0
    assert client.reset_prefix_cache()
    assert client.stats().num_cached_blocks == 0


def test_it_knows_the_engine(client: InprocClient) -> None:
    assert client.plan is client.core.plan
    assert client.model_config.architecture == "Gemma3ForCausalLM"
    assert client.max_model_len == 256


def test_refusals_and_aborts(client: InprocClient) -> None:
    with pytest.raises(RequestError):
        client.add_request(EngineCoreRequest(request_id="a", prompt_token_ids=[], sampling=SamplingParams()))
    client.add_request(EngineCoreRequest(request_id="a", prompt_token_ids=[3], sampling=SamplingParams()))
    client.abort_requests(["a"])
    assert not client.has_unfinished_requests()
    client.shutdown()
    client.shutdown()


def test_a_core_that_cannot_start_raises_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        InprocClient(EngineConfig(model=ModelSource(model=str(tmp_path / "none.gguf"))))
