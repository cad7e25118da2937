"""Find out by running it which modules of a model keep a state, what it is, and how they go on from it.

A module that keeps a state is one that puts something into the cache it is given; which those are, what they keep and
in which argument they take the cache, one forward shows. Then each is run by itself, on what it was given there:

- one token after the other from the state it left, it must compute what it computes on the whole row;
- several requests in one call must come out as each does alone;
- several tokens at once from a state may do so, too; many modules ignore the state then, and are given one token after
  the other.

What is kept goes through pages that hold NaN before, so nothing is read that was not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from octavo.attention.state import StateBatch, StateGroup, StateLayer, StateMetadata, StateView
from octavo.errors import UnsupportedModelError
from octavo.kv.specs import MambaSpec
from octavo.models.attention_interface import AttentionHook, AttentionInput, clear_hook, set_hook
from octavo.models.call_cache import CallCache
from octavo.models.state_mixer import CacheArgument, ConvolutionState, Mixer, PagedMixer, RecurrenceState
from octavo.models.transformers_api import PreTrainedModel

NUM_PROBE_TOKENS = 20

_REMEDY = "Octavo cannot run this model yet; use another one."


def find_mixers(model: Any, vocab_size: int) -> list[Mixer]:
    """The modules of `model` that keep a state, in the order of a forward.

    Raises `UnsupportedModelError` for one that does not say for which layer, or keeps it more than once in a forward.
    """
    found: list[Mixer] = []
    handles: list[Any] = []
    open_calls: dict[nn.Module, tuple[CallCache, tuple[Any, ...], dict[str, Any]]] = {}
    modules = list(model.modules())
    for module in modules:
        argument = CacheArgument.of(module)
        if argument is not None and not isinstance(module, PreTrainedModel):
            handles += _watch(module, argument, open_calls, found)
        set_hook(module, _Passing())
    try:
        tokens = torch.arange(1, NUM_PROBE_TOKENS + 1, device=model.device) * 7919 % vocab_size
        model(input_ids=tokens[None], use_cache=False)
    except UnsupportedModelError:
        raise
    except Exception as error:  # whatever transformers' code raises, the user gets one sentence
        raise UnsupportedModelError(
            f"transformers' {type(model).__name__} does not run with a cache in its modules alone: "
            f"{type(error).__name__}: {error}",
            remedy=_REMEDY,
        ) from error
    finally:
        for handle in handles:
            handle.remove()
        for module in modules:
            clear_hook(module)
    return found


class ProbedMixer:
    """One module run by itself, its states in pages made for the purpose. Owns: those pages."""

    def __init__(self, mixer: Mixer, spec: MambaSpec) -> None:
        self._mixer = mixer
        hidden = mixer.hidden_states()
        self._device, self._dtype = hidden.device, hidden.dtype
        self._layer = StateLayer("probe", spec=spec)
        self._layer.group = StateGroup(0, spec.tokens_per_state)
        self._layer.kv_cache = StateView(
            tuple(
                torch.full((8, *shape), torch.nan, dtype=getattr(torch, dtype), device=self._device)
                for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
            )
        )

    def continues_runs(self) -> bool:
        """Whether the module goes on from a state with several tokens at once as with one after the other.

        Raises `UnsupportedModelError` unless it goes on with one after the other as if it had not stopped, whatever
        other requests are computed with it.
        """
        whole = self._run([(range(20), None, 1)])
        resumed = self._run([(range(8), None, 2), (range(8, 20), 2, 2)])
        if self._differ(resumed, whole) or self._states_differ(1, 2):
            raise self._refusal("computes something else, one token after the other, than on the whole row")
        second = self._run([(range(10), None, 3), (range(10, 20), None, 4)])
        together = self._run_together()
        if self._differ(together, second) or self._states_differ(4, 5):
            raise self._refusal("lets a request depend on the others that are computed with it")
        # A state such as no probe leaves: however fast the module forgets, its first tokens show it.
        generator = torch.Generator().manual_seed(self._mixer.layer_index)
        for kept in self._view().states:
            kept[6] = 3 * torch.randn(kept.shape[1:], generator=generator).to(kept)
        one_by_one = self._run([(range(20), 6, 1)])
        at_once = self._run([(range(20), 6, 2)], continues_runs=True)
        return not (self._differ(at_once, one_by_one) or self._states_differ(1, 2))

    def _run(self, runs: Sequence[tuple[range, int | None, int]], *, continues_runs: bool = False) -> torch.Tensor:
        """[20, outputs]: the module on (tokens, block of the state before, block of the state after), one by one."""
        return self._call([([tokens], reads, [writes]) for tokens, reads, writes in runs], continues_runs)

    def _run_together(self) -> torch.Tensor:
        """Two requests of ten tokens each: all but the last two at once, then one token after the other."""
        first, second = range(8), range(10, 18)
        outputs = [([first, second], None, [3, 5])]
        rest: list[Any] = [([range(i, i + 1), range(i + 10, i + 11)], [3, 5], [3, 5]) for i in (8, 9)]
        return self._call([*outputs, *rest], False)  # noqa: FBT003

    def _call(self, batches: Sequence[tuple[list[range], Any, list[int]]], continues_runs: bool) -> torch.Tensor:  # noqa: FBT001
        assert self._layer.group is not None
        self._layer.group.metadata = StateMetadata(
            num_tokens=NUM_PROBE_TOKENS,
            batches=tuple(
                StateBatch(
                    tokens=self._tensor([list(run) for run in tokens]),
                    reads=None if reads is None else self._tensor(reads if isinstance(reads, list) else [reads]),
                    writes=self._tensor(writes),
                )
                for tokens, reads, writes in batches
            ),
        )
        paged = PagedMixer(self._mixer, self._layer, continues_runs=continues_runs)
        output = paged(*self._mixer.arguments, **self._mixer.options)
        result: torch.Tensor = (output[0] if isinstance(output, tuple) else output)[0]
        return result

    def _tensor(self, numbers: list[Any]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)

    def _states_differ(self, one: int, other: int) -> bool:
        kept = self._view().states
        return any(self._differ(state[other].flatten()[None], state[one].flatten()[None]) for state in kept)

    def _differ(self, found: torch.Tensor, expected: torch.Tensor) -> bool:
        """Whether rows of both differ by more than rounding explains, or are no numbers."""
        tolerance = 1e-3 if self._dtype == torch.float32 else 0.1
        errors = (found.float() - expected.float()).norm(dim=1)
        return not bool((errors <= tolerance * (expected.float().norm(dim=1) + 1e-6)).all())

    def _view(self) -> StateView:
        assert self._layer.kv_cache is not None
        return self._layer.kv_cache

    def _refusal(self, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"Layer {self._mixer.layer_index}'s {type(self._mixer.module).__name__} {what}.",
            remedy=_REMEDY,
            layer=self._mixer.layer_index,
        )


class _Passing(AttentionHook):
    """Answers attention with the values, so that a forward goes through. Owns, never: nothing."""

    def attend(self, given: AttentionInput) -> torch.Tensor:
        return given.own_values()


def _watch(
    module: nn.Module,
    argument: CacheArgument,
    open_calls: dict[nn.Module, tuple[CallCache, tuple[Any, ...], dict[str, Any]]],
    found: list[Mixer],
) -> list[Any]:
    """Hooks that hand `module` a cache of its own, and write it down if it keeps something there."""

    def entering(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        cache = CallCache()
        open_calls[module] = (cache, arguments, options)
        placed, named = argument.put(cache, arguments, options)
        return tuple(placed), named

    def leaving(module: nn.Module, _arguments: Any, _output: Any) -> None:
        cache, arguments, options = open_calls.pop(module)
        if not cache.convolutions and not cache.recurrences:
            return
        if len(cache.layer_indices) != 1 or any(mixer.module is module for mixer in found):
            raise UnsupportedModelError(
                f"The model's {type(module).__name__} keeps states of {len(cache.layer_indices)} layers, or keeps its "
                "state more than once in a forward.",
                remedy=_REMEDY,
            )
        found.append(
            Mixer(
                module=module,
                layer_index=cache.layer_indices.pop(),
                states=_states_of(cache),
                cache_argument=argument,
                forward=module.forward,
                arguments=arguments,
                options=options,
            )
        )

    return [
        module.register_forward_pre_hook(entering, with_kwargs=True),
        module.register_forward_hook(leaving),
    ]


def _states_of(cache: CallCache) -> tuple[ConvolutionState | RecurrenceState, ...]:
    convolutions = [
        ConvolutionState(index=index, channels=state.shape[1], kernel=state.shape[2], dtype=state.dtype)
        for index, state in sorted(cache.convolutions.items())
    ]
    recurrences = [
        RecurrenceState(index=index, shape=tuple(state.shape[1:]), dtype=state.dtype)
        for index, state in sorted(cache.recurrences.items())
    ]
    return (*convolutions, *recurrences)
