"""Multi-head latent attention over a cache of latents: queries go down to the latent, what they read comes up from it.

A module of this kind makes K and V of a small vector per token. With latent c and rotary part r of a token,

    K of head h = [U_h c, r]        V of head h = W_h c

where U_h and W_h are slices of one weight. A query [q, s] of head h scores U_h c . q + r . s = [U_h^T q, s] . [c, r],
and sums w_t W_h c_t = W_h (sum of w_t c_t). So the cache keeps [c, r] once for all heads; queries are **absorbed**
(U_h^T q), and sums are **raised** (W_h). Attention itself has one KV head, whose V is the leading part of its K.

transformers' modules have that step apart from the rest of their forward, as a method `expand_kv(latent, rotary)` whose
results go to attention untouched. Its stand-in hands latent and rotary part on as they are; everything else of the
module (projections, norms, rotary embedding, scales, gates) stays the module's own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from octavo.attention.backend import AttentionLayer
from octavo.errors import UnsupportedModelError
from octavo.models.attention_interface import AttentionHook, AttentionInput, Expansion, expansion_of
from octavo.models.attention_recorder import AttentionCall

_NUM_TRIALS = 8
"""Random tokens on which a projection is compared with the module's own step."""

_TOLERANCE, _TOLERANCE_16_BITS = 1e-4, 0.03
"""Largest difference, relative to the size of what is compared."""


class LatentProjection(nn.Module):
    """The two matrices of each head between a latent and its K and V, in place of the linear layer that held them.

    Owns: the matrices, each in the order that products with it read (of a view of the layer's weight, they take up to
    three times as long in bfloat16).
    """

    def __init__(self, linear: nn.Linear, *, num_heads: int, value_size: int, rotary_size: int) -> None:
        """`linear` has one weight [heads * (key size + value size), latent size] and is left as it is."""
        super().__init__()
        self.latent_size, self.rotary_size = linear.in_features, rotary_size
        by_head = linear.weight.detach().view(num_heads, -1, linear.in_features)
        key_size = by_head.shape[1] - value_size
        self.down = nn.Parameter(by_head[:, :key_size].contiguous(), requires_grad=False)
        """[heads, key size without the rotary part, latent size]"""
        self.up = nn.Parameter(by_head[:, key_size:].transpose(1, 2).contiguous(), requires_grad=False)
        """[heads, latent size, value size]"""

    def absorb(self, query: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, latent size + rotary size] from [tokens, heads, key size]."""
        plain, rotary = query.split_with_sizes([self.down.shape[1], self.rotary_size], 2)
        return torch.cat([torch.bmm(plain.transpose(0, 1), self.down).transpose(0, 1), rotary], 2)

    def raise_sums(self, sums: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, value size] from weighted sums of latents, [tokens, heads, latent size]."""
        return torch.bmm(sums.transpose(0, 1), self.up).transpose(0, 1)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """[..., heads * (key size + value size)] from [..., latent size], as the linear layer did."""
        rows = latents.reshape(1, -1, self.latent_size)
        by_head = torch.cat([rows @ self.down.mT, rows @ self.up], 2)
        return by_head.transpose(0, 1).reshape(*latents.shape[:-1], -1)


def with_latents(
    calls: Iterable[AttentionCall], latent_layers: Container[int]
) -> tuple[list[AttentionCall], dict[int, LatentProjection]]:
    """(`calls`, those of `latent_layers` as attention over latents, the projections of these layers by their index).

    The linear layers behind these projections are replaced by them, and lose their weights.
    Raises `UnsupportedModelError` as `find_projection` does.
    """
    projections: dict[int, LatentProjection] = {}
    changed = []
    for call in calls:
        if call.layer_index in latent_layers:
            projection = projections[call.layer_index] = take_projection(call)
            size = projection.latent_size
            call = replace(call, num_kv_heads=1, head_size=size + projection.rotary_size, value_size=size)
        changed.append(call)
    return changed, projections


def take_projection(call: AttentionCall) -> LatentProjection:
    """What `find_projection` finds, put into the module in place of the linear layer, whose weight goes at once."""
    name, linear, projection = find_projection(call)
    linear.register_parameter("weight", None)
    setattr(call.module, name, projection.eval())
    return projection


