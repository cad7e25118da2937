"""Replay the oracle's runtime traces through Octavo's cache manager and report every difference."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.cache.kv_cache_manager import KVCacheManager
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
        self.manager = KVCacheManager(
            config,
            enable_caching=trace["caching"],
            retention_interval=trace["retention_interval"],
            admit_whole_prompt=trace["admission_full"],
        )
        self.requests: dict[str, Request] = {}
        self.ids = Bijection()
        self.differences: list[str] = []

    def run(self) -> list[str]:
        """Every difference, as one line each."""
        sizes = (self.manager.scheduler_block_size, self.manager.hash_block_size)
        self._same("block sizes", (self.trace["scheduler_block_size"], self.trace["hash_block_size"]), sizes)
        for place, event in enumerate(self.trace["events"]):
            where = f"event {place} {event['op']} {event.get('id', '')}".rstrip()
            stored, evicted = self.manager.keys_stored, self.manager.keys_evicted
            getattr(self, "_" + event["op"])(where, event)
            counts = self.manager.counts()
            self._same(f"{where}: free", event["free"], counts.free + counts.cached)
            self._same(f"{where}: stored", event["stored"], self.manager.keys_stored - stored)
            self._same(f"{where}: evicted", event["evicted"], self.manager.keys_evicted - evicted)
            self.manager.check_integrity()
        for request_id, tables in self.trace["final"].items():
            self._same_blocks(f"final {request_id}", tables, self.manager.block_ids(request_id))
        self._same_blocks("free queue", [self.trace["free_queue"]], [self.manager.line()])
        return self.differences

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
        blocks = self.manager.allocate_slots(request, event["scheduled"], computed)
        self._same(f"{where}: ok", event["ok"], blocks is not None)
        if blocks is not None:
            request.num_computed_tokens = computed.num_tokens + event["scheduled"]
            self._same_blocks(where, event.get("blocks", []), blocks)
        return blocks is not None

    def _step(self, where: str, event: Event) -> None:
        request = self.requests[event["id"]]
        for token in event.get("append", ()):
            request.append_token(token)
        blocks = self.manager.allocate_slots(request, event["scheduled"])
        self._same(f"{where}: ok", event["ok"], blocks is not None)
        if blocks is not None:
            request.num_computed_tokens += event["scheduled"]
        self._same_blocks(where, event["blocks"], self.manager.block_ids(event["id"]))

    def _free(self, where: str, event: Event) -> None:
        self.manager.free(self.requests.pop(event["id"]))

    def _preempt(self, where: str, event: Event) -> None:
        request = self.requests[event["id"]]
        self.manager.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1

    def _reset(self, where: str, event: Event) -> None:
        self._same(f"{where}: ok", event["ok"], self.manager.reset_prefix_cache())

    def _same(self, what: str, theirs: object, ours: object) -> None:
        if theirs != ours:
            self.differences.append(f"{what}: the trace has {theirs}, Octavo {ours}")

    def _same_blocks(self, what: str, theirs: Sequence[list[int]], ours: Sequence[list[int]]) -> None:
        if len(theirs) != len(ours) or not all(map(self.ids.matches, theirs, ours)):
            self.differences.append(f"{what}: blocks in the trace {list(theirs)}, Octavo {list(ours)}")


def run_traces(path: str | Path) -> int:
    """Replay every trace of `path`; print the differences and a closing line. Returns the number of traces that differ."""
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
