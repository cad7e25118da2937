"""`octavo generate` as a process of its own: streams, signals, start-up stages, the demo model."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parity.tiny import HYBRID, build_model

pytestmark = pytest.mark.slow

OCTAVO = [sys.executable, "-m", "octavo", "generate"]
STAGES = [
    "start_python", "import_readers", "import_torch", "import_libraries", "await_readers", "prepare_files",
    "locate_model", "read_config", "load_tokenizer", "create_executor", "init_device", "find_class",
    "list_parameters", "read_weights", "build_model", "examine_model", "replace_modules", "examine_again",
    "check_head", "load_model", "start_executor", "get_kv_cache_specs", "determine_available_memory",
    "plan_kv_cache", "allocate_kv_cache", "view_kv_cache", "bind_kv_cache", "initialize_from_config", "warm_up",
    "build_scheduler", "ready",
]  # fmt: skip
"""Start-up as DESIGN orders it, and what the front adds before and after."""

HEAVY = (
    "torch._meta_registrations", "torch._decomp", "torch._refs", "torch._prims", "torch._dynamo", "torch._inductor",
    "torch.distributed.tensor", "torch.distributed.fsdp", "sympy", "networkx", "sklearn", "pandas",
    "matplotlib", "torchvision", "tensorflow", "jax", "transformers.pipelines", "transformers.models.auto.auto",
)  # fmt: skip
"""Modules that a command needs for nothing, and that some part of torch, transformers or numba would import."""

LIBRARY_BYTES = 700e6
"""What a process may take beside weights and cache: Python, torch, numba, transformers, tables, one step's tensors."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("toy")
    build_model(folder, {**HYBRID, "max_position_embeddings": 100_000})
    return [*OCTAVO, "--model", str(folder), "--dtype", "float32", "--kv-memory", "128MiB", "--ignore-eos"]


@contextlib.contextmanager
def _endless(toy: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A run that would go on for a long time, whose first text has come."""
    command = [*toy, "--max-tokens", "0", "w5 w6 w7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(4), process.stderr.read() if process.stderr else b""
            yield process
        finally:
            process.kill()


def test_ctrl_c_ends_a_run_at_once_and_without_a_traceback(toy: list[str]) -> None:
    with _endless(toy) as process:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert said.endswith(b"\ninterrupted\n")


def test_a_reader_that_goes_away_ends_a_run_without_an_error(toy: list[str]) -> None:
    with _endless(toy) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(timeout=60) == 0
    assert b"Traceback" not in said


def test_a_run_imports_nothing_heavy_that_it_does_not_need(toy: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", *toy[1:], "--json", "--max-tokens", "1", "w5 w6"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert "torch.nn" in imported and "transformers.modeling_utils" in imported
    assert [name for name in imported if name in HEAVY or name.startswith(tuple(f"{heavy}." for heavy in HEAVY))] == []


@pytest.mark.model
def test_a_process_takes_little_beside_weights_and_cache(tmp_path: Path) -> None:
    workload = tmp_path / "workload.json"
    workload.write_text(json.dumps({"name": "memory", "requests": [{"prompt": [*range(100, 116)], "max_tokens": 2}]}))
    command = [sys.executable, "-m", "octavo", "bench", "offline", "--workload", str(workload), "--json"]
    done = subprocess.run(
        [*command, "--model", "demo-smollm2", "--max-model-len", "1K", "--kv-memory", "64MiB"],
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(done.stdout)
    settings = document["settings"]
    assert document["figures"]["peak_rss_bytes"] < settings["weight_bytes"] + settings["pool_bytes"] + LIBRARY_BYTES


@pytest.mark.model
def test_the_demo_model_goes_through_every_stage_and_answers_in_json(tmp_path: Path) -> None:
    # The default dtype depends on the processor.
    command = [*OCTAVO, "-v", "--json", "--dtype", "bfloat16", "--kv-memory", "256MiB", "--max-tokens", "8"]
    prompt = "The history of the printed book begins"
    done = subprocess.run(command, input=prompt, capture_output=True, text=True, check=True, cwd=tmp_path)
    told = [line.split()[2:] for line in done.stderr.splitlines()]
    names = [words[2] if words[0] == "rank" else words[0] for words in told]
    # Files are found and the tokenizer is read while libraries are imported, so their place among the others varies.
    assert sorted(set(names) - {"compile_attention", "first_steps"}) == sorted(set(STAGES))
    beside = ("prepare_files", "load_tokenizer")
    in_order = [name for name in names if name in STAGES and name not in beside]
    assert [name for name in dict.fromkeys(in_order) if name != "start_executor"] == [
        name for name in STAGES if name not in (*beside, "start_executor")
    ]
    document = json.loads(done.stdout)
    (output,) = document["outputs"]
    assert output["prompt"] == prompt
    assert (len(output["token_ids"]), output["finish_reason"]) == (8, "length")
    assert output["text"].startswith(" with the invention of the printing press")
    figures = document["figures"]
    assert figures["load_s"] > figures["ttft_s"] > 0
    assert figures["prefill_tokens_per_s"] > 0 < figures["decode_tokens_per_s"]
    assert (figures["prompt_tokens"], figures["output_tokens"], figures["hit_tokens"]) == (8, 8, 0)
    assert figures["num_blocks"] == 256 * 2**20 // (3 * 16 * 1024)
    assert figures["peak_rss_bytes"] > 2**28
