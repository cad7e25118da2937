"""Write octavo/formats/config_defaults.json: what transformers' classes say where a config is silent.

Run `python -m tools.make_config_defaults` after changing the supported transformers. With `--check` nothing is written:
the exit status tells whether the file is up to date.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import re
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

import msgspec
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from octavo.formats.config_fields import FIELDS, OPTIONAL_FIELDS, TypeFacts
from tools.imports import ROOT

PATH = ROOT / "octavo" / "formats" / "config_defaults.json"

MASKS = {
    "sliding": "create_sliding_window_causal_mask",
    "chunked": "create_chunked_causal_mask",
    "bidirectional": "create_bidirectional_mask",
}
"""Functions of transformers whose names in a modeling file show which masks it builds."""

LENGTHS = (*range(1, 10), 12, 17, 26, 61)
"""Numbers of layers at which a class's pattern is looked at."""

LONGEST_PATTERN = 12


def make_table() -> dict[str, TypeFacts]:
    """Facts of every causal-LM type, of the text parts of composite ones, and of other composites over those."""
    logging.disable(logging.WARNING)
    table: dict[str, TypeFacts] = {}
    for model_type, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        name = architecture if isinstance(architecture, str) else architecture[0]
        table[model_type] = _facts(model_type, name)
    for model_type in CONFIG_MAPPING:
        text = _text_part(CONFIG_MAPPING[model_type])
        if text is None or (model_type not in table and text[1] not in table):
            continue
        if model_type not in table:
            table[model_type] = TypeFacts(text=text)
        if text[1] not in table:
            table[text[1]] = _facts(text[1], None)
    return dict(sorted(table.items()))


def _facts(model_type: str, architecture: str | None) -> TypeFacts:
    config_class = CONFIG_MAPPING[model_type]
    text = _text_part(config_class)
    names = {
        usual: _of_decoder(own, config_class)
        for usual, own in getattr(config_class, "attribute_map", {}).items()
        if usual in FIELDS
    }
    wanted = FIELDS | set(names.values())
    defaults = {
        field.name: value
        for field in dataclasses.fields(config_class)
        if field.name in wanted and field.name != "dtype" and _is_plain(value := _default(field))
    }
    source = _modeling_text(architecture)
    if text is not None:
        names, defaults, source = {}, {}, ""
    return TypeFacts(
        architecture=architecture,
        text=text,
        names=dict(sorted(names.items())),
        defaults=dict(sorted(defaults.items())),
        masks=_masks(source),
        reads=_reads(source, {*defaults, *names}),
        pattern=None if text is not None else _pattern(config_class),
    )


def _of_decoder(field: str, config_class: Any) -> str:
    """The decoder's field where the class counts its encoder's: the decoder alone is the causal language model."""
    of_decoder = field.replace("encoder", "decoder")
    return of_decoder if of_decoder in {known.name for known in dataclasses.fields(config_class)} else field


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, list, tuple))


def _text_part(config_class: Any) -> tuple[str, str] | None:
    """(field, model type) of the text part, as `get_text_config` finds it."""
    part = (getattr(config_class, "sub_configs", None) or {}).get("text_config")
    if part is None:
        return None
    if not hasattr(part, "model_type") or part.__name__ == "AutoConfig":
        try:
            built = config_class().text_config
        except Exception:  # a composite that cannot be built without its parts
            return None
        part = type(built)
    return ("text_config", part.model_type) if part.model_type in CONFIG_MAPPING else None


def _modeling_text(architecture: str | None) -> str:
    """The source of the class's module; empty for a type without a class of its own."""
    module = transformers._class_to_module.get(architecture or "")
    if module is None:
        return ""
    return (
        Path(transformers.__file__).parent.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    )


def _masks(text: str) -> tuple[str, ...]:
    """A mask counts when the module uses its function: once is the import alone."""
    return tuple(name for name, function in MASKS.items() if text.count(function) > 1)


def _reads(text: str, declared: Container[str]) -> tuple[str, ...]:
    """Fields that the class lacks, but that its code asks a config for."""
    asked = {field: rf"config\.{field}\b|config, [\"']{field}[\"']" for field in OPTIONAL_FIELDS}
    return tuple(field for field, pattern in asked.items() if field not in declared and re.search(pattern, text))


def _pattern(config_class: Any) -> tuple[tuple[str, ...], ...] | None:
    """The shortest (first, repeated, last) that gives the class's layer types at every number of layers."""
    lists: dict[int, list[str]] = {}
    for length in LENGTHS:
        try:
            config = config_class(num_hidden_layers=length)
            listed = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
        except Exception:  # a class whose other fields do not go with this length
            continue
        if listed and len(listed) == length:
            lists[length] = list(listed)
    if len(lists) < len(LENGTHS) // 2:
        return None
    longest = lists[max(lists)]
    for num_last in (0, 1):
        for num_first in range(5):
            for period in range(1, LONGEST_PATTERN + 1):
                first = tuple(longest[:num_first])
                repeated = tuple(longest[num_first : num_first + period])
                last = tuple(longest[len(longest) - num_last :])
                if all(_expand(first, repeated, last, length) == listed for length, listed in lists.items()):
                    return first, repeated, last
    return None


def _expand(first: tuple[str, ...], repeated: tuple[str, ...], last: tuple[str, ...], length: int) -> list[str]:
    types = [first[i] if i < len(first) else repeated[(i - len(first)) % len(repeated)] for i in range(length)]
    if last:
        types[max(0, length - len(last)) :] = last[-length:]
    return types


def render(table: dict[str, TypeFacts]) -> bytes:
    """One line per model type, so that a change shows as such."""
    lines = [
        f"{msgspec.json.encode(name).decode()}: {msgspec.json.encode(facts).decode()}" for name, facts in table.items()
    ]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when the file is stale")
    fresh = render(make_table())
    if parser.parse_args().check:
        return 0 if PATH.read_bytes() == fresh else 1
    PATH.write_bytes(fresh)
    print(f"{PATH.relative_to(ROOT)}: {len(fresh)} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
