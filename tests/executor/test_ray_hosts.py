"""A model over two hosts, a Ray head and a node, each with an address of its own: the tokens of one process, and one
clear error when a host is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.executor.hosts import Host, two_hosts
from tests.parity.tiny import HYBRID, build_model

pytest.importorskip("ray", reason='needs Ray: pip install "octavo[ray]"')
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PORT = 6379
OPTIONS: dict[str, Any] = {"dtype": "float32", "kv_memory": "4MiB", "block_size": 4}
PROMPTS = [" ".join(f"w{3 + 7 * index % 300}" for index in range(length)) for length in (60, 5, 17)]

GENERATE = """
import json, sys
from octavo import LLM, SamplingParams
folder, options, prompts, num_rounds = json.loads(sys.argv[1])
greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
with LLM(folder, **options) as llm:
    print("ready", flush=True)
    for _ in range(num_rounds):
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
    print(json.dumps([output.outputs[0].token_ids for output in outputs]), flush=True)
"""
"""What runs on the head."""


class Cluster:
    """A Ray head on the first host and a node on the second, one CPU each: no host has room for two ranks."""

    def __init__(self, hosts: tuple[Host, Host], folder: str) -> None:
        self.head, self.node = hosts
        self.address = f"{self.head.address}:{PORT}"
        self.environment = {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "disabled",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            "OCTAVO_NUM_THREADS": "1",
        }
        common = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
        head = [f"--node-ip-address={self.head.address}", "--head", f"--port={PORT}", f"--temp-dir={folder}"]
        starting = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--include-dashboard=false", *common]
        self.head.run([*ray, *head], starting)
        ray.remove("--include-dashboard=false")
        self.node.run([*ray, f"--node-ip-address={self.node.address}", f"--address={self.address}"], starting)

    def generate(self, folder: Path, num_rounds: int, **options: Any) -> subprocess.Popen[str]:
        """Start an engine on the head that completes the prompts so many times."""
        what = json.dumps(
            [str(folder), {**OPTIONS, "distributed_executor_backend": "ray", **options}, PROMPTS, num_rounds]
        )
        return self.head.popen(
            [sys.executable, "-c", GENERATE, what],
            self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("toy")
    build_model(made, HYBRID)
    return made


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    # Paths of Ray's sockets must be short.
    folder = tempfile.TemporaryDirectory(prefix="oc-", dir="/tmp", ignore_cleanup_errors=True)
    with folder as temporary, two_hosts() as hosts:
        yield Cluster(hosts, temporary)


PIPELINE = pytest.param({"pipeline_parallel_size": 2}, id="pipeline")
TENSOR = pytest.param({"tensor_parallel_size": 2}, id="tensor")


@pytest.mark.parametrize("split", [PIPELINE, TENSOR])
def test_two_hosts_give_the_tokens_of_one_process(split: dict[str, int], folder: Path, cluster: Cluster) -> None:
    what = json.dumps([str(folder), OPTIONS, PROMPTS, 1])
    alone = subprocess.run([sys.executable, "-c", GENERATE, what], capture_output=True, text=True, check=True)
    engine = cluster.generate(folder, 1, **split)
    out, err = engine.communicate(timeout=300)
    assert engine.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == json.loads(alone.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("how", "split"),
    [
        pytest.param("unplugged", {"pipeline_parallel_size": 2}, id="unplugged"),
        pytest.param("switched off", {"tensor_parallel_size": 2}, id="switched-off"),
    ],
)
def test_a_host_that_is_lost_is_one_clear_error(
    split: dict[str, int], how: str, folder: Path, cluster: Cluster
) -> None:
    engine = cluster.generate(folder, 1_000_000, **split)
    assert engine.stdout is not None
    line = engine.stdout.readline()
    assert line == "ready\n", engine.communicate(timeout=60)[1]
    time.sleep(2)
    assert engine.poll() is None, "it is in the middle of it"
    (cluster.node.unplug if how == "unplugged" else cluster.node.switch_off)()
    lost = time.monotonic()
    out, err = engine.communicate(timeout=120)
    assert time.monotonic() - lost < 40
    assert engine.returncode == 1
    assert out == ""
    assert f"on {cluster.node.address}" in err.splitlines()[-1]
    assert "all ranks were stopped" in err.splitlines()[-1]
