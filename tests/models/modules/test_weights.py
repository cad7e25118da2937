from __future__ import annotations

import pytest
import torch
from torch import nn

from octavo.attention.numba_kernels import vector_paths
from octavo.models.modules.weights import can_pack, is_plain_linear, run_calls, weight_of

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
