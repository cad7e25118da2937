"""Attention modules that norm and rotate all their heads in one pass over the product of queries, keys and values.

    rows -> [queries | keys | values] in one product -> norm of each head and rotary embedding, in place
         -> attention over the pages -> output product

A module is replaced when it has just these linear layers and, on random rows of several magnitudes, hands the same
queries, keys and values to attention and makes the same result of what attention returns.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import torch
from torch import nn

from octavo.attention.numba_cpu import element_of
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.numba_memory import Record
from octavo.models.attention_interface import AttentionHook, AttentionInput, clear_hook, hook_of, set_hook
from octavo.models.modules.rms_norm import FastRMSNorm
from octavo.models.modules.row_kernels import ROTATE_JOB, TEAM, num_threads_for, rotate_kernel
from octavo.models.modules.trial import differs, trial_rows
from octavo.models.modules.weights import Weight

_UNIT_TOKENS = 4
_STEP = struct.Struct("7q")


class Heads(NamedTuple):
    """What an attention module makes of a row."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    value_size: int


class FusedAttention(nn.Module):
    """In place of an attention module. Owns: a job. Never: the cache; its hook is what attends.

    Shares the weights of the module that it replaces, and answers to its layer index.
    """

    def __init__(
        self,
        plain: nn.Module,
        inputs: Weight,
        output: nn.Module,
        *,
        heads: Heads,
        rotary_size: int,
        norms: tuple[FastRMSNorm, FastRMSNorm] | None,
        dtype: torch.dtype,
    ) -> None:
        """`rotary_size` numbers of each head are rotated, 0 is none; `norms` are those of a query and a key head."""
        super().__init__()
        for name, value in vars(plain).items():
            if not name.startswith("_") and name not in self.__dict__:
                self.__dict__[name] = value  # the layer around it may ask for them
        self.inputs = inputs
        self.output = output
        self.heads = heads
        self.rotary_size = rotary_size
        self._norms = norms
        self.passive = rotary_size == 0 and norms is None
        """Whether queries and keys are taken as the product makes them."""
        self.kernel = rotate_kernel(vector_paths()[0], element_of(dtype))
        """Address of the kernel whose job is a `rotation`."""
        self._no_angles = torch.zeros(1, dtype=dtype)
        self._record = self.rotation()

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        joint = self.inputs.apply(hidden_states)[0]
        if not self.passive:
            self._rotate(joint, position_embeddings)
        num_heads, num_kv_heads, size, value_size = self.heads
        num_tokens, row = joint.shape
        queries = joint.storage_offset()
        keys = queries + num_heads * size
        values = keys + num_kv_heads * size
        query = joint.as_strided((num_tokens, num_heads, size), (row, size, 1), queries)
        key = joint.as_strided((num_tokens, num_kv_heads, size), (row, size, 1), keys)
        value = joint.as_strided((num_tokens, num_kv_heads, value_size), (row, value_size, 1), values)
        attended = hook_of(self).attend_rows(AttentionInput(self, query, key, value, attention_mask, options))
        return self.output(attended.view(1, num_tokens, -1)), None

    def rotation(self) -> Record:
        """A new job of `ROTATE_JOB` for rows of the joint product; where they and their angles lie is left open."""
        heads, norms = self.heads, self._norms
        record = Record(
            ROTATE_JOB,
            {
                "num_query_heads": heads.num_heads,
                "num_key_heads": heads.num_kv_heads,
                "head_size": heads.head_size,
                "rotary_size": self.rotary_size,
                "query_factors": norms[0].get_buffer("factors").data_ptr() if norms else 0,
                "key_factors": norms[1].get_buffer("factors").data_ptr() if norms else 0,
                "unit_tokens": _UNIT_TOKENS,
                "epsilon": norms[0].epsilon if norms else 0.0,
            },
        )
        record.keep(*(norms or ()))
        return record

    def _rotate(self, joint: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        cosines, sines = (self._no_angles, self._no_angles) if angles is None else angles
        width, num_tokens = joint.element_size(), joint.shape[0]
        _STEP.pack_into(
            self._record.bytes,
            0,
            0,
            joint.data_ptr(),
            joint.stride(0) * width,
            num_tokens,
            cosines.data_ptr(),
            sines.data_ptr(),
            cosines.stride(-2) * width if angles is not None else 0,
        )
        TEAM.run(self.kernel, self._record.address, num_threads_for(num_tokens, _UNIT_TOKENS))


class _Trial(AttentionHook):
    """Writes down queries, keys and values, and answers with the values of each query's head."""

    def __init__(self) -> None:
        self.seen: tuple[torch.Tensor, ...] = ()

    def attend(self, given: AttentionInput) -> torch.Tensor:
        self.seen = (given.query.clone(), given.key.clone(), given.value.clone())
        return given.own_values()


def faster_attention(
    module: nn.Module, inputs: Weight, output: nn.Module, heads: Heads, arguments: dict[str, Any], in_size: int
) -> FusedAttention | None:
    """A `FusedAttention` that computes what `module` does, or None where none does.

    `module` computes with `inputs` and `output` already; `arguments` are what a forward called it with, but the rows.
    """
    dtype = inputs.dtype
    angles = arguments.get("position_embeddings")
    sizes = _rotary_sizes(angles, dtype)
    norms = [child for child in module.children() if isinstance(child, FastRMSNorm)]
    if (
        sizes is None
        or len(norms) not in (0, 2)
        or any(norm.get_buffer("factors").numel() != heads.head_size for norm in norms)
    ):
        return None
    if len({norm.epsilon for norm in norms}) > 1:
        return None
    pair = (norms[0], norms[1]) if norms else None
    num_tokens = 8 if angles is None else angles[0].shape[-2]
    rows = trial_rows(num_tokens, in_size, dtype, inputs.apply)
    expected = _run(module, rows, arguments)
    for rotary_size in sizes:
        candidate = FusedAttention(
            module, inputs, output, heads=heads, rotary_size=rotary_size, norms=pair, dtype=dtype
        )
        if expected is not None and _same(_run(candidate, rows, arguments), expected):
            return candidate
    return None


def _rotary_sizes(angles: Any, dtype: torch.dtype) -> list[int] | None:
    """How many numbers of a head may be rotated by these angles; None where they are not of a kind known here."""
    if angles is None:
        return [0]
    if not isinstance(angles, tuple) or len(angles) != 2:
        return None
    if any(part.dim() != 3 or part.shape[0] != 1 or part.dtype != dtype or part.stride(-1) != 1 for part in angles):
        return None
    return [int(angles[0].shape[-1]), 0]


def _run(module: nn.Module, rows: torch.Tensor, arguments: dict[str, Any]) -> tuple[torch.Tensor, ...] | None:
    """Queries, keys, values and result of a module, or None where it does not return a result and nothing else."""
    hook = _Trial()
    set_hook(module, hook)
    try:
        returned = module(hidden_states=rows, **arguments)
    except Exception:  # it wants other arguments: not a module of this kind
        return None
    finally:
        clear_hook(module)
    if not isinstance(returned, tuple) or len(returned) != 2 or returned[1] is not None or not hook.seen:
        return None
    return (*hook.seen, returned[0])


def _same(mine: tuple[torch.Tensor, ...] | None, theirs: tuple[torch.Tensor, ...]) -> bool:
    return mine is not None and not any(differs(one, other) for one, other in zip(mine, theirs, strict=True))
