"""A tiny random model, prompts that share prefixes, and what transformers makes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo import LLM, SamplingParams
from tests.parity.reference import Greedy, count_excused, greedy
from tests.parity.tiny import VOCAB_SIZE, build_model

NUM_OUTPUT_TOKENS = 12


class Toy:
    """A model of `config` in `folder`: fresh prompts of `lengths`, and prompts that leave a common one at `forks`."""

    def __init__(self, folder: Path, config: dict[str, Any], *, lengths: Sequence[int], forks: Sequence[int]) -> None:
        self.folder = folder
        self.model = build_model(folder, config)
        rng = random.Random(7)
        base = [rng.randrange(3, VOCAB_SIZE) for _ in range(max(lengths))]
        fresh = [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]
        forked = [base[:cut] + [rng.randrange(3, VOCAB_SIZE) for _ in range(9)] for cut in forks]
        self.prompts = fresh + forked
        self.greedy: list[Greedy] = [greedy(self.model, prompt, NUM_OUTPUT_TOKENS) for prompt in self.prompts]

    def llm(self, **options: Any) -> LLM:
        defaults: dict[str, Any] = {"dtype": "float32", "kv_memory": "4MiB"}
        return LLM(model=str(self.folder), **(defaults | options))

    def check(self, llm: LLM, order: list[int], *, references: list[Greedy] | None = None) -> int:
        """Run the prompts of `order`; `references` replaces what is expected of each place in it.

        Returns the number of prompt tokens that the prefix cache had.
        """
        references = references or [self.greedy[index] for index in order]
        num_tokens = len(references[0].token_ids)
        sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        prompts = [{"prompt_token_ids": self.prompts[index]} for index in order]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        assert count_excused(tokens, references) == 0
        return sum(output.num_cached_tokens or 0 for output in outputs)

    def smallest_pool(self, **options: Any) -> int:
        """Blocks, null block included, that hold one request of `max_model_len` tokens and no more."""
        with self.llm(**options) as probe:
            return 1 + sum(probe.plan.figures.blocks_per_request)
