"""Write down what a model's attention modules hand to attention, and compare it with what Octavo can compute.

The recorder answers each call with the values themselves, so that a token's way through the network is its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.models.attention_interface import AttentionHook, AttentionInput, Expansion, expansion_of, mask_function_of
from octavo.models.mask_kind import MaskKind, find_mask_kind
from octavo.models.transformers_api import ALL_ATTENTION_FUNCTIONS

_HARMLESS_TENSORS = frozenset({"position_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k"})
"""Tensors that modules hand to every attention function and that change no result."""

_KNOWN_TENSORS = frozenset({"s_aux", "alibi_slopes"})
"""Tensors that modules hand over and that `AttentionCall` has."""

_REMEDY = "Octavo cannot run this model yet; use another one."


@dataclass(slots=True)
class AttentionCall:
    """One attention module's call, as the recorder saw it."""

    module: nn.Module
    layer_index: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    value_size: int
    scale: float
    soft_cap: float | None
    sinks: torch.Tensor | None
    alibi_slopes: torch.Tensor | None
    mask: MaskKind | None
    shares_with: int | None
    """Index of the earlier layer whose keys and values these are."""
    latent_sizes: tuple[int, int] | None
    """Elements of the latent and of the rotary part that K and V were made of; None where they were not, or changed."""
    query: torch.Tensor = field(repr=False)
    key: torch.Tensor = field(repr=False)
    value: torch.Tensor = field(repr=False)


class _Expanded(NamedTuple):
    """K and V as a module made them of latents and rotary parts, and the sizes of those."""

    sizes: tuple[int, int]
    key: torch.Tensor
    value: torch.Tensor


class Recorder(AttentionHook):
    """Writes down each call of one forward. Owns: the calls. Never: attends."""

    def __init__(self, *, num_tokens: int, mask_length: int | None) -> None:
        self._num_tokens = num_tokens
        self.calls: list[AttentionCall] = []
        self._mask_length = mask_length
        """Positions over which masks are examined; None when the model makes none in this forward."""
        self._mask_kinds: dict[int, MaskKind] = {}
        self._expanded: dict[int, _Expanded] = {}
        """By id of the module: its last step from latents to K and V."""

    def expansion(self, module: nn.Module) -> Expansion | None:
        expand = expansion_of(module)
        assert expand is not None

        def watched(latent: torch.Tensor, rotary: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            key, value = expand(latent, rotary)
            self._expanded[id(module)] = _Expanded((latent.shape[-1], rotary.shape[-1]), key, value)
            return key, value

        return watched

    def attend(self, given: AttentionInput) -> torch.Tensor:
        module, query, key, value, mask, options = given
        _check_shapes(module, query, key, value, self._num_tokens)
        call = AttentionCall(
            module=module,
            layer_index=self._layer_index(module, options),
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_size=query.shape[3],
            value_size=value.shape[3],
            scale=_scale(query, options),
            soft_cap=options.get("softcap"),
            sinks=_sinks(options),
            alibi_slopes=options.get("alibi_slopes"),
            mask=options.get("mask_kind") or self._mask_kind(module, mask),
            shares_with=self._shares_with(key),
            latent_sizes=self._latent_sizes(module, key, value),
            query=query,
            key=key,
            value=value,
        )
        _check_options(module, options)
        if call.mask is not None and mask is not None:
            _check_arithmetic(call, mask, options)
        self.calls.append(call)
        return given.own_values()

    def _layer_index(self, module: nn.Module, options: dict[str, Any]) -> int:
        index = options.get("layer_index", getattr(module, "layer_idx", None))
        if not isinstance(index, int):
            raise UnsupportedModelError(
                f"The model's {type(module).__name__} does not know its own layer_idx.", remedy=_REMEDY
            )
        if any(call.layer_index == index for call in self.calls):
            raise UnsupportedModelError(
                f"Layer {index} computes attention more than once in a forward.", remedy=_REMEDY, layer=index
            )
        return index

    def _shares_with(self, key: torch.Tensor) -> int | None:
        for call in self.calls:
            if call.key.data_ptr() == key.data_ptr() and call.key.shape == key.shape and call.shares_with is None:
                return call.layer_index
        return None

    def _latent_sizes(self, module: nn.Module, key: torch.Tensor, value: torch.Tensor) -> tuple[int, int] | None:
        expanded = self._expanded.pop(id(module), None)
        if expanded is None or expanded.key is not key or expanded.value is not value:
            return None
        return expanded.sizes

    def _mask_kind(self, module: nn.Module, mask: torch.Tensor | None) -> MaskKind | None:
        if self._mask_length is None:
            return None
        if mask is None or getattr(module, "is_causal", True) is False:
            raise UnsupportedModelError(
                f"The model's {type(module).__name__} sees later tokens (its attention is not causal).", remedy=_REMEDY
            )
        function = mask_function_of(mask)
        if function is None:
            raise UnsupportedModelError(
                f"The model's {type(module).__name__} computes its attention mask or a bias itself.", remedy=_REMEDY
            )
        if id(mask) not in self._mask_kinds:
            self._mask_kinds[id(mask)] = find_mask_kind(function, self._mask_length)
        return self._mask_kinds[id(mask)]


def _check_shapes(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, expected: int
) -> None:
    name = type(module).__name__
    num_tokens = (query.shape[2], key.shape[2], value.shape[2])
    if num_tokens != (expected,) * 3 or query.shape[0] != 1:
        raise UnsupportedModelError(
            f"The model's {name} attends over {num_tokens[1]} keys where there are {expected} tokens: it has "
            "memory tokens or a second sequence of its own.",
            remedy=_REMEDY,
        )
    if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1] or query.shape[3] != key.shape[3]:
        raise UnsupportedModelError(
            f"The model's {name} attends with {query.shape[1]} query, {key.shape[1]} key and {value.shape[1]} value "
            "heads, which do not form groups.",
            remedy=_REMEDY,
        )


