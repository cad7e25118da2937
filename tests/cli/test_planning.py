"""`octavo plan` from the command line to its output and its exit code."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import run_octavo
from tests.formats.published import CONFIGS


@pytest.fixture
def gemma(tmp_path: Path) -> str:
    path = tmp_path / "gemma-27b.json"
    path.write_text(json.dumps(CONFIGS["Gemma-3-27b"]))
    return str(path)


def test_a_plan_that_fits_ends_with_0_and_one_that_does_not_with_2(monkeypatch: pytest.MonkeyPatch, gemma: str) -> None:
    fits = run_octavo(monkeypatch, ["plan", gemma, "--kv-memory", "24GiB", "--json"])
    assert fits.code == 0
    made = json.loads(fits.out)
    assert (made["fits"], made["model"]["name"]) == (True, "gemma-27b")
    short = run_octavo(monkeypatch, ["plan", "--model", gemma, "--kv-memory", "4GiB", "--json"])
    assert short.code == 2
    made = json.loads(short.out)
    assert (made["fits"], len(made["does_not_fit"]["remedies"])) == (False, 3)
    told = run_octavo(monkeypatch, ["plan", gemma, "--kv-memory", "4GiB"])
    assert told.code == 2
    assert "DOES NOT FIT" in told.out


def test_what_a_user_can_mend_ends_with_1(monkeypatch: pytest.MonkeyPatch, gemma: str, tmp_path: Path) -> None:
    for arguments, told in (
        (["no-such-model.gguf"], "no file or folder"),
        ([gemma, "--gpu", "h20000"], "list of devices"),
        ([gemma, "--model", "demo"], "Two models"),
        ([gemma, "--devices", str(tmp_path)], "--gpu"),
        ([gemma, "--kv-memory", "1GiB", "-tp", "3"], "--tensor-parallel-size is 3"),
    ):
        done = run_octavo(monkeypatch, ["plan", *arguments])
        assert done.code == 1
        assert told in done.err
        assert not done.out


def test_a_folder_with_a_config_alone_and_one_with_an_index_alone_are_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["Qwen3-8B"]))
    assert run_octavo(monkeypatch, ["plan", str(tmp_path), "--kv-memory", "8GiB"]).code == 0
    index = {"metadata": {"total_size": 16 * 2**30}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    done = run_octavo(monkeypatch, ["plan", str(tmp_path), "--memory", "48GiB", "--json"])
    assert json.loads(done.out)["weights"]["total_bytes"] == 16 * 2**30


@pytest.mark.slow
def test_it_starts_in_under_half_a_second_without_torch(gemma: str) -> None:
    """The processor's time, so that a busy machine does not count; the best of three."""
    program = (
        "import sys\n"
        "from octavo.cli import app\n"
        f"try: app(['plan', {gemma!r}, '--kv-memory', '24GiB'])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numba', 'numpy', 'huggingface_hub', 'rich'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.5
