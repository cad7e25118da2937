"""Every attention backend, on every path that this CPU can take, against the definition in `torch_reference`."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.attention.backend import AttentionBackend
from octavo.attention.numba_cpu import NumbaCPU
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.team import ThreadTeam
from tests.attention.cases import Case, Step, cases, check

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
BEST = vector_paths()[0]
OTHERS = {path.name: path for path in vector_paths()[1:]}
PAIRS = [(F32, F32), (BF16, BF16), (F16, F16), (F32, BF16), (BF16, F32), (BF16, F16)]


@cache
def backend_of(path: str = BEST.name, num_threads: int = 2) -> AttentionBackend:
    return NumbaCPU(num_threads=num_threads, path=OTHERS.get(path, BEST))


@settings(max_examples=40)
@given(cases([(F32, F32), (BF16, BF16)]))
def test_any_step_agrees_with_the_reference(case: Case) -> None:
    check(backend_of(), Step(case))


@pytest.mark.slow
@settings(max_examples=60)
@given(cases([(F16, F16), (F32, BF16), (BF16, F16)]))
def test_any_step_with_other_dtypes_agrees_with_the_reference(case: Case) -> None:
    check(backend_of(), Step(case))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "pair"),
    [
        ("avx512_bf16", (BF16, BF16)),
        ("avx512", (BF16, BF16)),
        ("avx2", (F32, F32)),
        ("plain", (F16, F16)),
    ],
)
def test_paths_for_other_cpus_agree_with_the_reference(path: str, pair: tuple[torch.dtype, torch.dtype]) -> None:
    if path not in OTHERS:
        pytest.skip(f"this CPU cannot run the path {path}")

    @settings(max_examples=30)
    @given(cases([pair]))
    def compare(case: Case) -> None:
        check(backend_of(path), Step(case))

    compare()


@pytest.mark.long
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("path", [path.name for path in vector_paths()])
def test_all_paths_and_dtypes_agree_with_the_reference(path: str, pair: tuple[torch.dtype, torch.dtype]) -> None:
    @settings(max_examples=80)
    @given(cases([pair]))
    def compare(case: Case) -> None:
        check(backend_of(path), Step(case))

    compare()


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    "change",
    [
        {"requests": ((1, 1),)},
        {"requests": ((2300, 1), (1, 1))},
        {"requests": ((2300, 1),), "window": 2100, "block_size": 128},
        {"requests": ((290, 200),), "num_kv_heads": 1, "group_size": 4, "head_size": 256, "value_size": 256},
        {"requests": ((9, 9),), "num_kv_heads": 1, "group_size": 71, "head_size": 64},
        {"requests": ((30, 1), (31, 2)), "num_kv_heads": 1, "group_size": 128, "head_size": 576, "value_size": 512},
        {"requests": ((300, 1), (70, 70)), "num_kv_heads": 1, "head_size": 40, "value_size": 32, "is_latent": True},
        {
            "requests": ((200, 1), (90, 40)),
            "num_kv_heads": 1,
            "group_size": 16,
            "head_size": 576,
            "value_size": 512,
            "is_latent": True,
        },
        {"requests": ((128, 1), (256, 128)), "window": 128},
        {"requests": ((257, 140),), "chunk": 100, "block_size": 10},
        {"requests": ((2300, 1), (300, 200), (5, 5)), "has_slopes": True},
        {"requests": ((300, 200), (40, 1)), "has_slopes": True, "soft_cap": 5.0, "has_sinks": True, "window": 150},
    ],
    ids=str,
)
def test_steps_at_the_borders_agree_with_the_reference(change: dict[str, Any], dtype: torch.dtype) -> None:
    check(backend_of(), Step(Case(**change, dtype=dtype, cache_dtype=dtype)))


@pytest.mark.parametrize("num_threads", [1, 3, 8])
def test_the_number_of_threads_changes_no_bit(num_threads: int) -> None:
    step = Step(Case(requests=((2900, 1), (70, 70), (400, 1), (5, 5)), head_size=40, value_size=24))
    expected, _ = step.run(backend_of())
    got, _ = step.run(NumbaCPU(num_threads=num_threads))
    assert torch.equal(got, expected)


def test_threads_of_its_own_compute_the_same() -> None:
    step = Step(Case(requests=((2900, 1), (70, 70), (400, 1), (5, 5)), head_size=40))
    expected, _ = step.run(backend_of())
    got, _ = step.run(NumbaCPU(num_threads=3, team=ThreadTeam()))
    assert torch.equal(got, expected)


@settings(max_examples=15)
@given(
    st.integers(2, 400),
    st.lists(st.integers(1, 150), max_size=6),
    st.sampled_from([1, 7, 16, 128]),
    st.sampled_from([None, 20, 130]),
    st.sampled_from([1, 4]),
    st.sampled_from([F32] if BEST.has_dot else [F32, BF16]),
)
def test_chunks_of_a_prompt_give_the_same_bits(
    length: int, chunks: list[int], block_size: int, window: int | None, group_size: int, dtype: torch.dtype
) -> None:
    """A query's result is the same in one step, in chunks of any size, and in blocks of any size: in float32, and in
    bfloat16 where the CPU does not multiply it."""
    common = Case(num_kv_heads=1, group_size=group_size, head_size=48, value_size=48, window=window, seed=length)
    common = Case(**{**vars(common), "dtype": dtype, "cache_dtype": dtype})
    whole = Step(Case(**{**vars(common), "requests": ((length, length),), "block_size": 16}))
    expected, _ = whole.run(backend_of())
    pages = Step(Case(**{**vars(common), "requests": ((length, length),), "block_size": block_size}))
    layer = pages.layer(backend_of())
    layer.kv_cache = pages.cache
    start = 0
    for size in [*chunks, length]:
        stop = min(start + size, length)
        if stop == start:
            break
        assert layer.group is not None
        layer.group.metadata = type(pages.metadata)(
            query_start=torch.tensor([0, stop - start], dtype=torch.int32),
            seq_lens=torch.tensor([stop], dtype=torch.int32),
            block_table=pages.table,
            slot_mapping=pages.metadata.slot_mapping[start:stop],
            num_requests=1,
            num_tokens=stop - start,
            max_query_len=stop - start,
            max_seq_len=stop,
        )
        got = layer.forward(whole.query[start:stop], whole.key[start:stop], whole.value[start:stop])
        assert torch.equal(got, expected[start:stop])
        start = stop


@pytest.mark.parametrize("window", [16, 17, 30])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_window_that_is_off_by_one_is_noticed(window: int, wrong: int) -> None:
    step = Step(Case(requests=((60, 1), (50, 20)), window=window))
    check(backend_of(), step)
    with pytest.raises(AssertionError):
        check(backend_of(), step, window=window + wrong)


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_chunk_that_is_off_by_one_is_noticed(wrong: int) -> None:
    step = Step(Case(requests=((60, 1), (50, 20)), chunk=20))
    check(backend_of(), step)
    with pytest.raises(AssertionError):
        check(backend_of(), step, chunk=20 + wrong)


def test_slopes_of_other_heads_are_noticed() -> None:
    step = Step(Case(requests=((60, 1), (50, 20)), has_slopes=True))
    check(backend_of(), step)
    assert step.slopes is not None
    expected, _ = step.run(backend_of())
    step.slopes = step.slopes.roll(1)
    assert not torch.allclose(step.run(backend_of())[0], expected, atol=1e-3)


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_slot_that_is_off_by_one_is_noticed(wrong: int) -> None:
    class OffByOne(NumbaCPU):
        def write(self, cache: Any, key: Any, value: Any, metadata: Any) -> None:
            super().write(cache, key, value, type(metadata)(**{**fields(metadata), "slot_mapping": shifted(metadata)}))

    def fields(metadata: Any) -> dict[str, Any]:
        return {name: getattr(metadata, name) for name in metadata.__slots__}

    def shifted(metadata: Any) -> torch.Tensor:
        slots: torch.Tensor = metadata.slot_mapping
        return (slots + wrong).clamp(min=0)

    with pytest.raises(AssertionError, match="pages differ"):
        check(OffByOne(num_threads=2), Step(Case()))


def test_a_value_that_begins_one_element_late_in_its_latent_is_noticed() -> None:
    class OffByOne(NumbaCPU):
        def attend(self, layer: Any, cache: Any, query: Any, metadata: Any) -> torch.Tensor:
            shifted = cache.key[..., 1 : 1 + layer.spec.value_size]
            return super().attend(layer, type(cache)(cache.key, shifted), query, metadata)

    step = Step(Case(num_kv_heads=1, head_size=40, value_size=32, is_latent=True))
    check(backend_of(), step)
    with pytest.raises(AssertionError, match="of the largest value"):
        check(OffByOne(num_threads=2), step)


def test_a_length_that_is_off_by_one_is_noticed() -> None:
    step = Step(Case(requests=((60, 1), (50, 20))))
    step.metadata.seq_lens.sub_(1)
    expected, _ = step.run(backend_of())
    step.metadata.seq_lens.add_(1)
    right, _ = step.run(backend_of())
    assert not torch.allclose(expected, right, atol=1e-3)
