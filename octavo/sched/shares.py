"""Fair turns for the owners of requests: whoever sends much waits behind their own requests, not before others'.

Every request gets a **start** in virtual time when it is added: the present, or the end of its owner's request before
it, whichever is later; its end is its cost later. Waiting requests are admitted in the order of their starts, and the
present is the latest start admitted so far. (Start-time fair queueing: P. Goyal, H. M. Vin, H. Cheng, 1996.)

A start never changes, so the order stays total and the scheduler's proofs hold. An owner's starts grow, so requests of
one owner keep their order. While two owners wait, what was admitted of each differs by no more than their two costliest
requests. Only so many requests of an owner start before a given one, so nobody starves.
"""

from __future__ import annotations

from octavo.request import Request


class FairShares:
    """Gives starts.

    Owns: the present, and until when each owner has had his share. Never: holds a request.
    """

    def __init__(self) -> None:
        self._now = 0
        self._ends: dict[str, int] = {}
        """Owner -> the end of the last request. Those that lie in the past are forgotten now and then."""

    def start_of(self, request: Request) -> int:
        """The start of a request that is added now; one without an owner starts in the present, and owes nothing."""
        if request.owner is None:
            return self._now
        start = max(self._now, self._ends.get(request.owner, 0))
        self._ends[request.owner] = start + cost_of(request)
        return start

    def admitted(self, start: int) -> None:
        """A request with that start runs."""
        if start <= self._now:
            return
        self._now = start
        if len(self._ends) > 1000:
            self._ends = {owner: end for owner, end in self._ends.items() if end > start}


def cost_of(request: Request) -> int:
    """The most tokens that a request can take."""
    return request.num_prompt_tokens + request.max_output_tokens
