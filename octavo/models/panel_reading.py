"""Coded rows into panels, shared out among threads. Imports no torch: weights may be read before it is there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from octavo.formats.codes import CODINGS, GroupCodes, read_codes
from octavo.formats.gguf import TensorInfo
from octavo.models.modules.panels import OUTPUTS, Panels

_CODES_AT_ONCE = 1 << 20
"""Codes that a thread reads at a time: a core's cache holds them until they are in panels, and calls from Python, which
wait for its lock while other threads import, are few."""

_CODES_WORTH_A_THREAD = 1 << 19
"""A millisecond's work; fewer codes are read before a thread has started."""

Bytes = npt.NDArray[np.uint8]


def read_panels(
    raw: Bytes, info: TensorInfo, order: npt.NDArray[np.int64] | None = None, *, num_threads: int
) -> Panels:
    """The panels of a coded matrix whose stored bytes are `raw`, its rows in `order` where that is given."""
    num_outputs, num_inputs = info.shape
    rows = raw.reshape(num_outputs, -1)

    def read(first: int, last: int) -> GroupCodes:
        part = rows[first:last] if order is None else rows[order[first:last]]
        return read_codes(part.reshape(-1), info.type, num_inputs)

    panels = Panels(num_outputs, num_inputs, CODINGS[info.type], info.type)
    fill_panels(panels, read, num_threads=num_threads)
    return panels


def fill_panels(panels: Panels, read: Callable[[int, int], GroupCodes], *, num_threads: int) -> None:
    """Fill all rows with what `read` gives for rows from one number to another."""
    num_threads = max(1, min(num_threads, panels.num_outputs * panels.num_inputs // _CODES_WORTH_A_THREAD))
    share = min(_CODES_AT_ONCE // panels.num_inputs, -(-panels.num_outputs // num_threads))
    step = max(1, -(-share // OUTPUTS)) * OUTPUTS

    def work(first: int) -> None:
        panels.fill(first, read(first, min(first + step, panels.num_outputs)))

    starts = range(0, panels.num_outputs, step)
    if num_threads == 1:
        for first in starts:
            work(first)
        return
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(work, starts))
