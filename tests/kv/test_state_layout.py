from __future__ import annotations

import pytest

from octavo.errors import LayoutError
from octavo.kv.specs import MambaSpec
from octavo.kv.state_layout import strided_states


def test_states_of_larger_elements_come_first() -> None:
    spec = MambaSpec(block_size=4, shapes=((3, 5), (2, 4)), dtypes=("bfloat16", "float32"), page_size_padded=64)
    convolution, recurrence = strided_states(spec, 7)
    assert (recurrence.shape, recurrence.strides, recurrence.offset) == ((7, 2, 4), (16, 4, 1), 0)
    assert (convolution.shape, convolution.strides, convolution.offset) == ((7, 3, 5), (32, 5, 1), 16)
    assert (convolution.dtype, recurrence.dtype) == ("bfloat16", "float32")


def test_pages_must_hold_whole_elements() -> None:
    spec = MambaSpec(block_size=4, shapes=((3, 5), (2, 4)), dtypes=("bfloat16", "float32"))
    assert spec.page_bytes == 62
    with pytest.raises(LayoutError, match=r"A page of 62 bytes does not hold whole elements.*multiple of 4 bytes"):
        strided_states(spec, 7)
