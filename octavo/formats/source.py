"""Find a model's files: a demo model, a folder, a file, or a hub id."""

from __future__ import annotations

import difflib
import importlib
import os
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from octavo.config import Environment, ModelSource
from octavo.errors import ConfigError, ModelFileError
from octavo.formats.demo import DEMO_MODELS, demo_file
from octavo.formats.safetensors import read_safetensors_index

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?")
_HUB_FILE = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)/([\w./-]+\.gguf)")
_SHARD = re.compile(r"(.*-)(\d{5})-of-(\d{5})\.gguf")
MAX_SHARDS = 1000
SAFETENSORS_INDEX = "model.safetensors.index.json"
"""The file that tells in which of several files each tensor lies."""
_OFFLINE = "OfflineModeIsEnabled"
_CONFIG_PATTERNS = ["*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt", "*.tiktoken"]
_WEIGHT_PATTERNS = ["*.safetensors"]


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A model's files on this machine."""

    kind: Literal["gguf", "folder"]
    path: Path
    """The (first) GGUF file, or the folder."""
    config_path: Path | None
    """The folder's `config.json`; None for a GGUF file, which is its own config."""
    weight_paths: tuple[Path, ...]
    """GGUF or safetensors files, in order; empty when the folder holds a config alone."""
    name: str
    """What to call the model in answers and logs."""


def locate(source: ModelSource, environment: Environment, *, config_only: bool = False) -> ModelFiles:
    """The files of `source.model`, downloaded or assembled first where need be.

    `config_only` leaves the weights of a hub id where they are, takes a folder that holds a tokenizer alone, and one
    whose weights are listed but not there.
    Raises `ModelFileError` with a remedy when there is no such model or its files are not complete, `ConfigError` for a
    revision of what has none.
    """
    model = source.model
    files = _local_files(model, environment, config_only=config_only)
    if files is not None:
        if source.revision is not None:
            raise ConfigError(
                f"The revision {source.revision!r} is asked for, but {model[:200]} lies on this machine, where a model "
                "has none.",
                remedy="Leave --revision out, or give a hub id.",
            )
        return files
    if match := _HUB_FILE.fullmatch(model):
        return _gguf_files(_hub_gguf(match[1], match[2], source.revision), match[1])
    if meant := _like_a_demo(model):
        raise ModelFileError(
            f"There is no model {model!r}.",
            remedy=f"Did you mean {' or '.join(meant)}? If not, give a folder, a file or a hub id (org/name).",
        )
    if _HUB_ID.fullmatch(model) and Path(model).suffix not in (".gguf", ".json", ".safetensors"):
        return _folder_files(_hub_snapshot(source, config_only=config_only), model, config_only=config_only)
    raise ModelFileError(
        f"There is no file or folder {model[:200]!r}.",
        remedy="Give `demo`, `demo-smollm2`, a folder with config.json, a .gguf file, or a hub id such as org/name.",
    )


def locate_tokenizer(source: ModelSource, environment: Environment) -> ModelFiles:
    """The files of the tokenizer `source.model`: of a folder that also holds a GGUF model, the tokenizer's own.

    Raises as `locate`.
    """
    folder = Path(source.model).expanduser()
    if source.model not in DEMO_MODELS and source.revision is None and _is_dir(folder) and _has_tokenizer(folder):
        return ModelFiles(kind="folder", path=folder, config_path=None, weight_paths=(), name=folder.resolve().name)
    return locate(source, environment, config_only=True)


def _has_tokenizer(folder: Path) -> bool:
    return any(_is_file(folder / file) for file in ("tokenizer.json", "tokenizer_config.json"))


