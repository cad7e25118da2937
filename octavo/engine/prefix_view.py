"""What one replica is believed to hold in its prefix cache, as seen from where requests are routed.

A prompt is a chain of granules, each with a digest of itself and everything before it. The view is a set of digests in
the order of their last use, as the replica's own cache is, so both forget about the same things.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

UNSURE = -1
"""When a granule was last used that was sent to the replica, which has said nothing of it yet."""


class PrefixChain:
    """The digests of one sequence's granules, which grows with its tokens.

    Owns: the tokens behind the last whole granule.

    Parameters:
        salt: prefixes of other salts have other digests.
        granule: tokens of one granule.

    Digests are Python's own, keyed by process: nobody outside can make two prompts that look alike, and where two do by
    accident, a request is routed less well and nothing else.
    """

    __slots__ = ("_granule", "_rest", "_tip", "digests", "num_tokens")

    def __init__(self, token_ids: Sequence[int], *, salt: str | None, granule: int) -> None:
        self._granule = granule
        self._tip = hash(salt)
        self._rest: array[int] = array("q")
        self.digests: list[int] = []
        """Of the whole granules, in order."""
        self.num_tokens = 0
        self.extend(token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens."""
        self.num_tokens += len(token_ids)
        self._rest.extend(token_ids)
        size = self._granule * self._rest.itemsize
        num_whole = len(self._rest) // self._granule
        if not num_whole:
            return
        content, tip = self._rest.tobytes(), self._tip
        for start in range(0, num_whole * size, size):
            tip = hash((tip, content[start : start + size]))
            self.digests.append(tip)
        self._tip = tip
        del self._rest[: num_whole * self._granule]

    def settled(self) -> list[int]:
        """The digests of granules that were computed: the last token is known, and its K and V are not."""
        return self.digests[: max(0, self.num_tokens - 1) // self._granule]


class PrefixView:
    """A bounded set of digests, the longest unused forgotten first.

    Owns: the digests and when each was last used. Never: holds more than `capacity`.

    A digest is never in it without those before it in its chain: a chain is noted from its end to its beginning, so its
    end is forgotten first. That makes the longest known beginning a matter of bisection.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._used_at: OrderedDict[int, int] = OrderedDict()
        """Digest -> clock of its last use that the replica has confirmed, or `UNSURE`; the longest unused first."""
        self._clock = 0

    def __len__(self) -> int:
        return len(self._used_at)

    def match(self, digests: Sequence[int]) -> int:
        """How many digests of this chain, from its beginning, are held."""
        known, low, high = self._used_at, 0, len(digests)
        while low < high:
            middle = (low + high) // 2
            if digests[middle] in known:
                low = middle + 1
            else:
                high = middle
        return low

    def sure_uses(self, digests: Sequence[int]) -> array[int]:
        """For the granules at the beginning of this chain that the replica has confirmed, the clock of their last use:
        never rising along the chain."""
        uses = array("q")
        for digest in digests:
            used_at = self._used_at.get(digest, UNSURE)
            if used_at == UNSURE:
                break
            uses.append(used_at)
        return uses

    def expect(self, digests: Sequence[int]) -> None:
        """This chain was sent to the replica, which will hold it once it is computed."""
        known = self._used_at
        for digest in reversed(digests):
            known.setdefault(digest, UNSURE)
            known.move_to_end(digest)
        self._shrink()

    def confirm(self, digests: Sequence[int]) -> None:
        """The replica has just computed or used this chain."""
        known = self._used_at
        self._clock += 1
        for digest in reversed(digests):
            known[digest] = self._clock
            known.move_to_end(digest)
        self._shrink()

    def forget_until(self, clock: int) -> None:
        """What was last used at `clock` is gone, so what was used before that is gone, too."""
        known = self._used_at
        while known and next(iter(known.values())) <= clock:
            known.popitem(last=False)

    def clear(self) -> None:
        """The replica holds nothing."""
        self._used_at.clear()

    def _shrink(self) -> None:
        while len(self._used_at) > self._capacity:
            self._used_at.popitem(last=False)
