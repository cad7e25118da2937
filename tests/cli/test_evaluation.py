"""What `octavo eval perplexity` prints, and what it refuses before weights are read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.cli.terminal import Said, run_octavo
from tests.parity.tiny import HYBRID, build_model

pytestmark = pytest.mark.slow

TEXT = " ".join(f"w{3 + index * 7 % 300}" for index in range(300))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    build_model(path, HYBRID)
    return path


def _octavo(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str, stdin: str = "") -> Said:
    common = ["eval", "perplexity", "--model", str(folder), "--dtype", "float32", "--kv-memory", "4MiB"]
    return run_octavo(monkeypatch, [*common, *arguments], stdin)


def test_one_line_for_people_and_one_object_for_machines(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    said = _octavo(monkeypatch, folder, str(file), "--window", "100", "--stride", "50", "--json")
    assert (said.code, list(said.document)[:3]) == (0, ["perplexity", "nats_per_token", "bits_per_byte"])
    document = said.document
    assert document["perplexity"] == pytest.approx(math.exp(document["nats_per_token"]))
    counts = [document[name] for name in ("num_tokens", "window", "stride", "num_windows")]
    assert counts == [299, 100, 50, 5]
    plain = _octavo(monkeypatch, folder, "-", "--max-model-len", "101", "--stride", "50", stdin=TEXT)
    assert plain.out.startswith(f"perplexity {document['perplexity']:.4f} | {document['nats_per_token']:.6f} nats")
    assert "299 tokens of 1," in plain.out
    assert plain.out.count("\n") == 1


def test_the_length_is_what_fits_where_none_is_asked_for(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    said = _octavo(monkeypatch, folder, "-", "--json", "--kv-memory", "64KiB", stdin=TEXT)
    assert said.code == 0
    assert 1 < said.document["window"] < 255


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["/nowhere"], "", "The file /nowhere cannot be read: No such file"),
        (["-"], "", "The text has 0 tokens, so there is none to score."),
        (["-"], "w5", "The text has 1 token, so there is none to score."),
        (["-", "--window", "0"], TEXT, "The window is 0 tokens. It must be from 2 to 255"),
        (["-", "--window", "-7"], TEXT, "The window is -7 tokens. It must be from 2 to 255"),
        (["-", "--window", "9999999999"], TEXT, "The window is 9999999999 tokens. It must be from 2 to 255"),
        (["-", "--window", "300"], TEXT, "The window is 300 tokens. It must be from 2 to 255"),
        (["-", "--window", "90", "--max-model-len", "50"], TEXT, "The window is 90 tokens. It must be from 2 to 49"),
        (["-", "--window", "20", "--stride", "21"], TEXT, "The stride is 21 tokens. It must be from 1 to 20"),
        (["-", "--model", "/nowhere"], TEXT, "There is no file or folder '/nowhere'."),
    ],
)
def test_a_mistake_is_one_sentence_and_no_weight_is_read(
    monkeypatch: pytest.MonkeyPatch, folder: Path, arguments: list[str], stdin: str, message: str
) -> None:
    monkeypatch.setattr("octavo.models.loader._load_weights", lambda *_: pytest.fail("weights are read"))
    said = _octavo(monkeypatch, folder, *arguments, stdin=stdin)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: ")
    assert message in said.err
    assert said.err.count("\n") == 1


def test_a_text_is_scored_with_every_character_that_is_there(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    counts = []
    for content in (b"w5 w6\nw7 w8 w9\n", b"w5 w6\r\nw7 w8 w9\r\n"):
        file = tmp_path / "text.txt"
        file.write_bytes(content)
        counts.append(_octavo(monkeypatch, folder, str(file), "--json").document["num_bytes"])
    assert counts[1] == counts[0] + 2
