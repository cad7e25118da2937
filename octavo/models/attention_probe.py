"""Find out by running it what a model's attention layers are: heads, sizes, scale, mask, soft cap, sinks, sharing.

Two forwards over a handful of tokens, with a recorder in place of attention, check what no config says:

- every layer that keeps a cache calls, once;
- what a layer computes on its inputs is scaled dot-product attention with exactly the properties seen;
- a token's query, key and output do not change with its neighbours, nor with the longest position of the batch.

Whatever does not fit is refused by the property that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from octavo.errors import UnsupportedModelError
from octavo.models.adoption import calls_interface
from octavo.models.attention_interface import ATTENTION_NAME, PROBE_NAME, clear_hook, set_hook
from octavo.models.attention_recorder import AttentionCall, Recorder
from octavo.models.load_clock import part
from octavo.models.modules.linear import quick_products
from octavo.models.modules.replacement import watch_calls
from octavo.models.position_cache import PositionCache, PositionInput
from octavo.models.transformers_api import ModelOutput, PreTrainedModel

NUM_PROBE_TOKENS = 20
"""Tokens of a probing forward: the last `_REPEAT` of them stand far enough from the start for a changed rotary
frequency to show, and below any length at which frequencies change."""

_REPEAT = 4
"""Tokens that the second forward repeats, alone and beside each other."""

_REMEDY = "Octavo cannot run this model yet; use another one."


class AttentionProbe:
    """Two forwards over a handful of tokens. Owns: what the first one recorded. Never: keeps its hooks on the model."""

    @part("examine_model")
    def __init__(self, model: Any, *, length: int, vocab_size: int) -> None:
        """Runs the first forward, head included; sequences are up to `length` tokens long.

        Raises `UnsupportedModelError`, naming the property, for attention that Octavo cannot compute.
        """
        self._model = model
        self._length = max(length, NUM_PROBE_TOKENS)
        self._tokens = torch.arange(1, NUM_PROBE_TOKENS + 1, device=model.device) * 7919 % vocab_size
        self._calls_interface = calls_interface(model)
        if self._calls_interface:
            model.set_attn_implementation(PROBE_NAME)
        recorder = Recorder(num_tokens=NUM_PROBE_TOKENS, mask_length=self._length)
        with quick_products(model), _watch_entry(model) as entry, watch_calls(model) as self.seen:
            # No positions are given here: these are the ones that `generate` would use.
            output = _run(model, model, recorder, self._tokens, {})
        self.logits: torch.Tensor = output.logits
        """[1, probe tokens, vocabulary]"""
        self.calls = recorder.calls
        """In the order of the forward."""
        if entry.path is None or not isinstance(entry.output, ModelOutput):
            raise UnsupportedModelError(
                f"{type(model).__name__} has no base model apart from its head.", remedy=_REMEDY
            )
        self.base_path: str = entry.path
        """Where in the model its base lies, as `get_submodule` takes it."""
        self.output_type = type(entry.output)
        """What the base model returns: a class with a field `last_hidden_state`."""
        self.hidden: torch.Tensor = entry.output[0]
        """[1, probe tokens, hidden size]"""
        self._base = model.get_submodule(self.base_path)
        # Modules that were adopted may ask a cache how long it is only to cut a bias that nobody computes any more.
        counting = [call.module for call in self.calls] if self._calls_interface else []
        self.position_input = PositionInput.of(self._base, counting)

    @part("examine_again")
    def check_independence(self, *, is_divided: bool = False) -> None:
        """Run again with repeated tokens; raises `UnsupportedModelError` unless each comes out as it did alone.

        Of a model that is divided among ranks all ranks run as many forwards, whatever each of them finds.

        Leaves a model that calls the interface set to `ATTENTION_NAME`: from now on it makes no masks.
        """
        if self._calls_interface:
            self._model.set_attn_implementation(ATTENTION_NAME)
        repeated = torch.arange(NUM_PROBE_TOKENS, device=self._tokens.device) % _REPEAT + NUM_PROBE_TOKENS - _REPEAT
        positions = repeated.clone()
        positions[-1] = self._length - 1
        where = self._first_difference(self._tokens[repeated], positions, (0, _REPEAT))
        if where is None:
            self._check_far_positions()
            return
        if is_divided:
            raise UnsupportedModelError(
                f"{where} lets a token's own vectors depend on its neighbours, its place or the longest sequence.",
                remedy="Run the model on one rank, which tells on what.",
            )
        # Which of the three differences between the forwards was it?
        counted = torch.arange(NUM_PROBE_TOKENS, device=self._tokens.device)
        if not self.position_input.takes_positions:
            reason = "its place in a batch: the model takes no positions, it counts the tokens of its input itself"
        elif self._first_difference(self._tokens, counted, (NUM_PROBE_TOKENS - _REPEAT,)) is not None:
            reason = "where its sequence starts: positions are not counted from 0"
        elif self._first_difference(self._tokens[repeated], repeated, (0, _REPEAT)) is not None:
            reason = "its neighbours outside of attention"
        else:
            reason = "how far the longest sequence of a batch reaches"
        raise UnsupportedModelError(
            f"{where} lets a token's own vectors depend on {reason}.",
            remedy=_REMEDY
            if not self.position_input.takes_positions
            else "A rotary embedding that changes with length (longrope, dynamic NTK) runs up to its original "
            "length, given as --max-model-len; other models of this kind cannot be computed yet.",
        )

    def _check_far_positions(self) -> None:
        """Where modules count positions: at the far end they must find those that one sequence alone would have."""
        name = self.position_input.cache_name
        if name is None:
            return
        num_before = self._length - NUM_PROBE_TOKENS
        positions = torch.arange(num_before, self._length, device=self._tokens.device)
        counted = {"position_ids": positions[None], name: PositionCache(num_before)}
        for (where, one), (_, other) in zip(
            self._vectors(self._tokens, counted),
            self._vectors(self._tokens, self.position_input.at(positions)),
            strict=True,
        ):
            if _differ(other, one):
                raise UnsupportedModelError(
                    f"{where} counts the positions of a batch's tokens itself, as if they were one sequence.",
                    remedy=_REMEDY,
                )

    def _first_difference(self, tokens: torch.Tensor, positions: torch.Tensor, starts: tuple[int, ...]) -> str | None:
        """Where these tokens first differ, in `_REPEAT` tokens from one of `starts` on, from the last ones alone."""
        expected = self._named(self.calls, self.hidden)
        found = self._vectors(tokens, self.position_input.at(positions))
        for (where, one), (_, other) in zip(expected, found, strict=True):
            if any(_differ(other[:, :, start : start + _REPEAT], one[:, :, -_REPEAT:]) for start in starts):
                return where
        return None

    def _vectors(self, tokens: torch.Tensor, given: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
        """Where and what: the queries, keys and values of one forward, and its hidden states."""
        recorder = Recorder(num_tokens=NUM_PROBE_TOKENS, mask_length=None)
        hidden = _run(self._model, self._base, recorder, tokens, given)[0]
        if [call.layer_index for call in recorder.calls] != [call.layer_index for call in self.calls]:
            raise UnsupportedModelError("The model's layers do not all compute attention each time.", remedy=_REMEDY)
        return self._named(recorder.calls, hidden)

    @staticmethod
    def _named(calls: list[AttentionCall], hidden: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        parts = [(f"Layer {call.layer_index}", part) for call in calls for part in (call.query, call.key, call.value)]
        return [*parts, ("The last layer", hidden[None])]


class _Entry:
    """The first model inside a model that a forward went into, and what came out of it."""

    def __init__(self) -> None:
        self.path: str | None = None
        self.output: Any = None


@contextmanager
def _watch_entry(model: Any) -> Iterator[_Entry]:
    entry = _Entry()

    def entering(path: str) -> None:
        entry.path = entry.path or path

    def leaving(path: str, output: Any) -> None:
        if entry.path == path and entry.output is None:
            entry.output = output

    handles = []
    for path, module in model.named_modules():
        if path and isinstance(module, PreTrainedModel):
            handles.append(module.register_forward_pre_hook(lambda _module, _args, path=path: entering(path)))
            handles.append(module.register_forward_hook(lambda _module, _args, out, path=path: leaving(path, out)))
    try:
        yield entry
    finally:
        for handle in handles:
            handle.remove()


def _run(model: Any, part: Any, recorder: Recorder, tokens: torch.Tensor, given: dict[str, Any]) -> Any:
    """What `part` of the model returns for these tokens, with `recorder` in place of attention."""
    modules = list(model.modules())
    for module in modules:
        set_hook(module, recorder)
    try:
        return part(input_ids=tokens[None], use_cache=False, **given)
    except UnsupportedModelError:
        raise
    except Exception as error:  # whatever transformers' code raises, the user gets one sentence
        raise UnsupportedModelError(
            f"transformers' {type(part).__name__} does not run on tokens with given positions and without a cache: "
            f"{type(error).__name__}: {error}",
            remedy=_REMEDY,
        ) from error
    finally:
        for module in modules:
            clear_hook(module)


def _differ(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether tokens, third dimension of both, differ by more than rounding explains.

    In 16 bits a rounding may send one token to another expert, so one token in four may differ.
    """
    tolerance, num_excused = (1e-3, 0) if found.dtype == torch.float32 else (0.05, 1)
    by_token = expected.float().transpose(0, 2).flatten(1)
    errors = (found.float().transpose(0, 2).flatten(1) - by_token).norm(dim=1)
    return int((errors > tolerance * by_token.norm(dim=1)).sum()) > num_excused
