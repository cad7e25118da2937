"""Stands in for the scores of attention modules that compute them themselves, so that nobody computes them.

    inside a module's forward:   product of queries and keys -> a stand-in -> scaled, masked, softmaxed: itself
                                 product of that stand-in and values       -> attention through the interface

Between the two products a module's code runs as it is written, but on the stand-in; what it does there to real scores
is found out once, when the model is examined (`adoption.py`). Masks are stood in for in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from octavo.models.transformers_api import MASK_FUNCTIONS

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(query, key, value), each [1, heads, tokens, size] -> [1, tokens, heads, value size]."""

OWN_ATTENTION = ("eager", "sdpa")
"""transformers' own attention functions that modules may compute themselves."""

_SUMS = (torch.baddbmm, torch.Tensor.baddbmm)
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm, *_SUMS)


class _StandIn:
    """What no operation changes. Owns: the shape it claims. Never: numbers."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def view(self, *shape: Any) -> Any:
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        known = math.prod(size for size in sizes if size != -1)
        total = math.prod(self.shape)
        changed = type(self).__new__(type(self))
        changed.__dict__ = self.__dict__ | {"shape": tuple(total // known if size == -1 else size for size in sizes)}
        return changed

    reshape = view

    def __matmul__(self, other: Any) -> Any:
        return torch.matmul(self, other)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._heir(args)

    def _heir(self, others: tuple[Any, ...]) -> Any:
        """What an operation on this and `others` gives: scores, where there are any among them."""
        return next((other for other in others if isinstance(other, _Scores)), self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        standing = _stand_ins(args, kwargs or {})
        return standing[0]._heir(tuple(standing))


class _Scores(_StandIn):
    """Products of queries and keys. Owns: the query and the key, [1, heads, tokens, size]. Never: their products."""

    query: torch.Tensor
    key: torch.Tensor

    def _heir(self, others: tuple[Any, ...]) -> Any:
        return self


def _absorb(self: _StandIn, *others: Any) -> Any:
    return self._heir(others)


for _name in ("add", "sub", "mul", "truediv", "radd", "rsub", "rmul", "rtruediv"):
    setattr(_StandIn, f"__{_name}__", _absorb)
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "invert", "neg", "getitem"):
    setattr(_StandIn, f"__{_name}__", _absorb)


def _stand_ins(args: Any, kwargs: Any) -> list[_StandIn]:
    return [value for value in (*args, *kwargs.values()) if isinstance(value, _StandIn)]


class ScoreHook(TorchFunctionMode):
    """Lets `attend` do the attention of one forward of a module.

    Raises `ValueError` when the module multiplies queries and keys a second time, or uses scores for anything but one
    product with values.
    """

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self._attend = attend
        self._has_scores = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            query, key, value = args[:3] if len(args) >= 3 else (kwargs[name] for name in ("query", "key", "value"))
            return self._attend(query, key, value).transpose(1, 2)
        is_product = func in _PRODUCTS
        if is_product:
            left, right = factors(func, args, kwargs)
            if isinstance(left, _Scores) and isinstance(right, torch.Tensor):
                return self._weigh(left, right)
            if are_queries_and_keys(left, right):
                return self._multiply(left, right)
        standing = _stand_ins(args, kwargs)
        if not standing:
            return func(*args, **kwargs)
        if is_product:
            raise ValueError("scores are multiplied with something else than values")
        heir = standing[0]._heir(tuple(standing))
        shape_changes = func in (torch.reshape,)
        return heir.view(*args[1:]) if shape_changes else heir

    def _multiply(self, query: torch.Tensor, key: torch.Tensor) -> _Scores:
        if self._has_scores:
            raise ValueError("queries and keys are multiplied twice")
        self._has_scores = True
        scores = _Scores((*query.shape[:-1], key.shape[-1]), query.dtype, query.device)
        scores.query, scores.key = with_batch(query), with_batch(key.transpose(-1, -2))
        return scores

    def _weigh(self, scores: _Scores, value: torch.Tensor) -> torch.Tensor:
        # Some modules raise queries and keys to float32 for the product; the cache keeps what they were.
        query, key = scores.query.to(value.dtype), scores.key.to(value.dtype)
        out = self._attend(query, key, with_batch(value)).transpose(1, 2)
        return out[0] if value.dim() == 3 else out


def factors(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The two factors of a product's call."""
    if func in _SUMS:
        rest = list(args[1:])
        return (
            kwargs["batch1"] if "batch1" in kwargs else rest.pop(0),
            kwargs["batch2"] if "batch2" in kwargs else rest.pop(0),
        )
    rest = [*args, *kwargs.values()]
    return rest[0], rest[1]


def is_sum(func: Any) -> bool:
    """Whether `func` adds a product to something."""
    return func in _SUMS


def is_product(func: Any) -> bool:
    """Whether `func` multiplies matrices."""
    return func in _PRODUCTS


def are_queries_and_keys(left: Any, right: Any) -> bool:
    """Whether the product of the two has a row and a column for each token, for each of several heads."""
    return (
        isinstance(left, torch.Tensor)
        and isinstance(right, torch.Tensor)
        and left.dim() in (3, 4)
        and right.dim() == left.dim()
        and left.shape[-2] == right.shape[-1]
    )


def with_batch(tensor: torch.Tensor) -> torch.Tensor:
    """[1, heads, tokens, size], where a module may have merged batch and heads."""
    return tensor if tensor.dim() == 4 else tensor[None]


@contextmanager
def masks_stood_in() -> Iterator[None]:
    """Inside this, transformers' models make no masks; what they make of them is a stand-in."""

    def stand_in(*, batch_size: int, q_length: int, kv_length: int, **arguments: Any) -> Any:
        dtype, device = arguments.get("dtype", torch.bool), arguments.get("device") or torch.device("cpu")
        return _StandIn((batch_size, 1, q_length, kv_length), dtype, device)

    with _mask_functions(lambda name: stand_in):
        yield


@contextmanager
def masks_recorded() -> Iterator[list[Callable[..., Any]]]:
    """The mask functions from which transformers' models make masks inside this, each once."""
    found: list[Callable[..., Any]] = []

    def recording(name: str) -> Callable[..., Any]:
        make = MASK_FUNCTIONS[name]

        def record(*, mask_function: Callable[..., Any], **arguments: Any) -> Any:
            if mask_function not in found:
                found.append(mask_function)
            return make(mask_function=mask_function, **arguments)

        return record

    with _mask_functions(recording):
        yield found


@contextmanager
def _mask_functions(replacement: Callable[[str], Callable[..., Any]]) -> Iterator[None]:
    """Inside this, masks of transformers' own attention functions are made by `replacement(name)`."""
    replaced = {name: replacement(name) for name in OWN_ATTENTION}
    try:
        for name, function in replaced.items():
            MASK_FUNCTIONS[name] = function
        yield
    finally:
        for name in replaced:
            del MASK_FUNCTIONS[name]
