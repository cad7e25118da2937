"""The state contract: how layers of Mamba and linear attention find what their requests have come to.

Such a layer keeps no token; it keeps a **state** of fixed size, which each token changes. One page holds one state:
that after the last token of the block, or after the last token so far. A layer **reads** the state before a run of
tokens and **writes** the one after it; which pages these are, the group's `StateMetadata` says for the step under way.

    state i  [num_blocks, *shape]     one tensor for each shape of the spec, strided over the layer's tensor
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.kv.specs import MambaSpec


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StateView:
    """One layer's view of its tensor: no copy, strides by `kv/layout.py`."""

    states: tuple[torch.Tensor, ...]
    """[num_blocks, *shape], in the order of the spec's shapes."""


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Runs of tokens that are computed together: B runs of L tokens, all with a state before them or all without."""

    tokens: torch.Tensor
    """int64 [B, L]: numbers of the tokens in the step."""
    reads: torch.Tensor | None
    """int64 [B]: block of the state before each run; None where the runs begin their requests."""
    writes: torch.Tensor
    """int64 [B]: block of the state after each run."""


@dataclass(frozen=True, slots=True)
class StateMetadata:
    """One step as one group sees it."""

    num_tokens: int
    batches: tuple[StateBatch, ...]
    """Every token of the step is in one of them. A batch may read what those before it write."""


class StateGroup:
    """The layers of one group of states as a rank runs them.

    Owns: the metadata of the step under way. Never: cache memory.
    """

    def __init__(self, index: int, block_size: int) -> None:
        self.index = index
        self.block_size = block_size
        self.metadata: StateMetadata | None = None
        """Set by the model runner before each forward."""


class StateLayer:
    """One state's connection to the cache.

    Owns: its spec and, once bound, its view.
    Never: allocates, or knows what its numbers mean; `worker/kv_memory.py` binds `kv_cache` and `group`.
    """

    kv_sharing_target: None = None
    """A state is its layer's own."""

    def __init__(self, name: str, *, spec: MambaSpec) -> None:
        self.name = name
        self.spec = spec
        self.kv_cache: StateView | None = None
        self.group: StateGroup | None = None
        self.num_calls = 0
        """Forwards so far: lets a test prove that each layer went through the cache."""

    def metadata(self) -> StateMetadata:
        """The step under way; counts as a call of this layer."""
        if self.group is None or self.group.metadata is None:
            raise RuntimeError(f"layer {self.name} was called before its state was bound to the KV cache")
        self.num_calls += 1
        return self.group.metadata

    def read(self, blocks: torch.Tensor) -> list[torch.Tensor]:
        """The states in `blocks` (int64 [B]): copies [B, *shape], in the order of the spec's shapes."""
        return [state[blocks] for state in self._view().states]

    def write(self, blocks: torch.Tensor, states: Sequence[torch.Tensor]) -> None:
        """Store `states`, as `read` returns them, in `blocks`, converted to the cache's dtypes."""
        for kept, state in zip(self._view().states, states, strict=True):
            kept[blocks] = state.to(kept.dtype)

    def _view(self) -> StateView:
        if self.kv_cache is None:
            raise RuntimeError(f"layer {self.name} was called before its state was bound to the KV cache")
        return self.kv_cache
