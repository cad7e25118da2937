from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.kv.base import dtype_bytes, most_blocks_touched


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'int3' is not a dtype .* bfloat16"):
        dtype_bytes("int3")


@given(st.integers(1, 70), st.integers(1, 20), st.integers(1, 90), st.integers(1, 40))
def test_most_blocks_touched_is_the_worst_of_all_places(span: int, block: int, tokens: int, stride: int) -> None:
    span = min(span, tokens)
    worst = max((start + span - 1) // block - start // block + 1 for start in range(0, tokens - span + 1, stride))
    found = most_blocks_touched(span, block_size=block, num_tokens=tokens, stride=stride)
    assert found >= worst
    # Exact wherever the sequence is long enough for a span to start late in its block.
    if tokens >= span + stride * block or stride == 1:
        assert found == worst
