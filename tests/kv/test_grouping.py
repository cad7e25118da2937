from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import LayoutError
from octavo.kv.grouping import (
    Fold,
    Stages,
    bucket_layers,
    foldings,
    merge_specs,
    pages_unify,
    unify_pages,
    without_windows,
)
from octavo.kv.specs import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowSpec,
)
from tests.strategies import models

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", window=32)
CHUNKED = ChunkedLocalSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", chunk=32)
LATENT = MLASpec(block_size=16, latent_size=96, dtype="bfloat16")
STATE = MambaSpec(block_size=512, shapes=((100,),), dtypes=("float32",))
PAGE = 8192


def layers_of(text: str, kinds: Mapping[str, LayerSpec]) -> dict[str, LayerSpec]:
    """One layer for each letter of `text`, named by its number."""
    return {str(i): kinds[letter] for i, letter in enumerate(text)}


def hybrid(num_full: int, num_windowed: int) -> dict[str, LayerSpec]:
    return layers_of("f" * num_full + "w" * num_windowed, {"f": FULL, "w": WINDOW})


def fold_all(layers: Mapping[str, LayerSpec], *, reference: bool, hybrid: bool = True) -> list[Fold]:
    return foldings(layers, Stages.of([layers]), hybrid=hybrid, reference=reference)


def widths(fold: Fold) -> list[int]:
    return [len(group.layer_names) for group in fold.groups()]


def test_equal_layers_make_one_group() -> None:
    (fold,) = fold_all(hybrid(5, 0), reference=False)
    assert (widths(fold), fold.bytes_per_block) == ([5], (5 * PAGE,))


@pytest.mark.parametrize(
    ("num_full", "num_windowed", "expected"),
    [
        (10, 52, [10, 9, 9, 9, 9, 8, 8]),
        (12, 13, [12, 13]),
        (13, 12, [13, 12]),
        (20, 30, [20, 15, 15]),
        (1, 5, [1, 1, 1, 1, 1, 1]),
        (5, 1, [1, 1, 1, 1, 1, 1]),
        (2, 3, [2, 2, 1]),
        (4, 5, [4, 5]),
        (4, 6, [4, 3, 3]),
    ],
)
def test_the_heuristic_of_the_reference(num_full: int, num_windowed: int, expected: list[int]) -> None:
    (fold,) = fold_all(hybrid(num_full, num_windowed), reference=True)
    assert widths(fold) == expected
    assert fold.bytes_per_block == (max(expected) * PAGE,)


def test_a_group_takes_every_kth_layer_of_its_bucket() -> None:
    layers = layers_of("wwfwwwfwwwf", {"f": FULL, "w": WINDOW})
    (fold,) = fold_all(layers, reference=True)
    assert [group.layer_names for group in fold.groups()] == [
        ("0", "4", "8"),
        ("1", "5", "9"),
        ("3", "7"),
        ("2", "6", "10"),
    ]


def test_candidates_are_those_that_no_other_beats() -> None:
    """4 full and 6 windowed layers: by twos nothing is padded, so narrower groups only cost tables."""
    folds = fold_all(hybrid(4, 6), reference=False)
    assert [fold.num_groups for fold in folds] == [(1, 1), (1, 2), (2, 3)]
    assert [fold.bytes_per_block for fold in folds] == [(6 * PAGE,), (4 * PAGE,), (2 * PAGE,)]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_of_all_widths_none_reserves_less_than_the_best_candidate(
    num_full: int, num_windowed: int, full_blocks: int, window_blocks: int
) -> None:
    blocks = {"full": full_blocks, "sliding_window": window_blocks}
    folds = fold_all(hybrid(num_full, num_windowed), reference=False)
    best = min(fold.blocks_per_request(lambda spec: blocks[spec.kind]) * fold.bytes_per_block[0] for fold in folds)
    assert best == (num_full * full_blocks + num_windowed * window_blocks) * PAGE
    assert len({fold.num_groups for fold in folds}) == len(folds)
    reference = fold_all(hybrid(num_full, num_windowed), reference=True)[0]
    assert reference.num_groups in {fold.num_groups for fold in folds}


def stage_bytes(fold: Fold, stages: Sequence[Mapping[str, LayerSpec]]) -> list[int]:
    """Bytes of a block on each stage, by counting the layers of every group there."""
    result = []
    for specs in stages:
        sums = [
            sum(
                (group.layer_specs[i] if group.layer_specs else group.spec).page_bytes
                for i, name in enumerate(group.layer_names)
                if name in specs
            )
            for group in fold.groups()
        ]
        result.append(max(sums))
    return result


@pytest.mark.slow
@given(models(), st.booleans())
def test_a_block_costs_the_widest_group_of_each_stage(ranks: list[dict[str, LayerSpec]], reference: bool) -> None:
    layers = {name: spec for specs in ranks for name, spec in specs.items()}
    stages = Stages.of(ranks)
    try:
        folds = foldings(layers, stages, hybrid=True, reference=reference)
    except LayoutError:
        assert reference
        return
    for fold in folds:
        assert [fold.bytes_per_block[stage] for stage in stages.of_rank] == stage_bytes(fold, ranks)
        names = [name for group in fold.groups() for name in group.layer_names]
        assert sorted(names) == sorted(layers)


