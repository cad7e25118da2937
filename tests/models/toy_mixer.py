"""A module that keeps states as transformers' do, small enough to know what it must answer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from octavo.models.state_mixer import CacheArgument, ConvolutionState, Mixer, RecurrenceState

SIZE = 6
KERNEL = 3


class ToyMixer(nn.Module):
    """Sums the last `KERNEL` inputs, and all inputs with a decay. With `forgets`, several tokens ignore the state."""

    def __init__(self, *, forgets: bool = False, sees_others: bool = False, stays: bool = False) -> None:
        super().__init__()
        self.layer_idx = 4
        self.weight = nn.Parameter(torch.ones(SIZE))
        self.forgets, self.sees_others, self.stays = forgets, sees_others, stays

    def forward(self, hidden_states: torch.Tensor, cache: Any = None, attention_mask: Any = None) -> torch.Tensor:
        length = hidden_states.shape[1]
        inputs = hidden_states.transpose(1, 2)
        before = None if cache is None else cache.get_recurrent_state(self.layer_idx)
        if cache is not None:
            inputs = cache.update_conv_state(inputs, self.layer_idx, conv_kernel_size=KERNEL)
        padded = nn.functional.pad(inputs, (KERNEL - 1, 0))
        sums = padded.unfold(2, KERNEL, 1).sum(-1)[..., -length:].transpose(1, 2)
        state = torch.zeros_like(hidden_states[:, 0]) if before is None or (self.forgets and length > 1) else before
        outputs = []
        for token in range(length):
            state = 0.5 * state + hidden_states[:, token]
            outputs.append(state)
        if cache is not None and not self.stays:
            cache.update_recurrent_state(state, self.layer_idx)
        elif cache is not None and before is None:
            cache.update_recurrent_state(torch.zeros_like(state), self.layer_idx)
        others = hidden_states.mean(0) if self.sees_others else 0
        return (sums + torch.stack(outputs, 1)) * self.weight + others


def toy(module: nn.Module, hidden: torch.Tensor) -> Mixer:
    argument = CacheArgument.of(module)
    assert argument is not None
    return Mixer(
        module=module,
        layer_index=4,
        states=(
            ConvolutionState(index=0, channels=SIZE, kernel=KERNEL, dtype=torch.float32),
            RecurrenceState(index=0, shape=(SIZE,), dtype=torch.float32),
        ),
        cache_argument=argument,
        forward=module.forward,
        arguments=(hidden,),
        options={"cache": None},
    )
