"""The engines that are compared: how each one is started, and what it says about a run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers.run_report import MARK
from benchmarks.processes import Ended, run_process
from benchmarks.weights import BF16, HF, PACKED

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 3600


class Setup(NamedTuple):
    """What both sides of a comparison share."""

    workload: Path
    weights: Path
    """A folder made by `benchmarks.weights`."""
    precision: str
    """`bf16` or `packed`."""
    kv_bytes: int
    num_threads: int
    peer_dtype: str = "bfloat16"
    """What the peer computes in, where it lets one choose."""


class Outcome(NamedTuple):
    """One run of one side."""

    engine: str
    version: str
    dtype: str
    num_threads: int
    flags: dict[str, Any]
    load_s: float
    start_to_first_token_s: float
    wall_s: float
    first_token_s: list[float]
    finished_s: list[float]
    outputs: list[list[int]]
    peak_rss_bytes: int


class SideError(Exception):
    """A side did not finish its run; the message has the end of what it said."""


PEERS = {
    "vllm": ("benchmarks.peers.run_vllm", {"bf16": HF}),
    "llamacpp": ("benchmarks.peers.run_llamacpp", {"bf16": BF16, "packed": PACKED}),
    "openvino": ("benchmarks.peers.run_openvino", {"bf16": HF}),
    "transformers": ("benchmarks.peers.run_transformers", {"bf16": HF}),
}
"""Peer -> its runner, and which of the weights it reads at which precision."""

OCTAVO_WEIGHTS = {"bf16": HF, "packed": PACKED}
OCTAVO_FLAGS = {"bf16": ["--quantization", "none"], "packed": ["--quantization", "gguf"]}

_PRELOADED = ("libtcmalloc_minimal.so.4", "libiomp5.so")
"""Libraries that make vLLM faster, as its script leaves them in its environment's lib folder."""


def run_octavo(setup: Setup, extra: Sequence[str] = ()) -> Outcome:
    """A run of `octavo bench offline` in this Python. Raises `SideError`."""
    command = [sys.executable, "-m", "octavo", "bench", "offline", "--json", "--workload", str(setup.workload)]
    command += ["--model", str(setup.weights / OCTAVO_WEIGHTS[setup.precision]), "--kv-memory", str(setup.kv_bytes)]
    command += OCTAVO_FLAGS[setup.precision]
    environment = _environment({"OCTAVO_NUM_THREADS": str(setup.num_threads)})
    ended = run_process([*command, *extra], environment, ROOT, TIMEOUT_S)
    return outcome_of_octavo(json.loads(_finished("octavo", ended).out), ended.peak_rss_bytes, extra)


def run_peer(peer: str, python: Path, setup: Setup) -> Outcome:
    """A run of `peer` in its own Python. Raises `SideError`."""
    module, weights = PEERS[peer]
    command = [str(python), "-m", module, "--workload", str(setup.workload)]
    command += ["--weights", str(setup.weights / weights[setup.precision])]
    command += ["--kv-bytes", str(setup.kv_bytes), "--num-threads", str(setup.num_threads)]
    command += ["--dtype", setup.peer_dtype]
    ended = run_process(command, peer_environment(peer, python, setup.num_threads), ROOT, TIMEOUT_S)
    return outcome_of_peer(_finished(peer, ended).out, ended.peak_rss_bytes)


def time_torch_import() -> float:
    """Seconds that this Python needs to start and import torch: the floor under any start-up."""
    ended = run_process([sys.executable, "-c", "import torch"], _environment({}), ROOT, TIMEOUT_S)
    return _finished("import torch", ended).seconds


def peer_environment(peer: str, python: Path, num_threads: int) -> dict[str, str]:
    """The environment variables under which a peer is at its best, without a network."""
    wanted = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(num_threads)}
    if peer == "vllm":
        libraries = [path for name in _PRELOADED if (path := python.absolute().parent.parent / "lib" / name).exists()]
        wanted |= {
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "LD_PRELOAD": ":".join(map(str, libraries)),
        }
        del wanted["OMP_NUM_THREADS"]  # it binds its own threads
    return _environment(wanted)


def _environment(wanted: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what somebody may have set for another engine, and with `wanted`."""
    dropped = ("OMP_NUM_THREADS", "LD_PRELOAD", "OCTAVO_NUM_THREADS")
    return {name: value for name, value in os.environ.items() if name not in dropped} | dict(wanted)


def _finished(name: str, ended: Ended) -> Ended:
    if ended.code:
        raise SideError(f"{name} ended with code {ended.code}:\n{(ended.err or ended.out)[-2000:]}")
    return ended


def outcome_of_peer(out: str, peak_rss_bytes: int) -> Outcome:
    """What a runner's line says. Raises `SideError` when there is none."""
    lines = [line for line in out.splitlines() if line.startswith(MARK)]
    if not lines:
        raise SideError(f"the runner reported nothing:\n{out[-2000:]}")
    fields = json.loads(lines[-1])
    fields["peak_rss_bytes"] = max(peak_rss_bytes, fields["peak_rss_bytes"])
    return Outcome(**fields)


def outcome_of_octavo(document: Mapping[str, Any], peak_rss_bytes: int, extra: Sequence[str] = ()) -> Outcome:
    """What the document of `octavo bench offline` says."""
    settings, figures, outputs = document["settings"], document["figures"], document["outputs"]
    shown = ("attention_backend", "block_sizes", "pool_bytes", "max_num_batched_tokens", "enable_prefix_caching")
    return Outcome(
        engine="octavo",
        version=settings["versions"]["octavo"],
        dtype=settings.get("dtype", ""),
        num_threads=settings.get("num_threads", 0),
        flags={**{name: settings[name] for name in shown if name in settings}, "extra": list(extra)},
        load_s=figures["load_s"],
        start_to_first_token_s=figures["start_to_first_token_s"],
        wall_s=figures["wall_s"],
        first_token_s=[output["first_token_s"] for output in outputs],
        finished_s=[output["finished_s"] for output in outputs],
        outputs=[output["token_ids"] for output in outputs],
        peak_rss_bytes=max(peak_rss_bytes, figures["peak_rss_bytes"]),
    )
