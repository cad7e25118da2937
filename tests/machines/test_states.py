"""Requests with states run through the real cache manager and the real order of runs, on a memory that is only written.

What a block of states holds is written down as the tokens it came from; a run must find exactly its own request's.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from octavo.cache.fork import block_copies
from octavo.cache.kv_cache_manager import KVCacheManager
from octavo.cache.mamba import AlignedMambaManager
from octavo.cache.places import movable_groups
from octavo.errors import InvariantError
from octavo.kv.specs import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, LayerSpec, MambaSpec
from octavo.request import Request, SamplingParams
from octavo.worker.state_steps import batches_of_runs, runs_of_step

MAX_LEN = 40


class Engine:
    """Owns: the manager, the requests that run, and what each block of states holds, by group."""

    def __init__(self, specs: list[LayerSpec], *, num_blocks: int, caching: bool, interval: int | None) -> None:
        config = KVCacheConfig(
            num_blocks=num_blocks,
            groups=tuple(KVCacheGroupSpec(layer_names=(f"layers.{i}",), spec=spec) for i, spec in enumerate(specs)),
            tensors=(),
            max_model_len=MAX_LEN,
            max_chunk_tokens=MAX_LEN,
        )
        self.manager = KVCacheManager(config, enable_caching=caching, admit_whole_prompt=False)
        if interval is not None:
            wanted = interval * self.manager.scheduler_block_size
            self.manager = KVCacheManager(
                config, enable_caching=caching, retention_interval=wanted, admit_whole_prompt=False
            )
        self.specs = specs
        self.running: list[Request] = []
        self.memory: dict[tuple[int, int], tuple[int, ...]] = {}
        self.tables: dict[str, list[list[int]]] = {}
        """By request, as the device has them: blocks are appended, and nothing is taken away."""
        self.num_hits = 0

    def place(self, request: Request, count: int, parent: Request | None = None) -> tuple[Request, int, int] | None:
        """(request, first token, number of tokens) of what it computes next; None where there is no room."""
        manager, done, computed = self.manager, request.num_computed_tokens, None
        if request not in self.running:
            if parent is not None:
                computed = manager.fork(parent.request_id, parent.num_computed_tokens, parent.num_computed_tokens)
            computed = computed or manager.get_computed_blocks(request)
            done = computed.num_tokens
            self.num_hits += done > 0
        elif done == request.num_tokens:
            request.append_token(done % 3)
        count = min(count, request.num_tokens - done)
        blocks = manager.allocate_slots(request, count, computed)
        if blocks is None:
            return None
        if request not in self.running:
            self.running.append(request)
            self.tables[request.request_id] = [[] for _ in blocks]
        for table, more in zip(self.tables[request.request_id], blocks, strict=True):
            table.extend(more)
        if computed is not None and computed.copied:
            self._copy(block_copies(computed, blocks))
        request.num_computed_tokens = done + count
        return request, done, count

    def _copy(self, copies: list[tuple[int, int]]) -> None:
        held = dict(self.memory)
        for source, target in copies:
            assert target, "the null block is written"
            for group in range(len(self.specs)):
                if (group, source) in held:
                    self.memory[group, target] = held[group, source]

    def run(self, step: list[tuple[Request, int, int]]) -> None:
        """The device computes `step`: every run finds what its request's tokens so far have come to."""
        starts = np.array([0, *np.cumsum([count for _, _, count in step])], dtype=np.int32)
        ends = np.array([done + count for _, done, count in step], dtype=np.int32)
        where = [(row, done + i) for row, (_, done, count) in enumerate(step) for i in range(count)]
        for group, spec in enumerate(self.specs):
            if not isinstance(spec, MambaSpec):
                continue
            tables = [self.tables[request.request_id][group] for request, _, _ in step]
            table = np.zeros((len(step), max(map(len, tables))), dtype=np.int32)
            for row, blocks in enumerate(tables):
                table[row, : len(blocks)] = blocks
            for batch in batches_of_runs(runs_of_step(table, spec.tokens_per_state, starts, ends)):
                reads = [0] * len(batch.writes) if batch.reads is None else batch.reads.tolist()
                for tokens, read, write in zip(batch.tokens.tolist(), reads, batch.writes.tolist(), strict=True):
                    row, done = where[tokens[0]]
                    known = tuple(step[row][0].token_ids)
                    found = self.memory.get((group, read)) if read else ()
                    assert found == known[:done], f"{step[row][0].request_id} goes on at {done} from {found}"
                    for other in range(len(self.specs)):
                        self.memory.pop((other, write), None)
                    self.memory[group, write] = known[: done + len(tokens)]

    def end(self, request: Request) -> None:
        self.running.remove(request)
        self.manager.free(request)

    def check(self) -> None:
        self.manager.check_integrity()
        counts = self.manager.counts()
        assert counts.free + counts.cached + counts.used + 1 == self.manager.num_blocks
        for request in self.running:
            for spec, table in zip(self.specs, self.manager.block_ids(request.request_id), strict=True):
                if isinstance(spec, MambaSpec):
                    plain = [block for block in table if block and not self.manager.is_cached(block)]
                    assert len(plain) <= spec.max_blocks(request.num_tokens, chunk_tokens=MAX_LEN) + 1


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    size = draw(st.integers(1, 4))
    caching = draw(st.sampled_from([True, True, True, False]))
    mode = "align" if caching else draw(st.sampled_from(["align", "none"]))
    state = MambaSpec(block_size=size, shapes=((1,),), dtypes=("float16",), cache_mode=mode)
    specs: list[LayerSpec] = [state] * draw(st.integers(1, 2))
    if draw(st.booleans()):
        tokens = FullAttentionSpec(
            block_size=size * draw(st.integers(1, 2)), num_kv_heads=1, head_size=1, dtype="float16"
        )
        specs.insert(0, tokens)
    return Engine(
        specs,
        num_blocks=draw(st.sampled_from([8, 20, 60])),
        caching=caching,
        interval=draw(st.sampled_from([None, None, 0, 1, 2])),
    )


