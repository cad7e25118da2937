"""The rows of llama.cpp's batches: a prompt's tokens, and what many prompts begin with once for all of them."""

from __future__ import annotations

MIN_SHARED = 64
"""Tokens that prompts must begin with alike for it to pay."""

Row = tuple[int, int, list[int], bool]
"""Token id, position, sequences, whether its logits are wanted."""


def shared_length(prompts: list[list[int]]) -> int:
    """Tokens that all of several prompts begin with, short of the last one; 0 where it does not pay."""
    shortest = min(map(len, prompts)) - 1
    alike = next((at for at in range(shortest) if len({prompt[at] for prompt in prompts}) > 1), shortest)
    return alike if len(prompts) > 1 and alike >= MIN_SHARED else 0


def prompt_rows(prompts: list[list[int]]) -> list[Row]:
    """The rows of all prompts, one after another, their shared beginning once."""
    shared = shared_length(prompts)
    everyone = list(range(len(prompts)))
    rows = [(prompts[0][at], at, everyone, False) for at in range(shared)]
    for sequence, prompt in enumerate(prompts):
        last = len(prompt) - 1
        rows += [(prompt[at], at, [sequence], at == last) for at in range(shared, last + 1)]
    return rows
