from __future__ import annotations

import msgspec
import pytest
import torch

from octavo.attention.state import StateBatch, StateGroup, StateLayer, StateMetadata, StateView
from octavo.errors import BindError, InvariantError
from octavo.kv.specs import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, MambaSpec
from octavo.worker.kv_memory import allocate, bind, view

STATE = MambaSpec(
    block_size=4, shapes=((3, 5), (2, 4)), dtypes=("bfloat16", "float32"), page_size_padded=96, cache_mode="align"
)
CPU = torch.device("cpu")


def plan(spec: MambaSpec = STATE, num_blocks: int = 6) -> KVCacheConfig:
    return KVCacheConfig(
        num_blocks=num_blocks,
        groups=(KVCacheGroupSpec(layer_names=("layers.0",), spec=spec),),
        tensors=(KVCacheTensor(size_bytes=num_blocks * spec.page_bytes, shared_by=("layers.0",)),),
        max_model_len=64,
        max_chunk_tokens=64,
    )


def bound() -> tuple[StateLayer, list[torch.Tensor]]:
    config, layer = plan(), StateLayer("layers.0", spec=STATE)
    tensors = allocate(config, CPU)
    bind(config, view(config, tensors), {"layers.0": layer})
    return layer, tensors


def test_states_lie_in_their_page_and_nowhere_else() -> None:
    layer, tensors = bound()
    tensors[0].fill_(-1)
    before = tensors[0].clone()
    written = [torch.ones(2, 3, 5), torch.full((2, 2, 4), 7.0)]
    layer.write(torch.tensor([2, 5]), written)
    changed = (tensors[0] != before).view(6, 96)
    assert changed[[0, 1, 3, 4]].any() == torch.tensor(False)
    # 8 floats, then 15 numbers of 16 bits: 62 bytes, and 34 of padding.
    assert not changed[[2, 5], 62:].any()
    assert tensors[0].view(6, 96)[2, :32].view(torch.float32).tolist() == [7.0] * 8
    for found, wanted in zip(layer.read(torch.tensor([5, 2])), written, strict=True):
        assert torch.equal(found.float(), wanted)


def test_what_is_read_is_a_copy() -> None:
    layer, _ = bound()
    layer.read(torch.tensor([3]))[0].fill_(9)
    assert not layer.read(torch.tensor([3]))[0].any()


def test_a_group_counts_in_tokens_of_its_blocks_or_has_no_border() -> None:
    config = plan(msgspec.structs.replace(STATE, cache_mode="none"))
    layer = StateLayer("layers.0", spec=STATE)
    (group,) = bind(config, view(config, allocate(config, CPU)), {"layers.0": layer})
    assert isinstance(group, StateGroup)
    assert group.block_size > 1 << 60
    assert layer.group is group


def test_other_shapes_are_refused() -> None:
    config = plan()
    views = view(config, allocate(config, CPU))
    layer = StateLayer("layers.0", spec=msgspec.structs.replace(STATE, shapes=((3, 5), (4, 2))))
    with pytest.raises(BindError, match=r"needs states .*\[6, 4, 2\].* its view has .*\[6, 2, 4\]"):
        bind(config, views, {"layers.0": layer})
    assert layer.kv_cache is None


def test_tokens_for_states_are_refused() -> None:
    config = plan()
    views = view(config, allocate(config, CPU))
    layer = StateLayer("layers.0", spec=FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=4, dtype="float32"))  # type: ignore[arg-type]
    with pytest.raises(BindError, match="of kind full in the model and of kind mamba in the plan"):
        bind(config, views, {"layers.0": layer})


def test_a_view_that_would_leave_its_tensor_is_a_bug() -> None:
    config = plan()
    with pytest.raises(InvariantError, match="ends at element"):
        view(config, [torch.zeros(6 * 96 - 64, dtype=torch.int8)])


def test_addresses_that_differ_from_the_layout_are_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    config = plan()
    monkeypatch.setattr("octavo.worker.state_memory.block_bytes", lambda place, block: (block * 96, block * 96 + 60))
    with pytest.raises(InvariantError, match="the layout says"):
        view(config, allocate(config, CPU))


def test_a_layer_that_is_not_bound_says_so() -> None:
    layer = StateLayer("layers.0", spec=STATE)
    with pytest.raises(RuntimeError, match="before its state was bound"):
        layer.metadata()
    layer.group = StateGroup(0, 4)
    layer.group.metadata = StateMetadata(
        num_tokens=1, batches=(StateBatch(tokens=torch.zeros(1, 1), reads=None, writes=torch.ones(1)),)
    )
    assert layer.metadata() is layer.group.metadata
    assert layer.num_calls == 1
    with pytest.raises(RuntimeError, match="before its state was bound"):
        layer.read(torch.tensor([1]))
    layer.kv_cache = StateView((torch.zeros(2, 3, 5),))
    assert len(layer.read(torch.tensor([1]))) == 1
