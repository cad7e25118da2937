"""`octavo serve` beside vLLM's server: both asked the same by `octavo bench serve`, round after round in turn.

    python -m benchmarks.compare_servers --peer-python ENV/bin/python --model demo-smollm2 --rounds 3

Both stand ready all the time, and the one that is not asked is stopped (SIGSTOP). Each round draws new prompts, the
same for both, and the next round asks them in the other order. Medians and extremes are of rounds; a ratio is that of
two sides in one round, above 1 where Octavo is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.compare import weights_folder
from benchmarks.comparison import spread
from benchmarks.machine import ROOT, in_line, machine
from benchmarks.processes import end_children_when_terminated
from benchmarks.sides import peer_environment

READY_S = 300
FIGURES: dict[str, tuple[str, bool, Callable[[dict[str, Any]], float]]] = {
    "all requests, wall": ("s", False, lambda run: float(run["duration_s"])),
    "output tokens a second": ("", True, lambda run: float(run["output_throughput"])),
    "first token, median": ("ms", False, lambda run: float(run["ttft"]["p50_ms"])),
    "first token, p90": ("ms", False, lambda run: float(run["ttft"]["p90_ms"])),
    "time per output token, median": ("ms", False, lambda run: float(run["tpot"]["p50_ms"])),
    "time per output token, p90": ("ms", False, lambda run: float(run["tpot"]["p90_ms"])),
    "between pieces, median": ("ms", False, lambda run: float(run["itl"]["p50_ms"])),
    "between pieces, p99": ("ms", False, lambda run: float(run["itl"]["p99_ms"])),
    "end to end, median": ("ms", False, lambda run: float(run["e2el"]["p50_ms"])),
    "end to end, p90": ("ms", False, lambda run: float(run["e2el"]["p90_ms"])),
}
"""What is told of a run: its unit, whether more is better, and where it stands."""


class Server(NamedTuple):
    """A server that stands ready; `process` leads a group of its own."""

    name: str
    url: str
    process: subprocess.Popen[bytes]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        os.killpg(self.process.pid, number)


def read_flags(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", type=Path, required=True, help="of an environment made by peers/vllm.sh")
    parser.add_argument("--model", default="demo-smollm2", help="demo-smollm2, demo, or a folder of benchmarks.weights")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--vocab-size", type=int, default=49_152, help="draw token ids below this")
    parser.add_argument("--json", type=Path, help="write every run's document there")
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        parser.error("--rounds must be at least 1")
    return given


def commands(given: argparse.Namespace, weights: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """How each server is started, but for its port, and in which environment."""
    common = [f"--dtype={given.dtype}", "--served-model-name=m", "--max-model-len=2048"]
    threads = len(os.sched_getaffinity(0))
    ours = [sys.executable, "-m", "octavo", "serve", str(weights), *common, "--kv-memory=1GiB", "--no-access-log"]
    # vLLM's own command refuses to start from its CPU package, whose name it does not know; this is the same server.
    module = "vllm.entrypoints.openai.api_server"
    theirs = [str(given.peer_python), "-m", module, f"--model={weights}", *common, f"--kv-cache-memory-bytes={2**30}"]
    return {
        "Octavo": (ours, os.environ | {"OCTAVO_NUM_THREADS": str(threads)}),
        "vLLM": (theirs, peer_environment("vllm", given.peer_python, threads)),
    }


@contextlib.contextmanager
def served(name: str, command: list[str], environment: dict[str, str], log: Path) -> Iterator[Server]:
    """A server that answers, and is ended at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port)], cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    server = Server(name, f"http://127.0.0.1:{port}", process)
    try:
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{server.url}/health", timeout=5).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{name} did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.3)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.send(signal.SIGCONT)
            server.send(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            server.send(signal.SIGKILL)
        process.wait()


def ask(server: Server, given: argparse.Namespace, seed: int, *, num_requests: int) -> dict[str, Any]:
    """The document of `octavo bench serve` against a server. Exits where a request was not answered."""
    flags = {
        "base-url": server.url, "vocab-size": given.vocab_size, "num-prompts": num_requests, "seed": seed,
        "input-len": given.input_len, "output-len": given.output_len, "max-concurrency": given.concurrency,
    }  # fmt: skip
    command = [sys.executable, "-m", "octavo", "bench", "serve", "--json"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    document: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"failed": num_requests}
    if document["failed"]:
        sys.exit(f"{server.name} failed: {(done.stderr or done.stdout)[-2000:]}")
    del document["requests"]
    return document


def compare(given: argparse.Namespace, servers: Sequence[Server]) -> dict[str, list[dict[str, Any]]]:
    """Every run of each server, by its name."""
    for server in servers:
        server.send(signal.SIGSTOP)
    runs: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
    for number in range(-1, given.rounds):
        for server in servers if number % 2 == 0 else reversed(servers):
            server.send(signal.SIGCONT)
            if number < 0:  # warms up, and does not count
                ask(server, given, seed=1000, num_requests=given.concurrency)
            else:
                runs[server.name].append(ask(server, given, seed=number, num_requests=given.requests))
            server.send(signal.SIGSTOP)
    return runs


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """The runs as Markdown: of each figure the medians with their extremes, and the ratio of each round's two."""
    ours, theirs = runs["Octavo"], runs["vLLM"]
    lines = ["| | Octavo | vLLM | ratio |", "|---|---|---|---|"]
    for name, (unit, more_is_better, of) in FIGURES.items():
        pairs = [(of(our), of(their)) for our, their in zip(ours, theirs, strict=True)]
        ratios = spread([our / their if more_is_better else their / our for our, their in pairs])
        cells = []
        for values in zip(*pairs, strict=True):
            middle, low, high = spread(values)
            cells.append(f"{middle:.4g}{' ' + unit if unit else ''} ({low:.4g}..{high:.4g})")
        ratio = f"{ratios.median:.2f} ({ratios.lowest:.2f}..{ratios.highest:.2f})"
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Run what the command line says."""
    given = read_flags()
    end_children_when_terminated()
    weights = weights_folder(given.model) / "hf"
    facts = in_line(machine())
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(served(name, command, environment, Path(folder) / name))
            for name, (command, environment) in commands(given, weights).items()
        ]
        runs = compare(given, servers)
    if given.json:
        given.json.write_text(json.dumps({"machine": facts, "runs": runs}) + "\n", "utf-8")
    sys.stdout.write(f"{facts}\n{given.model}, {given.dtype}, {given.requests} requests of {given.input_len} in and ")
    sys.stdout.write(f"{given.output_len} out, {given.concurrency} at a time, {given.rounds} rounds\n\n{table(runs)}\n")


if __name__ == "__main__":
    main()
