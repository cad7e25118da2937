"""The public surface: what `octavo` offers, and that it costs nothing until it is used."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import pytest

import octavo

PUBLIC = {
    "LLM", "AsyncLLM", "BeamSearchParams", "EngineConfig", "SamplingParams", "StructuredOutputsParams", "plan_kv_cache",
    "__version__",
}  # fmt: skip


def test_the_public_names_are_these_and_exist() -> None:
    assert set(octavo.__all__) == set(dir(octavo)) == PUBLIC
    assert all(getattr(octavo, name) is not None for name in octavo.__all__)


def test_each_name_is_the_one_of_its_home() -> None:
    from octavo.config import EngineConfig
    from octavo.planning.library import plan_kv_cache
    from octavo.request import SamplingParams

    assert octavo.EngineConfig is EngineConfig
    assert octavo.SamplingParams is SamplingParams
    assert octavo.plan_kv_cache is plan_kv_cache


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'octavo' has no attribute 'LMM'"):
        _ = octavo.LMM


def test_the_version_is_that_of_the_package() -> None:
    assert octavo.__version__ == importlib.metadata.version("octavo")


def test_import_octavo_loads_no_library_of_the_device_house() -> None:
    program = "import octavo, sys; octavo.SamplingParams; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "20000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["default", "count-chosen", "policy-chosen"],
)
def test_idle_threads_sleep_soon_unless_the_user_chose(given: dict[str, str], spins: str) -> None:
    inherited = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    program = "import octavo, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=inherited | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == spins