def _local_files(model: str, environment: Environment, *, config_only: bool) -> ModelFiles | None:
    """The files of a demo model, a folder or a file; None where `model` is none of them."""
    if model in DEMO_MODELS:
        demo = DEMO_MODELS[model]
        return _gguf_files(demo_file(demo, environment.cache_dir), demo.name)
    path = Path(model).expanduser()
    if _is_dir(path):
        return _folder_files(path, path.resolve().name, config_only=config_only)
    if _is_file(path):
        return _single_file(path, config_only=config_only)
    return None


def _like_a_demo(model: str) -> list[str]:
    """Names of demo models that `model`, which is none, seems to mean: written a little differently, or with more.

    Such a name is not looked for on the hub, where it would take a while to fail.
    """
    if not re.fullmatch(r"[\w-]+", model):
        return []
    name = model.lower().replace("_", "-")
    if name in DEMO_MODELS:
        return [name]
    begun = [demo for demo in DEMO_MODELS if re.match(rf"{demo}(-|\d)", name)]
    if near := difflib.get_close_matches(name, DEMO_MODELS, n=2, cutoff=0.7):
        return near
    return [max(begun, key=len)] if begun else []


def _is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have (too long, a NUL in it) is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _single_file(path: Path, *, config_only: bool) -> ModelFiles:
    if path.name == "config.json":
        return _folder_files(path.parent, path.resolve().parent.name, config_only=config_only)
    if path.suffix == ".json":
        return ModelFiles(kind="folder", path=path.parent, config_path=path, weight_paths=(), name=path.stem)
    if path.suffix == ".safetensors":
        raise ModelFileError(
            f"{path} holds weights alone, without a config.", remedy=f"Give its folder, {path.parent}, instead."
        )
    if path.suffix != ".gguf" and not _begins_as_gguf(path):
        raise ModelFileError(
            f"{path} is neither a .json file nor a GGUF file.",
            remedy="Give a folder with config.json, its config.json, or a .gguf file.",
        )
    return _gguf_files(path, path.stem)


def _begins_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return True  # who opens it next says why it cannot be read


def _gguf_files(path: Path, name: str) -> ModelFiles:
    match = _SHARD.fullmatch(path.name)
    paths: tuple[Path, ...] = (path,)
    if match and int(match[3]) <= MAX_SHARDS:
        paths = tuple(path.with_name(f"{match[1]}{i:05}-of-{match[3]}.gguf") for i in range(1, int(match[3]) + 1))
        for shard in paths:
            if not _is_file(shard):
                raise ModelFileError(
                    f"{path} is one of {len(paths)} shards, and {shard.name} is missing.",
                    remedy=f"Put all shards into {path.parent}.",
                )
    return ModelFiles(kind="gguf", path=paths[0], config_path=None, weight_paths=paths, name=name)


def _folder_files(folder: Path, name: str, *, config_only: bool = False) -> ModelFiles:
    config = folder / "config.json"
    if _is_file(config):
        weights = _folder_weights(folder, config_only=config_only)
        return ModelFiles(kind="folder", path=folder, config_path=config, weight_paths=weights, name=name)
    gguf_files = sorted(folder.glob("*.gguf"))
    first_shards = [path for path in gguf_files if not (match := _SHARD.fullmatch(path.name)) or int(match[2]) == 1]
    if len(first_shards) == 1:
        return _gguf_files(first_shards[0], name)
    if first_shards:
        raise ModelFileError(
            f"{folder} holds {len(first_shards)} GGUF models: {', '.join(path.name for path in first_shards[:8])}.",
            remedy=f"Name one of them, such as {first_shards[0]}.",
        )
    if config_only and _has_tokenizer(folder):
        return ModelFiles(kind="folder", path=folder, config_path=None, weight_paths=(), name=name)
    raise ModelFileError(
        f"{folder} holds neither a config.json nor a .gguf file.",
        remedy="Give a folder that was saved by transformers, or a .gguf file.",
    )


