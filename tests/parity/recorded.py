"""What transformers answered on the real models, kept in tests/data/parity so that no test waits minutes for it.

    python -m tests.parity.recorded     asks transformers again and rewrites the files

A recording holds the prompts themselves (their texts ship with Python and change with it), the checksum of the weights
and the versions it was made with. `test_recorded.py` compares it with transformers as installed.
"""

from __future__ import annotations

import gc
import hashlib
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import msgspec

from octavo import LLM
from octavo.config import ModelSource, read_environment
from octavo.formats.source import locate
from tests.parity.reference import Greedy, greedy, load_gguf
from tests.parity.texts import prompts_of_lengths

NUM_TOKENS = 16
"""Output tokens after each prompt."""
NUM_LONG_TOKENS = 60
"""Output tokens after a short prompt, in `long_outputs`."""
MAX_SHORT_PROMPT = 100
MODELS = ("demo", "demo-smollm2")

_FOLDER = Path(__file__).parent.parent / "data" / "parity"


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One real model's prompts, and their greedy continuations in float32."""

    model_sha256: str
    made_with: dict[str, str]
    prompts: list[list[int]]
    outputs: list[Greedy]
    """`NUM_TOKENS` tokens after each prompt."""
    long_outputs: list[Greedy]
    """`NUM_LONG_TOKENS` tokens after each of `short_prompts`."""

    @property
    def short_prompts(self) -> list[list[int]]:
        return [prompt for prompt in self.prompts if len(prompt) <= MAX_SHORT_PROMPT]


def weights(name: str) -> Path:
    """The model's file."""
    return Path(locate(ModelSource(model=name), read_environment()).path)


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(name: str) -> Recording:
    """The recording of `name`, which is that of the installed weights."""
    recording = msgspec.json.decode((_FOLDER / f"{name}.json").read_bytes(), type=Recording)
    assert recording.model_sha256 == checksum(weights(name)), f"the weights of {name} are not those recorded"
    return recording


def ask(name: str, prompts: Iterable[list[int]], num_tokens: int) -> list[Greedy]:
    """What the installed transformers answers now."""
    model = load_gguf(weights(name))
    answers = [greedy(model, prompt, num_tokens) for prompt in prompts]
    del model
    gc.collect()
    return answers


def record(name: str) -> Recording:
    """Ask transformers everything that a recording holds; takes minutes."""
    with LLM(name, dtype="float32", kv_memory="64MiB", max_model_len=256) as llm:
        prompts = prompts_of_lengths(llm.get_tokenizer().encode)
    return Recording(
        model_sha256=checksum(weights(name)),
        made_with={"python": platform.python_version()}
        | {library: version(library) for library in ("torch", "transformers")},
        prompts=prompts,
        outputs=ask(name, prompts, NUM_TOKENS),
        long_outputs=ask(name, [ids for ids in prompts if len(ids) <= MAX_SHORT_PROMPT], NUM_LONG_TOKENS),
    )


if __name__ == "__main__":
    for model_name in MODELS:
        (_FOLDER / f"{model_name}.json").write_bytes(msgspec.json.encode(record(model_name)) + b"\n")
        print(f"recorded {model_name}")
