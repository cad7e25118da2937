"""Mutated files of every format: only Octavo's own errors, in bounded time and memory."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from octavo.config import Environment, ModelSource
from octavo.engine.gguf_tokenizer import load_gguf_tokenizer
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import OctavoError
from octavo.formats.dequantize import dequantize
from octavo.formats.gguf import GGUFArray, GGUFFile
from octavo.formats.gguf_config import hf_config_of_gguf
from octavo.formats.hf_config import model_config_from_hf
from octavo.formats.kv_specs import kv_cache_specs
from octavo.formats.model_config import load_model_config
from octavo.formats.safetensors import read_safetensors_header
from octavo.formats.source import locate
from tests.formats import hostile_files

CASE_SECONDS = 2.0
"""Processor time of one case: ordinary ones take about a millisecond."""

EXTRA_MEMORY_BYTES = 512 << 20
"""Address space beyond what the process has at the start; the files have a few KiB."""

ENVIRONMENT = Environment(cache_dir=Path("unused"), attention_backend="", ray_address="", num_threads=1)


def read_gguf(folder: Path, data: bytes) -> None:
    """Everything that start-up reads of a GGUF file, each part for itself."""
    file = GGUFFile(hostile_files.write(folder / "model.gguf", data))
    for part in (_read_metadata, _read_tensors, _plan, _tokenize):
        try:
            part(file)
        except OctavoError:
            continue


def _read_metadata(file: GGUFFile) -> None:
    for item in file.metadata.values():
        if isinstance(item, GGUFArray):
            item.tolist()


def _read_tensors(file: GGUFFile) -> None:
    for name, info in file.tensors.items():
        dequantize(np.asarray(file.raw(name)), info.type, info.shape, num_threads=1)


def _plan(file: GGUFFile) -> None:
    kv_cache_specs(model_config_from_hf(hf_config_of_gguf(file), name="m"), block_size=16, dtype="bfloat16")


def _tokenize(file: GGUFFile) -> None:
    tokenizer = Tokenizer(load_gguf_tokenizer(file))
    ids = tokenizer.encode("ab a<start_of_x>\u00e9")
    tokenizer.decode([*ids, 0, tokenizer.vocab_size + 5])


def read_safetensors(folder: Path, data: bytes) -> None:
    read_safetensors_header(hostile_files.write(folder / "model.safetensors", data))


def read_index(folder: Path, data: bytes) -> None:
    hostile_files.write(folder / "config.json", b"{}")
    hostile_files.write(folder / "model.safetensors.index.json", data)
    locate(ModelSource(model=str(folder)), ENVIRONMENT)


def read_config(folder: Path, data: bytes) -> None:
    hostile_files.write(folder / "config.json", data)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    config = load_model_config(locate(ModelSource(model=str(folder)), ENVIRONMENT))
    kv_cache_specs(config, block_size=16, dtype="bfloat16")


KINDS: dict[str, tuple[Callable[[int], bytes], Callable[[Path, bytes], None], float]] = {
    "gguf": (hostile_files.hostile_gguf, read_gguf, 0.45),
    "safetensors": (hostile_files.hostile_safetensors, read_safetensors, 0.2),
    "index": (hostile_files.hostile_index, read_index, 0.1),
    "config": (hostile_files.hostile_config, read_config, 0.25),
}
"""Kind -> what makes a file from a seed, what reads it, and its share of all cases."""


@contextmanager
def limited_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + EXTRA_MEMORY_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run_cases(kind: str, seeds: range, folder: Path, most_s: float = CASE_SECONDS) -> Counter[str]:
    """How the cases ended: `read` or the name of the error; each within `most_s` of CPU time."""
    make, read, _ = KINDS[kind]
    endings: Counter[str] = Counter()
    for seed in seeds:
        started = time.process_time()
        try:
            read(folder, make(seed))
            endings["read"] += 1
        except OctavoError as error:
            assert str(error), seed
            endings[type(error).__name__] += 1
        except BaseException as error:
            raise AssertionError(f"seed {seed} of kind {kind} ended in {type(error).__name__}: {error}") from error
        seconds = time.process_time() - started
        assert seconds < most_s, f"seed {seed} of kind {kind} took {seconds:.1f} s"
    return endings


def fuzz(kind: str, num_cases: int, first: int, folder: Path) -> None:
    # Kernels are compiled before memory and time are limited.
    run_cases(kind, range(first + num_cases, first + num_cases + 20), folder, most_s=60.0)
    share = KINDS[kind][2]
    with limited_memory():
        endings = run_cases(kind, range(first, first + round(num_cases * share)), folder)
    # Both endings occur: the files are neither all refused at their first byte nor all harmless.
    assert endings["read"] and endings["ModelFileError"], endings


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_thousand_mutations(kind: str, tmp_path: Path) -> None:
    fuzz(kind, 2_000, 0, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_thousand_mutations(kind: str, tmp_path: Path) -> None:
    fuzz(kind, 100_000, 1_000_000, tmp_path)