def _folder_weights(folder: Path, *, config_only: bool) -> tuple[Path, ...]:
    index = folder / SAFETENSORS_INDEX
    single = folder / "model.safetensors"
    if _is_file(index):
        names = sorted(set(read_safetensors_index(index).values()))
        for name in names:
            if not _is_file(folder / name):
                if config_only:
                    return ()
                raise ModelFileError(
                    f"{index} names the file {name[:200]}, which is missing.", remedy="Download the model again."
                )
        return tuple(folder / name for name in names)
    return (single,) if _is_file(single) else tuple(sorted(folder.glob("*.safetensors")))


def _hub() -> Any:
    """The hub client, loaded only when a hub id is given: it costs a third of a second."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise ModelFileError(
            "A hub id needs the package huggingface_hub, which is not installed.",
            remedy="Run `pip install octavo[run]`, or give a folder or a .gguf file.",
        ) from None


def _hub_snapshot(source: ModelSource, *, config_only: bool) -> Path:
    hub = _hub()
    patterns = list(_CONFIG_PATTERNS)
    if not config_only and source.load_format != "dummy":
        patterns += _WEIGHT_PATTERNS
    if source.trust_remote_code:
        patterns.append("*.py")
    try:
        return Path(hub.snapshot_download(source.model, revision=source.revision, allow_patterns=patterns))
    except Exception as error:  # the client lets errors of its HTTP library through, which have no common base
        raise _hub_error(source.model, source.revision, error) from None


def _hub_gguf(repository: str, file_name: str, revision: str | None) -> Path:
    """The file, or where it is a shard the first one, with all others beside it."""
    match = _SHARD.fullmatch(file_name)
    if match is None:
        return _hub_file(repository, file_name, revision)
    names = [f"{match[1]}{number:05}-of-{match[3]}.gguf" for number in range(1, min(int(match[3]), MAX_SHARDS) + 1)]
    paths = [_hub_file(repository, name, revision) for name in names]
    return paths[0]


def _hub_file(repository: str, file_name: str, revision: str | None) -> Path:
    try:
        return Path(_hub().hf_hub_download(repository, file_name, revision=revision))
    except Exception as error:  # the client lets errors of its HTTP library through, which have no common base
        raise _hub_error(f"{repository}/{file_name}", revision, error) from None


def _hub_error(model: str, revision: str | None, error: Exception) -> ModelFileError:
    """The hub client's error as one sentence with a remedy. Its classes are told apart by name, most telling first."""
    names = [cls.__name__ for cls in type(error).__mro__]
    if isinstance(error.__cause__, Exception):
        # That nothing may be asked is told as the cause of what is not found.
        names = [name for cls in type(error.__cause__).__mro__ if (name := cls.__name__) == _OFFLINE] + names
    remedies = {
        "GatedRepoError": ("needs permission", "Ask for access on its page and set HF_TOKEN."),
        "RepositoryNotFoundError": (
            "does not exist on the hub, or is private",
            "Check the spelling; set HF_TOKEN for a private one; give a path for a local folder.",
        ),
        "RevisionNotFoundError": (f"has no revision {revision!r}", "Check --revision."),
        "EntryNotFoundError": ("has no such file", "Check the file's name on the model's page."),
        _OFFLINE: (
            "is not in the local cache, and the hub may not be asked while HF_HUB_OFFLINE is set",
            "Unset HF_HUB_OFFLINE once to download it, or give a local folder.",
        ),
        "LocalEntryNotFoundError": (
            "is not in the local cache, and the hub cannot be reached",
            "Check the network and HF_ENDPOINT, or give a local folder.",
        ),
    }
    for name in names:
        if name in remedies:
            what, remedy = remedies[name]
            return ModelFileError(f"The hub model {model!r} {what}.", remedy=remedy)
    reason = str(error).strip().split(os.linesep)[0] or type(error).__name__
    return ModelFileError(
        f"The hub model {model!r} cannot be fetched: {reason}.",
        remedy="Check the network and HF_ENDPOINT, or give a local folder or .gguf file.",
    )