def play(data: Any, engine: Engine) -> None:
    """Requests that share prefixes come, run in chunks, fork, are preempted and end, in any order."""
    seen: list[list[int]] = [[]]
    waiting: list[tuple[Request, Request | None]] = []
    for turn in range(data.draw(st.integers(2, 8))):
        for _ in range(data.draw(st.integers(0, 2))):
            earlier = data.draw(st.sampled_from(seen))
            shared = earlier[: data.draw(st.sampled_from([len(earlier), len(earlier) // 2]))]
            tokens = (shared + data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=14)))[: MAX_LEN - 8]
            seen.append(tokens)
            waiting.append((Request(f"r{turn}-{len(seen)}", tokens, SamplingParams(), max_output_tokens=MAX_LEN), None))
        if engine.running and data.draw(st.booleans()):
            parent = data.draw(st.sampled_from(engine.running))
            known = parent.token_ids.tolist()[: parent.num_computed_tokens]
            tokens = (known + data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)))[:MAX_LEN]
            if len(tokens) > len(known) > 0:
                child = Request(f"c{turn}", tokens, SamplingParams(), max_output_tokens=MAX_LEN)
                waiting.insert(0, (child, parent))
        step = []
        # Children first: they go on from where their parents stand before the step.
        for request, parent in [*waiting, *((request, None) for request in list(engine.running))]:
            if request.num_computed_tokens < MAX_LEN:
                parent = parent if parent in engine.running else None
                placed = engine.place(request, data.draw(st.sampled_from([1, 1, 3, 7, 30])), parent)
                step += [placed] if placed else []
        waiting = [(request, None) for request, _ in waiting if request not in engine.running]
        if step:
            engine.run(step)
        engine.check()
        for request in list(engine.running):
            fate = data.draw(st.sampled_from(["runs", "runs", "ends", "is preempted"]))
            if fate != "runs":
                engine.end(request)
                if fate == "is preempted":
                    request.num_computed_tokens = 0
                    request.num_preemptions += 1
                    waiting.append((request, None))
    for request in list(engine.running):
        engine.end(request)
    engine.check()
    assert engine.manager.counts().used == 0


