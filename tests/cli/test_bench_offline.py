"""`octavo bench offline`: the requests that reach the engine, and what is printed where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.engine.figures import Figures
from octavo.request import SamplingParams
from tests.cli.terminal import Said, run_octavo
from tests.engine.byte_tokenizer import EOS
from tests.engine.fake_core import FakeCore
from tests.engine.fake_model import install_fake_model
from tests.engine.fake_plan import NUM_BLOCKS

REQUESTS = [{"prompt": [65, 66, 67], "max_tokens": 6}, {"prompt": [70], "max_tokens": 1}]


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCore]:
    fake = install_fake_model(monkeypatch)
    yield fake
    assert fake.running == {}, "something was left running"


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    return _write(tmp_path / "w.json", REQUESTS)


def _write(path: Path, requests: Any) -> Path:
    path.write_text(json.dumps({"name": "toy", "seed": 4, "note": "small", "requests": requests}))
    return path


def _bench(monkeypatch: pytest.MonkeyPatch, path: Path, *arguments: str) -> Said:
    return run_octavo(monkeypatch, ["bench", "offline", "--workload", str(path), *arguments])


def test_all_requests_are_handed_in_greedily_and_end_by_length_alone(
    monkeypatch: pytest.MonkeyPatch, core: FakeCore, workload: Path
) -> None:
    document = _bench(monkeypatch, workload, "--json").document
    assert [request.prompt_token_ids for request in core.added] == [[65, 66, 67], [70]]
    assert [request.sampling for request in core.added] == [
        SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False) for count in (6, 1)
    ]
    assert [output["token_ids"] for output in document["outputs"]] == [[67, 66, 65, EOS, 67, 66], [70]]
    assert core.num_steps == 6
    assert core.is_shut_down


def test_json_is_alone_on_stdout_and_holds_settings_figures_and_outputs(
    monkeypatch: pytest.MonkeyPatch, core: FakeCore, workload: Path
) -> None:
    said = _bench(monkeypatch, workload, "--json", "--max-num-seqs", "7", "--no-enable-prefix-caching")
    assert (said.code, said.err) == (0, "")
    document = said.document
    assert document["workload"] == {
        "name": "toy", "seed": 4, "note": "small", "num_requests": 2, "prompt_tokens": 4, "output_tokens": 7,
    }  # fmt: skip
    assert document["model"] == {"model": "demo", "name": "fake"}
    settings = document["settings"]
    assert (settings["num_blocks"], settings["block_sizes"], settings["max_num_seqs"]) == (NUM_BLOCKS, [16], 7)
    assert (settings["max_model_len"], settings["enable_prefix_caching"]) == (1000, False)
    assert settings["pool_bytes"] > 0
    assert set(settings["versions"]) == {"octavo", "python", "torch", "transformers", "numba", "numpy"}
    figures = document["figures"]
    assert {field.name for field in msgspec.structs.fields(Figures)} <= set(figures)
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (4, 7)
    assert 0 < figures["load_s"] < figures["start_to_first_token_s"]


def test_times_of_requests_agree_with_each_other(
    monkeypatch: pytest.MonkeyPatch, core: FakeCore, workload: Path
) -> None:
    document = _bench(monkeypatch, workload, "--json").document
    figures, (long, short) = document["figures"], document["outputs"]
    assert 0 < long["first_token_s"] < long["finished_s"] <= figures["wall_s"]
    assert short["first_token_s"] == short["finished_s"]
    times = figures["requests"]
    assert times["latency_s"]["max"] == long["finished_s"]
    assert times["first_token_s"]["mean"] == pytest.approx(figures["ttft_s"])
    assert times["token_s"]["p50"] == pytest.approx((long["finished_s"] - long["first_token_s"]) / 5)
    assert figures["start_to_first_token_s"] >= figures["load_s"] + min(long["first_token_s"], short["first_token_s"])


def test_people_get_lines_on_stdout_and_stages_under_v(
    monkeypatch: pytest.MonkeyPatch, core: FakeCore, workload: Path
) -> None:
    said = _bench(monkeypatch, workload, "-v")
    assert said.code == 0
    assert said.out.startswith("workload toy: 2 requests, 4 prompt tokens, 7 output tokens, of fake\n")
    for part in ("settings: ", "wall ", "tok/s", "peak RSS ", "ready after ", "first token, ms over requests: mean "):
        assert part in said.out
    names = [line.split()[2] for line in said.err.splitlines()]
    assert names[:2] == ["start_python", "import_readers"]
    assert names[-3:] == ["ready", "hand_in", "first_token"]
    assert " s after the start of the process" in said.err


def test_a_request_that_would_be_cut_is_refused(
    monkeypatch: pytest.MonkeyPatch, core: FakeCore, tmp_path: Path
) -> None:
    said = _bench(monkeypatch, _write(tmp_path / "w.json", [{"prompt": [1] * 600, "max_tokens": 401}]), "--json")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: The longest request of workload toy has 1001 tokens, prompt and output, but ")
    assert "may be 1000 (max_model_len). Raise --max-model-len" in said.err
    assert core.added == []
    assert core.is_shut_down
    fits = _write(tmp_path / "w.json", [{"prompt": [1] * 600, "max_tokens": 400}])
    assert _bench(monkeypatch, fits, "--json").code == 0


@pytest.mark.parametrize("arguments", [["--block-size", "5000"], ["--kv-memory", "0"]])
def test_a_mistake_is_one_sentence_before_a_model_loads(
    monkeypatch: pytest.MonkeyPatch, workload: Path, arguments: list[str]
) -> None:
    def loaded(*_: Any, **__: Any) -> None:
        pytest.fail("a model is loaded")

    monkeypatch.setattr("octavo.engine.llm.LLM", loaded)
    for said in (
        _bench(monkeypatch, workload, *arguments),
        _bench(monkeypatch, workload.with_name("absent.json"), "--json"),
    ):
        assert (said.code, said.out) == (1, "")
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1
