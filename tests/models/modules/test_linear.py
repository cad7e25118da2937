from __future__ import annotations

import pytest
import torch
from torch import nn

from octavo.models.modules import linear as module_under_test
from octavo.models.modules.linear import FusedInput, FusedLinear, PackedLinear, quick_products

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 kernels"
)


def linear(outputs: int, *, bias: bool = False, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(48, outputs, bias=bias).to(dtype).requires_grad_(requires_grad=False)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(48,), (1, 48), (1, 1, 48), (1, 7, 48), (2, 3, 48), (65, 48)])
def test_a_packed_layer_computes_the_same(shape: tuple[int, ...], bias: bool) -> None:
    plain = linear(96, bias=bias)
    packed = PackedLinear(plain)
    rows = torch.randn(shape).bfloat16()
    torch.testing.assert_close(packed(rows), plain(rows), rtol=1e-2, atol=1e-2)
    assert torch.equal(packed.weight, plain.weight)
    assert (packed.in_features, packed.out_features) == (48, 96)
    assert packed.packed.num_bytes == sum(parameter.nbytes for parameter in plain.parameters())


@pytest.mark.parametrize("bias", [False, True])
def test_layers_of_one_input_compute_the_same(bias: bool) -> None:
    plain = [linear(outputs, bias=bias, seed=outputs) for outputs in (64, 16, 16)]
    fused = FusedInput(plain)
    layers = [FusedLinear(fused, index, layer) for index, layer in enumerate(plain)]
    for layer, other in zip(layers, plain, strict=True):
        assert torch.equal(layer.weight, other.weight)
    first, second = torch.randn(1, 5, 48).bfloat16(), torch.randn(1, 5, 48).bfloat16()
    for rows in (first, second, first):
        for layer, other in zip(layers, plain, strict=True):
            torch.testing.assert_close(layer(rows), other(rows), rtol=1e-2, atol=1e-2)


def test_layers_asked_out_of_turn_compute_their_own_input() -> None:
    plain = [linear(32, seed=0), linear(32, seed=1)]
    fused = FusedInput(plain)
    layers = [FusedLinear(fused, index, layer) for index, layer in enumerate(plain)]
    one, other = torch.randn(3, 48).bfloat16(), torch.randn(3, 48).bfloat16()
    layers[0](one)
    torch.testing.assert_close(layers[1](other), plain[1](other), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(layers[1](one), plain[1](one), rtol=1e-2, atol=1e-2)


def test_a_fused_input_lets_go_of_its_rows() -> None:
    plain = [linear(32, seed=0), linear(32, seed=1)]
    fused = FusedInput(plain)
    rows = torch.randn(3, 48).bfloat16()
    fused.part(rows, 0)
    fused.part(rows, 1)
    assert fused._rows is None and fused._parts == ()


def test_products_are_quick_while_a_model_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[nn.Module] = []
    hooked, other = linear(64, seed=2), linear(64, seed=3, dtype=torch.float32)
    hooked.register_forward_hook(lambda module, *_: seen.append(module))
    model = nn.ModuleList([linear(64, bias=True), hooked, other, nn.LayerNorm(48)])
    rows = torch.randn(5, 48).bfloat16()
    expected = model[0](rows)
    for is_packed in (False, True):
        monkeypatch.setattr(module_under_test, "can_pack", lambda dtype, is_packed=is_packed: is_packed)
        with pytest.raises(KeyError), quick_products(model):
            assert ["forward" in vars(module) for module in model] == [not is_packed, False, False, False]
            torch.testing.assert_close(model[0](rows), expected, rtol=1e-2, atol=1e-2)
            raise KeyError
        assert not any("forward" in vars(module) for module in model)
