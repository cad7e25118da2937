"""The drawn workloads have the shapes that they are named for, and are workload files."""

from __future__ import annotations

from pathlib import Path

from benchmarks.workloads import workload, write_workloads
from octavo.cli.workload import load_workload


def test_shapes(tmp_path: Path) -> None:
    made = {name: load_workload(path) for name, path in write_workloads(tmp_path).items()}
    assert {name: (len(each.requests), each.longest) for name, each in made.items() if name != "w2"} == {
        "w1": (1, 384), "w3": (32, 1088), "w4": (4, 8256), "w5": (1, 17),
    }  # fmt: skip
    prompts = [request.prompt for request in made["w3"].requests]
    assert len({tuple(prompt[:1024]) for prompt in prompts}) == 1
    assert len({tuple(prompt) for prompt in prompts}) == 32
    sizes = {(len(request.prompt), request.max_tokens) for request in made["w2"].requests}
    assert len(sizes) > 20
    assert all(64 <= prompt <= 512 and 64 <= count <= 256 for prompt, count in sizes)


def test_the_same_seed_draws_the_same() -> None:
    assert workload("w2") == workload("w2")
    assert workload("w2") != workload("w2", seed=1)
