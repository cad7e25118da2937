"""The process of an engine core: `python -m octavo.engine.core_process ADDRESS LOG_FORMAT`.

`ProcessClient` starts it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.core_socket import serve
from octavo.messages import StageReport


def make_engine_core(config: EngineConfig, on_stage: Callable[[StageReport], None]) -> EngineCore:
    """The real core."""
    return EngineCore(config, on_stage=on_stage)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], make_engine_core, *sys.argv[2:]))
