"""The process around a core, without a front end; tests/engine/test_process_client.py has the rest."""

from __future__ import annotations

import subprocess
import sys

from octavo.engine.core_socket import ORPHANED


def test_a_process_without_a_front_ends(tmp_path: object) -> None:
    address = f"ipc://{tmp_path}/core"
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.fake_core_process", address],
        stdin=subprocess.DEVNULL, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == ORPHANED
