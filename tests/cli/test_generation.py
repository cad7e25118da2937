"""What `octavo generate` prints, and where: results on stdout, all else on stderr."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.engine.figures import Figures
from octavo.messages import EngineCoreOutputs
from tests.cli.terminal import Said, run_octavo
from tests.engine.fake_core import FakeCore
from tests.engine.fake_model import install_fake_model
from tests.engine.fake_plan import NUM_BLOCKS


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCore]:
    fake = install_fake_model(monkeypatch)
    yield fake
    assert fake.running == {}, "something was left running"


def _octavo(monkeypatch: pytest.MonkeyPatch, *arguments: str, stdin: str = "") -> Said:
    return run_octavo(monkeypatch, ["generate", *arguments], stdin)


def test_one_prompt_streams_its_text_alone_to_stdout(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    said = _octavo(monkeypatch, "abc")
    assert (said.code, said.out) == (0, "cba\n")
    assert core.is_shut_down


def test_stderr_has_the_plan_and_the_closing_line(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    said = _octavo(monkeypatch, "abc")
    assert "KV cache plan of fake: 100 blocks of 16 tokens" in said.err
    assert "CPU KV cache size: " in said.err
    assert "GPU" not in said.err
    assert "\nprompt: abc\n" in said.err
    closing = said.err.strip().splitlines()[-1]
    for part in ("prompt 4 tokens at ", "output 4 tokens at ", "KV cache use at most ", "hit tokens 3", "ready after "):
        assert part in closing


def test_several_prompts_have_headings(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    said = _octavo(monkeypatch, "abc", "de")
    assert said.out == "--- prompt 1 of 2: abc\ncba\n--- prompt 2 of 2: de\ned\n"
    said = _octavo(monkeypatch, "abcdef", "d", "e")
    assert said.out == "--- prompt 1 of 3: abcdef\nfedcba\n--- prompt 2 of 3: d\nd\n--- prompt 3 of 3: e\ne\n"
    said = _octavo(monkeypatch, "abc", "--n", "2")
    assert said.out.splitlines()[2] == "--- prompt 1 of 1, completion 2 of 2: abc"


def test_json_is_alone_on_stdout_and_has_the_promised_shape(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    said = _octavo(monkeypatch, "--json", "--n", "2", "--logprobs", "1", "ab", "c")
    assert (said.code, said.err) == (0, "")
    document = said.document
    assert list(document) == ["outputs", "figures", "settings"]
    assert [(o["prompt_index"], o["index"], o["text"]) for o in document["outputs"]] == [
        (0, 0, "ba"), (0, 1, "ba"), (1, 0, "c"), (1, 1, "c"),
    ]  # fmt: skip
    first = document["outputs"][0]
    assert set(first) == {
        "prompt_index", "index", "prompt", "prompt_token_ids", "text", "token_ids", "finish_reason", "stop_reason",
        "num_cached_tokens", "logprobs",
    }  # fmt: skip
    assert (first["prompt"], first["finish_reason"], first["stop_reason"]) == ("ab", "stop", None)
    assert (first["token_ids"], first["num_cached_tokens"]) == ([98, 97, 257], 3)
    assert first["logprobs"][0]["98"] == {"logprob": -1.5, "rank": 2, "decoded_token": "b"}
    figures = document["figures"]
    assert list(figures) == [field.name for field in msgspec.structs.fields(Figures)]
    assert all(isinstance(value, int | float) for value in figures.values())
    assert (figures["prompt_tokens"], figures["output_tokens"], figures["num_blocks"]) == (10, 10, NUM_BLOCKS)


def test_verbose_tells_each_stage_with_its_time_and_result(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    lines = _octavo(monkeypatch, "-v", "--json", "abc").err.splitlines()
    names = [line.split()[2] for line in lines]
    assert names[0] == "start_python"
    # Files are prepared beside the import: either may end first.
    assert {"import_libraries", "prepare_files", "load_tokenizer", "ready"} <= set(names)
    assert all(line.split()[1] == line.split()[4] == "s" and float(line.split()[3]) >= 0 for line in lines)


def test_prompts_come_from_stdin_and_files(monkeypatch: pytest.MonkeyPatch, core: FakeCore, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('"xy"\n{"prompt_token_ids": [97, 98]}\n')
    assert _octavo(monkeypatch, stdin="abc\n").out == "cba\n"
    outputs = _octavo(monkeypatch, "--json", "--prompt-file", str(path), "q").document["outputs"]
    assert [(output["prompt"], output["text"]) for output in outputs] == [("q", "q"), ("xy", "yx"), (None, "ba")]


def test_chat_applies_the_template(monkeypatch: pytest.MonkeyPatch, core: FakeCore, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "m"}]}\n{"prompt": "q"}\n')
    said = _octavo(monkeypatch, "--json", "--chat", "--system", "be", "hi", "--prompt-file", str(path))
    assert [output["prompt"] for output in said.document["outputs"]] == [
        "<system>be<user>hi<assistant>",
        "<system>be<user>m<assistant>",
        "<system>be<user>q<assistant>",
    ]
    assert core.added[0].prompt_token_ids[0] != 256


def test_a_salt_reaches_every_prompt_that_has_none(
    monkeypatch: pytest.MonkeyPatch, core: FakeCore, tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "cache_salt": "own"}\n')
    for more in ([], ["--chat"]):
        _octavo(monkeypatch, "--cache-salt", "all", "b", "--prompt-file", str(path), *more)
    assert [request.cache_salt for request in core.added] == ["all", "own"] * 2


def test_sampling_flags_reach_the_core(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    _octavo(
        monkeypatch, "--temperature", "0.5", "--top-k", "4", "--seed", "3", "--stop", "x", "--max-tokens", "0", "ab"
    )
    sampling = core.added[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.stop) == (0.5, 4, 3, ("x",))
    assert sampling.max_tokens == 1000 - 3, "0 is as many as the length leaves"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--block-size", "0", "x"], r"error: --block-size is 0. It must be from 1 to 4096 tokens."),
        (["--dtype", "int4", "x"], r"error: --dtype is int4. It must be one of auto, bfloat16, float16, float32."),
        (["--temperature", "-1", "x"], r"error: --temperature is -1.0. It must be 0 or more, and finite."),
        (["--top-p", "2", "x"], r"error: --top-p is 2.0. It must be above 0 and at most 1."),
        (["--stop", "", "x"], r"error: --stop is ('',). It must be without empty strings."),
        ([""], "error: The prompt is empty. Give it at least one character."),
        (
            ["--prompt-file", "/nowhere", "x"],
            "error: The file /nowhere cannot be read: No such file or directory.",
        ),
        (["--system", "be", "x"], "error: --system is given, but prompts are completed as they are. Add --chat."),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_loaded(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded for nothing")

    monkeypatch.setattr("octavo.cli.generation.start", loaded)
    said = _octavo(monkeypatch, *arguments)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(message)
    assert said.err.count("\n") == 1


def test_a_prompt_that_is_too_long_is_one_sentence(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    said = _octavo(monkeypatch, "--json", "a" * 2000)
    assert (said.code, said.out) == (1, "")
    assert "2001 tokens" in said.err
    assert "Traceback" not in said.err


def test_messages_without_chat_are_refused(monkeypatch: pytest.MonkeyPatch, core: FakeCore, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"messages": []}\n')
    assert "Prompt 1 is a list of messages" in _octavo(monkeypatch, "--prompt-file", str(path)).err
    path.write_text('{"prompt_token_ids": [1]}\n')
    assert "Prompt 1 is token ids" in _octavo(monkeypatch, "--chat", "--prompt-file", str(path)).err


def test_ctrl_c_ends_with_130_and_one_word(monkeypatch: pytest.MonkeyPatch, core: FakeCore) -> None:
    def interrupted() -> EngineCoreOutputs:
        raise KeyboardInterrupt

    monkeypatch.setattr(core, "step", interrupted)
    said = _octavo(monkeypatch, "abc")
    assert said.code == 130
    assert said.err.endswith("\ninterrupted\n")
    assert core.is_shut_down


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-tokens", "-1", "abc"], r"--max-tokens is -1\. .*at least 1, or 0 .*--max-model-len leaves"),
        (["--max-tokens", "3g", "abc"], r"--max-tokens is 3000000000\. It must be at least 1 and at most 2147483647"),
        (["--stop-token-id", "-1", "abc"], r"--stop-token-id is \[-1\]\. It must be a list of token ids"),
        (["--n", "1000000", "abc"], r"--n is 1000000\. It must be from 1 to 1,024"),
        (["--max-model-len", "1", "abc"], r"--max-model-len is 1\. It must be at least 2 "),
        (["--max-num-seqs", "1g", "abc"], r"--max-num-seqs is 1000000000\. It must be from 1 to 65536"),
        (["--model", "", "abc"], r"No model is given\. "),
        (["--stop", "abc"], r"There is no prompt, and standard input is empty\. .*--stop takes the text behind it"),
    ],
)
def test_what_no_model_could_do_is_refused_before_one_loads(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr("octavo.cli.generation.start", lambda *given, **options: pytest.fail("a model is loaded"))
    said = _octavo(monkeypatch, *arguments)
    assert (said.code, said.out) == (1, "")
    assert re.search(rf"^error: {message}", said.err), said.err
