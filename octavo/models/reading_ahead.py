"""A GGUF file's matrices made ready by threads, while the process imports the libraries that will compute with them.

Importing takes a second or two, on one core, under Python's lock; reading codes and numbers takes none of that lock.
What is made is what `read_gguf_weights` makes: panels of codes, or numbers in the dtype of computation. Whoever loads
the model takes what is ready, waits for what is under way, and makes for itself what nobody has begun.

A process reads one model ahead at a time, as it parses a file's header once (`formats.open_files`): between the command
that begins and the loader that takes lie the engine and its executor, which know nothing of it.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.formats.codes import CODINGS
from octavo.formats.dequantize import dequantize
from octavo.formats.open_files import open_gguf
from octavo.models.modules.panels import Panels
from octavo.models.panel_reading import read_panels

_ELEMENTS_AT_ONCE = 1 << 19
"""Fewer calls from Python than `dequantize` makes of itself: each waits for the lock that importing threads hold."""

_OTHER_ROWS = re.compile(r"\.attn_(q|k|qkv|gate)\.|\.ssm_")
"""Names of matrices that converters may have given another order of rows, which only the model's config tells."""


class Form(NamedTuple):
    """How a model's matrices are to be kept."""

    dtype: str
    """As `dequantize` takes it."""
    is_coded: bool
    """Whether those that can stay coded do."""


def stays_coded(asked: str, dtype: str) -> bool:
    """Whether a GGUF model's weights stay coded on a CPU; `asked` is `--quantization`."""
    return asked == "gguf" or (asked == "auto" and dtype == "bfloat16")


class ReadyWeights:
    """Owns: its threads, and what they made until it is taken. Never: makes a matrix of more than two dimensions, whose
    parameter is filled piece by piece, or one again that was asked for."""

    def __init__(self, paths: Sequence[Path], form: Form) -> None:
        self.paths, self.form = tuple(paths), form
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Path, str]] = deque()
        for path in self.paths:
            file = open_gguf(path)
            self._waiting.extend((path, name) for name, info in file.tensors.items() if self._is_wanted(name, info))
        self._under_way: set[tuple[Path, str]] = set()
        self._made: dict[tuple[Path, str], Panels | npt.NDArray[Any]] = {}
        self._threads: list[threading.Thread] = []

    def _is_wanted(self, name: str, info: Any) -> bool:
        is_panels = self.form.is_coded and info.type in CODINGS
        return len(info.shape) == 2 and not (is_panels and _OTHER_ROWS.search(name))

    def start(self, num_threads: int) -> None:
        """Begin. Raises nothing for a file that cannot be read: who takes from it will find that out."""
        for number in range(num_threads):
            thread = threading.Thread(target=self._work, name=f"reading-ahead-{number}")
            self._threads.append(thread)
            thread.start()

    def take(self, path: Path, name: str) -> Panels | npt.NDArray[Any] | None:
        """The matrix, once; None for one that was not begun, which never will be then."""
        key = (path, name)
        with self._changed:
            if key in self._waiting:
                self._waiting.remove(key)
                return None
            while key in self._under_way:
                self._changed.wait()
            return self._made.pop(key, None)

    def stop(self) -> None:
        """Begin nothing more, and forget what nobody took. Waits for what is under way. May be called twice."""
        with self._changed:
            self._waiting.clear()
        for thread in self._threads:
            thread.join()
        self._made.clear()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    return
                key = self._waiting.popleft()
                self._under_way.add(key)
            try:
                made = self._make(*key)
            except Exception:  # who takes it makes it again, and tells
                made = None
            with self._changed:
                self._under_way.discard(key)
                if made is not None:
                    self._made[key] = made
                self._changed.notify_all()

    def _make(self, path: Path, name: str) -> Panels | npt.NDArray[Any]:
        file = open_gguf(path)
        info, raw = file.tensors[name], np.asarray(file.raw(name))
        if self.form.is_coded and info.type in CODINGS:
            return read_panels(raw, info, num_threads=1)
        return dequantize(
            raw, info.type, info.shape, self.form.dtype, num_threads=1, elements_at_once=_ELEMENTS_AT_ONCE
        )


_current: ReadyWeights | None = None


def read_ahead(paths: Sequence[Path], form: Form, num_threads: int) -> None:
    """Begin to read a model, in place of any other. Raises `ModelFileError` for a file that is none."""
    global _current
    stop_reading()
    _current = ReadyWeights(paths, form)
    _current.start(num_threads)


def stop_reading() -> None:
    """End what `read_ahead` began, if anything."""
    global _current
    current, _current = _current, None
    if current is not None:
        current.stop()


@contextmanager
def what_is_ready(paths: Sequence[Path], form: Form) -> Iterator[ReadyWeights | None]:
    """What reads these files ahead in this form, if anything does; afterwards nothing is read ahead any more."""
    current = _current
    try:
        if current is None or (current.paths, current.form) != (tuple(paths), form):
            stop_reading()
            current = None
        yield current
    finally:
        stop_reading()