def _scale(query: torch.Tensor, options: dict[str, Any]) -> float:
    scaling = options.get("scaling")
    return float(query.shape[-1] ** -0.5 if scaling is None else scaling)


def _sinks(options: dict[str, Any]) -> torch.Tensor | None:
    sinks = options.get("s_aux")
    return None if sinks is None else sinks.detach().float().reshape(-1)


def _check_options(module: nn.Module, options: dict[str, Any]) -> None:
    for name, option in options.items():
        if isinstance(option, torch.Tensor) and name not in _KNOWN_TENSORS and name not in _HARMLESS_TENSORS:
            raise UnsupportedModelError(
                f"The model's {type(module).__name__} hands its attention a tensor {name!r} that Octavo does not know.",
                remedy=_REMEDY,
                option=name,
            )


def _check_arithmetic(call: AttentionCall, mask: torch.Tensor, options: dict[str, Any]) -> None:
    """Compare the module's own eager attention with attention by the properties of `call`, on random inputs."""
    namespace = vars(sys.modules[type(call.module).__module__])
    eager = namespace.get("eager_attention_forward") or ALL_ATTENTION_FUNCTIONS["sdpa"]
    generator = torch.Generator().manual_seed(call.layer_index)
    device = call.query.device

    def random(num_heads: int, size: int) -> torch.Tensor:
        return 3 * torch.randn(1, num_heads, call.query.shape[2], size, generator=generator).to(device)

    query = random(call.num_heads, call.head_size)
    key = random(call.num_kv_heads, call.head_size)
    value = random(call.num_kv_heads, call.value_size)
    theirs = eager(call.module, query, key, value, mask.float(), **options)[0]
    ours = _attend(call, query[0], key[0], value[0])
    if theirs.shape[1:] != ours.shape or not torch.allclose(theirs[0].float(), ours, rtol=1e-2, atol=1e-2):
        raise UnsupportedModelError(
            f"Layer {call.layer_index} computes more than scaled dot-product attention with "
            f"{'' if call.mask is None else call.mask.describe()}, soft cap {call.soft_cap} and "
            f"{'sinks' if call.sinks is not None else 'no sinks'}.",
            remedy=_REMEDY,
            layer=call.layer_index,
        )


def _attend(call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, value size] from [heads, tokens, size], by the properties of `call` alone."""
    group_size = call.num_heads // call.num_kv_heads
    scores = query @ key.repeat_interleave(group_size, dim=0).transpose(1, 2) * call.scale
    if call.soft_cap is not None:
        scores = call.soft_cap * torch.tanh(scores / call.soft_cap)
    positions = torch.arange(query.shape[1], device=query.device)
    if call.mask is not None:
        scores = scores.masked_fill(~call.mask.visible(positions[:, None], positions[None, :]), -torch.inf)
    if call.sinks is not None:
        scores = torch.cat([scores, call.sinks[:, None, None].expand(-1, query.shape[1], 1)], dim=2)
    weights = torch.softmax(scores, dim=2)[:, :, : query.shape[1]]
    return (weights @ value.repeat_interleave(group_size, dim=0)).transpose(0, 1)
