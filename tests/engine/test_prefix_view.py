"""The view of one replica's cache, against a definition that is slow and obvious."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.prefix_view import PrefixChain, PrefixView

GRANULE = 4


def chain(tokens: Sequence[int], salt: str | None = None) -> PrefixChain:
    return PrefixChain(tokens, salt=salt, granule=GRANULE)


@given(st.lists(st.integers(0, 2**40), max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_a_chain_is_the_same_however_its_tokens_come(tokens: list[int], cuts: list[int]) -> None:
    whole, pieces, start = chain(tokens), chain([]), 0
    for cut in [*sorted(cuts), len(tokens)]:
        pieces.extend(tokens[start:cut])
        start = max(start, cut)
    assert pieces.digests == whole.digests
    assert pieces.num_tokens == len(tokens)
    assert len(whole.digests) == len(tokens) // GRANULE
    assert whole.settled() == whole.digests[: max(0, len(tokens) - 1) // GRANULE]


@given(st.lists(st.integers(0, 1), min_size=4, max_size=24), st.lists(st.integers(0, 1), min_size=4, max_size=24))
def test_equal_digests_are_equal_beginnings(one: list[int], other: list[int]) -> None:
    for index, (a, b) in enumerate(zip(chain(one).digests, chain(other).digests, strict=False)):
        end = (index + 1) * GRANULE
        assert (a == b) == (one[:end] == other[:end])
    assert set(chain(one, "a").digests).isdisjoint(chain(one, "b").digests)
    assert set(chain(one, "a").digests).isdisjoint(chain(one).digests)


class SlowView:
    """The definition: tuples of tokens with their last use, in a list, the longest unused first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: list[tuple[tuple[int, ...], int]] = []
        self.clock = 0

    @staticmethod
    def beginnings(tokens: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(tokens[:end]) for end in range(GRANULE, len(tokens) + 1, GRANULE)]

    def note(self, tokens: Sequence[int], *, sure: bool) -> None:
        self.clock += sure
        for beginning in reversed(self.beginnings(tokens)):
            before = dict(self.held).get(beginning, -1)
            self.held = [each for each in self.held if each[0] != beginning]
            self.held.append((beginning, self.clock if sure else before))
        self.held = self.held[-self.capacity :]

    def match(self, tokens: Sequence[int]) -> int:
        known = dict(self.held)
        length = 0
        for beginning in self.beginnings(tokens):
            if beginning not in known:
                break
            length += 1
        return length

    def forget_until(self, clock: int) -> None:
        while self.held and self.held[0][1] <= clock:
            self.held.pop(0)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["expect", "confirm", "forget"]), st.lists(st.integers(0, 1), max_size=20), st.integers(0, 9)
    ),
    max_size=30,
)


@given(st.integers(1, 8), ACTIONS)
def test_the_view_against_its_definition(capacity: int, actions: list[tuple[str, list[int], int]]) -> None:
    view, slow = PrefixView(capacity), SlowView(capacity)
    for action, tokens, clock in actions:
        digests = chain(tokens).digests
        if action == "forget":
            view.forget_until(clock)
            slow.forget_until(clock)
        else:
            (view.expect if action == "expect" else view.confirm)(digests)
            slow.note(tokens, sure=action == "confirm")
        assert len(view) == len(slow.held) <= capacity
        for _, other, _ in actions:
            assert view.match(chain(other).digests) == slow.match(other)
            uses = view.sure_uses(chain(other).digests).tolist()
            assert uses == sorted(uses, reverse=True)
    view.clear()
    assert len(view) == 0
