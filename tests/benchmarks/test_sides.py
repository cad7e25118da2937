"""How engines are started, and what is read from what they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import sides
from benchmarks.peers.run_report import RunClock
from benchmarks.processes import Ended
from benchmarks.sides import Setup, SideError, outcome_of_peer, peer_environment, run_octavo, run_peer

SETUP = Setup(Path("/w.json"), Path("/weights"), "bf16", 1000, 2)


def test_a_runners_line_is_found_among_what_its_engine_prints(capsys: pytest.CaptureFixture[str]) -> None:
    clock = RunClock(2)
    clock.ready()
    clock.token(0, [5])
    clock.token(1, [6, 7])
    clock.token(0, [8])
    clock.token(1, [])
    clock.report("other", version="2", dtype="bf16", num_threads=2, flags={"n_ctx": 5})
    out = "INFO loading\n{not json\n" + capsys.readouterr().out + "bye\n"
    outcome = outcome_of_peer(out, peak_rss_bytes=10**15)
    assert (outcome.engine, outcome.version, outcome.flags) == ("other", "2", {"n_ctx": 5})
    assert outcome.outputs == [[5, 8], [6, 7]]
    assert 0 <= outcome.first_token_s[0] <= outcome.first_token_s[1] == outcome.finished_s[1] <= outcome.wall_s
    assert outcome.start_to_first_token_s >= outcome.load_s > 0
    assert outcome.peak_rss_bytes == 10**15
    assert outcome_of_peer(out, 0).peak_rss_bytes > 0
    with pytest.raises(SideError, match="reported nothing"):
        outcome_of_peer("INFO loading\n", 0)


def test_octavo_is_started_as_a_user_would(monkeypatch: pytest.MonkeyPatch) -> None:
    output = {"token_ids": [1, 2], "first_token_s": 0.5, "finished_s": 1.0, "num_cached_tokens": 0}
    document = {
        "settings": {"versions": {"octavo": "1"}, "dtype": "bfloat16", "num_threads": 2, "pool_bytes": 5},
        "figures": {"load_s": 1.0, "start_to_first_token_s": 1.5, "wall_s": 1.0, "peak_rss_bytes": 7},
        "outputs": [output],
    }
    seen = []

    def run(command: list[str], environment: dict[str, str], *_: object) -> Ended:
        seen.append((command, environment))
        return Ended(0, json.dumps(document), "", 3.0, 9)

    monkeypatch.setattr(sides, "run_process", run)
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    outcome = run_octavo(SETUP, ["--block-size=32"])
    ((command, environment),) = seen
    assert command[1:6] == ["-m", "octavo", "bench", "offline", "--json"]
    assert command[command.index("--model") + 1] == "/weights/hf"
    assert command[-1] == "--block-size=32"
    assert environment["OCTAVO_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in environment
    assert (outcome.peak_rss_bytes, outcome.outputs, outcome.wall_s) == (9, [[1, 2]], 1.0)
    assert outcome.flags == {"pool_bytes": 5, "extra": ["--block-size=32"]}


def test_a_side_that_fails_is_told_with_the_end_of_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "run_process", lambda *_: Ended(3, "", "x" * 5000 + "no such model", 1.0, 0))
    with pytest.raises(SideError, match=r"(?s)^llamacpp ended with code 3:\nx{1,2000}no such model$"):
        run_peer("llamacpp", Path("/python"), SETUP)


def test_a_peers_runner_is_told_which_weights_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(command: list[str], *_: object) -> Ended:
        commands.append(command)
        return Ended(1, "", "", 0.0, 0)

    monkeypatch.setattr(sides, "run_process", run)
    for peer, precision in (("llamacpp", "packed"), ("llamacpp", "bf16"), ("vllm", "bf16")):
        with pytest.raises(SideError):
            run_peer(peer, Path("/python"), SETUP._replace(precision=precision))
    assert commands[-1][commands[-1].index("--dtype") + 1] == "bfloat16"
    with pytest.raises(SideError):
        run_peer("openvino", Path("/python"), SETUP._replace(peer_dtype="float32"))
    command = commands.pop()
    assert command[command.index("--dtype") + 1] == "float32"
    weights = [command[command.index("--weights") + 1] for command in commands]
    assert weights == ["/weights/packed.gguf", "/weights/bf16.gguf", "/weights/hf"]


def test_vllm_gets_its_cores_and_the_libraries_that_are_there(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    environment = peer_environment("vllm", python, 3)
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-2"
    assert environment["LD_PRELOAD"] == str(tmp_path / "lib" / "libiomp5.so")
    assert "OMP_NUM_THREADS" not in environment
    other = peer_environment("openvino", python, 3)
    assert other["OMP_NUM_THREADS"] == "3"
    assert "LD_PRELOAD" not in other


def test_every_peer_has_a_runner_and_a_script() -> None:
    for peer, (module, weights) in sides.PEERS.items():
        assert (sides.ROOT / (module.replace(".", "/") + ".py")).is_file()
        assert (sides.ROOT / "benchmarks" / "peers" / f"{peer}.sh").is_file()
        assert "bf16" in weights
