"""Every causal-LM type of transformers: its layers' caches are told from its config, or the field is named that is not.

`families.json` beside this file is the table; `python -m tests.planning.test_families` writes it anew.
"""

from __future__ import annotations

import json
from pathlib import Path

from octavo.errors import OctavoError, UnsupportedModelError
from octavo.formats.config_fields import config_table
from tests.planning.build import planned

TABLE = Path(__file__).with_name("families.json")


def answer(model_type: str) -> str:
    """What is planned for a config that says nothing but its type: the kinds of its layers, or the refused field."""
    facts = config_table()[model_type]
    config: dict[str, object] = {"model_type": model_type}
    if facts.text is not None:
        config[facts.text[0]] = {"model_type": facts.text[1]}
    try:
        asked = planned(config, 0, max_model_len=64, dtype="bfloat16")
    except UnsupportedModelError as error:
        return f"refused: {error.numbers['field']}"
    except OctavoError as error:
        return f"refused: {type(error).__name__}: {error.fact}"
    kinds = [spec.kind for specs in asked.specs_by_rank for spec in specs.values()]
    shared = sum(map(len, asked.shared_by_rank))
    told = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)] + ([f"{shared} shared"] if shared else [])
    return ", ".join(told)


def answers() -> dict[str, str]:
    return {model_type: answer(model_type) for model_type in config_table()}


def test_every_type_is_planned_or_refused_by_a_field() -> None:
    found = answers()
    assert found == json.loads(TABLE.read_text()), "if this is meant: python -m tests.planning.test_families"
    refused = [text for text in found.values() if text.startswith("refused")]
    assert all(": " in text and "Error" not in text for text in refused), refused
    assert len(found) - len(refused) > 150


if __name__ == "__main__":
    TABLE.write_text(json.dumps(answers(), indent=1) + "\n")
