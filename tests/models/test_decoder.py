"""Which base models are seen to be a plain row of decoder layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from octavo.models.attention_interface import set_hook
from octavo.models.decoder import Decoder, DecoderRecorder
from octavo.models.modules.fused_attention import Heads
from octavo.models.modules.replacement import replace_modules, watch_calls
from octavo.models.stage import whole
from tests.models.modules.toy_layer import Layer, Norm, OwnValues

HIDDEN, TOKENS = 16, 8


class Rotary(nn.Module):
    """Angles of positions; a model may ask for another speed."""

    def forward(self, rows: torch.Tensor, positions: torch.Tensor, speed: float = 1.0) -> tuple[torch.Tensor, ...]:
        angles = positions[..., None] / torch.tensor([1.0, 3.0, 1.0, 3.0]) * speed
        return angles.cos().to(rows.dtype), angles.sin().to(rows.dtype)


class Base(nn.Module):
    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.embed = nn.Embedding(32, HIDDEN)
        self.layers = nn.ModuleList([Layer(HIDDEN), Layer(HIDDEN)])
        self.norm = Norm(HIDDEN)
        self.rotary = Rotary()
        self.change, self.scale = change, 3.5

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **_: Any) -> tuple[torch.Tensor]:
        hidden = self.embed(input_ids)
        if self.change == "scaled":
            hidden = hidden * 2
        if self.change == "scaled by a number it holds":
            hidden = hidden * self.scale
        if self.change == "embedded twice":
            hidden = self.embed(input_ids.flip(1))
        angles = self.rotary(hidden, position_ids + (1 if self.change == "shifted" else 0))
        other = self.rotary(hidden, position_ids, speed=0.5)
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, position_embeddings=other if number else angles)
            if self.change == "between":
                hidden = hidden + 1
        hidden = self.norm(hidden)
        return (hidden + 1 if self.change == "behind" else hidden,)


def recorded(change: str = "") -> tuple[Decoder | None, nn.Module]:
    """What is seen of a base model, once its modules are replaced."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"base": Base(change)}).requires_grad_(requires_grad=False)
    base = model["base"]
    given = {"input_ids": torch.arange(TOKENS)[None] + 3, "position_ids": torch.arange(TOKENS)[None]}
    attentions = [layer.attention for layer in base.layers]
    with torch.inference_mode():
        for attention in attentions:
            set_hook(attention, OwnValues())
        with watch_calls(model) as seen:
            base(**given)
        replace_modules(model, seen, {attention: Heads(4, 2, 4, 4) for attention in attentions})
        for layer in base.layers:
            set_hook(layer.attention, OwnValues())
        recorder = DecoderRecorder(base, whole(2))
        with recorder.watch():
            base(**given)
            base(**given)
        assert not any(module._forward_hooks for module in base.modules())
        return recorder.decoder(), base


def test_a_row_of_layers_is_seen() -> None:
    decoder, base = recorded()
    assert decoder is not None
    assert decoder.embedding is base.embed and decoder.norm is base.norm
    assert [form.attention for form in decoder.layers] == [layer.attention for layer in base.layers]
    assert decoder.rotary_of == [0, 1]
    positions = torch.tensor([5, 1000])
    for rotary, speed in zip(decoder.rotaries, (1.0, 0.5), strict=True):
        expected = base.rotary(torch.zeros(1), positions, speed)
        assert all(torch.equal(one, other) for one, other in zip(rotary.angles(positions), expected, strict=True))


def test_an_embedding_may_be_multiplied_by_a_number_that_the_model_holds() -> None:
    decoder, _ = recorded("scaled by a number it holds")
    assert decoder is not None and decoder.multiplier == 3.5


@pytest.mark.parametrize("change", ["scaled", "embedded twice", "shifted", "between", "behind"])
def test_what_happens_beside_the_layers_is_noticed(change: str) -> None:
    assert recorded(change)[0] is None
