"""Attention on a CPU: numba kernels that read the pages in place, on torch's own threads."""

from __future__ import annotations

import struct
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from octavo.attention.backend import AttentionBackend, AttentionLayer, AttentionMetadata, KVCacheView
from octavo.attention.numba_emit import BFLOAT16, FLOAT16, FLOAT32, LINE, Element, VectorPath
from octavo.attention.numba_job import JOB, SLOTS_PER_THREAD, STEP_FIELDS, align, scratch_bytes, state_bytes
from octavo.attention.numba_kernels import KernelTable, kernels_of, row_element_of, tile_rows_of, vector_paths
from octavo.attention.numba_memory import Record
from octavo.attention.numba_rows import CODES
from octavo.attention.numba_write import UNIT_TOKENS, WRITE_JOB, WRITE_STEP_FIELDS
from octavo.attention.program import KernelCall
from octavo.attention.team import Team, make_team
from octavo.errors import ConfigError

_ELEMENTS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
_CODES = {dtype: CODES[element.name] for dtype, element in _ELEMENTS.items()}
_STEP = struct.Struct(f"{len(STEP_FIELDS)}q")
_WRITE_STEP = struct.Struct(f"{len(WRITE_STEP_FIELDS)}q")


class RowPlaces(NamedTuple):
    """Where a step's queries, keys, values and results lie: addresses, and bytes from one token to the next."""

    query: int
    key: int
    value: int
    token_bytes: int
    out: int


class _Pages:
    """A cache view as kernels see it."""

    def __init__(self, cache: KVCacheView, kernels: KernelTable) -> None:
        key, value = cache.key, cache.value
        self.cache = weakref.ref(cache)
        self.element = element_of(key.dtype)
        self.kernel = kernels.write(self.element)
        size = key.element_size()
        self.fields: dict[str, float] = {
            "keys": key.data_ptr(),
            "key_block_bytes": key.stride(0) * size,
            "key_token_bytes": key.stride(1) * size,
            "key_head_bytes": key.stride(2) * size,
            "values": value.data_ptr(),
            "value_block_bytes": value.stride(0) * size,
            "value_token_bytes": value.stride(1) * size,
            "value_head_bytes": value.stride(2) * size,
            "block_size": key.shape[1],
            "num_kv_heads": key.shape[2],
            "size": key.shape[3],
            "value_size": value.shape[3],
        }
        # V inside K is written with it.
        written = {"value_size": 0} if value.data_ptr() == key.data_ptr() else {}
        self.written = self.fields | written
        self.record = Record(WRITE_JOB, self.written)


class _LayerJob:
    """A layer as the attention kernel sees it, for queries of one dtype."""

    def __init__(
        self, layer: AttentionLayer, cache: KVCacheView, pages: _Pages, dtype: torch.dtype, kernels: KernelTable
    ) -> None:
        self.layer = weakref.ref(layer)
        self.cache = pages.cache
        self.dtype = dtype
        self.value_size = cache.value.shape[3]
        self.sinks, self.slopes = _floats(layer.sinks), _floats(layer.alibi_slopes)
        num_kv_heads, group_size = cache.key.shape[2], layer.num_heads // cache.key.shape[2]
        row_element = row_element_of(kernels.path, element_of(dtype), pages.element)
        tile_rows = tile_rows_of(kernels.path, row_element, pages.element)
        sizes = cache.key.shape[3], self.value_size
        self.scratch_bytes = align(scratch_bytes(num_kv_heads, group_size, *sizes, tile_rows))
        self.slot_bytes = align(state_bytes(layer.num_heads, self.value_size))
        self.kernel = kernels.step()
        self.num_threads = 0
        self.memory: np.ndarray[Any, Any] | None = None
        fields = pages.fields | {
            "group_size": group_size,
            "window": layer.window or 0,
            "chunk": layer.chunk or 0,
            "sinks": 0 if self.sinks is None else self.sinks.data_ptr(),
            "slopes": 0 if self.slopes is None else self.slopes.data_ptr(),
            "query_code": _CODES[dtype],
            "tile_rows": tile_rows,
            "few_rows": kernels.few_rows(row_element, pages.element),
            "many_rows": kernels.many_rows(row_element, pages.element),
            "scale": layer.scale,
            "soft_cap": layer.soft_cap or 0.0,
        }
        self.record = Record(JOB, fields)

    def place(self, memory: np.ndarray[Any, Any], num_threads: int) -> None:
        """Lets the kernel work in `memory`, on `num_threads` threads."""
        self.memory, self.num_threads = memory, num_threads
        start = align(memory.ctypes.data)
        self.record.fill(
            {
                "num_threads": num_threads,
                "scratch": start,
                "scratch_bytes": self.scratch_bytes,
                "slots": start + num_threads * self.scratch_bytes,
                "slots_bytes": num_threads * SLOTS_PER_THREAD * self.slot_bytes,
            }
        )

    def memory_bytes(self, num_threads: int) -> int:
        return num_threads * (self.scratch_bytes + SLOTS_PER_THREAD * self.slot_bytes) + LINE


