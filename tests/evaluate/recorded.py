"""What transformers made of a text on the real models, in tests/data/perplexity.json: to read a GGUF it takes minutes.

    python -m tests.evaluate.recorded     asks transformers again and rewrites the file

The text is a part of Python's licence, kept as token ids, since the file ships with Python and changes with it.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import msgspec

from octavo import LLM
from octavo.evaluate.windows import lay_windows
from tests.evaluate.direct import direct_windows
from tests.parity.recorded import checksum, weights
from tests.parity.reference import load_gguf

MODELS = ("demo", "demo-smollm2")
NUM_TOKENS, WINDOW, STRIDE = 400, 160, 100

_FILE = Path(__file__).parent.parent / "data" / "perplexity.json"


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One real model on one text, in float32."""

    model_sha256: str
    marks: list[int]
    token_ids: list[int]
    window: int
    stride: int
    sums: list[float]
    """Log probability of each window's scored ids."""


def load(name: str) -> Recording:
    """The recording of `name`, which is that of the installed weights."""
    recording = msgspec.json.decode(_FILE.read_bytes(), type=dict[str, Recording])[name]
    assert recording.model_sha256 == checksum(weights(name)), f"the weights of {name} are not those recorded"
    return recording


def ask(name: str, token_ids: list[int], marks: list[int], *, window: int, stride: int) -> list[float]:
    """What the installed transformers says of each window."""
    windows = lay_windows(len(token_ids), marks, longest=window, window=window, stride=stride)
    return direct_windows(load_gguf(weights(name)), token_ids, windows.spans(), marks)


def record(name: str) -> Recording:
    text = Path(sysconfig.get_path("stdlib"), "LICENSE.txt").read_text(encoding="utf-8")
    with LLM(name, dtype="float32", kv_memory="64MiB", max_model_len=256) as llm:
        tokenizer = llm.get_tokenizer()
        token_ids, marks = tokenizer.encode(text, add_special_tokens=False)[:NUM_TOKENS], list(tokenizer.prefix_ids)
    return Recording(
        model_sha256=checksum(weights(name)),
        marks=marks,
        token_ids=token_ids,
        window=WINDOW,
        stride=STRIDE,
        sums=ask(name, token_ids, marks, window=WINDOW, stride=STRIDE),
    )


if __name__ == "__main__":
    _FILE.write_bytes(msgspec.json.encode({name: record(name) for name in MODELS}) + b"\n")
