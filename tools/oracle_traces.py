"""Replay the oracle's runtime traces through Octavo's cache manager and report every difference."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.cache.request_blocks import ComputedBlocks
from octavo.errors import InvariantError
from octavo.kv.specs import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    LayerSpec,
    SlidingWindowSpec,
)
from octavo.request import Request, SamplingParams

Event = dict[str, Any]
MAX_SHOWN = 20


class Skipped(Exception):
    """The trace needs something that the runner does not know."""


def layer_spec(group: Event) -> LayerSpec:
    """The spec of a trace's group; the runtime rules need no sizes, so those are 1."""
    common = {"block_size": group["block_size"], "num_kv_heads": 1, "head_size": 1, "dtype": "float16"}
    match group["kind"]:
        case "full":
            return FullAttentionSpec(**common)
        case "sliding_window":
            return SlidingWindowSpec(window=group["window"], **common)
        case "chunked_local":
            return ChunkedLocalSpec(chunk=group["chunk"], **common)
    raise Skipped(f"kind {group['kind']}")


class Bijection:
    """Block ids of the trace and ours, matched one to one over the whole trace; null matches null."""

    def __init__(self) -> None:
        self._ours = {0: 0}
        self._theirs = {0: 0}

    def matches(self, theirs: Sequence[int], ours: Sequence[int]) -> bool:
        """Whether the two lists can be the same blocks; extends the matching."""
        return len(theirs) == len(ours) and all(
            self._ours.setdefault(t, o) == o and self._theirs.setdefault(o, t) == t
            for t, o in zip(theirs, ours, strict=True)
        )


