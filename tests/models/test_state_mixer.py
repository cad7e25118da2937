from __future__ import annotations

import pytest
import torch

from octavo.attention.state import StateBatch, StateGroup, StateLayer, StateMetadata, StateView
from octavo.kv.specs import MambaSpec
from octavo.models.state_mixer import CacheArgument, PagedMixer, each_token_alone, install
from tests.models.toy_mixer import KERNEL, SIZE, ToyMixer, toy

SPEC = MambaSpec(block_size=4, shapes=((KERNEL - 1, SIZE), (SIZE,)), dtypes=("float32", "float32"))


def bound_layer() -> StateLayer:
    layer = StateLayer("layers.4", spec=SPEC)
    layer.group = StateGroup(0, 4)
    layer.kv_cache = StateView(tuple(torch.full((9, *shape), torch.nan) for shape in SPEC.shapes))
    return layer


def batch(tokens: list[list[int]], reads: list[int] | None, writes: list[int]) -> StateBatch:
    return StateBatch(
        tokens=torch.tensor(tokens),
        reads=None if reads is None else torch.tensor(reads),
        writes=torch.tensor(writes),
    )


@pytest.mark.parametrize("continues_runs", [True, False])
@torch.inference_mode()
def test_requests_of_a_step_come_out_as_each_alone(continues_runs: bool) -> None:
    module = ToyMixer(forgets=not continues_runs)
    first, second = torch.randn(1, 7, SIZE), torch.randn(1, 5, SIZE)
    layer = bound_layer()
    mixer = toy(module, first)
    install(module, PagedMixer(mixer, layer, continues_runs=continues_runs))
    assert layer.group is not None
    outputs = []
    for hidden, batches in (
        (torch.cat([first[:, :4], second[:, :4]], 1), [batch([[0, 1, 2, 3], [4, 5, 6, 7]], None, [3, 5])]),
        (torch.cat([first[:, 4:], second[:, 4:]], 1), [batch([[3]], [5], [5]), batch([[0, 1, 2]], [3], [8])]),
    ):
        layer.group.metadata = StateMetadata(num_tokens=hidden.shape[1], batches=tuple(batches))
        outputs.append(module(hidden, cache=None))
    begun, ended = outputs
    together = torch.cat([begun[:, :4], ended[:, :3], begun[:, 4:], ended[:, 3:]], 1)
    alone = torch.cat([mixer.forward(first), mixer.forward(second)], 1)
    assert torch.allclose(together, alone, atol=1e-6)
    assert layer.num_calls == 2


@torch.inference_mode()
def test_each_token_alone_is_a_sequence_of_its_own() -> None:
    module = ToyMixer()
    hidden = torch.randn(1, 5, SIZE)
    with each_token_alone([toy(module, hidden)]):
        output = module(hidden, cache=None)
    expected = torch.cat([module(hidden[:, i : i + 1]) for i in range(5)], 1)
    assert torch.allclose(output, expected)
    assert "forward" not in vars(module)


def test_the_cache_is_put_where_the_module_takes_it() -> None:
    argument = CacheArgument.of(ToyMixer())
    assert argument == ("cache", 1)
    assert argument.put(None, [1, 2], {"a": 3}) == ([1, None], {"a": 3})
    assert argument.put(None, [1], {"a": 3}) == ([1], {"a": 3, "cache": None})
    assert CacheArgument.of(torch.nn.Linear(2, 2)) is None