def test_ranks_with_the_same_layers_are_one_stage() -> None:
    stages = Stages.of([{"a": FULL}, {"a": FULL}, {}, {"b": FULL}, {}])
    assert stages.of_rank == (0, 0, 1, 2, 1)
    assert stages.names == (frozenset("a"), frozenset(), frozenset("b"))


def test_merging_heeds_windows_and_chunks_of_full_layers() -> None:
    narrow, wide = (msgspec.structs.replace(FULL, compute_window=window) for window in (8, 9))
    chunked = msgspec.structs.replace(FULL, compute_chunk=8)
    assert merge_specs([FULL, FULL]) == FULL
    assert merge_specs([FULL, narrow, FULL]) == merge_specs([narrow, FULL]) == narrow
    assert merge_specs([FULL, chunked]) == chunked
    assert merge_specs([narrow, wide]) is None
    assert merge_specs([narrow, chunked]) is None
    assert merge_specs([FULL, msgspec.structs.replace(narrow, head_size=8)]) is None
    assert merge_specs([WINDOW, msgspec.structs.replace(WINDOW, window=33)]) is None
    assert merge_specs([FULL, WINDOW]) is None


def test_layers_of_one_kind_with_other_pages_make_one_group_without_padding() -> None:
    for first, second in ((FULL, LATENT), (WINDOW, msgspec.structs.replace(WINDOW, head_size=6))):
        (fold,) = fold_all(layers_of("abab", {"a": first, "b": second}), reference=True)
        (group,) = fold.groups()
        assert group.layer_names == ("0", "1", "2", "3")
        assert group.layer_specs == (first, second, first, second)
        assert fold.bytes_per_block == (2 * first.page_bytes + 2 * second.page_bytes,)


def test_pages_are_unified_by_longer_blocks_or_by_padding() -> None:
    half = msgspec.structs.replace(WINDOW, head_size=32)
    odd = msgspec.structs.replace(WINDOW, head_size=48)
    paged = unify_pages({"f": FULL, "h": half, "o": odd, "s": STATE})
    assert {spec.page_bytes for spec in paged.values()} == {PAGE}
    assert (paged["h"].block_size, paged["o"].block_size, paged["s"].block_size) == (32, 16, 512)
    assert (paged["h"].page_size_padded, paged["o"].page_size_padded, paged["s"].page_size_padded) == (None, PAGE, PAGE)
    assert unify_pages({"f": FULL, "m": LATENT})["m"].page_bytes == PAGE
    assert not pages_unify({"f": FULL, "m": LATENT})
    assert pages_unify({"f": FULL, "m": msgspec.structs.replace(LATENT, latent_size=128), "s": STATE})


def test_buckets_of_mergeable_specs_become_one() -> None:
    noted = msgspec.structs.replace(FULL, compute_window=8)
    buckets = bucket_layers(layers_of("fwnfw", {"f": FULL, "w": WINDOW, "n": noted}))
    assert [(bucket.spec, bucket.names) for bucket in buckets] == [(noted, ("0", "3", "2")), (WINDOW, ("1", "4"))]


def test_without_windows_keeps_what_layers_compute() -> None:
    promoted = without_windows({"f": msgspec.structs.replace(FULL, block_size=32), "w": WINDOW, "c": CHUNKED})
    assert promoted["w"] == msgspec.structs.replace(FULL, block_size=32, compute_window=32)
    assert promoted["c"] == msgspec.structs.replace(FULL, block_size=32, compute_chunk=32)
    longer = [msgspec.structs.replace(FULL, block_size=size) for size in (32, 64)]
    two_sizes = {"f": longer[0], "g": longer[1], "w": WINDOW}
    assert without_windows(two_sizes)["w"].block_size == WINDOW.block_size
    assert without_windows({"w": WINDOW, "c": CHUNKED}) == {"w": WINDOW, "c": CHUNKED}
    padded = msgspec.structs.replace(WINDOW, page_size_padded=9000)
    kept = without_windows({"f": FULL, "w": padded})["w"]
    assert kept.page_size_padded == 9000


def test_hybrid_off_makes_one_group_or_refuses() -> None:
    (fold,) = fold_all(layers_of("fwc", {"f": FULL, "w": WINDOW, "c": CHUNKED}), reference=True, hybrid=False)
    assert fold.groups()[0].layer_names == ("0", "1", "2")
    (fold,) = fold_all(layers_of("ww", {"w": WINDOW}), reference=True, hybrid=False)
    assert fold.groups()[0].spec == WINDOW
    for kinds in ({"f": FULL, "w": STATE}, {"f": WINDOW, "w": CHUNKED}):
        with pytest.raises(LayoutError, match="switched off"):
            fold_all(layers_of("fw", kinds), reference=False, hybrid=False)


def test_latent_pages_that_do_not_divide() -> None:
    """The reference keeps windows whole, or gives up; Octavo weighs that against padding."""
    layers = {"m": LATENT, "w": WINDOW}
    (theirs,) = fold_all(layers, reference=True)
    assert (theirs.num_groups, theirs.bytes_per_block) == ((1,), (16 * 192 + PAGE,))
    assert [fold.num_groups for fold in fold_all(layers, reference=False)] == [(1,), (1, 1)]
    with pytest.raises(LayoutError, match="do not divide the largest page"):
        fold_all({"m": LATENT, "c": CHUNKED}, reference=True)
    assert [fold.num_groups for fold in fold_all({"m": LATENT, "c": CHUNKED}, reference=False)] == [(1, 1)]
