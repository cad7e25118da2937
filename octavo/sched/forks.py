"""Who grows out of whom: requests that go on from another one's blocks instead of computing its tokens again.

Two uses. The completions of one prompt: all but the first wait until the first has computed the prompt, then each goes
on from its last token but one (the last is computed for its logits). Beams: an ended request keeps its blocks, and its
children, which have one token more, go on from its end.

Sharing is a help, never a condition: a child whose parent is gone, was preempted, or is of another prefix, looks the
prefix cache up like any other request. So kept blocks are given back as soon as anybody else lacks room.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.cache.request_blocks import ComputedBlocks
from octavo.request import Request, RequestStatus
from octavo.sched.queue import Entry


class Forks:
    """The children that wait for their parents, and the ended parents that wait for their children.

    Owns: who waits for whom; the blocks of kept requests, until it gives them back.
    Never: chooses who runs.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._parked: dict[str, list[Entry]] = {}
        """By parent: children that wait for its prompt to be computed. They are not in the line."""
        self._pending: dict[str, set[str]] = {}
        """By parent: children that have not been admitted, parked ones included."""
        self._kept: dict[str, Request] = {}
        """Ended requests whose blocks are kept."""

    @property
    def num_parked(self) -> int:
        return sum(map(len, self._parked.values()))

    def kept_ids(self) -> list[str]:
        """The ended requests whose blocks are kept."""
        return list(self._kept)

    def add(self, entry: Entry, entries: Mapping[str, Entry]) -> bool:
        """Note a new request; True when it is parked until its parent, one of `entries`, has computed its prompt."""
        parent_id = entry.request.parent_id
        if parent_id is None or (parent_id not in entries and parent_id not in self._kept):
            return False
        self._pending.setdefault(parent_id, set()).add(entry.request.request_id)
        parent = entries.get(parent_id)
        if parent is None or parent.request.num_output_tokens:
            return False
        self._parked.setdefault(parent_id, []).append(entry)
        return True

    def unpark(self, parent_id: str) -> list[Entry]:
        """The children that waited for this parent's prompt; they belong into the line now."""
        return self._parked.pop(parent_id, [])

    def discard(self, entry: Entry) -> bool:
        """Forget a request that is aborted before its admission; True when it was parked."""
        parent_id = entry.request.parent_id
        if parent_id is None:
            return False
        self.settle(entry.request)
        parked = self._parked.get(parent_id, [])
        if entry not in parked:
            return False
        parked.remove(entry)
        if not parked:
            del self._parked[parent_id]
        return True

    def find(
        self, request: Request, entries: Mapping[str, Entry], under_way: Mapping[str, int]
    ) -> ComputedBlocks | None:
        """What `request` can go on from in its parent's blocks, if that spares anything.

        `under_way`: tokens that each request computes in this step, which are not in the cache yet.
        """
        parent_id = request.parent_id
        if parent_id is None or request.num_preemptions:
            return None
        entry = entries.get(parent_id)
        parent = self._kept.get(parent_id) if entry is None else entry.request
        if parent is None or (entry is not None and parent.status is not RequestStatus.RUNNING):
            return None
        num_settled = parent.num_computed_tokens - under_way.get(parent_id, 0)
        num_tokens = min(num_settled, request.num_tokens - 1)
        if num_tokens < 1 or parent.cache_salt != request.cache_salt:
            return None
        if parent.token_ids[:num_tokens] != request.token_ids[:num_tokens]:
            return None
        return self._manager.fork(parent_id, num_tokens, num_settled)

    def keep(self, request: Request) -> bool:
        """Whether the blocks of a request that has just ended are kept for its children."""
        if not request.keep_blocks and request.request_id not in self._pending:
            return False
        self._kept[request.request_id] = request
        return True

    def settle(self, child: Request) -> None:
        """A child was admitted, or will never be."""
        parent_id = child.parent_id
        pending = self._pending.get(parent_id) if parent_id is not None else None
        if parent_id is None or pending is None:
            return
        pending.discard(child.request_id)
        if pending:
            return
        del self._pending[parent_id]
        parent = self._kept.get(parent_id)
        if parent is not None and not parent.keep_blocks:
            self.release(parent_id)

    def release(self, request_id: str) -> bool:
        """Give back the blocks of a kept request, when its children have been admitted; False when there is no such."""
        request = self._kept.get(request_id)
        if request is None:
            return False
        if request_id in self._pending:
            request.keep_blocks = False
        else:
            del self._kept[request_id]
            self._manager.free(request)
        return True

    def reclaim(self) -> bool:
        """Give back the blocks of all kept requests; whether there were any."""
        kept = list(self._kept.values())
        self._kept.clear()
        for request in kept:
            self._manager.free(request)
        return bool(kept)
