"""`python -m octavo` is `octavo`: a process of its own, from its start to its end."""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

from octavo.importing import read_ahead

_COMPUTING = ("generate", "bench", "eval")
"""Commands that import torch in this process, sooner or later."""


def run() -> NoReturn:
    """Run the command line and end the process, which is to have done nothing else."""
    if sys.argv[1:2] and sys.argv[1] in _COMPUTING and not {"-h", "--help"} & set(sys.argv):
        read_ahead()
    importlib.import_module("octavo.cli").run()
    raise AssertionError("octavo.cli.run ends the process")


if __name__ == "__main__":
    run()
