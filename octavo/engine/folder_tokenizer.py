"""The tokenizer of a folder that transformers saved: `tokenizer.json` and the files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.engine.codec import SpecialTokens, TokenizerParts
from octavo.engine.library_codec import LibraryCodec, load_library_file
from octavo.errors import ModelFileError

_PROBE = "a"
"""Encoded with and without what the file adds, to see what it adds."""


def load_folder_tokenizer(folder: Path) -> TokenizerParts:
    """Raises `ModelFileError` when one of the files is damaged."""
    tokenizer = load_library_file(folder / "tokenizer.json")
    codec = LibraryCodec(tokenizer)
    config = read_json(folder / "tokenizer_config.json")
    added = tokenizer.get_added_tokens_decoder()
    special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
    bos = tokenizer.token_to_id(token_text(config.get("bos_token")))
    eos = tokenizer.token_to_id(token_text(config.get("eos_token")))
    prefix_ids, suffix_ids = _added_ids(
        tokenizer.encode(_PROBE, add_special_tokens=True).ids, tokenizer.encode(_PROBE, add_special_tokens=False).ids
    )
    # transformers heeds these two flags as well, whatever the tokenizer.json adds.
    if config.get("add_bos_token") and bos is not None and not prefix_ids:
        prefix_ids = (bos,)
    if config.get("add_eos_token") and eos is not None and not suffix_ids:
        suffix_ids = (eos,)
    return TokenizerParts(
        codec,
        SpecialTokens(
            bos_token_id=bos,
            eos_token_ids=end_ids(folder, eos),
            special_ids=special_ids,
            prefix_ids=prefix_ids,
            suffix_ids=suffix_ids,
        ),
        chat_templates(folder, config),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`, empty when there is no such file. Raises `ModelFileError` when it is no JSON object."""
    if not path.is_file():
        return {}
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}.", remedy="Download the file again.") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object.", remedy="Download the file again.")
    return value


def token_text(token: Any) -> str:
    """The text of a token as tokenizer_config.json writes it: a string, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def end_ids(folder: Path, eos_token_id: int | None) -> tuple[int, ...]:
    """Ids that end a completion: those of generation_config.json or else config.json, and the tokenizer's own."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id")
        ids = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int)]
        if ids:
            break
    if eos_token_id is not None:
        ids.append(eos_token_id)
    return tuple(dict.fromkeys(ids))


def chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Jinja sources by name, from the files that transformers looks into, the first of them for each name."""
    templates: dict[str, str] = {}
    single = folder / "chat_template.jinja"
    if single.is_file():
        templates["default"] = single.read_text(encoding="utf-8", errors="replace")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates.setdefault(path.stem, path.read_text(encoding="utf-8", errors="replace"))
    for stored in (config.get("chat_template"), read_json(folder / "chat_template.json").get("chat_template")):
        if isinstance(stored, str):
            templates.setdefault("default", stored)
        for entry in stored if isinstance(stored, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                templates.setdefault(str(entry.get("name", "default")), entry["template"])
    return templates


def _added_ids(with_added: Sequence[int], without: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What stands before and behind `without` in `with_added`."""
    num_extra = len(with_added) - len(without)
    for start in range(num_extra + 1):
        if list(with_added[start : start + len(without)]) == list(without):
            return tuple(with_added[:start]), tuple(with_added[start + len(without) :])
    return (), ()
