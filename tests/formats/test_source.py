from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.config import Environment, ModelSource
from octavo.errors import ConfigError, ModelFileError
from octavo.formats import source
from octavo.formats.source import ModelFiles, locate, locate_tokenizer
from tests.formats import build

GGUF = build.gguf({"general.architecture": "llama"})


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(cache_dir=tmp_path / "cache", attention_backend="", ray_address="", num_threads=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as transformers saves it, in two shards."""
    path = tmp_path / "my-model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    for name in ("model-1.safetensors", "model-2.safetensors"):
        build.write(path / name, build.safetensors({"w": np.zeros(2, dtype=np.float32)}))
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def find(model: Path | str, environment: Environment, **options: Any) -> ModelFiles:
    return locate(ModelSource(model=str(model), **options), environment)


def test_a_folder_with_shards(folder: Path, environment: Environment) -> None:
    files = find(folder, environment)
    assert files.kind == "folder"
    assert files.name == "my-model"
    assert files.config_path == folder / "config.json"
    assert [path.name for path in files.weight_paths] == ["model-1.safetensors", "model-2.safetensors"]
    assert find(folder / "config.json", environment) == files


def test_a_folder_with_one_file_ignores_others(folder: Path, environment: Environment) -> None:
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").write_bytes(b"")
    assert [path.name for path in find(folder, environment).weight_paths] == ["model.safetensors"]


def test_a_folder_with_a_config_alone(folder: Path, environment: Environment) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    assert find(folder, environment).weight_paths == ()


def test_a_missing_shard_is_refused(folder: Path, environment: Environment) -> None:
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"names the file model-1.safetensors, which is missing"):
        find(folder, environment)


def test_a_gguf_file_and_a_folder_that_holds_one(tmp_path: Path, environment: Environment) -> None:
    path = build.write(tmp_path / "tiny.gguf", GGUF)
    files = find(path, environment)
    assert (files.kind, files.path, files.config_path, files.weight_paths) == ("gguf", path, None, (path,))
    assert files.name == "tiny"
    assert find(tmp_path, environment).path == path
    build.write(tmp_path / "other.gguf", GGUF)
    with pytest.raises(ModelFileError, match=r"holds 2 GGUF models: other.gguf, tiny.gguf"):
        find(tmp_path, environment)


def test_shards_of_a_gguf_file(tmp_path: Path, environment: Environment) -> None:
    shards = [build.write(tmp_path / f"big-0000{i}-of-00003.gguf", GGUF) for i in (1, 2, 3)]
    assert find(shards[1], environment).weight_paths == tuple(shards)
    assert find(tmp_path, environment).path == shards[0]
    shards[2].unlink()
    with pytest.raises(ModelFileError, match=r"big-00003-of-00003.gguf is missing"):
        find(shards[0], environment)


@pytest.mark.parametrize("name", ["README.md", "model", "config.yaml"])
def test_a_file_of_another_kind_is_refused_as_such(environment: Environment, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("# A model")
    with pytest.raises(ModelFileError, match=rf"{name} is neither a \.json file nor a GGUF file"):
        locate(ModelSource(model=str(tmp_path / name)), environment)
    build.write(tmp_path / name, GGUF)
    assert locate(ModelSource(model=str(tmp_path / name)), environment).kind == "gguf"


@pytest.mark.parametrize("model", ["./none", "none.gguf", "/no/such/folder", "a/b/c", "~nobody/x", "what ever"])
def test_what_is_not_there_is_refused_with_what_could_be(model: str, environment: Environment) -> None:
    with pytest.raises(ModelFileError, match="no file or folder") as caught:
        find(model, environment)
    assert "demo-smollm2" in caught.value.remedy


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("demo-x", "demo"),
        ("Demo", "demo"),
        ("dmeo", "demo"),
        ("demo2", "demo"),
        ("demo-smolm2", "demo-smollm2"),
        ("demo_smollm2", "demo-smollm2"),
        ("smollm2", "demo-smollm2"),
        ("demo-smollm2-x", "demo-smollm2"),
    ],
)
def test_a_name_like_a_demo_models_is_not_looked_for_on_the_hub(
    model: str, meant: str, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_hub", lambda: pytest.fail("the hub was asked"))
    with pytest.raises(ModelFileError, match=rf"There is no model '{model}'\. Did you mean {meant}\?") as caught:
        find(model, environment)
    assert "hub id" in caught.value.remedy


@pytest.mark.parametrize("model", ["gpt2", "org/demo", "org/demo-smollm", "democritus", "gemma-3-270m"])
def test_another_name_is_looked_for_on_the_hub(
    model: str, folder: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub(folder)
    use_hub(monkeypatch, hub)
    find(model, environment)
    assert len(hub.asked) == 1


def test_a_folder_without_a_model_is_refused(tmp_path: Path, environment: Environment) -> None:
    with pytest.raises(ModelFileError, match=r"neither a config.json nor a .gguf file"):
        find(tmp_path, environment)


def test_a_weight_file_alone_is_refused(folder: Path, environment: Environment) -> None:
    with pytest.raises(ModelFileError, match="weights alone") as caught:
        find(folder / "model-1.safetensors", environment)
    assert str(folder) in caught.value.remedy


def test_a_tokenizer_alone_is_enough_where_no_weights_are_wanted(tmp_path: Path, environment: Environment) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    files = locate(ModelSource(model=str(tmp_path)), environment, config_only=True)
    assert (files.kind, files.path, files.config_path) == ("folder", tmp_path, None)
    with pytest.raises(ModelFileError):
        find(tmp_path, environment)


def test_a_folders_own_tokenizer_comes_before_that_of_a_model_in_it(tmp_path: Path, environment: Environment) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    source = ModelSource(model=str(tmp_path))
    assert locate_tokenizer(source, environment).kind == "gguf"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert locate_tokenizer(source, environment).kind == "folder"
    assert locate(source, environment).kind == "gguf"


@pytest.mark.parametrize("model", ["demo", "FOLDER"])
def test_a_revision_of_what_has_none_is_refused(
    model: str, folder: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.formats.source.demo_file", lambda *_: folder / "model.gguf")
    source = ModelSource(model=model.replace("FOLDER", str(folder)), revision="v2")
    for find_files in (locate, locate_tokenizer):
        with pytest.raises(ConfigError, match=r"^The revision 'v2' is asked for, but .* Leave --revision out"):
            find_files(source, environment)


class FakeHub:
    """Stands in for huggingface_hub. Owns: what it was asked. Never: a network."""

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        self.folder = folder
        self.error = error
        self.asked: list[dict[str, Any]] = []

    def snapshot_download(self, repository: str, **options: Any) -> str:
        self.asked.append({"repository": repository, **options})
        if self.error is not None:
            raise self.error
        return str(self.folder)

    def hf_hub_download(self, repository: str, file_name: str, *, revision: str | None) -> str:
        self.asked.append({"repository": repository, "file": file_name, "revision": revision})
        return str(self.folder / file_name)


def use_hub(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> None:
    monkeypatch.setattr(source.importlib, "import_module", lambda name: hub)


def test_a_hub_id_is_downloaded_with_its_revision(
    folder: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub(folder)
    use_hub(monkeypatch, hub)
    files = find("org/name", environment, revision="abc")
    assert (files.name, files.path) == ("org/name", folder)
    assert hub.asked[0]["revision"] == "abc"
    assert "*.safetensors" in hub.asked[0]["allow_patterns"]
    assert "*.py" not in hub.asked[0]["allow_patterns"]
    locate(ModelSource(model="org/name"), environment, config_only=True)
    assert "*.safetensors" not in hub.asked[1]["allow_patterns"]
    find("org/name", environment, load_format="dummy", trust_remote_code=True)
    assert "*.safetensors" not in hub.asked[2]["allow_patterns"]
    assert "*.py" in hub.asked[2]["allow_patterns"]


def test_one_file_of_a_hub_repository(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.write(tmp_path / "q4.gguf", GGUF)
    hub = FakeHub(tmp_path)
    use_hub(monkeypatch, hub)
    assert find("org/name/q4.gguf", environment).path == tmp_path / "q4.gguf"
    assert hub.asked == [{"repository": "org/name", "file": "q4.gguf", "revision": None}]


def test_all_shards_of_a_hub_file_are_fetched(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"q4-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for name in names:
        build.write(tmp_path / name, GGUF)
    hub = FakeHub(tmp_path)
    use_hub(monkeypatch, hub)
    files = find(f"org/name/{names[1]}", environment)
    assert [asked["file"] for asked in hub.asked] == names
    assert [path.name for path in files.weight_paths] == names


def _error(name: str, *bases: type[Exception]) -> Exception:
    return type(name, bases or (OSError,), {})("first line\nsecond line")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "message", "remedy"),
    [
        (_error("GatedRepoError"), "needs permission", "HF_TOKEN"),
        (_error("RepositoryNotFoundError"), "does not exist on the hub", "spelling"),
        (_error("RevisionNotFoundError"), "has no revision 'abc'", "--revision"),
        (_error("OfflineModeIsEnabled", ConnectionError), "HF_HUB_OFFLINE is set", "local folder"),
        (_error("LocalEntryNotFoundError"), "not in the local cache", "HF_ENDPOINT"),
        (_error("HFValidationError", ValueError), "cannot be fetched: first line", "network"),
    ],
)
def test_hub_errors_say_what_to_do(
    folder: Path,
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    message: str,
    remedy: str,
) -> None:
    use_hub(monkeypatch, FakeHub(folder, error))
    with pytest.raises(ModelFileError, match=message) as caught:
        find("org/name", environment, revision="abc")
    assert remedy in caught.value.remedy
    assert "second line" not in str(caught.value)


def test_a_missing_hub_client_is_named(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> SimpleNamespace:
        raise ImportError(name)

    monkeypatch.setattr(source.importlib, "import_module", fail)
    with pytest.raises(ModelFileError, match="huggingface_hub, which is not installed") as caught:
        find("org/name", environment)
    assert "pip install" in caught.value.remedy


@pytest.mark.slow
def test_the_real_hub_client_offline(tmp_path: Path) -> None:
    program = (
        "from octavo.config import ModelSource, read_environment\n"
        "from octavo.errors import ConfigError, ModelFileError\n"
        "from octavo.formats.source import locate\n"
        "try:\n"
        "    locate(ModelSource(model='org/name'), read_environment())\n"
        "except ModelFileError as error:\n"
        "    print(error)\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert "is not in the local cache" in done.stdout
    assert "give a local folder" in done.stdout


@pytest.mark.parametrize("model", ["x" * 5000, "a\0b"])
def test_a_name_that_no_file_can_have_is_none(environment: Environment, model: str) -> None:
    with pytest.raises(ModelFileError, match="There is no file or folder") as caught:
        find(model + "/", environment)
    assert len(str(caught.value)) < 500


def test_a_shard_may_be_a_link_to_elsewhere(folder: Path, environment: Environment, tmp_path: Path) -> None:
    """The hub's cache is made of such links; a link is the work of who owns the folder, not of the index in it."""
    elsewhere = tmp_path / "blobs" / "0123"
    elsewhere.parent.mkdir()
    (folder / "model-1.safetensors").rename(elsewhere)
    (folder / "model-1.safetensors").symlink_to(elsewhere)
    assert (folder / "model-1.safetensors") in find(folder, environment).weight_paths
    elsewhere.unlink()
    with pytest.raises(ModelFileError, match=r"names the file model-1.safetensors, which is missing"):
        find(folder, environment)


def test_any_json_file_is_a_config_alone(tmp_path: Path, environment: Environment) -> None:
    path = tmp_path / "llama-70b.json"
    path.write_text("{}")
    files = find(path, environment)
    assert (files.name, files.config_path, files.weight_paths) == ("llama-70b", path, ())


def test_weights_that_are_listed_and_absent_are_missed_only_where_they_are_wanted(
    tmp_path: Path, environment: Environment
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    assert locate(ModelSource(model=str(tmp_path)), environment, config_only=True).weight_paths == ()
    with pytest.raises(ModelFileError, match=r"model-1\.safetensors, which is missing"):
        find(tmp_path, environment)
