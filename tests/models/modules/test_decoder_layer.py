"""How layers are put together is found by trying."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from octavo.models.attention_interface import set_hook
from octavo.models.modules.decoder_layer import LayerForm, form_of
from octavo.models.modules.fused_attention import Heads
from octavo.models.modules.replacement import replace_modules, watch_calls
from tests.models.modules.toy_layer import Layer, OwnValues

ANGLES = tuple(
    function(torch.arange(8.0)[None, :, None] / torch.tensor([1.0, 3.0])) for function in (torch.cos, torch.sin)
)
ANGLES = tuple(torch.cat((part, part), dim=-1) for part in ANGLES)


def form(layer: Layer, dtype: torch.dtype = torch.float32) -> LayerForm | None:
    model = nn.ModuleDict({"layer": layer.to(dtype)}).requires_grad_(requires_grad=False)
    arguments = {"position_embeddings": tuple(part.to(dtype) for part in ANGLES)}
    attention = layer.attention
    with torch.inference_mode():
        set_hook(attention, OwnValues())
        with watch_calls(model) as seen:
            layer(torch.randn(1, 8, 16).to(dtype), **arguments)
        replace_modules(model, seen, {attention: Heads(4, 2, 4, 4)})
        return form_of(layer, arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("multiplier", [1.0, 0.22])
@pytest.mark.parametrize("name", ["before", "behind", "around"])
def test_forms_are_found(name: str, multiplier: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = Layer(16, name, multiplier=multiplier)
    found = form(layer, dtype)
    assert found is not None and found.multiplier == multiplier
    assert found.attention is layer.attention and found.mlp is layer.mlp
    norms = (found.before_attention, found.after_attention, found.before_mlp, found.after_mlp)
    expected = {
        "before": (layer.first, None, layer.second, None),
        "behind": (None, layer.first, None, layer.second),
        "around": (layer.first, layer.second, getattr(layer, "third", None), getattr(layer, "fourth", None)),
    }[name]
    assert norms == expected


@pytest.mark.parametrize("change", ["other angles", "clamped", "parallel"])
@pytest.mark.parametrize("name", ["before", "around"])
def test_other_layers_are_of_no_form(name: str, change: str) -> None:
    torch.manual_seed(0)
    assert form(Layer(16, name, change=change)) is None


def test_a_layer_without_known_parts_is_of_no_form() -> None:
    assert form_of(nn.Sequential(nn.Linear(4, 4)), {}) is None
