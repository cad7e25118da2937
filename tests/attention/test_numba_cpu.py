"""What the CPU backend promises beyond agreeing with the reference (tests/conformance)."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from octavo.attention.numba_cpu import NumbaCPU
from octavo.attention.torch_reference import TorchReference
from octavo.errors import ConfigError
from tests.attention.cases import Case, Step, check


def test_a_write_touches_the_bytes_of_its_slots_and_no_other() -> None:
    step = Step(Case(requests=((33, 1), (20, 20)), head_size=33, value_size=7, block_size=8, num_padding=2))
    before = torch.randint(0, 256, (step.memory.numel() * 4,), dtype=torch.uint8)
    memory = before.clone()
    NumbaCPU().write(step.view(memory.view(torch.float32)), step.key, step.value, step.metadata)
    token_bytes = 4 * 2 * (33 + 7)
    touched = torch.zeros(memory.numel(), dtype=torch.bool)
    for token, slot in enumerate(step.metadata.slot_mapping.tolist()):
        if slot >= 0:
            own = slice(slot * token_bytes, (slot + 1) * token_bytes)
            touched[own] = True
            expected = torch.cat([step.key[token], step.value[token]], dim=1)
            assert torch.equal(memory[own].view(torch.float32).view(2, 40), expected)
    assert torch.equal(memory[~touched], before[~touched])
    assert int(touched.sum()) == 21 * token_bytes


def test_planes_of_keys_and_values_are_read_by_their_strides() -> None:
    """The contract is the view: a cache whose K and V lie apart works as well."""
    step = Step(Case())
    expected, _ = step.run(TorchReference())
    layer = step.layer(NumbaCPU())
    layer.kv_cache = type(step.cache)(key=step.cache.key.clone(), value=step.cache.value.clone())
    got = layer.forward(step.query, step.key, step.value)
    assert torch.allclose(got, expected, atol=1e-5)


def test_rows_that_are_not_side_by_side_are_taken_too() -> None:
    step = Step(Case())
    expected, memory = step.run(NumbaCPU())
    step.query, step.key, step.value = (
        tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (step.query, step.key, step.value)
    )
    got, same_memory = step.run(NumbaCPU())
    assert torch.equal(got, expected)
    assert torch.equal(memory.view(torch.uint8), same_memory.view(torch.uint8))


def test_one_backend_serves_layers_of_different_shapes_in_turn() -> None:
    backend = NumbaCPU()
    steps = [Step(Case()), Step(Case(head_size=128, value_size=128, group_size=8)), Step(Case(window=5))]
    for _ in range(2):
        for step in steps:
            check(backend, step)
            gc.collect()


def test_a_layer_that_is_bound_anew_reads_its_new_cache() -> None:
    backend, step = NumbaCPU(), Step(Case())
    layer = step.layer(backend)
    for _ in range(3):
        memory = step.memory.clone()
        layer.kv_cache = step.view(memory)
        got = layer.forward(step.query, step.key, step.value)
        assert not got.isnan().any()
        memory.fill_(torch.nan)


def test_a_step_without_requests_is_all_padding() -> None:
    step = Step(Case(requests=((1, 1),), num_padding=4))
    metadata = type(step.metadata)(
        query_start=torch.zeros(1, dtype=torch.int32),
        seq_lens=torch.zeros(0, dtype=torch.int32),
        block_table=torch.zeros(0, 1, dtype=torch.int32),
        slot_mapping=torch.full((5,), -1),
        num_requests=0,
        num_tokens=5,
        max_query_len=0,
        max_seq_len=0,
    )
    layer = step.layer(NumbaCPU())
    layer.kv_cache = step.cache
    assert layer.group is not None
    layer.group.metadata = metadata
    assert not layer.forward(step.query, step.key, step.value).any()


def test_warm_up_compiles_before_a_layer_is_bound() -> None:
    backend, step = NumbaCPU(), Step(Case())
    layer = step.layer(backend)
    layer.backend.warm_up(layer, torch.float32)
    TorchReference().warm_up(layer, torch.float32)
    check(backend, step)


def test_a_dtype_without_arithmetic_is_refused_by_name() -> None:
    step = Step(Case())
    layer = step.layer(NumbaCPU())
    with pytest.raises(ConfigError, match=r"does not compute with torch.float64.*float32, bfloat16 or float16"):
        layer.backend.warm_up(layer, torch.float64)
    layer.kv_cache = type(step.cache)(step.cache.key.double(), step.cache.value.double())
    with pytest.raises(ConfigError, match=r"torch.float64"):
        layer.forward(step.query, step.key, step.value)


def test_a_cache_that_nobody_else_holds_is_let_go() -> None:
    backend, step = NumbaCPU(), Step(Case())
    layer = step.layer(backend)
    layer.kv_cache = step.view(step.memory.clone())
    layer.forward(step.query, step.key, step.value)
    cache, bound = weakref.ref(layer.kv_cache), weakref.ref(layer)
    layer.kv_cache = None
    gc.collect()
    assert cache() is None
    del layer
    gc.collect()
    assert bound() is None
