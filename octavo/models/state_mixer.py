"""Modules that mix tokens through a state, run on steps of several requests, their states in the KV cache's pages.

transformers runs such a module on one batch of equally long sequences. A step is one row of tokens in which requests
follow each other, so `PagedMixer` stands before the module's `forward`: it calls it once for each batch of the step's
`StateMetadata`, with the states read from the pages, and stores what the module keeps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from octavo.attention.state import StateBatch, StateLayer
from octavo.models.call_cache import CallCache

_CACHE_NAMES = ("cache", "cache_params", "past_key_values")


class CacheArgument(NamedTuple):
    """The argument of a module's forward that takes a cache."""

    name: str
    place: int
    """Among the arguments that are given without a name."""

    @staticmethod
    def of(module: nn.Module) -> CacheArgument | None:
        """None where the module takes no cache."""
        parameters = list(inspect.signature(module.forward).parameters)
        return next((CacheArgument(name, parameters.index(name)) for name in _CACHE_NAMES if name in parameters), None)

    def put(
        self, cache: CallCache | None, arguments: Sequence[Any], options: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """`arguments` and `options` with `cache` in this argument."""
        placed = list(arguments)
        if self.place < len(placed):
            placed[self.place] = cache
            return placed, options
        return placed, options | {self.name: cache}


@dataclass(frozen=True, slots=True)
class ConvolutionState:
    """The last `kernel` inputs of a causal convolution: [B, channels, kernel] in the module, [kernel - 1, channels] in
    a page."""

    index: int
    """Its number among the layer's convolutions."""
    channels: int
    kernel: int
    dtype: torch.dtype

    @property
    def page_shape(self) -> tuple[int, ...]:
        return (self.kernel - 1, self.channels)

    def give(self, kept: torch.Tensor, cache: CallCache) -> None:
        cache.convolutions[self.index] = nn.functional.pad(kept.to(self.dtype).transpose(1, 2), (1, 0))

    def take(self, cache: CallCache) -> torch.Tensor:
        return cache.convolutions[self.index][..., 1:].transpose(1, 2)


@dataclass(frozen=True, slots=True)
class RecurrenceState:
    """What a recurrence keeps: [B, *shape] in the module, [*shape] in a page."""

    index: int
    """Its number among the layer's recurrences."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def page_shape(self) -> tuple[int, ...]:
        return self.shape

    def give(self, kept: torch.Tensor, cache: CallCache) -> None:
        cache.recurrences[self.index] = kept.to(self.dtype)

    def take(self, cache: CallCache) -> torch.Tensor:
        return cache.recurrences[self.index]


@dataclass(frozen=True, slots=True)
class Mixer:
    """A module that keeps a state, as one forward showed it."""

    module: nn.Module
    layer_index: int
    states: tuple[ConvolutionState | RecurrenceState, ...]
    """Convolutions first, in the order of a page's states."""
    cache_argument: CacheArgument
    forward: Callable[..., Any]
    """The module's own."""
    arguments: tuple[Any, ...]
    """What it was given in that forward: by place, and by name."""
    options: dict[str, Any]

    def hidden_states(self) -> torch.Tensor:
        """The first tensor of numbers that it was given; its weights are of the same kind, and may be no parameters."""
        given = [*self.arguments, *self.options.values()]
        return next(one for one in given if isinstance(one, torch.Tensor) and one.is_floating_point())

    def call(self, cache: CallCache | None, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
        """The module's own forward with `cache` in the argument for it."""
        placed, named = self.cache_argument.put(cache, arguments, options)
        return self.forward(*placed, **named)


class PagedMixer:
    """Runs a module on a step. Owns: nothing. Never: knows which request a token belongs to.

    Parameters:
        continues_runs: the module goes on from a state with several tokens at once as it does with one after the other;
            where it does not, it is given one after the other.
    """

    def __init__(self, mixer: Mixer, layer: StateLayer, *, continues_runs: bool) -> None:
        self.mixer = mixer
        self.layer = layer
        self.continues_runs = continues_runs

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        metadata = self.layer.metadata()
        joined: Any = None
        for batch in metadata.batches:
            for tokens, output in self._run(batch, arguments, options, metadata.num_tokens):
                joined = _join(joined, output, tokens, metadata.num_tokens)
        return joined

    def _run(
        self, batch: StateBatch, arguments: tuple[Any, ...], options: dict[str, Any], num_tokens: int
    ) -> Iterator[tuple[torch.Tensor, Any]]:
        """(tokens, what the module made of them), in one call or token after token."""
        tokens, reads = batch.tokens, batch.reads
        size = tokens.shape[1] if reads is None or self.continues_runs else 1
        for part in torch.split(tokens, size, dim=1):
            cache = CallCache()
            if reads is not None:
                for state, kept in zip(self.mixer.states, self.layer.read(reads), strict=True):
                    state.give(kept, cache)
            picked = [_pick(argument, part, num_tokens) for argument in arguments]
            named = {name: _pick(option, part, num_tokens) for name, option in options.items()}
            output = self.mixer.call(cache, picked, named)
            self.layer.write(batch.writes, [state.take(cache) for state in self.mixer.states])
            reads = batch.writes
            yield part, output


def install(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Let calls of `module` go to `forward`."""
    module.__dict__["forward"] = forward


@contextmanager
def each_token_alone(mixers: Sequence[Mixer]) -> Iterator[None]:
    """Inside this the modules take each token of a row for a sequence of its own, so that its output is its own."""
    for mixer in mixers:
        install(mixer.module, _AloneMixer(mixer))
    try:
        yield
    finally:
        for mixer in mixers:
            del mixer.module.__dict__["forward"]


class _AloneMixer:
    """A module without a memory. Owns, never: nothing."""

    def __init__(self, mixer: Mixer) -> None:
        self._mixer = mixer

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        given = [*arguments, *options.values()]
        num_tokens = next(value.shape[1] for value in given if isinstance(value, torch.Tensor) and value.dim() == 3)
        tokens = torch.arange(num_tokens)[:, None]
        picked = [_pick(argument, tokens, num_tokens) for argument in arguments]
        named = {name: _pick(option, tokens, num_tokens) for name, option in options.items()}
        return _join(None, self._mixer.call(None, picked, named), tokens, num_tokens)


def _pick(value: Any, tokens: torch.Tensor, num_tokens: int) -> Any:
    """`value`, or the part of it that belongs to `tokens` [B, L] where it has a row for each token of the step."""
    if isinstance(value, torch.Tensor):
        return value[0][tokens] if value.dim() > 1 and value.shape[:2] == (1, num_tokens) else value
    if isinstance(value, tuple):
        return tuple(_pick(part, tokens, num_tokens) for part in value)
    return value


def _join(joined: Any, output: Any, tokens: torch.Tensor, num_tokens: int) -> Any:
    """`joined`, the output for the whole step (None: none yet), with `output` in the places of `tokens` [B, L].

    What a module returns beside its output is about the call, not about tokens: that of the last call stands.
    """
    if isinstance(output, tuple):
        return (_join(joined[0] if joined else None, output[0], tokens, num_tokens), *output[1:])
    if joined is None:
        joined = output.new_empty((1, num_tokens, *output.shape[2:]))
    joined[0, tokens] = output
    return joined