def find_projection(call: AttentionCall) -> tuple[str, nn.Linear, LatentProjection]:
    """(name in its module, linear layer, projection) that latents are expanded by. Changes nothing.

    The projection is compared with the module's own step on random tokens.

    That the module attends to K and V as `call` says, its recorder has found out; here the scores of queries and the
    weighted sums are compared, of which attention is made.
    Raises `UnsupportedModelError`, naming the property, when the step is not the one described at the top.
    """
    module, layer_index, expand = call.module, call.layer_index, expansion_of(call.module)
    if expand is None or call.latent_sizes is None:
        raise _refusal(layer_index, "attends to other K and V than a step of their own makes of its latent")
    latent_size, rotary_size = call.latent_sizes
    weight = next(module.parameters())
    generator = torch.Generator().manual_seed(layer_index)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(weight.device, weight.dtype)

    latent, rotary = random(1, 1, _NUM_TRIALS, latent_size), random(1, 1, _NUM_TRIALS, rotary_size)
    parts, key, value = _watch(module, expand, latent, rotary)
    num_heads, key_size, value_size = key.shape[1], key.shape[3] - rotary_size, value.shape[3]
    rows = num_heads * (key_size + value_size)
    name, linear = parts[0] if len(parts) == 1 else ("", None)
    if type(linear) is not nn.Linear or linear.weight.shape != (rows, latent_size):
        raise _refusal(layer_index, f"expands its latent by something else than one plain matrix of {rows} rows")
    projection = LatentProjection(linear, num_heads=num_heads, value_size=value_size, rotary_size=rotary_size)
    query, weights = random(_NUM_TRIALS, num_heads, key_size + rotary_size), random(_NUM_TRIALS, _NUM_TRIALS)
    kept, sums = torch.cat([latent, rotary], 3)[0, 0], (weights @ latent[0, 0])[:, None].expand(-1, num_heads, -1)
    tolerance = _TOLERANCE if weight.dtype == torch.float32 else _TOLERANCE_16_BITS
    for what, ours, theirs in (
        ("keys", projection.absorb(query).transpose(0, 1) @ kept.T, query.transpose(0, 1) @ key[0].mT),
        ("values", projection.raise_sums(sums).transpose(0, 1), weights @ value[0]),
    ):
        if not (ours.float() - theirs.float()).norm() <= tolerance * theirs.float().norm():
            raise _refusal(layer_index, f"makes its {what} of more than its latent, the rotary part and one matrix")
    return name, linear, projection


def _watch(
    module: nn.Module, expand: Expansion, latent: torch.Tensor, rotary: torch.Tensor
) -> tuple[list[tuple[str, Any]], torch.Tensor, torch.Tensor]:
    """(names and parts of `module` that its step calls, K, V)."""
    called: list[tuple[str, Any]] = []
    handles = [
        part.register_forward_pre_hook(lambda part, _args, name=name: called.append((name, part)))
        for name, part in module.named_children()
    ]
    try:
        return (called, *expand(latent, rotary))
    finally:
        for handle in handles:
            handle.remove()


def _refusal(layer_index: int, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"Layer {layer_index} has latent attention, but {what}, so that its latents cannot be cached.",
        remedy="Octavo cannot run this model yet; use another one.",
        layer=layer_index,
    )


class BoundLatentAttention(AttentionHook):
    """Sends a module's queries and latents through its `AttentionLayer`. Owns: nothing. Never: expands a latent."""

    def __init__(self, layer: AttentionLayer, projection: LatentProjection) -> None:
        self.layer = layer
        self.projection = projection

    def expansion(self, module: nn.Module) -> Expansion:
        return _leave_as_it_is

    def attend(self, given: AttentionInput) -> torch.Tensor:
        latent = torch.cat([given.key, given.value], 3)[0].transpose(0, 1)
        sums = self.layer.forward(self.projection.absorb(given.query[0].transpose(0, 1)), latent, None)
        return self.projection.raise_sums(sums).unsqueeze(0)


def _leave_as_it_is(latent: torch.Tensor, rotary: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return latent, rotary
