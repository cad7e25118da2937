"""What stands in for the parts of a model that other pipeline stages have.

    embedding -> [earlier layers] -> own layers -> [later layers] -> last norm -> head

The model's own forward goes on to make positions, rotary angles and the arguments of each kind of layer, and calls all
layers in turn. Earlier layers return what the stage before sent, whatever they are given; later ones hand on what they
are given, and keep it to be sent. The embedding of another stage gives rows of NaN: whatever the own layers would take
from it, beside the hidden states, cannot go unnoticed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_NUM_ROWS = 64
"""Different rows that stand for hidden states while a model is examined."""


class Nothing:
    """What a layer of another stage returns beside hidden states. Owns, never: nothing."""


class Border:
    """Where a stage meets its neighbours.

    Owns: the hidden states of the call under way. Never: sends or receives them.
    """

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        self.received: torch.Tensor | None = None
        """[1, T, hidden size]: what the stage before sent; None lets rows stand for it that depend on token ids."""
        self.sent: torch.Tensor | None = None
        """[1, T, hidden size]: what the own layers made of it."""
        self.num_returned = 0
        """How layers return their hidden states: first in a tuple of so many; 0 is the tensor itself."""
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._stand_in: torch.Tensor | None = None
        self._rows: torch.Tensor | None = None

    def enter(self, token_ids: torch.Tensor) -> None:
        """A forward over `token_ids` [1, T] begins."""
        if self.received is None:
            if self._rows is None:
                generator = torch.Generator().manual_seed(0)
                rows = torch.randn(_NUM_ROWS, self._hidden_size, generator=generator)
                self._rows = rows.to(self._dtype).to(token_ids.device)
            self._stand_in = self._rows[token_ids % _NUM_ROWS]

    @property
    def rows(self) -> torch.Tensor | None:
        """What the first of the own layers works on."""
        return self._stand_in if self.received is None else self.received

    def returned(self, hidden: Any) -> Any:
        """`hidden` in the form in which this model's layers return it."""
        if self.num_returned == 0:
            return hidden
        return (hidden, *(Nothing() for _ in range(self.num_returned - 1)))


class _StandIn(nn.Module):
    """Has the attributes of a module that it does not own."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.__dict__["_original"] = original

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            original = self.__dict__["_original"]
            if name in original._parameters:
                raise
            return getattr(original, name)


class OtherEmbedding(_StandIn):
    """The embedding of another stage. Owns: nothing. Never: keeps weights."""

    def __init__(self, original: Any, border: Border, dtype: torch.dtype) -> None:
        super().__init__(_without_weights(original))
        self.__dict__["_border"] = border
        self.weight = torch.zeros(0, dtype=dtype)  # whose dtype some models ask for
        self._size = int(original.embedding_dim)
        self._dtype = dtype
        self.filling = float("nan")

    def forward(self, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: A002 (torch's name)
        self.__dict__["_border"].enter(input)
        return torch.full((*input.shape, self._size), self.filling, dtype=self._dtype, device=input.device)


class OtherLayer(_StandIn):
    """A decoder layer of another stage. Owns: nothing. Never: keeps weights."""

    def __init__(self, original: nn.Module, border: Border, *, is_earlier: bool) -> None:
        super().__init__(_without_weights(original))
        self.__dict__["_border"] = border
        self._is_earlier = is_earlier

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        border: Border = self.__dict__["_border"]
        if not self._is_earlier:
            border.sent = given_hidden(args, kwargs)
        return border.returned(border.rows if self._is_earlier else border.sent)


class OtherPart(_StandIn):
    """The last norm or the head of another stage: hands on what it is given. Owns: nothing. Never: keeps weights."""

    def __init__(self, original: nn.Module, dtype: torch.dtype) -> None:
        super().__init__(_without_weights(original))
        self.weight = torch.zeros(0, dtype=dtype)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return given_hidden(args, kwargs)


def given_hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The hidden states among the arguments of a layer; None where they are not the first."""
    return args[0] if args else kwargs.get("hidden_states")


def _without_weights(module: nn.Module) -> nn.Module:
    """`module` itself, with no parameters in it."""
    for part in module.modules():
        part._parameters.update(dict.fromkeys(part._parameters))
    return module
