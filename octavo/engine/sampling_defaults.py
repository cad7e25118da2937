"""What a model's `generation_config.json` says of sampling: the defaults of requests that say nothing themselves.

The file is of transformers. Its `do_sample` is passed over, as other servers do: a temperature of 0 says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.engine.folder_tokenizer import read_json
from octavo.errors import ConfigError, RequestError
from octavo.formats.source import ModelFiles
from octavo.request import SamplingParams

FILE = "generation_config.json"
AUTO, NONE = "auto", "vllm"
"""The model's own file, and no file: the defaults of `SamplingParams`."""

_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Field of the file -> field of `SamplingParams`."""


def read_sampling_defaults(choice: str, files: ModelFiles) -> Mapping[str, Any]:
    """Fields of `SamplingParams` and their defaults.

    Parameters:
        choice: `auto` for the file beside the model's config, where there is one; `vllm` for none; else a folder with
            such a file, or the file itself.

    Raises `ConfigError` where a named file is not there, or says what no request may say, and `ModelFileError` where it
    cannot be read.
    """
    if choice == NONE or (choice == AUTO and files.kind != "folder"):
        return {}
    path = files.path / FILE if choice == AUTO else Path(choice)
    path = path / FILE if path.is_dir() else path
    if choice != AUTO and not path.is_file():
        raise ConfigError(
            f"--generation-config is {choice}, where there is no {FILE}.",
            remedy=f"Name a folder that has one, or {AUTO} for the model's own, or {NONE} for none.",
        )
    told = read_json(path)
    defaults = {ours: told[theirs] for theirs, ours in _FIELDS.items() if told.get(theirs) is not None}
    try:
        SamplingParams(**defaults)
    except RequestError as error:
        raise ConfigError(
            f"{path} cannot be the defaults of requests: {error.fact}",
            remedy=f"Mend the file, or pass it over with --generation-config {NONE}.",
        ) from None
    return defaults