@settings(max_examples=80, deadline=None, database=None)
@given(st.data(), engines())
def test_every_run_finds_its_own_state(data: st.DataObject, engine: Engine) -> None:
    play(data, engine)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=6000, deadline=None)
@given(st.data(), engines())
def test_every_run_finds_its_own_state_for_long(data: st.DataObject, engine: Engine) -> None:
    play(data, engine)


def _drops_a_state_early(patch: pytest.MonkeyPatch) -> None:
    right = AlignedMambaManager.num_dropped_blocks
    patch.setattr(AlignedMambaManager, "num_dropped_blocks", lambda self, n: right(self, n + 1))


def _caches_what_is_no_border(patch: pytest.MonkeyPatch) -> None:
    right = AlignedMambaManager.find_hit

    def planted(self: Any, prefixes: Any, nodes: Any, groups: Any, max_tokens: int, alignment: int) -> int:
        hit = right(self, prefixes, nodes, groups, max_tokens, alignment)
        return hit + alignment if 0 < hit <= max_tokens - alignment else hit

    patch.setattr(AlignedMambaManager, "find_hit", planted)


def _moves_what_another_request_holds(patch: pytest.MonkeyPatch) -> None:
    right = movable_groups

    def planted(*given: Any, num_own: int, most: int) -> list[int]:
        found = [*right(*given, num_own=1, most=most), *right(*given, num_own=2, most=most)]
        return sorted(found)[:most]

    patch.setattr("octavo.cache.kv_cache_manager.movable_groups", planted)


def _skips_the_place_of_a_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("octavo.cache.places.sorted", lambda places: list(places)[-1:], raising=False)


def _computes_the_last_run_first(patch: pytest.MonkeyPatch) -> None:
    right = batches_of_runs
    patch.setattr("tests.machines.test_states.batches_of_runs", lambda runs: right(runs)[::-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        _drops_a_state_early,
        _caches_what_is_no_border,
        _moves_what_another_request_holds,
        _skips_the_place_of_a_copy,
        _computes_the_last_run_first,
    ],
)
def test_a_planted_bug_is_noticed(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch)

    @settings(max_examples=600, deadline=None, database=None, phases=[Phase.generate])
    @given(st.data(), engines())
    def run(data: st.DataObject, engine: Engine) -> None:
        play(data, engine)

    with pytest.raises((AssertionError, InvariantError, KeyError, IndexError)):
        run()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("num_groups", [1, 2, 3])
def test_one_state_a_group_is_enough(size: int, num_groups: int) -> None:
    """In a pool of what the plan reserves for one request, requests with one beginning run one after the other."""
    dice = random.Random(100 * size + num_groups)
    state = MambaSpec(block_size=size, shapes=((1,),), dtypes=("float16",), cache_mode="align")
    tokens = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype="float16")
    specs: list[LayerSpec] = [tokens, *[state] * num_groups]
    reserved = sum(spec.max_blocks(MAX_LEN, chunk_tokens=MAX_LEN) for spec in specs)
    assert reserved == -(-MAX_LEN // size) + num_groups
    engine = Engine(specs, num_blocks=reserved + 1, caching=True, interval=None)
    known = [dice.randrange(3) for _ in range(MAX_LEN)]
    for number in range(12):
        prompt = known[: dice.randint(1, MAX_LEN - 1)]
        end = dice.choice([MAX_LEN, len(prompt) + 1])
        request = Request(f"r{number}", prompt, SamplingParams(), max_output_tokens=MAX_LEN)
        while request.num_computed_tokens < end:
            left = request.num_tokens - request.num_computed_tokens
            placed = engine.place(request, dice.choice([1, 2, 7, max(1, left)]))
            assert placed is not None, request.num_computed_tokens
            engine.run([placed])
            engine.check()
        engine.end(request)
    assert engine.num_hits
