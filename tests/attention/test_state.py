from __future__ import annotations

import pytest
import torch

from octavo.attention.state import StateBatch, StateGroup, StateLayer, StateMetadata, StateView
from octavo.kv.specs import MambaSpec

SPEC = MambaSpec(block_size=4, shapes=((3, 5), (2,)), dtypes=("bfloat16", "float32"))


def test_a_layer_that_is_not_bound_says_so() -> None:
    layer = StateLayer("layers.0", spec=SPEC)
    with pytest.raises(RuntimeError, match="before its state was bound"):
        layer.metadata()
    with pytest.raises(RuntimeError, match="before its state was bound"):
        layer.read(torch.tensor([1]))


def test_calls_are_counted() -> None:
    layer = StateLayer("layers.0", spec=SPEC)
    layer.group = StateGroup(0, 4)
    batch = StateBatch(tokens=torch.zeros(1, 1), reads=None, writes=torch.ones(1))
    layer.group.metadata = StateMetadata(num_tokens=1, batches=(batch,))
    assert layer.metadata() is layer.group.metadata
    assert layer.num_calls == 1


def test_what_is_written_is_read_in_the_dtypes_of_the_cache() -> None:
    layer = StateLayer("layers.0", spec=SPEC)
    layer.kv_cache = StateView((torch.zeros(6, 3, 5, dtype=torch.bfloat16), torch.zeros(6, 2)))
    layer.write(torch.tensor([4, 1]), [torch.full((2, 3, 5), 1.001), torch.tensor([[1.0, 2.0], [3.0, 4.0]])])
    convolution, recurrence = layer.read(torch.tensor([1, 4]))
    assert convolution.dtype == torch.bfloat16
    assert recurrence.tolist() == [[3.0, 4.0], [1.0, 2.0]]
    recurrence.fill_(9)
    assert layer.read(torch.tensor([1]))[1].tolist() == [[3.0, 4.0]]
