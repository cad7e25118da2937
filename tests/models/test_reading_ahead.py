"""Weights that threads read before they are loaded, against the same weights read when they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.errors import ModelFileError
from octavo.formats.codes import CODINGS
from octavo.formats.dequantize import dequantize
from octavo.formats.open_files import open_gguf
from octavo.formats.source import ModelFiles
from octavo.models import coded_parameters, reading_ahead
from octavo.models.modules.panels import Panels
from octavo.models.panel_reading import read_panels
from octavo.models.quantization import choose_quantization
from octavo.models.reading_ahead import Form, ReadyWeights, read_ahead, stays_coded, stop_reading, what_is_ready
from tests.formats import build
from tests.formats.test_codes import stored_rows
from tests.models.test_coded_parameters import VOCAB, load, write

SHAPES = {"blk.0.ffn_up.weight": (40, 64), "blk.0.attn_q.weight": (32, 64), "token_embd.weight": (96, 64)}


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    before = threading.active_count()
    yield
    stop_reading()
    assert threading.active_count() == before


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors: dict[str, Any] = {
        name: ("Q4_1", shape, stored_rows("Q4_1", *shape, seed=number).tobytes())
        for number, (name, shape) in enumerate(SHAPES.items())
    }
    tensors["output_norm.weight"] = ("F32", (64,), np.ones(64, "<f4").tobytes())
    tensors["output.weight"] = ("F16", (96, 64), np.arange(96 * 64, dtype="<f2").tobytes())
    file = tmp_path / "some.gguf"
    build.write(file, build.gguf({"general.architecture": "llama"}, tensors))
    return file


def wait_for(ahead: ReadyWeights) -> None:
    for thread in ahead._threads:
        thread.join()


def test_matrices_come_in_the_form_that_was_asked_for(path: Path) -> None:
    file = open_gguf(path)
    for form in (Form("bfloat16", is_coded=True), Form("float32", is_coded=False), Form("bfloat16", is_coded=False)):
        ahead = ReadyWeights([path], form)
        ahead.start(2)
        wait_for(ahead)
        for name, info in file.tensors.items():
            made = ahead.take(path, name)
            if len(info.shape) == 1:
                assert made is None
                continue
            expected = dequantize(np.asarray(file.raw(name)), info.type, info.shape, form.dtype)
            if isinstance(made, np.ndarray):
                np.testing.assert_array_equal(made, expected)
                assert not (form.is_coded and info.type in CODINGS)
            elif made is not None:
                assert form.is_coded and "attn_q" not in name
                exact = dequantize(np.asarray(file.raw(name)), info.type, info.shape)
                np.testing.assert_allclose(made.numbers(np.arange(info.shape[0])), exact, rtol=1e-6, atol=1e-6)
            else:
                assert form.is_coded and "attn_q" in name  # in another order, which only the model's config tells
            assert ahead.take(path, name) is None
        ahead.stop()


def test_what_was_not_begun_is_left_to_who_asks(path: Path) -> None:
    ahead = ReadyWeights([path], Form("float32", is_coded=False))
    assert ahead.take(path, "token_embd.weight") is None
    ahead.start(1)
    wait_for(ahead)
    assert ahead.take(path, "token_embd.weight") is None
    assert ahead.take(path, "blk.0.ffn_up.weight") is not None


def test_what_is_under_way_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> Any:
        begun.set()
        assert may_end.wait(20)
        return dequantize(*args, **kwargs)

    monkeypatch.setattr(reading_ahead, "dequantize", slow)
    ahead = ReadyWeights([path], Form("float32", is_coded=False))
    ahead.start(1)
    assert begun.wait(20)
    threading.Timer(0.05, may_end.set).start()
    first = next(iter(SHAPES))
    assert isinstance(ahead.take(path, first), np.ndarray)
    ahead.stop()
    assert all(ahead.take(path, name) is None for name in SHAPES)


def test_nothing_is_told_of_what_cannot_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ModelFileError("no")

    monkeypatch.setattr(reading_ahead, "dequantize", fail)
    ahead = ReadyWeights([path], Form("float32", is_coded=False))
    ahead.start(2)
    wait_for(ahead)
    assert all(ahead.take(path, name) is None for name in SHAPES)


def test_another_model_or_form_ends_it(path: Path, tmp_path: Path) -> None:
    form = Form("float32", is_coded=False)
    read_ahead([path], form, 1)
    with what_is_ready([path], form) as ahead:
        assert ahead is not None
    with what_is_ready([path], form) as ahead:
        assert ahead is None  # once
    read_ahead([path], form, 1)
    with what_is_ready([path], Form("float32", is_coded=True)) as ahead:
        assert ahead is None
    read_ahead([path], form, 1)
    with what_is_ready([tmp_path / "other.gguf"], form) as ahead:
        assert ahead is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantization", "dtype"), [("gguf", torch.bfloat16), ("none", torch.bfloat16), ("none", torch.float32)]
)
def test_a_model_is_the_same(
    quantization: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write(tmp_path / "model.gguf", {"attn_v.weight": "F16", "token_embd.weight": "Q8_0"}, tied=False)
    tokens = torch.arange(24) % VOCAB
    expected = load(files, quantization, dtype).compute_logits(hidden_of(tokens, dtype))
    name = str(dtype).removeprefix("torch.")
    read_ahead(files.weight_paths, Form(name, stays_coded(quantization, name)), 2)
    current = reading_ahead._current
    assert current is not None
    wait_for(current)
    read_now: list[str] = []

    def watched(raw: Any, info: Any, *args: Any, **kwargs: Any) -> Panels:
        read_now.append(info.type)
        return read_panels(raw, info, *args, **kwargs)

    monkeypatch.setattr(coded_parameters, "read_panels", watched)
    found = load(files, quantization, dtype)
    assert torch.equal(found.compute_logits(hidden_of(tokens, dtype)), expected)
    assert len(read_now) == (4 if quantization == "gguf" else 0)  # queries and keys of two layers


def hidden_of(tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(len(tokens), 64, generator=torch.Generator().manual_seed(3)).to(dtype)


def test_what_stays_coded_is_foreseen(path: Path) -> None:
    files = ModelFiles(kind="gguf", path=path, config_path=None, weight_paths=(path,), name="some")
    for asked in ("auto", "none", "gguf", "int8"):
        for dtype in (torch.bfloat16, torch.float32):
            chosen = choose_quantization(asked, files, None, torch.device("cpu"), dtype)
            assert (chosen == "gguf") == stays_coded(asked, str(dtype).removeprefix("torch."))