class PartialEntries:
    """The hashes that the reference enters for parts of blocks, which Octavo leaves out.

    Where a full-attention group has larger blocks than the hash block, the reference also enters the prefix that ends
    one hash block or less before the prompt's end, when this is inside a block, as soon as that block is entered. Hits
    are multiples of the scheduler block, so no look-up ever finds these entries; they show in its counts alone.

    Owns: the blocks that carry such an entry, and how far each request's blocks are entered.
    """

    def __init__(self, trace: Event) -> None:
        self._scheduler_block = trace["scheduler_block_size"]
        self._hash_block = trace["hash_block_size"]
        self._sizes = {
            place: group["block_size"]
            for place, group in enumerate(trace["groups"])
            if trace["caching"] and group["kind"] == "full" and group["block_size"] > trace["hash_block_size"]
        }
        self._blocks: set[int] = set()
        self._entered: dict[str, int] = {}
        self.num_stored = 0
        self.num_evicted = 0

    def admitted(self, request: Request, num_hit_tokens: int) -> None:
        """The blocks of the hit are entered already."""
        self._entered[request.request_id] = num_hit_tokens

    def allocated(self, request: Request, new: Sequence[list[int]], tables: Sequence[list[int]]) -> None:
        """`request`, whose computed tokens are up to date, was given the blocks `new`."""
        taken = self._blocks.intersection(block for blocks in new for block in blocks)
        self._blocks -= taken
        self.num_evicted += len(taken)
        known = min(request.num_computed_tokens, request.num_tokens)
        entered, until = self._entered[request.request_id], known - known % self._scheduler_block
        self._entered[request.request_id] = until
        last = request.num_prompt_tokens - 1
        partial = last - last % self._hash_block
        for group, size in self._sizes.items():
            if entered <= partial < until and partial % size:
                self._blocks.add(tables[group][partial // size])
                self.num_stored += 1

    def reset(self) -> None:
        self._blocks.clear()


class ReferenceManager(KVCacheManager):
    """Octavo's manager with the reference's count at admission.

    The reference takes the whole hit, places without a block included, off a windowed group's cap, and so admits some
    requests with long hits that do not fit.
    """

    def whole_prompt_blocks(self, request: Request, computed: ComputedBlocks) -> int:
        num_tokens = min(request.num_tokens, self.max_model_len)
        needed = 0
        for manager, hit in zip(self.managers, computed.block_ids, strict=True):
            cap = manager.spec.reference_max_blocks(self.max_model_len, in_flight_tokens=self.max_chunk_tokens)
            needed += max(0, min(manager.num_table_blocks(num_tokens), cap) - len(hit))
        return needed


class Replay:
    """One trace against one manager.

    Owns: the manager, the requests by id, the differences found.
    """

    def __init__(self, trace: Event) -> None:
        self.trace = trace
        config = KVCacheConfig(
            num_blocks=trace["num_blocks"],
            groups=tuple(
                KVCacheGroupSpec(layer_names=(f"layers.{i}",), spec=layer_spec(group))
                for i, group in enumerate(trace["groups"])
            ),
            tensors=(),
            max_model_len=trace["max_model_len"],
            max_chunk_tokens=trace["max_in_flight_tokens"],
        )
        self.manager = ReferenceManager(
            config,
            enable_caching=trace["caching"],
            retention_interval=trace["retention_interval"],
            admit_whole_prompt=trace["admission_full"],
        )
        self.requests: dict[str, Request] = {}
        self.ids = Bijection()
        self.partial = PartialEntries(trace)
        self.differences: list[str] = []

    def run(self) -> list[str]:
        """Every difference, as one line each."""
        sizes = (self.manager.scheduler_block_size, self.manager.hash_block_size)
        self._same("block sizes", (self.trace["scheduler_block_size"], self.trace["hash_block_size"]), sizes)
        for place, event in enumerate(self.trace["events"]):
            where = f"event {place} {event['op']} {event.get('id', '')}".rstrip()
            stored, evicted = self._entries()
            try:
                getattr(self, "_" + event["op"])(where, event)
            except (InvariantError, KeyError) as error:
                self.differences.append(f"{where}: Octavo cannot follow any further: {error!r}")
                return self.differences
            counts = self.manager.counts()
            self._same(f"{where}: free", event["free"], counts.free + counts.cached)
            self._same(f"{where}: stored", event["stored"], self._entries()[0] - stored)
            self._same(f"{where}: evicted", event["evicted"], self._entries()[1] - evicted)
            self.manager.check_integrity()
        for request_id, tables in self.trace["final"].items():
            self._same_blocks(f"final {request_id}", tables, self.manager.block_ids(request_id))
        self._same_blocks("free queue", [self.trace["free_queue"]], [self.manager.line()])
        return self.differences

    def _entries(self) -> tuple[int, int]:
        """Hashes entered and evicted so far, counted as the reference counts."""
        return (
            self.manager.keys_stored + self.partial.num_stored,
            self.manager.keys_evicted + self.partial.num_evicted,
        )

    def _new(self, where: str, event: Event) -> None:
        request = Request(
            event["id"],
            event["tokens"],
            SamplingParams(),
            cache_salt=event.get("salt"),
            max_output_tokens=self.trace["max_model_len"],
        )
        if self._place(where, event, request):
            self.requests[event["id"]] = request

    def _resume(self, where: str, event: Event) -> None:
        self._place(where, event, self.requests[event["id"]])

    def _place(self, where: str, event: Event, request: Request) -> bool:
        computed = self.manager.get_computed_blocks(request)
        self._same(f"{where}: hit", event["hit"], computed.num_tokens)
        self._same(f"{where}: junction", event.get("junction", 0), computed.junction)
        num_new = self._scheduled(where, event, request, computed.num_tokens)
        blocks = self.manager.allocate_slots(request, num_new, computed)
        self._same(f"{where}: ok", event["ok"], blocks is not None)
        if blocks is not None:
            request.num_computed_tokens = computed.num_tokens + num_new
            new = [table[len(hit) :] for table, hit in zip(blocks, computed.block_ids, strict=True)]
            self.partial.admitted(request, computed.num_tokens)
            self.partial.allocated(request, new, blocks)
            self._same_blocks(where, event.get("blocks", []), blocks)
        return blocks is not None

    def _scheduled(self, where: str, event: Event, request: Request, num_computed: int) -> int:
        """Tokens to place now: all that are known and not computed, or the first `chunk` of them."""
        missing = request.num_tokens - num_computed
        num_new = min(missing, self.trace["chunk"] or missing)
        self._same(f"{where}: scheduled", event["scheduled"], num_new)
        return num_new

    def _step(self, where: str, event: Event) -> None:
        request = self.requests[event["id"]]
        for token in event.get("append", ()):
            request.append_token(token)
        num_new = self._scheduled(where, event, request, request.num_computed_tokens)
        blocks = self.manager.allocate_slots(request, num_new)
        self._same(f"{where}: ok", event["ok"], blocks is not None)
        if blocks is not None:
            request.num_computed_tokens += num_new
            self.partial.allocated(request, blocks, self.manager.block_ids(event["id"]))
        self._same_blocks(where, event["blocks"], self.manager.block_ids(event["id"]))

    def _free(self, where: str, event: Event) -> None:
        self.manager.free(self.requests.pop(event["id"]))

    def _preempt(self, where: str, event: Event) -> None:
        request = self.requests[event["id"]]
        self.manager.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1

    def _reset(self, where: str, event: Event) -> None:
        done = self.manager.reset_prefix_cache()
        self._same(f"{where}: ok", event["ok"], done)
        if done:
            self.partial.reset()

    def _same(self, what: str, theirs: object, ours: object) -> None:
        if theirs != ours:
            self.differences.append(f"{what}: the trace has {theirs}, Octavo {ours}")

    def _same_blocks(self, what: str, theirs: Sequence[list[int]], ours: Sequence[list[int]]) -> None:
        if len(theirs) != len(ours) or not all(map(self.ids.matches, theirs, ours)):
            self.differences.append(f"{what}: blocks in the trace {list(theirs)}, Octavo {list(ours)}")


def run_traces(path: str | Path) -> int:
    """Replay every trace of `path`, print the differences and a closing line. Returns how many traces differ."""
    agree = differ = skipped = 0
    for trace in json.loads(Path(path).read_text())["items"]:
        try:
            differences = Replay(trace).run()
        except Skipped as reason:
            skipped += 1
            print(f"{trace['id']}: skipped, {reason}")
            continue
        if not differences:
            agree += 1
            continue
        differ += 1
        for line in differences[:MAX_SHOWN]:
            print(f"{trace['id']}: {line}")
        if len(differences) > MAX_SHOWN:
            print(f"{trace['id']}: and {len(differences) - MAX_SHOWN} more")
    print(f"traces: agree {agree}, improved 0, differ {differ}, skipped {skipped}")
    return differ


if __name__ == "__main__":
    sys.exit(min(1, run_traces(sys.argv[1])))
