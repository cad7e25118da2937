"""Attention modules that never call transformers' interface are made to call it, where what they compute is known.

Such a module multiplies queries and keys, does something to the products, and weighs values. Two looks at the module
itself, on the arguments that it got in a forward, say what it does to the products:

- products are replaced by numbers of our own, and what reaches the softmax is read: a factor, a mask, and what is added
  to each score, which must be linear in the distance of query and key (ALiBi);
- then its output must be that of attention with just these properties.

From then on the module's forward runs in a `ScoreHook`. Nothing here knows a class by its name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from octavo.errors import UnsupportedModelError
from octavo.models.attention_interface import attention_forward
from octavo.models.mask_kind import MaskFunction, MaskKind, find_mask_kind
from octavo.models.score_slopes import fit_slopes, num_linear_tokens
from octavo.models.score_stand_in import (
    ScoreHook,
    are_queries_and_keys,
    factors,
    is_product,
    is_sum,
    masks_recorded,
    masks_stood_in,
)
from octavo.models.transformers_api import PreTrainedModel

_NUM_TOKENS = 24
_NEAREST_FAR, _FAR = 300, 600
"""Tokens of the look at biases far from the query, as far as `_FAR_SCORES` allow: past the 256 tokens up to which 16
bits hold every position."""
_FAR_SCORES = 1 << 23
"""Scores of that look that are kept at a time, over all heads: some 300 MB with what is computed of them."""
_MASKED = -5000.0
"""Scores below are those of masked keys."""
_SOFTMAXES = (functional.softmax, torch.softmax, torch.Tensor.softmax)
_REMEDY = "Octavo cannot run this model yet; use another one."


def calls_interface(model: nn.Module) -> bool:
    """Whether any file that defines a part of the model knows transformers' attention interface at all."""
    return any("ALL_ATTENTION_FUNCTIONS" in vars(sys.modules[type(module).__module__]) for module in model.modules())


def own_attention(model_class: Any) -> str:
    """Which of transformers' own implementations a model takes that does not call the interface."""
    return "sdpa" if model_class._supports_sdpa else "eager"


def use_own_attention(model: Any) -> None:
    """Let a model that does not call the interface make the masks for its own attention."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.config._attn_implementation_internal = own_attention(type(model))


@dataclass(slots=True)
class _Call:
    """An attention module and the arguments of its forward."""

    module: nn.Module
    args: Any
    kwargs: Any

    def run(self) -> torch.Tensor:
        out = self.module(*self.args, **self.kwargs)
        hidden: torch.Tensor = out if isinstance(out, torch.Tensor) else out[0]
        return hidden


def adopt_attention(model: Any, first_layer: int = 0, *, length: int, vocab_size: int) -> None:
    """Make each attention module of `model` call the interface; sequences are up to `length` tokens long.

    The first of them is that of layer `first_layer`.

    Raises `UnsupportedModelError`, naming the property, where a module computes anything else than attention.
    """
    use_own_attention(model)
    num_tokens = min(_NUM_TOKENS, length)
    calls, kinds = _find_calls(model, _tokens(num_tokens, vocab_size), length)
    looks: list[_Look] = []
    adopted: list[_Adopted] = []
    for index, call in enumerate(calls, first_layer):
        kind = _mask_kind(call.module, kinds, length)
        found = _Look(call, kind, index)
        if not looks:
            far, _ = _find_calls(model, _tokens(min(found.far, length), vocab_size), length, stops=True)
            found.check_far(far[0])
        looks.append(found)
        found.refine(looks[0])
        adopted.append(_Adopted(call, index, found))
    for call, own in zip(calls, adopted, strict=True):
        call.module.forward = own.forward
    _adopt_base(model)


def _tokens(num_tokens: int, vocab_size: int) -> torch.Tensor:
    return torch.arange(1, num_tokens + 1) * 7919 % vocab_size


class _Stopped(Exception):
    """The first attention module was reached."""


class _Finder(TorchFunctionMode):
    """Notes in which module's forward queries meet keys. Owns: the stack of modules under way and the calls found."""

    def __init__(self, *, stops: bool) -> None:
        super().__init__()
        self.stack: list[_Call] = []
        self.calls: list[_Call] = []
        self._stops = stops

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_attention = func is functional.scaled_dot_product_attention
        if is_product(func):
            is_attention = are_queries_and_keys(*factors(func, args, kwargs))
        if is_attention and self.stack and not any(call is self.stack[-1] for call in self.calls):
            self.calls.append(self.stack[-1])
            if self._stops:
                raise _Stopped
        return func(*args, **kwargs)


