"""Plans whose numbers are known from elsewhere: the reference engine's own planner, and arithmetic done by hand."""

from __future__ import annotations

import pytest

from octavo.errors import CacheTooSmallError
from octavo.kv.planner import KVCachePlan, PlanOptions, plan_kv_cache
from octavo.kv.specs import FullAttentionSpec, LayerSpec, MLASpec, SlidingWindowSpec

GIB = 2**30

Layers = list[LayerSpec]


def full(heads: int, size: int, dtype: str = "bfloat16") -> LayerSpec:
    return FullAttentionSpec(block_size=16, num_kv_heads=heads, head_size=size, dtype=dtype)


def windowed(heads: int, size: int, window: int) -> LayerSpec:
    return SlidingWindowSpec(block_size=16, num_kv_heads=heads, head_size=size, dtype="bfloat16", window=window)


def gemma_3(layers: int, heads: int, size: int, window: int) -> Layers:
    """Every sixth layer sees everything."""
    return [windowed(heads, size, window) if (i + 1) % 6 else full(heads, size) for i in range(layers)]


def alternating(layers: int, heads: int, size: int, window: int) -> Layers:
    return [full(heads, size) if i % 2 else windowed(heads, size, window) for i in range(layers)]


LLAMA_8B = [full(8, 128)] * 32
QWEN_06B = [full(8, 128)] * 28
GEMMA_270M = gemma_3(18, 1, 256, 512)
GEMMA_1B = gemma_3(26, 1, 256, 512)
GEMMA_4B = gemma_3(34, 4, 256, 1024)
GEMMA_27B = gemma_3(62, 16, 128, 1024)
GEMMA_2_9B = alternating(42, 8, 256, 4096)
GPT_OSS_20B = alternating(24, 8, 64, 128)
GPT_OSS_120B = alternating(36, 8, 64, 128)
MISTRAL_7B = [windowed(8, 128, 4096)] * 32
DEEPSEEK_V2_LITE: Layers = [MLASpec(block_size=16, latent_size=576, dtype="bfloat16")] * 27


def plan(
    layers: Layers,
    gib: float,
    length: int,
    in_flight: int,
    *,
    hybrid: bool = True,
    reference: bool = True,
    chunk: int | None = None,
) -> KVCachePlan:
    specs = {f"layers.{i}": spec for i, spec in enumerate(layers)}
    options = PlanOptions(
        max_model_len=length,
        max_num_batched_tokens=in_flight,
        max_chunk_tokens=chunk,
        hybrid=hybrid,
        reference=reference,
    )
    return plan_kv_cache([specs], [int(gib * GIB)], options)


