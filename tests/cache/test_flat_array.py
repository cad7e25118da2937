from __future__ import annotations

import numpy as np

from octavo.cache.flat_array import grown, ids_from, ids_of, no_ids, repeated, view, zeros


def test_an_array_and_its_view_are_the_same_memory() -> None:
    array, seen = zeros(4)
    array[1] = 2**31 - 1
    seen[2] = 7
    assert (array.tolist(), seen.tolist()) == ([0, 2**31 - 1, 7, 0],) * 2
    ids = ids_from(3, 6)
    view(ids)[0] = 2**62
    assert ids.tolist() == [2**62, 4, 5]


def test_a_grown_array_keeps_its_numbers_and_grows_by_half_at_least() -> None:
    array, seen = zeros(10)
    array[9] = 5
    for wanted, length in ((11, 15), (40, 40)):
        longer, longer_view = grown(seen, wanted)
        assert (len(longer), len(longer_view)) == (length, length)
        assert longer.tolist() == [0] * 9 + [5] + [0] * (length - 10)


def test_ids_are_copies() -> None:
    numbers = np.array([1, 2], dtype=np.int32)
    ids = ids_of(numbers[::-1])
    numbers[0] = 9
    assert ids.tolist() == [2, 1]
    assert (no_ids().tolist(), repeated(7, 3).tolist(), repeated(7, 0).tolist()) == ([], [7, 7, 7], [])
    assert ids_from(2, 2) == no_ids()
