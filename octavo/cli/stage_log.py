"""What a start-up did, stage by stage: kept for a document, and told on stderr where that is wanted."""

from __future__ import annotations

import sys

from octavo.cli.process_clock import seconds_since_start
from octavo.messages import StageReport


class StageLog:
    """Owns: the stages of one start-up. Never: runs one."""

    def __init__(self, *, tells: bool) -> None:
        self._tells = tells
        self.stages: list[StageReport] = []
        """In the order in which they ended; what other threads did meanwhile is among them."""

    def __call__(self, stage: StageReport) -> None:
        """Note a stage that has just ended."""
        self.stages.append(stage)
        if self._tells:
            name = stage.name if stage.rank is None else f"rank {stage.rank} {stage.name}"
            sys.stderr.write(f"{seconds_since_start():6.2f} s  {name:<28} {stage.seconds:6.2f} s  {stage.result}\n")

    def note(self, name: str, seconds: float, result: str) -> None:
        """Note a stage of the command itself."""
        self(StageReport(name=name, seconds=seconds, result=result))

    def facts(self) -> dict[str, str | int]:
        """What was chosen and found in all stages."""
        return {name: value for stage in self.stages for name, value in stage.facts.items()}
