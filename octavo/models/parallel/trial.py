"""Whether a model's part computes what the whole does: both are run on a few tokens, and compared where ranks meet.

Both have the same made-up weights.

Attention is left out: each token gets its own value back, so a mistake in queries and keys, which barely shows in what
a model with small weights returns, is looked for in the queries and keys themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.models.attention_interface import AttentionHook, AttentionInput, clear_hook, set_hook
from octavo.models.load_clock import part
from octavo.models.parallel.rank_modules import RowParallelLinear
from octavo.models.parallel.rank_part import is_vector_module
from octavo.models.parallel.trial_weights import NUM_TOKENS
from octavo.models.peers import Peers

_NUM_TOKENS = 12

REMEDY = "Set --tensor-parallel-size to 1, or use --pipeline-parallel-size."

_HEAD_SIZES = ("head_dim", "attention_head_size")


class _Calls(AttentionHook):
    """Owns: what each attention module of one forward handed over."""

    def __init__(self) -> None:
        self.given: list[AttentionInput] = []

    def attend(self, given: AttentionInput) -> torch.Tensor:
        self.given.append(given)
        return given.own_values()


class _Run:
    """One forward. Owns: attention's inputs, what modules of some paths returned, and the logits."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.vectors: dict[str, torch.Tensor] = {}
        """What modules that have vectors and nothing else, such as norms, were given."""
        calls = _Calls()
        num_words = min(NUM_TOKENS, model.config.get_text_config().vocab_size)
        tokens = torch.arange(1, _NUM_TOKENS + 1, device=device) * 7919 % num_words
        with torch.inference_mode(), self._watch(model, calls):
            self.logits: torch.Tensor = model(input_ids=tokens[None], use_cache=False).logits
        self.calls = calls.given

    @contextmanager
    def _watch(self, model: Any, calls: _Calls) -> Iterator[None]:
        handles = []
        for path, module in model.named_modules():
            set_hook(module, calls)
            if is_vector_module(module):
                handles.append(module.register_forward_pre_hook(lambda _m, args, path=path: self._given(path, args)))
            if isinstance(module, nn.Linear | RowParallelLinear):
                handles.append(module.register_forward_hook(lambda _m, _i, out, path=path: self._note(path, out)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for module in model.modules():
                clear_hook(module)

    def _given(self, path: str, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], torch.Tensor):
            self.vectors[path] = args[0]

    def _note(self, path: str, result: torch.Tensor) -> None:
        self.sums[path] = result


class Trial:
    """Owns: one forward of the whole model."""

    @part("try_whole_model")
    def __init__(self, whole: Any, device: torch.device) -> None:
        self._name = type(whole).__name__
        self._head_sizes = _head_sizes(whole)
        self._whole = self._run(whole, device, "does not run")
        self.behind = {
            path: source
            for path, given in self._whole.vectors.items()
            for source, result in self._whole.sums.items()
            if given is result
        }
        """Path of a module that has vectors alone -> that of the linear layer whose whole result it was given."""

    @part("try_division")
    def difference(self, divided: Any, peers: Peers) -> str | None:
        """What the part, together with the other ranks', computes otherwise; None when it is the same.

        Every rank gets the same answer, or all of them one that is not None.
        """
        other_size = self._other_head_size(divided)
        run = self._run(divided, self._whole.logits.device, other_size or "does not run with fewer heads than its own")
        found = self._difference(run, divided, peers)
        verdict = torch.tensor([0.0 if found is None else 1.0], device=self._whole.logits.device)
        if float(peers.all_reduce(verdict)) and found is None:
            found = "computes something else on another rank"
        return found and (other_size or found)

    def _run(self, model: Any, device: torch.device, why_not: str) -> _Run:
        """One forward; raises `UnsupportedModelError` with `why_not` when it fails."""
        try:
            return _Run(model, device)
        except UnsupportedModelError:
            raise
        except Exception as error:  # whatever transformers' code raises, the user gets one sentence
            raise not_divided(self._name, why_not) from error

    def _other_head_size(self, divided: Any) -> str | None:
        """What the class does where attention's head size is another one in the part; None where it is not."""
        for path, size in _head_sizes(divided).items():
            whole = self._head_sizes.get(path, size)
            if size != whole:
                return (
                    f"takes the head size from the number of heads, {whole} with all of them and {size} with a rank's"
                )
        return None

    def _difference(self, run: _Run, divided: Any, peers: Peers) -> str | None:
        if len(run.calls) != len(self._whole.calls):
            return f"calls attention {len(run.calls)} times instead of {len(self._whole.calls)}"
        for index, (part_call, call) in enumerate(zip(run.calls, self._whole.calls, strict=True)):
            if (name := _first_difference(part_call, call, peers)) is not None:
                return f"has other {name} in its attention module {index}"
        for path, module in divided.named_modules():
            if isinstance(module, RowParallelLinear) and _differ(run.sums[path], self._whole.sums[path]):
                return f"computes something else at {path}"
        return "computes other logits" if _differ(run.logits, self._whole.logits) else None


def not_divided(name: str, what: str) -> UnsupportedModelError:
    """The error for a class `name`, and what it does when it is divided."""
    return UnsupportedModelError(
        f"{name} cannot be divided over ranks: divided by heads and widths, it {what}.", remedy=REMEDY
    )


def _head_sizes(model: Any) -> dict[str, int]:
    """By path, what attention modules say of themselves."""
    return {
        path: size
        for path, module in model.named_modules()
        for name in _HEAD_SIZES
        if isinstance(size := getattr(module, name, None), int)
    }


def _first_difference(own: AttentionInput, whole: AttentionInput, peers: Peers) -> str | None:
    """Which of a rank's inputs of attention is not its part of the whole's."""
    rank, size = peers.index, peers.size
    num_heads = whole.query.shape[1]
    for name, part_tensor, tensor in (
        ("queries", own.query, whole.query),
        ("keys", own.key, whole.key),
        ("values", own.value, whole.value),
    ):
        count = part_tensor.shape[1]
        first = rank * count if count * size == tensor.shape[1] else rank * tensor.shape[1] // size
        if count not in (max(1, tensor.shape[1] // size), tensor.shape[1] if tensor.shape[1] == 1 else 0):
            return f"numbers of {name}"
        expected = tensor[:, first : first + count]
        if part_tensor.shape != expected.shape or _differ(part_tensor, expected):
            return name
    heads = slice(rank * num_heads // size, (rank + 1) * num_heads // size)
    for option, value in whole.options.items():
        mine = own.options.get(option)
        if isinstance(value, torch.Tensor) and value.numel() == num_heads:
            if mine is None or not torch.equal(mine.flatten(), value.flatten()[heads]):
                return option
        elif isinstance(value, int | float | str) and mine != value:
            return option
    return None


def _differ(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether tokens, second dimension from the end, differ by more than rounding explains.

    In 16 bits a rounding may send one token to another expert, so one token in four may differ.
    """
    if found.shape != expected.shape:
        return True
    tolerance, num_excused = (1e-3, 0) if found.dtype == torch.float32 else (0.05, _NUM_TOKENS // 4)
    by_token = expected.float().transpose(0, -2).flatten(1)
    errors = (found.float().transpose(0, -2).flatten(1) - by_token).norm(dim=1)
    return int((errors > tolerance * by_token.norm(dim=1)).sum()) > num_excused
