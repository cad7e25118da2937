"""Starts a server and lets other people's clients ask it; see README.md beside this."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.compare import weights_folder

ROOT = Path(__file__).resolve().parent.parent.parent
CONTEXT, CONTINUATIONS = "The capital of France is", [" Paris", " Berlin", " a small blue fish"]
TIMEOUT_S = 600


def names() -> list[str]:
    """Clients that there are scripts for."""
    return sorted(path.stem.removeprefix("try_") for path in Path(__file__).parent.glob("try_*.py"))


@contextlib.contextmanager
def served(model: str, log: Path) -> Iterator[str]:
    """The address of a server of `model`, which is stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(port), "--max-model-len", "2048"]
    command += ["--kv-memory", "512MiB", "--dtype", "float32"]
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 300
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health", timeout=5)
                break
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.3)
        yield url
    finally:
        process.terminate()
        process.wait(90)


def offline_figures(model: str) -> list[float]:
    """What this engine, without a server, says of each continuation: the sum of log probabilities."""
    code = (
        "import sys, json; from octavo import LLM; from octavo.evaluate.tasks import TaskModel\n"
        "context, continuations = json.loads(sys.argv[2])\n"
        "with LLM(sys.argv[1], max_model_len=2048, kv_memory='512MiB', dtype='float32') as llm:\n"
        "    tasks = TaskModel(llm)\n"
        "    head = tasks.encode(context)\n"
        "    pairs = [(head, tasks.encode(context + text)[len(head):]) for text in continuations]\n"
        "    print(json.dumps([sum(score.logprobs) for score in tasks.score_pairs(pairs)]))\n"
    )
    asked = json.dumps([CONTEXT, CONTINUATIONS])
    done = subprocess.run(
        [sys.executable, "-c", code, model, asked], cwd=ROOT, capture_output=True, text=True, check=True
    )
    figures: list[float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients-python", type=Path, required=True, help="of an environment made by make.sh")
    parser.add_argument("--model", default="demo-smollm2")
    parser.add_argument("--tokenizer", type=Path, help="for guidellm, a folder; else made of the model")
    parser.add_argument("--only", action="append", choices=names(), help="may be given several times")
    given = parser.parse_args()
    wanted = given.only or names()
    tokenizer = given.tokenizer
    if tokenizer is None and "guidellm" in wanted:
        tokenizer = weights_folder(given.model) / "hf"
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        figures = offline_figures(given.model) if "lm_eval" in wanted else []
        with served(given.model, Path(folder) / "server.log") as url:
            environment = os.environ | {
                "OCTAVO_URL": url,
                "OCTAVO_MODEL": given.model,
                "OCTAVO_FOLDER": folder,
                "OCTAVO_TOKENIZER": str(tokenizer.resolve()) if tokenizer else "",
                "OCTAVO_FIGURES": json.dumps([CONTEXT, CONTINUATIONS, figures]),
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": folder,
                "PYTHONPATH": "",
            }
            for name in wanted:
                script = Path(__file__).parent / f"try_{name}.py"
                done = subprocess.run(
                    [given.clients_python, script], env=environment, cwd=folder, capture_output=True, text=True,
                    timeout=TIMEOUT_S, check=False,
                )  # fmt: skip
                print(f"{name}: {'ok' if done.returncode == 0 else 'failed'}  {done.stdout.strip()[-300:]}", flush=True)
                if done.returncode:
                    failed.append(name)
                    print(done.stderr[-3000:], file=sys.stderr)
            with urllib.request.urlopen(f"{url}/health") as health:
                print(f"server: {'ok' if health.status == 200 else 'ill'}")
    sys.exit(len(failed))


if __name__ == "__main__":
    main()
