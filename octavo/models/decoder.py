"""Base models that are a plain row of decoder layers:

    hidden = embed(token ids) * multiplier;  angles = rotary(hidden, positions);  hidden = layer(hidden, angles) ...
    norm(hidden)

A stage of a pipeline has some of the layers; the first alone has the embedding, the last alone the norm.

Whether a base model is of that kind is seen while it runs: by which module was handed which other's very result, never
by names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from octavo.models.modules.decoder_layer import LayerForm, form_of
from octavo.models.modules.rms_norm import FastRMSNorm
from octavo.models.stage import Stage
from octavo.models.stage_parts import OtherLayer, OtherPart


class _Call(NamedTuple):
    module: nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    result: Any

    def rows(self) -> Any:
        """What a layer or a norm is given to work on."""
        return self.arguments[0] if self.arguments else self.named.get("hidden_states")


class RotaryCall(NamedTuple):
    """A call of a rotary module, to be repeated for other positions."""

    module: nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [len(positions), size] at int64 positions."""

        def given(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if value.is_floating_point():
                return value[:, :1]  # a module looks at its dtype and device alone; else the trial fails
            return positions[None]

        named = {name: given(value) for name, value in self.named.items()}
        cosines, sines = self.module(*(given(value) for value in self.arguments), **named)
        return cosines[0], sines[0]


class Decoder(NamedTuple):
    """The parts of a base model of this kind, in order."""

    embedding: nn.Module | None
    """None where another stage has it."""
    multiplier: float
    """What its rows are multiplied by: 1, or a number that the model holds."""
    hidden_size: int
    rotaries: list[RotaryCall]
    layers: list[LayerForm]
    rotary_of: list[int | None]
    """By layer: which of `rotaries` it gets its angles from, if any."""
    norm: FastRMSNorm | None
    """None where another stage has it."""


class DecoderRecorder:
    """What the parts of a base model are called with and return. Owns: the tensors of one forward."""

    def __init__(self, base: nn.Module, stage: Stage) -> None:
        self._base = base
        self._stage = stage
        self._calls: list[_Call] = []
        self._given: dict[str, Any] = {}
        self._result: Any = None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Records the first forward of the base model inside this. Leaves no hook behind."""
        handles = [self._base.register_forward_hook(self._note_result, with_kwargs=True)]
        for child in self._base.children():
            parts = child if isinstance(child, nn.ModuleList) else (child,)
            handles += [part.register_forward_hook(self._note, with_kwargs=True) for part in parts]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        if self._result is None:
            self._calls.append(_Call(module, arguments, named, result))

    def _note_result(self, _module: nn.Module, _arguments: Any, named: dict[str, Any], result: Any) -> None:
        if self._result is None:
            self._given, self._result = named, result

    def decoder(self) -> Decoder | None:
        """The parts, or None when the model is put together in another way."""
        token_ids, positions = (self._given.get(name) for name in ("input_ids", "position_ids"))
        if token_ids is None or positions is None:
            return None
        members = [part for child in self._base.children() if isinstance(child, nn.ModuleList) for part in child]
        layers = [call for call in self._calls if any(call.module is member for member in members)]
        others = [call for call in self._calls if not any(call.module is member for member in members)]
        if not layers or len(layers) != len(members) or len(others) < 2:
            return None
        layers = [call for call in layers if not isinstance(call.module, OtherLayer)]
        embedding, *rotary_calls, last = others
        rotaries = [RotaryCall(call.module, call.arguments, call.named) for call in rotary_calls]
        if not isinstance(last.module, FastRMSNorm | OtherPart) or self._result is None:
            return None
        if self._result[0] is not last.result:
            return None
        if len(embedding.arguments) != 1 or embedding.named or embedding.arguments[0] is not token_ids:
            return None
        first = layers[0].rows()
        multiplier = self._multiplier(embedding.result, first) if self._stage.is_first else 1.0
        if multiplier is None:
            return None
        results = [first, *(call.result for call in layers)]
        if any(call.rows() is not result for call, result in zip([*layers, last], results, strict=True)):
            return None
        if len({result.dtype for result in (*results, last.result)}) != 1:
            return None
        if not all(
            _repeats(rotary, call.result, positions[0]) for rotary, call in zip(rotaries, rotary_calls, strict=True)
        ):
            return None
        forms, rotary_of = [], []
        for call in layers:
            named = {name: value for name, value in call.named.items() if name != "hidden_states"}
            angles = named.get("position_embeddings")
            sources = [number for number, rotary in enumerate(rotary_calls) if rotary.result is angles]
            form = form_of(call.module, named) if len(call.arguments) <= 1 else None
            if form is None or form.attention.inputs.dtype != last.result.dtype:
                return None
            if form.attention.rotary_size > 0 and not sources:
                return None
            forms.append(form)
            rotary_of.append(sources[0] if form.attention.rotary_size > 0 else None)
        return Decoder(
            embedding=embedding.module if self._stage.is_first else None,
            multiplier=multiplier,
            hidden_size=first.shape[-1],
            rotaries=rotaries,
            layers=forms,
            rotary_of=rotary_of,
            norm=last.module if isinstance(last.module, FastRMSNorm) else None,
        )

    def _multiplier(self, embedded: Any, rows: Any) -> float | None:
        """What makes the first layer's rows of what the embedding returned; None where no number does."""
        if embedded is rows:
            return 1.0
        if not isinstance(embedded, torch.Tensor) or not isinstance(rows, torch.Tensor):
            return None
        numbers = {float(value) for value in vars(self._base).values() if isinstance(value, float)}
        return next((number for number in sorted(numbers) if torch.equal(embedded * number, rows)), None)


def _repeats(rotary: RotaryCall, result: Any, positions: torch.Tensor) -> bool:
    """Whether the call gives the same for the same positions, among them one that is given alone."""
    try:
        found = rotary.angles(positions)
        alone = rotary.angles(positions[-1:])
    except Exception:  # not a rotary module, or it looks at more than positions
        return False
    if not isinstance(result, tuple) or len(result) != 2:
        return False
    return all(
        torch.equal(one[None], expected) and torch.equal(single, one[-1:])
        for one, single, expected in zip(found, alone, result, strict=True)
    )
