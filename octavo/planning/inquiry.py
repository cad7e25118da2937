"""What is asked of a plan: the model's settings and the machine."""

from __future__ import annotations

import msgspec

from octavo.config import COMPUTE_DTYPES, INT32_MAX, MAX_RANKS, MAX_STEP_SEQS, MAX_STEP_TOKENS
from octavo.errors import ConfigError
from octavo.planning.machine import Machine


class Inquiry(msgspec.Struct, frozen=True, kw_only=True):
    """Everything beside the model. Check with `check_inquiry`."""

    machine: Machine = Machine()
    max_model_len: int | None = None
    """Longest prompt + output; None is the model's own, -1 the longest that fits."""
    lengths: tuple[int, ...] = ()
    """Further lengths to tell the concurrency of."""
    dtype: str = "auto"
    """Of computation; `auto` is the checkpoint's."""
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    enable_prefix_caching: bool = True
    hybrid: bool = True
    num_blocks_override: int | None = None
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    max_chunk_tokens: int | None = None
    max_in_flight_tokens: int | None = None
    """Tokens in flight as the reference counts them; None is `max_num_batched_tokens`."""
    tensor_parallel_size: int | None = None
    """None is all devices that the machine has for a stage."""
    pipeline_parallel_size: int = 1
    pipeline_layers: tuple[int, ...] = ()
    """Layers of each stage, where they are not to be equal."""

    @property
    def num_ranks_of_stage(self) -> int:
        """Tensor-parallel ranks."""
        if self.tensor_parallel_size is not None:
            return self.tensor_parallel_size
        return max(1, self.machine.num_devices // max(1, self.pipeline_parallel_size))


def check_inquiry(inquiry: Inquiry) -> None:
    """Raise `ConfigError` for a value that no model could be planned with."""
    machine, length = inquiry.machine, inquiry.max_model_len
    tensor, pipeline = inquiry.num_ranks_of_stage, inquiry.pipeline_parallel_size
    _check("--block-size", inquiry.block_size, 4096)
    _check("--max-num-batched-tokens", inquiry.max_num_batched_tokens, MAX_STEP_TOKENS)
    _check("--max-num-seqs", inquiry.max_num_seqs, MAX_STEP_SEQS)
    _check("--max-chunk-tokens", inquiry.max_chunk_tokens, MAX_STEP_TOKENS)
    _check("--max-in-flight-tokens", inquiry.max_in_flight_tokens, MAX_STEP_TOKENS * MAX_RANKS)
    _check("--num-blocks-override", inquiry.num_blocks_override, INT32_MAX)
    _check("--tensor-parallel-size", tensor, MAX_RANKS)
    _check("--pipeline-parallel-size", pipeline, MAX_RANKS)
    for wanted in inquiry.lengths:
        _check("--lengths", wanted, INT32_MAX)
    if length not in (None, -1):
        _check("--max-model-len", length, INT32_MAX)
    if inquiry.dtype not in COMPUTE_DTYPES:
        raise ConfigError(f"--dtype is {inquiry.dtype!r:.60}.", remedy=f"Use one of {', '.join(COMPUTE_DTYPES)}.")
    if not 0 < machine.memory_utilization <= 1:
        raise ConfigError(
            f"--memory-utilization is {machine.memory_utilization:g}.", remedy="It must be above 0 and at most 1."
        )
    if machine.device is not None and tensor * pipeline > machine.num_devices:
        raise ConfigError(
            f"{tensor} x {pipeline} = {tensor * pipeline} ranks do not find {machine.num_devices} devices enough.",
            remedy=f"Give --gpu {machine.device.name}x{tensor * pipeline}, or fewer ranks.",
        )
    if machine.device is not None and machine.memory_bytes:
        raise ConfigError("--gpu and --memory both say what there is.", remedy="Give one of them.")


def _check(flag: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise ConfigError(f"{flag} is {value}.", remedy=f"It must be from 1 to {most}.")