def _find_calls(
    model: Any, tokens: torch.Tensor, length: int, *, stops: bool = False
) -> tuple[list[_Call], list[MaskKind]]:
    """The attention modules' calls in one forward, and the kinds of the masks that the model made for it."""
    finder = _Finder(stops=stops)
    handles = []
    for module in model.modules():
        if not isinstance(module, nn.Dropout):
            handles.append(
                module.register_forward_pre_hook(
                    lambda module, args, kwargs: finder.stack.append(_Call(module, args, kwargs)), with_kwargs=True
                )
            )
            handles.append(module.register_forward_hook(lambda *_: finder.stack.pop() and None))
    try:
        with finder, masks_recorded() as functions:
            model(input_ids=tokens[None].to(model.device), use_cache=False)
    except _Stopped:
        pass
    except Exception as error:  # whatever transformers' code raises, the user gets one sentence
        raise UnsupportedModelError(
            f"transformers' {type(model).__name__} does not run without a cache: {type(error).__name__}: {error}",
            remedy=_REMEDY,
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    kinds = [] if stops else [find_mask_kind(function, length) for function in functions]
    return finder.calls, list(dict.fromkeys(kinds))


def _mask_kind(module: nn.Module, made: list[MaskKind], length: int) -> MaskKind:
    """What a module's queries see: by the mask that the model made, and by one that the module keeps as a buffer."""
    kinds = list(made)
    for buffer in module.buffers(recurse=False):
        if buffer.dim() >= 2 and buffer.shape[-1] == buffer.shape[-2] and buffer.numel() == buffer.shape[-1] ** 2 > 1:
            square = buffer.reshape(buffer.shape[-2:]).bool().cpu()
            kinds.append(find_mask_kind(_reads(square), min(length, len(square))))
    narrow = {kind for kind in kinds if kind.kind != "full"}
    if not kinds or len(narrow) > 1 or len(made) > 1:
        several = " and ".join(kind.describe() for kind in dict.fromkeys(kinds))
        raise UnsupportedModelError(
            f"The model's {type(module).__name__} "
            + (f"may mask by any of {several}." if kinds else "computes its attention mask only while it runs."),
            remedy=_REMEDY,
        )
    return narrow.pop() if narrow else MaskKind("full")


def _reads(square: torch.Tensor) -> MaskFunction:
    """The mask function that a buffer is."""
    return lambda batch, head, query, key: square[query, key]


class _Substitution(TorchFunctionMode):
    """One forward with products of queries and keys that are given. Owns: what reached the softmax."""

    def __init__(self, product: Callable[[tuple[int, ...]], torch.Tensor]) -> None:
        super().__init__()
        self._product = product
        self.logits: torch.Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        if is_product(func):
            left, right = factors(func, args, kwargs)
            if are_queries_and_keys(left, right) and self.logits is None:
                product = self._product((*left.shape[:-1], right.shape[-1])).to(left)
                if is_sum(func):
                    return kwargs.get("beta", 1) * args[0] + kwargs.get("alpha", 1) * product
                return product
        if func in _SOFTMAXES and self.logits is None:
            self.logits = args[0].detach().float()
        return func(*args, **kwargs)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002 (torch's signature)
        scale: float | None = None,
        enable_gqa: bool = False,  # noqa: FBT001, FBT002
    ) -> torch.Tensor:
        logits = self._product((*query.shape[:-1], key.shape[-2])).to(query)
        logits = logits * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            logits = logits.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            logits = logits + attn_mask
        self.logits = logits.detach().float()
        return query.new_zeros((*query.shape[:-1], value.shape[-1]))


class _Look:
    """What a module does to the products of queries and keys. Owns: the properties found."""

    def __init__(self, call: _Call, kind: MaskKind, index: int) -> None:
        self.kind, self._index = kind, index
        self._is_exact = next((p.dtype for p in call.module.parameters()), torch.float32) == torch.float32
        base, visible = self._base_and_visible(call)
        generator = torch.Generator().manual_seed(index)
        self.scale, worst = 0.0, 0.0
        for _ in range(2):
            drawn: list[torch.Tensor] = []

            def draw(shape: tuple[int, ...], drawn: list[torch.Tensor] = drawn) -> torch.Tensor:
                drawn.append(torch.randn(shape, generator=generator))
                return drawn[0]

            rise = (self._logits(call, draw) - base)[visible]
            product = drawn[0].reshape(base.shape).to(rise.device)[visible]
            self.scale = self.scale or float((rise * product).sum() / (product * product).sum())
            worst = max(worst, float((rise - self.scale * product).abs().max()))
        if worst > (1e-4 if self._is_exact else 0.1) * max(1.0, abs(self.scale)):
            raise self.refusal("does more to the products of queries and keys than to multiply them and add to them")
        self.far = max(_NEAREST_FAR, min(_FAR, math.isqrt(_FAR_SCORES // len(base))))
        """Tokens of a look at this module from afar."""
        self.slopes = fit_slopes(base, visible)
        self._check_linear(base, visible)

    def check_far(self, call: _Call) -> None:
        """Raises unless far from the query, too, what is added to scores has the slopes that were found.

        In 16 bits, the slopes are those of this longer look from then on: its roundings cancel out.
        """
        base, visible = self._base_and_visible(call)
        if not self._is_exact:
            self.slopes = fit_slopes(base, visible)
        self._check_linear(base, visible)

    def refine(self, first: _Look) -> None:
        """Take the slopes of a module that was looked at from afar, where in 16 bits they cannot be told from these."""
        if self._is_exact or self.slopes is None or first.slopes is None:
            return
        if torch.allclose(self.slopes, first.slopes, rtol=2.0**-6):
            self.slopes = first.slopes

    def _logits(self, call: _Call, product: Callable[[tuple[int, ...]], torch.Tensor]) -> torch.Tensor:
        """[heads, tokens, tokens]: what reaches the softmax for these products."""
        with _Substitution(product) as substitution:
            call.run()
        if substitution.logits is None:
            raise self.refusal("multiplies queries and keys, but takes no softmax of the products")
        logits: torch.Tensor = substitution.logits
        return logits.reshape(-1, *logits.shape[-2:])

    def _base_and_visible(self, call: _Call) -> tuple[torch.Tensor, torch.Tensor]:
        base = self._logits(call, torch.zeros)
        visible = base > _MASKED
        if not torch.equal(visible, self._seen(base.shape[1], visible.device).expand_as(visible)):
            raise self.refusal(f"masks otherwise than by {self.kind.describe()}")
        return base, visible

    def _seen(self, num_tokens: int, device: torch.device) -> torch.Tensor:
        positions = torch.arange(num_tokens, device=device)
        return self.kind.visible(positions[:, None], positions[None, :])

    def _check_linear(self, base: torch.Tensor, visible: torch.Tensor) -> None:
        fine = num_linear_tokens(base, visible, self.slopes, is_exact=self._is_exact)
        if fine < base.shape[1]:
            what, remedy = "adds to scores what is not linear in the distance of query and key", _REMEDY
            if num_linear_tokens(base, visible, self.slopes, is_exact=False) == base.shape[1]:
                remedy = "Use --dtype bfloat16: it is linear up to the rounding of that."
            if fine >= _NUM_TOKENS:
                what = f"{what} beyond {fine} tokens"
                remedy = f"Use --max-model-len {fine}, up to which it is, or another model."
            raise self.refusal(what, remedy)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, value size] from [heads, tokens, size], by what was found alone."""
        group_size = len(query) // len(key)
        key, values = (tensor.float().repeat_interleave(group_size, dim=0) for tensor in (key, value))
        positions = torch.arange(query.shape[1], device=query.device)
        scores = query.float() @ key.transpose(1, 2) * self.scale
        if self.slopes is not None:
            scores = scores + self.slopes[:, None, None] * (positions[None, :] - positions[:, None])
        scores = scores.masked_fill(~self._seen(query.shape[1], query.device), -torch.inf)
        return (torch.softmax(scores, dim=2) @ values).transpose(0, 1).to(value.dtype)

    def refusal(self, what: str, remedy: str = _REMEDY) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"Attention module {self._index} of the model {what}.", remedy=remedy, layer=self._index
        )


class _Adopted:
    """A module's forward that sends its attention through the interface. Owns: how to call the interface."""

    def __init__(self, call: _Call, index: int, look: _Look) -> None:
        """Raises unless the module's output is that of attention by what `look` found of it."""
        self._module, self._original = call.module, call.module.forward
        self._repeats = _verify(call, look)
        self.options: dict[str, Any] = {
            "scaling": look.scale,
            "layer_index": index,
            "mask_kind": look.kind,
            "alibi_slopes": look.slopes,
        }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with ScoreHook(self._attend):
            return self._original(*args, **kwargs)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        key, value = key[:, :: self._repeats], value[:, :: self._repeats]
        return attention_forward(self._module, query, key, value, None, **self.options)[0]


def _verify(call: _Call, look: _Look) -> int:
    """How many neighbouring heads have copies of one key and value. Raises unless the module computes attention."""
    expected = call.run()
    allowed = (1e-4 if expected.dtype == torch.float32 else 0.02) * float(expected.abs().max())
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        seen.append((key, value))
        return look.attend(query[0], key[0], value[0])[None]

    try:
        with ScoreHook(attend):
            got = call.run()
    except (TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise look.refusal(f"uses its scores in a way that is not known: {error}") from error
    if len(seen) != 1 or got.shape != expected.shape or float((got - expected).abs().max()) > allowed:
        raise look.refusal("computes more than attention")
    num_heads = seen[0][0].shape[1]
    sizes = [size for size in range(num_heads, 0, -1) if num_heads % size == 0]
    return next(size for size in sizes if all(_are_copies(tensor, size) for tensor in seen[0]))


def _are_copies(tensor: torch.Tensor, size: int) -> bool:
    """Whether of each `size` neighbouring heads all are equal."""
    return torch.equal(tensor, tensor[:, ::size].repeat_interleave(size, dim=1))


def _adopt_base(model: Any) -> None:
    """Let the model that is inside `model` make no masks."""
    base = next(module for module in model.modules() if module is not model and isinstance(module, PreTrainedModel))
    original = base.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with masks_stood_in():
            return original(*args, **kwargs)

    base.forward = forward
