"""Writing a step's keys and values into the pages of their slots."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.attention.numba_emit import BFLOAT16, FLOAT16, FLOAT32, Element, VectorPath
from octavo.attention.numba_memory import get_int64
from octavo.attention.numba_rows import copy_row
from octavo.attention.numba_vectors import address_of, compiled, fetch_add

UNIT_TOKENS = 32
"""Tokens that a thread writes at a time."""

WRITE_STEP_FIELDS = (
    "num_units_begun",
    "new_keys",
    "new_key_token_bytes",
    "new_key_head_bytes",
    "new_values",
    "new_value_token_bytes",
    "new_value_head_bytes",
    "slot_mapping",
    "num_tokens",
    "source_code",
)
"""int64 fields that change from call to call, first in the record. Addresses, unless named otherwise."""

CACHE_FIELDS = (
    "keys",
    "key_block_bytes",
    "key_token_bytes",
    "key_head_bytes",
    "values",
    "value_block_bytes",
    "value_token_bytes",
    "value_head_bytes",
    "block_size",
    "num_kv_heads",
    "size",
    "value_size",
)
"""int64 fields of one cache view."""

WRITE_JOB = np.dtype([(name, np.int64) for name in WRITE_STEP_FIELDS + CACHE_FIELDS])


@compiled
def write_token(path: VectorPath, source: Element, element: Element, job: Any, token: int, slot: int) -> None:
    """Writes the K and V of all heads of one token."""
    block, offset = slot // job.block_size, slot % job.block_size
    key = job.keys + block * job.key_block_bytes + offset * job.key_token_bytes
    value = job.values + block * job.value_block_bytes + offset * job.value_token_bytes
    new_key = job.new_keys + token * job.new_key_token_bytes
    new_value = job.new_values + token * job.new_value_token_bytes
    for head in range(job.num_kv_heads):
        from_key, to_key = (new_key + head * job.new_key_head_bytes, key + head * job.key_head_bytes)
        copy_row(path, source, from_key, element, to_key, job.size)
        from_value, to_value = (new_value + head * job.new_value_head_bytes, value + head * job.value_head_bytes)
        copy_row(path, source, from_value, element, to_value, job.value_size)


@compiled
def write_step(path: VectorPath, element: Element, job: Any) -> None:
    """One thread's share of a step's tokens. Slots below 0 are skipped."""
    while True:
        first = fetch_add(address_of(job), 1) * UNIT_TOKENS
        if first >= job.num_tokens:
            return
        for token in range(first, min(first + UNIT_TOKENS, job.num_tokens)):
            slot = get_int64(job.slot_mapping + 8 * token)
            if slot >= 0:
                if job.source_code == 0:
                    write_token(path, FLOAT32, element, job, token, slot)
                elif job.source_code == 1:
                    write_token(path, BFLOAT16, element, job, token, slot)
                else:
                    write_token(path, FLOAT16, element, job, token, slot)
