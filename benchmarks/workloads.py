"""The workloads W1 to W5, drawn anew: the shapes that other engines were measured with, from a fixed seed.

python -m benchmarks.workloads --out FOLDER

w1  one stream, 128 tokens in, 256 out              decode at batch 1
w2  32 requests at once, 64-512 in, 64-256 out      continuous batching
w3  32 requests that share 1,024 tokens, 32 more    prefix caching from cold
w4  4 x 8,192 tokens in, 64 out                     long prompts, for a hybrid model
w5  16 tokens in, 1 out                             start-up
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

FIRST_ID, LAST_ID = 300, 40_000
"""Token ids are drawn from here: plain words in both demo models' vocabularies."""


def _tokens(source: random.Random, count: int) -> list[int]:
    return [source.randrange(FIRST_ID, LAST_ID) for _ in range(count)]


def _many(source: random.Random) -> list[tuple[list[int], int]]:
    return [(_tokens(source, source.randint(64, 512)), source.randint(64, 256)) for _ in range(32)]


def _shared(source: random.Random) -> list[tuple[list[int], int]]:
    beginning = _tokens(source, 1024)
    return [(beginning + _tokens(source, 32), 32) for _ in range(32)]


WORKLOADS: dict[str, tuple[str, Callable[[random.Random], list[tuple[list[int], int]]]]] = {
    "w1": ("single stream", lambda source: [(_tokens(source, 128), 256)]),
    "w2": ("32 prompts at once", _many),
    "w3": ("32 prompts that share 1,024 tokens, cold", _shared),
    "w4": ("4 x 8,192 tokens", lambda source: [(_tokens(source, 8192), 64) for _ in range(4)]),
    "w5": ("start-up", lambda source: [(_tokens(source, 16), 1)]),
}
"""Name -> (note, what draws its prompts and numbers of output tokens)."""


def workload(name: str, seed: int = 0) -> dict[str, Any]:
    """One of `WORKLOADS`, as a workload file has it."""
    note, draw = WORKLOADS[name]
    requests = [{"prompt": prompt, "max_tokens": count} for prompt, count in draw(random.Random(f"{name} {seed}"))]
    return {"name": name, "seed": seed, "note": note, "requests": requests}


def write_workloads(folder: Path) -> dict[str, Path]:
    """All of them as files in `folder`, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.json" for name in WORKLOADS}
    for name, path in paths.items():
        path.write_text(json.dumps(workload(name)), encoding="utf-8")
    return paths


def main() -> None:
    """Write them where the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    for path in write_workloads(parser.parse_args().out).values():
        print(path)


if __name__ == "__main__":
    main()
