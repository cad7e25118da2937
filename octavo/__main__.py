"""`python -m octavo` is `octavo`."""

from __future__ import annotations

from octavo.cli import run

if __name__ == "__main__":
    run()
