"""Every mistake a person can make with `octavo generate` on a real engine: the message, and its remedy carried out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.terminal import Said, run_octavo
from tests.parity.tiny import HYBRID, build_model

pytestmark = pytest.mark.slow

LONG = " ".join(f"w{3 + 7 * index % 300}" for index in range(60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    build_model(path, HYBRID)
    return path


def _generate(monkeypatch: pytest.MonkeyPatch, model: Path | str, *arguments: str) -> Said:
    common = ["generate", "--model", str(model), "--dtype", "float32", "--max-tokens", "2"]
    return run_octavo(monkeypatch, [*common, *arguments])


def _refused(said: Said, pattern: str) -> re.Match[str]:
    """The match of `pattern` in the one line that was said."""
    assert (said.code, said.out) == (1, ""), said.err
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    match = re.search(pattern, said.err)
    assert match is not None, said.err
    return match


@pytest.mark.parametrize("too_little", ["64KiB", "1KiB"])
def test_a_pool_that_is_too_small_names_the_budget_that_works(
    monkeypatch: pytest.MonkeyPatch, folder: Path, too_little: str
) -> None:
    match = _refused(
        _generate(monkeypatch, folder, "--kv-memory", too_little, "w5"),
        r"raise --kv-memory to (\d+)|Raise --kv-memory to (\d+)",
    )
    enough = int(match[1] or match[2])
    assert _generate(monkeypatch, folder, "--kv-memory", str(enough), "w5").code == 0
    assert _generate(monkeypatch, folder, "--kv-memory", str(enough - 1), "w5").code == 1


def test_a_pool_that_is_too_small_names_the_length_that_works(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    budget = ("--kv-memory", "64KiB")
    match = _refused(_generate(monkeypatch, folder, *budget, "w5"), r"Lower --max-model-len to (\d+)")
    length = int(match[1])
    assert _generate(monkeypatch, folder, *budget, "--max-model-len", str(length), "w5").code == 0
    assert _generate(monkeypatch, folder, *budget, "--max-model-len", str(length + 1), "w5").code == 1
    assert _generate(monkeypatch, folder, *budget, "--max-model-len", "auto", "w5").code == 0


def test_more_memory_than_there_is_names_how_much_there_is(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    match = _refused(_generate(monkeypatch, folder, "--kv-memory", "500TiB", "w5"), r"at most (\w+)\.")
    assert _generate(monkeypatch, folder, "--kv-memory", "4MiB", "w5").code == 0
    assert match[1].endswith("iB")


def test_a_prompt_that_is_too_long_names_the_length_that_works(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    budget = ("--kv-memory", "4MiB")
    said = _generate(monkeypatch, folder, *budget, "--max-model-len", "20", LONG)
    match = _refused(said, r"60 tokens.*may have 20 .*at most (\d+) tokens, or raise .* to at least (\d+)")
    assert _generate(monkeypatch, folder, *budget, "--max-model-len", match[2], LONG).code == 0
    shorter = " ".join(LONG.split()[: int(match[1])])
    assert _generate(monkeypatch, folder, *budget, "--max-model-len", "20", shorter).code == 0


def test_a_length_above_the_models_own_names_that(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    match = _refused(_generate(monkeypatch, folder, "--max-model-len", "1000", "w5"), r"Set it to at most (\d+)")
    assert _generate(monkeypatch, folder, "--kv-memory", "4MiB", "--max-model-len", match[1], "w5").code == 0


def test_more_blocks_than_fit_names_how_many_do(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    budget = ("--kv-memory", "1MiB")
    said = _generate(monkeypatch, folder, *budget, "--num-blocks-override", "100000", "w5")
    match = _refused(said, r"Lower --num-blocks-override to (\d+)")
    assert _generate(monkeypatch, folder, *budget, "--num-blocks-override", match[1], "w5").code == 0


def test_a_token_id_out_of_range_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('"w5"\n{"prompt_token_ids": [3, 320]}\n')
    said = _generate(monkeypatch, folder, "--kv-memory", "4MiB", "--prompt-file", str(path))
    _refused(said, r"prompts\[1\] \(of 2\): Token id 320 .* 0 to 319")
    path.write_text('"w5"\n{"prompt_token_ids": [3, 319]}\n')
    assert _generate(monkeypatch, folder, "--kv-memory", "4MiB", "--prompt-file", str(path)).code == 0


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["--kv-cache-dtype", "int8"], r"--kv-cache-dtype is int8\. It must be one of "),
        (["--device", "tpu"], r"--device is 'tpu'\. It must be "),
        (["--tensor-parallel-size", "7"], r"7"),
        (["--distributed-executor-backend", "no"], r"--distributed-executor-backend is 'no'\. It must be "),
        (["--kv-memory", "4MiB", "--stop-token-id", "99999"], r"99999 in stop_token_ids"),
        (
            ["--kv-memory", "4MiB", "--json", "--logprobs", "1000"],
            r"more than the vocabulary of 320 tokens\. Ask for at most 320",
        ),
        (["--kv-memory", "4MiB", "--chat"], r"has no chat template"),
        (["--logprobs", "3"], r"--logprobs is given, but a text has no place for them\. Add --json\."),
        (["--revision", "main"], r"The revision 'main' is asked for, but .* Leave --revision out, or give a hub id\."),
    ],
)
def test_what_this_engine_cannot_do_is_named(
    monkeypatch: pytest.MonkeyPatch, folder: Path, arguments: list[str], pattern: str
) -> None:
    _refused(_generate(monkeypatch, folder, *arguments, "w5"), pattern)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--chat", "w5"],
        ["--json", "--logprobs", "1000", "w5"],
        ["--stop-token-id", "320", "w5"],
        ["--max-model-len", "20", LONG],
        ["--kv-memory", "64KiB", "w5"],
        ["--tensor-parallel-size", "7", "w5"],
        ["--kv-memory", "500TiB", "w5"],
    ],
)
def test_what_the_config_tells_is_refused_before_weights_are_read(
    monkeypatch: pytest.MonkeyPatch, folder: Path, arguments: list[str]
) -> None:
    """The same refusals as on a loaded model (above), though there is no weight to load."""
    monkeypatch.setattr("octavo.models.loader._load_weights", lambda *_: pytest.fail("weights are read"))
    _refused(_generate(monkeypatch, folder, *arguments), ".")


def test_a_missing_model_names_the_forms_there_are(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for model in ("/nowhere", "nowhere.gguf"):
        _refused(
            _generate(monkeypatch, model, "w5"), rf"no file or folder '{model}'\. Give `demo`.*folder.*gguf.*hub id"
        )
    _refused(_generate(monkeypatch, folder, "--tokenizer", "/nowhere", "w5"), "no file or folder '/nowhere'")


def test_a_damaged_file_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    gguf = tmp_path / "cut.gguf"
    gguf.write_bytes(b"GGUF\x03\x00\x00\x00\x01")
    _refused(_generate(monkeypatch, gguf, "w5"), r"cut\.gguf: ")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for source in folder.iterdir():
        content = source.read_bytes()
        (damaged / source.name).write_bytes(content[:500] if source.suffix == ".safetensors" else content)
    _refused(_generate(monkeypatch, damaged, "w5"), r"model\.safetensors")
