from __future__ import annotations

import pytest
import torch
from torch import nn

from octavo.attention.numba_kernels import vector_paths
from octavo.models.coded_parameters import code_linears
from octavo.models.modules.weights import (
    BlockRows,
    Blocks,
    PackedWeight,
    ask_ahead,
    can_pack,
    in_blocks,
    is_plain_linear,
    packed_blocks,
    run_calls,
    weight_of,
)

DTYPES = (torch.float32, torch.bfloat16)


def linear(outputs: int, *, bias: bool = False, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(outputs)
    return nn.Linear(48, outputs, bias=bias).to(dtype).requires_grad_(requires_grad=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [(32,), (64, 16, 16)])
def test_a_weight_computes_what_its_layers_do(outputs: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    layers = [linear(size, bias=bias, dtype=dtype) for size in outputs]
    weight = weight_of(layers)
    rows = torch.randn(2, 3, 48).to(dtype)
    expected = torch.cat([layer(rows) for layer in layers], dim=-1)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(weight.apply(rows), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(weight.plain(), torch.cat([layer.weight for layer in layers]))
    assert torch.equal(weight.apply(rows[0, 1]), weight.apply(rows)[0, 1]), "one row alone, or among others"
    assert weight.num_bytes == sum(parameter.nbytes for layer in layers for parameter in layer.parameters())


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if not can_pack(dtype)])
def test_a_single_layer_is_not_copied(dtype: torch.dtype) -> None:
    layer = linear(32, dtype=dtype)
    assert weight_of([layer]).plain().data_ptr() == layer.weight.data_ptr()


def test_many_rows_and_other_dtypes_are_torchs() -> None:
    layer = linear(32, bias=True, dtype=torch.float32)
    weight = weight_of([layer])
    assert weight.few_rows is not None
    rows = torch.randn(weight.few_rows.max_rows + 1, 48)
    torch.testing.assert_close(weight.apply(rows), layer(rows))


def test_calls_compute_the_product_with_jobs_of_their_own() -> None:
    layer = linear(32, bias=True, dtype=torch.float32)
    few_rows = weight_of([layer]).few_rows
    assert few_rows is not None
    first, second = few_rows.calls(), few_rows.calls()
    assert {call.record.address for call in first}.isdisjoint(call.record.address for call in second)
    rows = torch.randn(1, 2, 48)
    torch.testing.assert_close(run_calls(first, rows, 2, 32), layer(rows))
    assert torch.equal(run_calls(first, rows, 2, 32), run_calls(second, rows, 2, 32))


def test_products_are_told_where_the_next_weight_lies() -> None:
    plain = [weight_of([linear(size, dtype=torch.float32)]) for size in (32, 16, 24)]
    layers = [linear(16), linear(32)]
    code_linears(nn.ModuleList(layers))
    coded = [weight_of([layer]) for layer in layers]
    weights = [plain[0], coded[0], plain[1], plain[2], coded[1]]
    jobs = [weight.few_rows.calls() for weight in weights if weight.few_rows is not None]
    assert len(jobs) == len(weights)
    ask_ahead([call for calls in jobs for call in calls])
    records = [calls[-1].record.array for calls in jobs]
    assert [int(records[number]["next_weight"][0]) for number in (0, 2, 3)] == [plain[1].address, plain[2].address, 0]
    assert [int(records[number]["next_parts"][0]) for number in (1, 4)] == [int(records[4]["parts"][0]), 0]
    for weight, calls in zip(weights, jobs, strict=True):
        rows = torch.randn(3, 48).to(weight.dtype)
        expected = weight.apply(rows)
        assert torch.equal(run_calls(calls, rows, 3, expected.shape[1]), expected)


def test_which_layers_are_plain() -> None:
    class Special(nn.Linear):
        pass

    hooked = linear(8)
    hooked.register_forward_hook(lambda *_: None)
    assert is_plain_linear(linear(8)) and is_plain_linear(linear(8, bias=True))
    assert is_plain_linear(linear(8, dtype=torch.float32))
    assert not is_plain_linear(linear(8, dtype=torch.float16))
    assert not is_plain_linear(Special(48, 8).bfloat16())
    assert not is_plain_linear(hooked)
    assert not is_plain_linear(nn.Embedding(8, 48).bfloat16())
    mixed = linear(8, bias=True)
    mixed.bias = nn.Parameter(mixed.bias.float())
    assert not is_plain_linear(mixed)


def test_only_bfloat16_is_packed() -> None:
    assert not can_pack(torch.float32) and not can_pack(torch.float16)
    has_instructions = vector_paths()[0].has_dot
    assert can_pack(torch.bfloat16) == (has_instructions and torch.ops.mkldnn._is_mkldnn_bf16_supported())


@pytest.mark.parametrize("block_outputs", [16, 48, 64])
@pytest.mark.parametrize("block_inputs", [2, 32])
def test_the_order_of_a_packed_weight_is_read_off_its_bytes(block_outputs: int, block_inputs: int) -> None:
    weight = torch.randn(200, 66).bfloat16()
    packed = in_blocks(weight, block_outputs, block_inputs)
    found = packed_blocks(weight, packed.data_ptr(), packed.nbytes)
    assert found == Blocks(block_outputs, packed[0].nbytes)
    for other in (torch.flip(packed, (0,)), torch.flip(packed, (3,)), packed + 1):
        assert packed_blocks(weight, other.data_ptr(), other.nbytes) is None
    assert packed_blocks(weight, weight.data_ptr(), weight.nbytes) is None, "row by row is no such order"
    odd = torch.randn(16, 3).bfloat16()
    assert packed_blocks(odd, odd.data_ptr(), odd.nbytes) is None


@pytest.mark.slow  # compiles a kernel
@pytest.mark.parametrize("has_bias", [False, True])
def test_few_rows_of_a_packed_weight_are_multiplied_by_its_blocks(has_bias: bool) -> None:
    layer = linear(70, bias=has_bias)
    packed = in_blocks(layer.weight, 64, 32)
    blocks = Blocks(64, packed[0].nbytes)
    few_rows = BlockRows(packed.data_ptr(), blocks, (70, 48), packed, layer.bias)
    rows = torch.randn(1, 3, 48).bfloat16()
    found = run_calls(few_rows.calls(), rows, 3, 70)
    torch.testing.assert_close(found, layer(rows), rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN packs nothing on this CPU")
@pytest.mark.parametrize("num_rows", [1, 40])
def test_a_packed_weight_computes_what_its_layer_does(num_rows: int) -> None:
    layer = linear(96, bias=True)
    weight = PackedWeight(layer.weight, layer.bias)
    rows = torch.randn(num_rows, 48).bfloat16()
    torch.testing.assert_close(weight.apply(rows), layer(rows), rtol=1e-2, atol=1e-2)
    assert torch.equal(weight.plain(), layer.weight)
