"""The one attention function that transformers' models call, and what it finds on their attention modules.

Each attention module carries an `AttentionHook`. While the model is examined that is a recorder
(`attention_probe.py`), afterwards a `BoundAttention` that goes through the KV cache.

Two names are registered. `octavo` has no mask function, so models make no mask. `octavo-probe` has one, which hands
the model a real mask of a few tokens with the mask's function attached to its memory: whatever reaches the attention
function says which mask that layer would have used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from octavo.attention.backend import AttentionLayer
from octavo.errors import UnsupportedModelError
from octavo.models.transformers_api import AttentionInterface, AttentionMaskInterface, eager_mask

ATTENTION_NAME = "octavo"
PROBE_NAME = "octavo-probe"

_HOOK = "octavo_attention"
_EXPAND = "expand_kv"
"""Where a module keeps one latent for all heads: its method that makes K and V of latents and rotary parts."""
_MASK_FUNCTION = "octavo_mask_function"


Expansion = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""(K, V), each [1, heads, tokens, size], of latents and rotary parts, each [1, 1, tokens, size]."""


class AttentionInput(NamedTuple):
    """What a module hands to attention, in transformers' order.

    query [1, heads, tokens, size], key [1, KV heads, tokens, size], value [1, KV heads, tokens, value size]; as rows:
    [tokens, heads, size] and so on.
    """

    module: nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    options: dict[str, Any]

    def own_values(self) -> torch.Tensor:
        """[1, tokens, heads, value size]: for each query the value of its own token, what a look at a model answers."""
        group_size = self.query.shape[1] // self.value.shape[1]
        return self.value.repeat_interleave(group_size, dim=1).transpose(1, 2).contiguous()


class AttentionHook(ABC):
    """What an attention module's call becomes."""

    def expansion(self, module: nn.Module) -> Expansion | None:
        """What becomes of the step from latents to K and V, where `module` has one; None leaves it as it is."""
        return None

    @abstractmethod
    def attend(self, given: AttentionInput) -> torch.Tensor:
        """[1, tokens, heads, value size]."""

    def attend_rows(self, given: AttentionInput) -> torch.Tensor:
        """[tokens, heads, value size]; the tensors are rows, [tokens, heads, size]."""
        query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in (given.query, given.key, given.value))
        return self.attend(given._replace(query=query, key=key, value=value))[0]


class BoundAttention(AttentionHook):
    """Sends a module's queries, keys and values through its `AttentionLayer`. Owns: nothing. Never: copies them."""

    def __init__(self, layer: AttentionLayer) -> None:
        self.layer = layer

    def attend(self, given: AttentionInput) -> torch.Tensor:
        query, key, value = (part[0].transpose(0, 1) for part in (given.query, given.key, given.value))
        if self.layer.kv_sharing_target is not None:
            return self.layer.forward(query, None, None).unsqueeze(0)
        return self.layer.forward(query, key, value).unsqueeze(0)

    def attend_rows(self, given: AttentionInput) -> torch.Tensor:
        return self.layer.forward(given.query, given.key, given.value)


def set_hook(module: nn.Module, hook: AttentionHook) -> None:
    """Let `module`'s attention calls go to `hook`. Kept out of the module's own attributes: it is no submodule."""
    module.__dict__[_HOOK] = hook
    if expansion_of(module) is not None and (expansion := hook.expansion(module)) is not None:
        module.__dict__[_EXPAND] = expansion


def clear_hook(module: nn.Module) -> None:
    """Take back what `set_hook` did; does nothing where there is no hook."""
    module.__dict__.pop(_HOOK, None)
    module.__dict__.pop(_EXPAND, None)


def expansion_of(module: nn.Module) -> Expansion | None:
    """The module's own step from latents to K and V; None where it has none."""
    step = getattr(type(module), _EXPAND, None)
    return None if step is None else partial(step, module)


def hook_of(module: nn.Module) -> AttentionHook:
    """What `module`'s attention calls go to.

    Raises `UnsupportedModelError` when a module calls that did not call while the model was examined.
    """
    hook: AttentionHook | None = module.__dict__.get(_HOOK)
    if hook is None:
        raise UnsupportedModelError(
            f"A {type(module).__name__} of the model computes attention only now and then.",
            remedy="Octavo needs every attention layer in every step; use another model.",
        )
    return hook


def mask_function_of(mask: torch.Tensor | None) -> Any:
    """The function behind a mask that transformers made while the probe was on; None when `mask` is another one.

    A view of the whole of such a mask is that mask.
    """
    if mask is None:
        return None
    made: _MadeMask | None = getattr(mask.untyped_storage(), _MASK_FUNCTION, None)
    return made.function if made is not None and made.place == _place(mask) else None


class _MadeMask(NamedTuple):
    """What a mask's memory is marked with."""

    function: Any
    place: tuple[Any, ...]


def _place(mask: torch.Tensor) -> tuple[Any, ...]:
    """Where in its memory a tensor lies."""
    return mask.storage_offset(), mask.shape, mask.stride()


def attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The registered function: transformers' contract on both sides.

    Raises `UnsupportedModelError` when a module calls that did not call while the model was examined.
    """
    return hook_of(module).attend(AttentionInput(module, query, key, value, attention_mask, options)), None


def _probe_mask(*, mask_function: Any, **arguments: Any) -> torch.Tensor | None:
    """transformers' own additive mask, carrying the function it was made from; None for attention both ways."""
    mask: torch.Tensor | None = eager_mask(mask_function=mask_function, **arguments)
    if mask is not None:
        setattr(mask.untyped_storage(), _MASK_FUNCTION, _MadeMask(mask_function, _place(mask)))
    return mask


AttentionInterface.register(ATTENTION_NAME, attention_forward)
AttentionInterface.register(PROBE_NAME, attention_forward)
AttentionMaskInterface.register(PROBE_NAME, _probe_mask)
