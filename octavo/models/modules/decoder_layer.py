"""Decoder layers by kind: how a layer puts its attention, its feed-forward part, its norms and its residuals together.

    x = x + m * after_attention(attention(before_attention(x)))
    x = x + m * after_mlp(mlp(before_mlp(x)))

Each of the four norms may be missing; m is 1, or a number that the layer holds. A layer is of a form when, on random
rows of several magnitudes, it hands the same queries, keys and values to attention as the form does and makes the same
result of what attention returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from octavo.models.attention_interface import AttentionHook, AttentionInput, clear_hook, set_hook
from octavo.models.modules.fused_attention import FusedAttention
from octavo.models.modules.gated_mlp import GatedMLP
from octavo.models.modules.rms_norm import FastRMSNorm
from octavo.models.modules.trial import MAGNITUDES, differs

_Norm = FastRMSNorm | None
_Norms = tuple[_Norm, _Norm, _Norm, _Norm]


class LayerForm(NamedTuple):
    """What a decoder layer is made of."""

    attention: FusedAttention
    mlp: GatedMLP
    before_attention: FastRMSNorm | None
    after_attention: FastRMSNorm | None
    before_mlp: FastRMSNorm | None
    after_mlp: FastRMSNorm | None
    multiplier: float
    """What each part's result is multiplied by before it is added."""

    def forward(self, rows: torch.Tensor, arguments: dict[str, Any]) -> torch.Tensor:
        """What the layer makes of rows [1, tokens, hidden size], by its modules."""
        part = rows if self.before_attention is None else self.before_attention(rows)
        part = self.attention(hidden_states=part, **arguments)[0]
        rows = self._joined(rows, part, self.after_attention)
        part = self.mlp(rows if self.before_mlp is None else self.before_mlp(rows))
        return self._joined(rows, part, self.after_mlp)

    def _joined(self, rows: torch.Tensor, part: torch.Tensor, norm: FastRMSNorm | None) -> torch.Tensor:
        part = part if norm is None else norm(part)
        return rows + (part if self.multiplier == 1.0 else part * self.multiplier)


def form_of(layer: nn.Module, arguments: dict[str, Any]) -> LayerForm | None:
    """The form of a layer whose modules have been replaced, or None when it is of none known here.

    `arguments` are what a forward called it with, but the rows.
    """
    children = list(layer.children())
    attentions = [child for child in children if isinstance(child, FusedAttention)]
    mlps = [child for child in children if isinstance(child, GatedMLP)]
    norms = [child for child in children if isinstance(child, FastRMSNorm)]
    if len(attentions) != 1 or len(mlps) != 1:
        return None
    attention, dtype = attentions[0], attentions[0].inputs.dtype
    angles = arguments.get("position_embeddings")
    num_tokens = 8 if angles is None else int(angles[0].shape[-2])
    sizes = {norm.get_buffer("factors").numel() for norm in norms}
    if len(sizes) != 1:
        return None
    rows = torch.randn(1, num_tokens, sizes.pop(), generator=torch.Generator().manual_seed(0))
    magnitudes = torch.tensor(MAGNITUDES).repeat(-(-num_tokens // len(MAGNITUDES)))[:num_tokens, None]
    rows = (rows * magnitudes).to(dtype)
    hook = _Trial()
    expected = hook.run(attention, lambda: layer(rows, **arguments))
    if expected is None:
        return None
    for form in _candidates(layer, attention, mlps[0], norms):
        found = hook.run(attention, lambda form=form: form.forward(rows, arguments))
        if found is not None and not any(differs(one, other) for one, other in zip(found, expected, strict=True)):
            return form
    return None


def _candidates(
    layer: nn.Module, attention: FusedAttention, mlp: GatedMLP, norms: list[FastRMSNorm]
) -> Iterator[LayerForm]:
    """Forms that a layer with these parts may have, likely ones first."""
    numbers = {value for value in vars(layer).values() if isinstance(value, float) and value > 0}
    orders: list[_Norms] = []
    if len(norms) == 4:
        one, two, three, four = norms
        orders = [(one, two, three, four), (one, three, two, four)]
    elif len(norms) == 2:
        one, two = norms
        orders = [(one, None, two, None), (None, one, None, two)]
    for multiplier in (1.0, *sorted(numbers - {1.0})):
        for order in orders:
            yield LayerForm(attention, mlp, *order, multiplier=multiplier)


class _Trial(AttentionHook):
    """Writes down queries, keys and values, and answers with the values of each query's head."""

    def __init__(self) -> None:
        self._seen: tuple[torch.Tensor, ...] = ()

    def attend(self, given: AttentionInput) -> torch.Tensor:
        self._seen = (given.query.clone(), given.key.clone(), given.value.clone())
        return given.own_values()

    def run(self, attention: FusedAttention, compute: Any) -> tuple[torch.Tensor, ...] | None:
        """Queries, keys, values and the result of `compute()`; None where that is no single tensor, or fails."""
        set_hook(attention, self)
        try:
            result = compute()
        except Exception:  # it wants other arguments: not a layer of this kind
            return None
        finally:
            clear_hook(attention)
        return (*self._seen, result) if isinstance(result, torch.Tensor) and self._seen else None
