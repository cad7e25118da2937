"""What transformers answers: greedy tokens in float32, with the margin by which each was chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

EXCUSED_MARGIN = 1e-4
"""Two float32 implementations may differ where the two best logits lie closer than this."""


@dataclass(frozen=True)
class Greedy:
    """Greedy continuation of one prompt: its tokens, and best minus second-best logit at each."""

    token_ids: list[int]
    margins: list[float]


def load_gguf(path: Path) -> torch.nn.Module:
    """The model of a GGUF file through transformers' own reader and dequantiser (slow), in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    return model.eval()


def greedy(model: torch.nn.Module, prompt: list[int], num_tokens: int) -> Greedy:
    """`model.generate` of exactly `num_tokens` tokens; an end-of-sequence token does not stop it."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
    best = [score[0].topk(2).values for score in out.scores]
    return Greedy(out.sequences[0, len(prompt) :].tolist(), [float(pair[0] - pair[1]) for pair in best])


def count_excused(ours: list[list[int]], references: list[Greedy]) -> int:
    """How many outputs leave the reference at a place whose margin excuses it; fails on any other difference."""
    excused = 0
    for index, (tokens, reference) in enumerate(zip(ours, references, strict=True)):
        assert len(tokens) == len(reference.token_ids)
        for place, (mine, theirs) in enumerate(zip(tokens, reference.token_ids, strict=True)):
            if mine == theirs:
                continue
            margin = reference.margins[place]
            assert margin <= EXCUSED_MARGIN, (
                f"prompt {index}, output {place}: {mine} instead of {theirs}, chosen by a margin of {margin}"
            )
            excused += 1
            break
    return excused
