"""The figures of one run: what was measured, and how each is defined.

Times are wall clock. A step that computes prompt tokens may also decode for other requests; it counts as prefill, and
only steps without any prompt token count as decode, so neither rate borrows time from the other.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence

import msgspec

from octavo.engine.outputs import RequestOutput
from octavo.messages import EngineCoreOutputs


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run took. Rates are 0 where no step of their kind ran."""

    load_s: float
    """Seconds until the engine could take a prompt: from the start of the process on the command line, from the call
    of `LLM(...)` in Python."""
    ttft_s: float
    """Seconds from handing in the prompts to the first token of a prompt: the mean over the prompts."""
    prefill_tokens_per_s: float
    """Prompt tokens computed (prefix-cache hits are not) per second of the steps that computed any."""
    decode_tokens_per_s: float
    """Output tokens per second of the steps that computed no prompt token."""
    output_tokens_per_s: float
    """All output tokens per second of `wall_s`."""
    wall_s: float
    """Seconds from handing in the prompts to the last token."""
    prompt_tokens: int
    """Prompt tokens of all completions: a prompt with n completions counts n times."""
    output_tokens: int
    hit_tokens: int
    """Those of `prompt_tokens` that the prefix cache held."""
    num_blocks: int
    """Blocks of the KV cache, the null block included."""
    peak_rss_bytes: int
    """Most memory that this process has had resident."""


class RunMeter:
    """Measures one run, step by step.

    Owns: its sums. Never: steers anything; a reader may look at any time.
    """

    def __init__(self, *, num_prompt_tokens: int, num_sequences: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        """Prompt tokens of all sequences, hits included."""
        self.num_sequences = num_sequences
        self.num_computed_prompt_tokens = 0
        self.num_output_tokens = 0
        self.num_running = 0
        self.num_waiting = 0
        self.num_used_blocks = 0
        self.peak_used_blocks = 0
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self.num_decoded_tokens = 0
        """Output tokens of the steps that computed no prompt token."""

    def observe(self, outputs: EngineCoreOutputs, seconds: float) -> None:
        """Count one step that took `seconds`."""
        num_new = sum(len(output.new_token_ids) for output in outputs.outputs)
        self.num_output_tokens += num_new
        if outputs.num_prompt_tokens:
            self.prefill_s += seconds
            self.num_computed_prompt_tokens += outputs.num_prompt_tokens
        else:
            self.decode_s += seconds
            self.num_decoded_tokens += num_new
        self.num_running, self.num_waiting = outputs.stats.num_running, outputs.stats.num_waiting
        self.num_used_blocks = outputs.stats.num_used_blocks
        self.peak_used_blocks = max(self.peak_used_blocks, outputs.num_step_blocks)

    def figures(self, outputs: Sequence[RequestOutput], *, load_s: float, wall_s: float, num_blocks: int) -> Figures:
        """The figures once `outputs` are all there."""
        completions = [completion for output in outputs for completion in output.outputs]
        first_tokens = [output.metrics.first_token_s for output in outputs if output.metrics.first_token_s is not None]
        num_output_tokens = sum(len(completion.token_ids) for completion in completions)
        return Figures(
            load_s=load_s,
            ttft_s=sum(first_tokens) / len(first_tokens) if first_tokens else 0.0,
            prefill_tokens_per_s=_rate(self.num_computed_prompt_tokens, self.prefill_s),
            decode_tokens_per_s=_rate(self.num_decoded_tokens, self.decode_s),
            output_tokens_per_s=_rate(num_output_tokens, wall_s),
            wall_s=wall_s,
            prompt_tokens=self.num_prompt_tokens,
            output_tokens=num_output_tokens,
            hit_tokens=sum(completion.num_cached_tokens for completion in completions),
            num_blocks=num_blocks,
            peak_rss_bytes=peak_rss_bytes(),
        )


def peak_rss_bytes() -> int:
    """Most bytes that this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