@pytest.mark.parametrize(
    ("layers", "gib", "length", "in_flight", "hybrid", "groups", "num_blocks", "tokens", "concurrency"),
    [
        pytest.param([full(3, 64)] * 30, 1, 8192, 2048, True, (1, 30), 2912, 46592, 5.6875, id="smollm2-135m"),
        pytest.param(QWEN_06B, 4.5, 40960, 2048, True, (1, 28), 2633, 42128, 1.0285, id="qwen3-0.6b"),
        pytest.param(LLAMA_8B, 8, 32768, 2048, True, (1, 32), 4096, 65536, 2.0, id="llama-3.1-8b"),
        pytest.param([full(4, 128)] * 32, 8, 32768, 2048, True, (1, 32), 8192, 131072, 4.0, id="llama-3.1-8b-tp2"),
        pytest.param(
            [full(8, 128, "float8_e4m3fn")] * 32, 8, 32768, 2048, True, (1, 32), 8192, 131072, 4.0, id="llama-fp8"
        ),
        pytest.param(
            [full(4, 128, "int8")] * 48, 10.553, 100000, 2048, True, (1, 48), 14408, 230528, 2.3053, id="qwen3-30b-a3b"
        ),
        pytest.param(
            [full(1, 128)] * 94, 8.11, 40960, 2048, True, (1, 94), 11308, 180928, 4.4172, id="qwen3-235b-a22b-tp4"
        ),
        pytest.param(GEMMA_270M, 1, 32768, 2048, True, (6, 3), 21845, 250899, 7.6569, id="gemma-3-270m"),
        pytest.param(GEMMA_270M, 1, 32768, 16384, True, (6, 3), 21845, 97615, 2.9790, id="gemma-3-270m-16384"),
        pytest.param(GEMMA_270M, 1, 32768, 2048, False, (1, 18), 3640, 58240, 1.7773, id="gemma-3-270m-off"),
        pytest.param(GEMMA_1B, 1, 32768, 2048, True, (7, 4), 16384, 178125, 5.4360, id="gemma-3-1b"),
        pytest.param(GEMMA_1B, 1, 32768, 2048, False, (1, 26), 2520, 40320, 1.2305, id="gemma-3-1b-off"),
        pytest.param(GEMMA_4B, 8, 32768, 2048, True, (7, 5), 26214, 267928, 8.1765, id="gemma-3-4b"),
        pytest.param(GEMMA_4B, 8, 32768, 2048, False, (1, 34), 3855, 61680, 1.8823, id="gemma-3-4b-off"),
        pytest.param(GEMMA_27B, 24, 32768, 2048, True, (7, 10), 19660, 200941, 6.1323, id="gemma-3-27b"),
        pytest.param(GEMMA_27B, 24, 32768, 2048, False, (1, 62), 3171, 50736, 1.5483, id="gemma-3-27b-off"),
        pytest.param(
            gemma_3(62, 8, 128, 1024), 24, 32768, 2048, True, (7, 10), 39321, 401893, 12.2648, id="gemma-3-27b-tp2"
        ),
        pytest.param(GEMMA_2_9B, 8, 8192, 2048, True, (2, 21), 3120, 28493, 3.4783, id="gemma-2-9b"),
        pytest.param(GEMMA_2_9B, 8, 8192, 16384, True, (2, 21), 3120, 24935, 3.0439, id="gemma-2-9b-16384"),
        pytest.param(GEMMA_2_9B, 8, 8192, 2048, False, (1, 42), 1560, 24960, 3.0469, id="gemma-2-9b-off"),
        pytest.param(GPT_OSS_20B, 8, 131072, 2048, True, (2, 12), 21845, 343770, 2.6228, id="gpt-oss-20b"),
        pytest.param(GPT_OSS_20B, 8, 131072, 2048, False, (1, 24), 10922, 174752, 1.3333, id="gpt-oss-20b-off"),
        pytest.param(GPT_OSS_120B, 10, 131072, 2048, True, (2, 18), 18204, 286473, 2.1856, id="gpt-oss-120b"),
        pytest.param(GPT_OSS_120B, 10, 131072, 2048, False, (1, 36), 9102, 145632, 1.1111, id="gpt-oss-120b-off"),
        pytest.param(MISTRAL_7B, 4, 32768, 2048, True, (1, 32), 2048, 174308, 5.3195, id="mistral-7b"),
        pytest.param(MISTRAL_7B, 4, 32768, 16384, True, (1, 32), 2048, 52387, 1.5988, id="mistral-7b-16384"),
        pytest.param(DEEPSEEK_V2_LITE, 4, 32768, 2048, True, (1, 27), 8630, 138080, 4.2139, id="deepseek-v2-lite"),
    ],
)
def test_the_reference_plans_these_models_so(
    layers: Layers,
    gib: float,
    length: int,
    in_flight: int,
    hybrid: bool,
    groups: tuple[int, int],
    num_blocks: int,
    tokens: int,
    concurrency: float,
) -> None:
    made = plan(layers, gib, length, in_flight, hybrid=hybrid)
    assert (len(made.groups), max(len(group.layer_names) for group in made.groups)) == groups
    assert made.figures.num_blocks == num_blocks
    assert made.figures.capacity_tokens == tokens
    # The figures are known to four places, rounded or cut.
    assert made.figures.max_concurrency == pytest.approx(concurrency, abs=1e-4)


@pytest.mark.parametrize(
    ("layers", "length", "in_flight", "hybrid", "needed_gib", "estimate"),
    [
        pytest.param(LLAMA_8B, 131072, 2048, True, 16.0, 32752, id="llama-3.1-8b"),
        pytest.param(QWEN_06B, 40960, 2048, True, 4.38, 37424, id="qwen3-0.6b"),
        pytest.param(GEMMA_4B, 131072, 16384, True, 4.49, 105152, id="gemma-3-4b-on"),
        pytest.param(GEMMA_4B, 131072, 16384, False, 17.0, 30816, id="gemma-3-4b-off"),
        pytest.param(GEMMA_27B, 131072, 2048, True, 11.41, 33872, id="gemma-3-27b-on-2048"),
        pytest.param(GEMMA_27B, 131072, 16384, True, 17.98, 7472, id="gemma-3-27b-on-16384"),
        pytest.param(GEMMA_27B, 131072, 2048, False, 62.0, 8432, id="gemma-3-27b-off"),
        pytest.param(GPT_OSS_20B, 131072, 2048, False, 6.0, 87360, id="gpt-oss-20b-off"),
        pytest.param(GPT_OSS_120B, 131072, 2048, True, 4.58, 114288, id="gpt-oss-120b-on-2048"),
        pytest.param(GPT_OSS_120B, 131072, 16384, True, 5.07, 99952, id="gpt-oss-120b-on-16384"),
        pytest.param(GPT_OSS_120B, 131072, 2048, False, 9.0, 58224, id="gpt-oss-120b-off"),
    ],
)
def test_the_reference_refuses_four_gib_with_these_numbers(
    layers: Layers, length: int, in_flight: int, hybrid: bool, needed_gib: float, estimate: int
) -> None:
    with pytest.raises(CacheTooSmallError) as caught:
        plan(layers, 4, length, in_flight, hybrid=hybrid)
    assert caught.value.numbers["needed_bytes"] / GIB == pytest.approx(needed_gib, abs=0.006)
    assert caught.value.numbers["estimated_max_model_len"] == estimate


