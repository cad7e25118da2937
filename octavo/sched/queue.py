"""Who comes first: one order for everybody, and the line of those who wait.

An entry's `key` is the order of a policy. Running requests are kept in it too, so "the best" is always the first and
"the worst" the last, in both lists.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from octavo.request import Request

POLICIES: dict[str, Callable[[Request], int]] = {
    "fcfs": lambda request: 0,
    "priority": lambda request: request.priority,
}
"""Policy -> a request's class; inside a class the earlier arrival comes first."""


class Entry:
    """One unfinished request, and what the scheduler remembers of it.

    Owns: the request's place in the order. Never: blocks.
    """

    __slots__ = ("enders", "is_waiting", "key", "longest", "num_prompt_logprobs", "quiet_until", "request")

    def __init__(self, request: Request, key: tuple[int, int, int, int]) -> None:
        self.request = request
        self.key = key
        """(class by policy, start by `FairShares`, arrival, order of `add_request`): unique, smaller comes first."""
        self.longest = request.num_prompt_tokens + request.max_output_tokens - 1
        """Most tokens of this request that the cache ever holds: the last token is never fed back."""
        self.enders = frozenset((*request.eos_token_ids, *request.sampling.stop_token_ids))
        """Tokens that may end this request; `find_finish` says whether they do."""
        self.quiet_until = 0
        """Up to this many tokens `KVCacheManager.allocate_slots` has nothing to do for it."""
        self.num_prompt_logprobs = 0
        """Prompt log probabilities already delivered: a resumed request computes them again."""
        self.is_waiting = False


class RequestQueue:
    """The waiting requests, best first.

    Owns: their order. Never: changes a request.

    A heap; a request that leaves from the middle (abort) is only marked, and swept when the marked ones outnumber the
    others, so that no operation costs more than O(log n) on average.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int, int], Entry]] = []
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, entry: Entry) -> None:
        """Put `entry` in its place; one that was preempted comes before all that arrived later."""
        entry.is_waiting = True
        self._num_waiting += 1
        heapq.heappush(self._heap, (entry.key, entry))

    def peek(self) -> Entry | None:
        """The best waiting entry, None when nobody waits."""
        heap = self._heap
        while heap and not heap[0][1].is_waiting:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def pop(self) -> Entry:
        """Take the best waiting entry out. Raises `IndexError` when nobody waits."""
        entry = self.peek()
        if entry is None:
            raise IndexError("pop from an empty queue")
        heapq.heappop(self._heap)
        entry.is_waiting = False
        self._num_waiting -= 1
        return entry

    def discard(self, entry: Entry) -> None:
        """Take `entry`, which must be waiting, out of the line."""
        entry.is_waiting = False
        self._num_waiting -= 1
        if len(self._heap) > 2 * self._num_waiting + 16:
            self._heap = [item for item in self._heap if item[1].is_waiting]
            heapq.heapify(self._heap)