class NumbaCPU(AttentionBackend):
    """Paged attention on the threads of one process; one call at a time.

    Owns: the threads' working memory, which grows to what the largest layer needs, and what it has worked out about
    layers and cache views, as long as they live. Never: cache memory.
    """

    name = "numba_cpu"

    def __init__(
        self,
        *,
        num_threads: int = 0,
        cache_dir: Path | None = None,
        path: VectorPath | None = None,
        team: Team | None = None,
    ) -> None:
        self._fixed_threads = num_threads
        self._kernels = kernels_of(path or vector_paths()[0], cache_dir and cache_dir / "kernels")
        self._team = team or make_team()
        self._pages: dict[int, _Pages] = {}
        self._jobs: dict[int, _LayerJob] = {}
        self._memory = np.empty(0, np.uint8)
        self._counters = np.zeros(256, np.int64)
        self._counters_address = self._counters.ctypes.data

    def warm_up(self, layer: AttentionLayer, dtype: torch.dtype) -> None:
        element = element_of(getattr(torch, layer.spec.dtype))
        row_element = row_element_of(self._kernels.path, element_of(dtype), element)
        self._kernels.step()
        self._kernels.few_rows(row_element, element)
        self._kernels.many_rows(row_element, element)
        self._kernels.write(element)

    def write(
        self, cache: KVCacheView, key: torch.Tensor, value: torch.Tensor | None, metadata: AttentionMetadata
    ) -> None:
        pages = self._pages_of(cache)
        key = _with_plain_rows(key)
        value = key if value is None else _with_plain_rows(value)
        size, num_tokens = key.element_size(), metadata.num_tokens
        key_strides, value_strides, record = key.stride(), value.stride(), pages.record
        _WRITE_STEP.pack_into(
            record.bytes,
            0,
            0,
            key.data_ptr(),
            key_strides[0] * size,
            key_strides[1] * size,
            value.data_ptr(),
            value_strides[0] * size,
            value_strides[1] * size,
            metadata.slot_mapping.data_ptr(),
            num_tokens,
            _CODES[key.dtype],
        )
        self._team.run(pages.kernel, record.address, self._num_threads() if num_tokens > 2 * UNIT_TOKENS else 1)

    def attend(
        self, layer: AttentionLayer, cache: KVCacheView, query: torch.Tensor, metadata: AttentionMetadata
    ) -> torch.Tensor:
        job = self._job_of(layer, cache, query.dtype)
        query = _with_plain_rows(query)
        num_tokens, num_heads, size = query.shape
        if size == job.value_size:
            out = torch.empty_like(query, memory_format=torch.contiguous_format)
        else:
            out = torch.empty((num_tokens, num_heads, job.value_size), dtype=query.dtype)
        strides, num_bytes, num_requests = query.stride(), query.element_size(), metadata.num_requests
        num_threads = self._num_threads()
        self._place(job, num_threads, num_requests)
        record = job.record
        _STEP.pack_into(
            record.bytes,
            0,
            0,
            0,
            query.data_ptr(),
            strides[0] * num_bytes,
            strides[1] * num_bytes,
            out.data_ptr(),
            num_tokens,
            metadata.query_start.data_ptr(),
            metadata.seq_lens.data_ptr(),
            metadata.block_table.data_ptr(),
            metadata.block_table.stride(0),
            num_requests,
            self._counters_address,
        )
        self._team.run(job.kernel, record.address, num_threads)
        return out

    def calls(self, layer: AttentionLayer, dtype: torch.dtype, places: RowPlaces, num_threads: int) -> list[KernelCall]:
        """`write` and `attend` of a bound layer as kernel calls, for tokens of `dtype` that lie at `places`, head after
        head.

        Left open is what `AttentionMetadata` says: the fields `num_tokens` and `slot_mapping` of the first,
        `num_tokens`, `query_start`, `seq_lens`, `block_table`, `block_table_width` and `num_requests` of the second.
        `num_requests` may be up to 256.
        """
        cache = layer.kv_cache
        if cache is None:
            raise RuntimeError(f"attention layer {layer.name} is not bound to the KV cache")
        pages, code = self._pages_of(cache), _CODES[dtype]
        num_bytes = dtype.itemsize
        key_bytes, value_bytes = (pages.fields[name] * num_bytes for name in ("size", "value_size"))
        written = {
            **pages.written,
            "new_keys": places.key,
            "new_key_token_bytes": places.token_bytes,
            "new_key_head_bytes": key_bytes,
            "new_values": places.value,
            "new_value_token_bytes": places.token_bytes,
            "new_value_head_bytes": value_bytes,
            "source_code": code,
        }
        job = _LayerJob(layer, cache, pages, dtype, self._kernels)
        if self._memory.size < job.memory_bytes(num_threads):
            self._memory = np.empty(job.memory_bytes(num_threads), np.uint8)
        job.place(self._memory, num_threads)
        job.record.fill(
            {
                "query": places.query,
                "query_token_bytes": places.token_bytes,
                "query_head_bytes": key_bytes,
                "out": places.out,
                "counters": self._counters_address,
            }
        )
        job.record.keep(job, self._counters)
        return [
            KernelCall(pages.kernel, Record(WRITE_JOB, written)),
            KernelCall(job.kernel, job.record, num_counters=2),
        ]

    def _num_threads(self) -> int:
        return self._fixed_threads or torch.get_num_threads()

    def _place(self, job: _LayerJob, num_threads: int, num_requests: int) -> None:
        if self._counters.size < num_requests:
            self._counters = np.zeros(2 * num_requests, np.int64)
            self._counters_address = self._counters.ctypes.data
        if job.memory is self._memory and job.num_threads == num_threads:
            return
        if self._memory.size < job.memory_bytes(num_threads):
            self._memory = np.empty(job.memory_bytes(num_threads), np.uint8)
        job.place(self._memory, num_threads)

    def _pages_of(self, cache: KVCacheView) -> _Pages:
        pages = self._pages.get(id(cache))
        if pages is None or pages.cache() is not cache:
            pages = self._pages[id(cache)] = _Pages(cache, self._kernels)
            weakref.finalize(cache, self._pages.pop, id(cache), None)
        return pages

    def _job_of(self, layer: AttentionLayer, cache: KVCacheView, dtype: torch.dtype) -> _LayerJob:
        job = self._jobs.get(id(layer))
        if job is None or job.layer() is not layer or job.cache() is not cache or job.dtype is not dtype:
            job = self._jobs[id(layer)] = _LayerJob(layer, cache, self._pages_of(cache), dtype, self._kernels)
            weakref.finalize(layer, self._jobs.pop, id(layer), None)
        return job


def element_of(dtype: torch.dtype) -> Element:
    """How kernels see numbers of `dtype`; `ConfigError` where they have no arithmetic for it."""
    try:
        return _ELEMENTS[dtype]
    except KeyError:
        raise ConfigError(
            f"The attention backend numba_cpu does not compute with {dtype}.",
            remedy="Use float32, bfloat16 or float16 for the model and the KV cache.",
        ) from None


def _floats(numbers: torch.Tensor | None) -> torch.Tensor | None:
    """As kernels read a number per head."""
    return None if numbers is None else numbers.detach().float().contiguous()


def _with_plain_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, each head's side by side."""
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


def create(num_threads: int, cache_dir: Path | None) -> NumbaCPU:
    """The backend, for the registry."""
    return NumbaCPU(num_threads=num_threads, cache_dir=cache_dir)
