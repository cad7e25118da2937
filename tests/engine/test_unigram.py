"""Against the sentencepiece library over the same pieces."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.engine.gguf_tokenizer import load_gguf_tokenizer
from octavo.engine.tokenizer import Tokenizer
from octavo.engine.unigram import build_unigram, check_character_map
from octavo.errors import ModelFileError
from octavo.formats.gguf import GGUFFile
from tests.engine.scripts import TEXTS
from tests.formats import build


def train(**options: Any) -> tuple[Any, Any]:
    """(processor, model description) of a small unigram model over the test texts."""
    sentencepiece = pytest.importorskip("sentencepiece")
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    stored = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in [*TEXTS.values()] * 3 for line in text.splitlines() if line]),
        model_writer=stored, model_type="unigram", vocab_size=800, character_coverage=0.98,
        minloglevel=2, hard_vocab_limit=False,
        num_threads=1,
        **options,
    )  # fmt: skip
    model = proto.ModelProto()
    model.ParseFromString(stored.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=stored.getvalue()), model


def as_gguf(path: Path, model: Any) -> Tokenizer:
    spec = model.normalizer_spec
    fields: dict[str, Any] = {
        "model": "t5",
        "tokens": [piece.piece for piece in model.pieces],
        "scores": [float(piece.score) for piece in model.pieces],
        "token_type": [piece.type for piece in model.pieces],
        "unknown_token_id": model.trainer_spec.unk_id,
        "add_space_prefix": spec.add_dummy_prefix,
        "remove_extra_whitespaces": spec.remove_extra_whitespaces,
        "precompiled_charsmap": list(spec.precompiled_charsmap),
    }
    metadata = {f"tokenizer.ggml.{key}": field for key, field in fields.items()}
    return Tokenizer(load_gguf_tokenizer(GGUFFile(build.write(path, build.gguf(metadata)))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        {"normalization_rule_name": "nmt_nfkc"},
        {"byte_fallback": True, "normalization_rule_name": "nfkc", "add_dummy_prefix": False},
    ],
    ids=["bytes", "normalised", "no prefix"],
)
def test_ids_and_texts_are_sentencepieces(options: dict[str, Any], tmp_path: Path) -> None:
    processor, model = train(**options)
    tokenizer = as_gguf(tmp_path / "m.gguf", model)
    num_ties = 0
    for text in TEXTS.values():
        expected = processor.encode(text)
        found = tokenizer.encode(text, add_special_tokens=False)
        if found != expected:  # Of two ways that are equally good, either may be taken.
            num_ties += 1
            ours, theirs = (sum(model.pieces[index].score for index in ids) for ids in (found, expected))
            assert abs(ours - theirs) < 1e-3, text
            assert tokenizer.decode(found) == tokenizer.decode(expected)
        if model.trainer_spec.unk_id not in expected:
            assert tokenizer.decode(expected) == processor.decode(expected)
    assert num_ties <= 2


def test_a_damaged_vocabulary_is_refused() -> None:
    options: dict[str, Any] = {"add_space_prefix": True, "remove_extra_spaces": False}
    with pytest.raises(ModelFileError, match="unigram vocabulary of the GGUF file is damaged"):
        build_unigram(["a"], [0.0], [1], unknown_id=5, character_map=b"", **options)


@pytest.mark.slow
def test_a_character_map_that_would_lead_astray_is_refused() -> None:
    _, model = train(normalization_rule_name="nmt_nfkc")
    sound = model.normalizer_spec.precompiled_charsmap
    check_character_map(sound)
    size = int.from_bytes(sound[:4], "little")
    units = np.frombuffer(sound, dtype="<u4", offset=4, count=size // 4)
    far, lost = units.copy(), units.copy()
    far[0] = 0xFFFFF << 10
    lost[units >= 1 << 31] |= 0x7FFFFFFF
    for damaged in (
        b"", sound[:3], sound[:4], b"\xff\xff\xff\xff" + sound[4:], bytes(4), sound[:-1],
        sound[:4] + far.tobytes() + sound[4 + size :], sound[:4] + lost.tobytes() + sound[4 + size :],
        sound[: 4 + size] + b"\xff" + sound[5 + size :],
    ):  # fmt: skip
        with pytest.raises(ModelFileError, match="character map"):
            check_character_map(damaged)
