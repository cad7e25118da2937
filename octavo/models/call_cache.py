"""What a module with a state sees in place of transformers' cache, for one call.

Such modules ask a cache object for what they kept (`get_...`) and hand it what they keep (`update_...`). A causal
convolution over k inputs keeps the last k of them, `[B, channels, k]`, of which the oldest is read no more; a
recurrence keeps one tensor, `[B, ...]`, and may change it in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class CallCache:
    """Stands in for transformers' cache in one call of one module.

    Owns: the states, before the call and after it.
    Never: keeps keys or values; a module that computes attention gets back what it brings.
    """

    def __init__(
        self, convolutions: dict[int, torch.Tensor] | None = None, recurrences: dict[int, torch.Tensor] | None = None
    ) -> None:
        self.convolutions: dict[int, torch.Tensor] = convolutions or {}
        """By number of the state in its layer; empty before a request's first token."""
        self.recurrences: dict[int, torch.Tensor] = recurrences or {}
        self.layer_indices: set[int] = set()
        """Layers for which the module asked."""

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        self.layer_indices.add(layer_idx)
        return self.convolutions.get(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        self.layer_indices.add(layer_idx)
        return self.recurrences.get(state_idx)

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Keeps the last inputs; returns all there are, [B, channels, kept + new], zeros before a request's first."""
        self.layer_indices.add(layer_idx)
        before = self.convolutions.get(state_idx)
        if before is None:
            kernel = conv_kernel_size or conv_states.shape[-1]
            inputs = nn.functional.pad(conv_states, (max(0, kernel - conv_states.shape[-1]), 0))
        else:
            kernel = before.shape[-1]
            inputs = torch.cat([before, conv_states], dim=-1)
        self.convolutions[state_idx] = inputs[..., -kernel:]
        return inputs

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        self.layer_indices.add(layer_idx)
        self.recurrences[state_idx] = recurrent_states
        return recurrent_states

    def get_linear_cache(self, layer_idx: int) -> torch.Tensor | None:
        return self.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, linear_cache: torch.Tensor) -> None:
        self.update_recurrent_state(linear_cache, layer_idx)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        del layer_idx, state_idx
        return bool(self.convolutions or self.recurrences)

    def is_recording_past(self, layer_idx: int) -> bool:
        del layer_idx
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        del layer_idx
        return 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states
