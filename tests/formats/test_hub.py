"""Hub ids through the real client, against a hub on this machine. Each client is a process: it reads its environment
once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats import build
from tests.formats.hub_stand_in import COMMIT, Hub, serving

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 10,
}  # fmt: skip
WEIGHTS = build.safetensors({"a": np.ones((100, 100), dtype=np.float32)})
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "q4.gguf": build.gguf({"general.architecture": "llama"}),
    "README.md": b"text",
    "modeling.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "onnx.onnx": b"graph",
}
NEEDED = ["config.json", "model.safetensors", "tokenizer.json"]

PROGRAM = """
import json, sys
from octavo.config import ModelSource, read_environment
from octavo.errors import OctavoError
from octavo.formats.source import locate
for call in json.loads(sys.argv[1]):
    config_only = call.pop("config_only", False)
    try:
        files = locate(ModelSource(**call), read_environment(), config_only=config_only)
        print(json.dumps({"path": str(files.path), "weights": [path.name for path in files.weight_paths]}))
    except OctavoError as error:
        print(json.dumps({"error": str(error)}))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub(FILES)) as served:
        yield served


def locate_all(endpoint: str, home: Path, *calls: dict[str, Any], **environment: str) -> list[dict[str, Any]]:
    """What `locate` answers to each call, in one new process."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    variables |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": "",
    } | environment
    command = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=True, timeout=100)
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def sentence(answer: dict[str, Any]) -> str:
    error: str = answer["error"]
    assert "\n" not in error
    return error


@pytest.mark.slow
def test_only_what_is_needed_is_downloaded_and_once(hub: Hub, tmp_path: Path) -> None:
    (config,) = locate_all(hub.endpoint, tmp_path, {"model": "org/name", "config_only": True})
    assert "weights" in config
    assert hub.downloads() == ["config.json", "tokenizer.json"]
    (first,) = locate_all(hub.endpoint, tmp_path, {"model": "org/name"})
    assert hub.downloads() == NEEDED
    assert first["weights"] == ["model.safetensors"]
    assert (Path(first["path"]) / "model.safetensors").read_bytes() == WEIGHTS
    hub.asked.clear()
    again, tagged, exact = locate_all(
        hub.endpoint,
        tmp_path,
        {"model": "org/name"},
        {"model": "org/name", "revision": "v1"},
        {"model": "org/name", "revision": COMMIT},
    )
    assert again == tagged == exact == first
    assert hub.downloads() == []


@pytest.mark.slow
def test_a_plan_of_a_hub_id_takes_its_config_and_the_list_of_its_weights(tmp_path: Path) -> None:
    """Weights in several files are not there, and their total comes from the index."""
    index = {"metadata": {"total_size": 10**9}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}
    sharded = {name: FILES[name] for name in ("config.json", "tokenizer.json")} | {
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-00001-of-00002.safetensors": WEIGHTS,
    }
    with serving(Hub(sharded)) as hub:
        variables = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        variables |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": ""}
        command = [sys.executable, "-m", "octavo", "plan", "org/name", "--memory", "8GiB", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=variables, check=True, timeout=100)
        made = json.loads(done.stdout)
        assert made["weights"]["total_bytes"] == 10**9
        assert hub.downloads() == ["config.json", "model.safetensors.index.json", "tokenizer.json"]


@pytest.mark.slow
def test_offline_the_cache_is_all_there_is(hub: Hub, tmp_path: Path) -> None:
    (first, file) = locate_all(hub.endpoint, tmp_path, {"model": "org/name"}, {"model": "org/name/q4.gguf"})
    hub.asked.clear()
    calls = [
        {"model": "org/name"},
        {"model": "org/name/q4.gguf"},
        {"model": "org/other"},
        {"model": "org/name/q8.gguf"},
    ]
    cached, cached_file, absent, absent_file = locate_all(hub.endpoint, tmp_path, *calls, HF_HUB_OFFLINE="1")
    assert (cached, cached_file) == (first, file)
    for answer in (absent, absent_file):
        assert "is not in the local cache" in sentence(answer)
        assert "HF_HUB_OFFLINE" in sentence(answer)
    assert hub.asked == []


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached(hub: Hub, tmp_path: Path) -> None:
    (first,) = locate_all(hub.endpoint, tmp_path, {"model": "org/name"})
    nowhere = "http://127.0.0.1:9"
    cached, absent = locate_all(nowhere, tmp_path, {"model": "org/name"}, {"model": "org/other"})
    assert cached == first
    assert "is not in the local cache, and the hub cannot be reached" in sentence(absent)


@pytest.mark.slow
def test_what_the_hub_refuses_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    unknown, gated, revision, file, file_revision = locate_all(
        hub.endpoint,
        tmp_path,
        {"model": "org/unknown"},
        {"model": "org/gated"},
        {"model": "org/name", "revision": "v9"},
        {"model": "org/name/none.gguf"},
        {"model": "org/name/q4.gguf", "revision": "v9"},
    )
    assert "'org/unknown' does not exist on the hub, or is private" in sentence(unknown)
    assert "'org/gated' needs permission" in sentence(gated)
    assert "'org/name' has no revision 'v9'" in sentence(revision)
    assert "'org/name/none.gguf' has no such file" in sentence(file)
    assert "has no revision 'v9'" in sentence(file_revision)


@pytest.mark.slow
def test_an_interrupted_download_is_taken_up_again(hub: Hub, tmp_path: Path) -> None:
    hub.broken_downloads = 1000
    (broken,) = locate_all(hub.endpoint, tmp_path, {"model": "org/name"})
    assert "'org/name' cannot be fetched" in sentence(broken)
    (offline,) = locate_all(hub.endpoint, tmp_path, {"model": "org/name"}, HF_HUB_OFFLINE="1")
    assert "is not in the local cache" in sentence(offline)
    hub.broken_downloads = 0
    (whole,) = locate_all(hub.endpoint, tmp_path, {"model": "org/name"})
    assert (Path(whole["path"]) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.slow
def test_code_comes_along_only_with_consent(hub: Hub, tmp_path: Path) -> None:
    locate_all(hub.endpoint, tmp_path, {"model": "org/name", "load_format": "dummy", "trust_remote_code": True})
    assert hub.downloads() == ["config.json", "modeling.py", "tokenizer.json"]
