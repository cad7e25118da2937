"""Every type loads in a command's process, whose torch lacks its operators in Python, as it does anywhere else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.walk.tiny_model import model_types, save_tiny_model
from tools.models_page import RUNS, page_rows

_PROGRAM = """
import json, sys
from pathlib import Path
from octavo.importing import import_torch
import_torch()
from octavo.config import CacheConfig, EngineConfig, ModelSource
from octavo.engine.core import EngineCore
from octavo.errors import OctavoError

outcomes = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    config = EngineConfig(
        model=ModelSource(model=str(folder), dtype="float32", max_model_len=64),
        cache=CacheConfig(block_size=4, kv_memory_bytes=16 << 20),
    )
    try:
        EngineCore(config).shutdown()
        outcomes[folder.name] = ""
    except OctavoError as error:
        outcomes[folder.name] = str(error)
outcomes["complete"] = "torch._meta_registrations" in sys.modules
print(json.dumps(outcomes))
"""


def _check(names: tuple[str, ...], folder: Path) -> None:
    for name in names:
        (folder / name).mkdir()
        save_tiny_model(name, folder / name, spread=0.15)
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert not outcomes.pop("complete"), "something imported torch's operators in Python"
    assert sorted(outcomes) == sorted(names)
    assert {name: refusal for name, refusal in outcomes.items() if refusal} == {}


@pytest.mark.slow
def test_a_few_types_load_with_a_narrow_torch(tmp_path: Path) -> None:
    _check(("llama", "gemma3_text", "qwen3_next", "gpt_oss", "deepseek_v3"), tmp_path)


@pytest.mark.long
def test_every_type_that_runs_loads_with_a_narrow_torch(tmp_path: Path) -> None:
    rows = page_rows()
    _check(tuple(name for name in model_types() if RUNS in rows[name]), tmp_path)