def test_a_short_pipeline_stage_is_judged_by_its_own_memory() -> None:
    stages = [{f"layers.{i}": full(4, 128) for i in layers} for layers in (range(16), range(16, 48))]
    available = [int(3.18 * GIB), 16 * GIB]
    with pytest.raises(CacheTooSmallError) as caught:
        plan_kv_cache(stages, available, PlanOptions(max_model_len=262144, reference=True))
    assert caught.value.numbers["rank"] == 0
    assert caught.value.numbers["needed_bytes"] == 8 * GIB
    assert caught.value.numbers["estimated_max_model_len"] == 104176
    figures = plan_kv_cache(stages, available, PlanOptions(max_model_len=100000, reference=True)).figures
    assert (figures.num_blocks, figures.capacity_tokens) == (6512, 104192)
    assert figures.max_concurrency == pytest.approx(1.0419, abs=1e-4)


def test_the_poorer_of_two_ranks_gives_the_number_of_blocks() -> None:
    specs = {f"layers.{i}": full(4, 128) for i in range(32)}
    made = plan_kv_cache([specs, specs], [4 * GIB, int(3.9 * GIB)], PlanOptions(max_model_len=4096, reference=True))
    assert [config.num_blocks for config in made.configs] == [3993, 3993]


def test_a_draft_layer_more_makes_one_wide_group_of_each_kind() -> None:
    made = plan([*GPT_OSS_20B, full(8, 64)], 4, 8192, 2048)
    assert sorted(len(group.layer_names) for group in made.groups) == [12, 13]
    assert made.figures.num_blocks == 10082


def test_the_toy_of_twenty_windowed_and_ten_full_layers() -> None:
    """At 112 tokens it holds 7 + 2 + 2 blocks; a window of 32 may touch a third, so that is what is reserved."""
    layers = [windowed(1, 64, 32)] * 20 + [full(1, 64)] * 10
    specs = {f"layers.{i}": spec for i, spec in enumerate(layers)}
    for reference in (True, False):
        options = PlanOptions(max_model_len=112, max_num_batched_tokens=1, reference=reference)
        made = plan_kv_cache([specs], [GIB], options)
        assert sorted(made.figures.blocks_per_request) == [3, 3, 7]
        assert {len(group.layer_names) for group in made.groups} == {10}


def test_gemma_3_27b_at_full_length() -> None:
    """Ideal, reserved exactly, reserved by the reference, and with windows switched off, all in GiB."""
    rank = plan(GEMMA_27B, 24, 131072, 2048, reference=False).figures.ranks[0]
    assert rank.ideal_bytes == 10 * 131072 * 8192 + 52 * 1024 * 8192
    assert rank.ideal_bytes / GIB == pytest.approx(10.406, abs=0.0005)
    assert (rank.fixed_bytes, rank.bytes_per_token) == (52 * 1024 * 8192, 10 * 8192)
    # 1,279 tokens of window and sure chunk touch at most 81 blocks; 3,071 with a chunk of 2,048 at most 193.
    assert rank.one_request_bytes == (10 * 8192 + 52 * 81) * 131072
    assert rank.one_request_bytes / GIB == pytest.approx(10.514, abs=0.0005)
    whole = plan(GEMMA_27B, 24, 131072, 2048, reference=False, chunk=2048).figures.ranks[0]
    assert whole.one_request_bytes == (10 * 8192 + 52 * 193) * 131072
    reference = plan(GEMMA_27B, 24, 131072, 2048).figures.ranks[0]
    assert reference.one_request_bytes / GIB == pytest.approx(11.41, abs=0.006)
    off = plan(GEMMA_27B, 64, 131072, 2048, hybrid=False).figures.ranks[0]
    assert (off.one_request_bytes, off.ideal_bytes) == (62 * GIB, rank.ideal_bytes)


def test_gemma_3_27b_saves_what_padding_cost() -> None:
    """Ten full and 52 windowed layers divide by two: no layer of padding is left."""
    short, long = (plan(GEMMA_27B, 24, length, 2048, reference=False, chunk=2048) for length in (32768, 131072))
    assert len(short.groups) == 5 + 26
    assert {len(group.layer_names) for group in short.groups} == {2}
    for made, length, saved in ((short, 32768, 0.048), (long, 131072, 0.017)):
        wide = plan(GEMMA_27B, 24, length, 2048).figures.ranks[0].one_request_bytes
        assert 1 - made.figures.ranks[0].one_request_bytes / wide == pytest.approx(saved, abs=0.0006)
