"""The end of a process that is Octavo's own: what is left to do is done; what the system takes back by itself is not.

Python ends by taking apart what it has made, object by object: for torch, transformers and a model's weights that takes
0.2 to 0.6 s, in which a person at the terminal waits for the prompt, and nothing comes of it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """End with this exit code, after the threads that Python waits for and what was registered with `atexit`.

    Raises `SystemExit` instead where output cannot be written any more: Python has its own way to tell that.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # as `multiprocessing` ends its children
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (AttributeError, OSError, ValueError):
        sys.exit(code)
    os._exit(code)
