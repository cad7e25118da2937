"""Models divided over ranks: what is divided agrees with transformers' own plans, and what comes out with one rank."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from octavo.errors import UnsupportedModelError
from octavo.models.parallel import division, layouts
from octavo.models.parallel.division import find_cuts
from octavo.models.parallel.layouts import Field, Layout
from octavo.models.transformers_api import without_values
from tests.models.architectures import ARCHITECTURES
from tests.models.walk.outcome import walk
from tests.thread_executor import one_at_a_time

REFUSED = {
    ("olmoe", 4): "self_attn.k_norm.weight has 16 rows in dimension 0, and one of 4 ranks would have 32",
}
"""(type, ranks) that are refused, and why: a norm over all heads whose size follows from the number of query heads,
where ranks have copies of KV heads."""

PLANNED = (
    "llama",
    "qwen2",
    "qwen3",
    "gemma3_text",
    "mixtral",
    "qwen3_moe",
    "starcoder2",
    "cohere2",
    "granite",
)

QUICK = ("llama", "gemma3_text", "phi3", "mixtral")
"""Plain; hybrid with norms of heads; packed; experts."""

OTHERS = (
    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2-low-soft-cap", "gemma3n_text", "olmo2", "olmo3",
    "cohere2", "granite", "starcoder2", "smollm3", "exaone4", "ministral", "glm4", "nemotron", "minicpm3",
    "llama4_text", "deepseek_v3", "phimoe", "gpt_oss", "olmoe", "qwen3_next", "granitemoehybrid", "jamba", "falcon_h1",
    "bamba", "lfm2", "olmo_hybrid",
)  # fmt: skip


def build(config: Any) -> Any:
    with without_values():
        return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("name", PLANNED)
def test_what_transformers_divides_is_divided(name: str) -> None:
    """Its plans also gather what they need not, and leave out embeddings and norms of heads: those may differ."""
    config = AutoConfig.for_model(name, **ARCHITECTURES[name].fields)
    model = build(config)
    dims = {"colwise": -2, "rowwise": -1, "packed_colwise": -2}
    expected = {
        (f"model.{pattern}", dims[style]) for pattern, style in type(config).base_model_tp_plan.items() if style in dims
    }
    found = set()
    shapes = {path: parameter.dim() for path, parameter in model.named_parameters()}
    for cut in find_cuts(config, build, 2):
        if shapes[cut.name] > 1:
            pattern = re.sub(r"\.\d+\.", ".*.", cut.name).removesuffix(".weight")
            found.add((pattern, cut.dim - shapes[cut.name]))
    assert expected and expected <= found | {(path, dim) for path, dim in expected if path not in dict(found)}
    assert {path for path, _ in found} <= {path for path, _ in expected} | {"model.layers.*.self_attn.q_norm"}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_two_ranks_give_transformers_tokens(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, tmp_path, monkeypatch, 2)


@pytest.mark.slow
def test_stages_of_two_ranks_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check("gemma3_text", tmp_path, monkeypatch, 2, num_stages=2)


@pytest.mark.long
@pytest.mark.parametrize("name", ("llama", "phi3", "mixtral", "cohere2"))
def test_three_stages_of_two_ranks_each(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, tmp_path, monkeypatch, 2, num_stages=3)


@pytest.mark.long
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", OTHERS)
def test_ranks_give_transformers_tokens(
    name: str, num_ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (refusal := REFUSED.get((name, num_ranks))) is None:
        check(name, tmp_path, monkeypatch, num_ranks)
    else:
        one_at_a_time(monkeypatch)
        assert refusal in walk(name, tmp_path, num_ranks=num_ranks).refusal


def check(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, num_ranks: int, *, num_stages: int = 1) -> None:
    """Chunks, a shared prefix, mixed batches; specs and calls of each rank, too: see `walk`."""
    one_at_a_time(monkeypatch)
    outcome = walk(name, folder, num_stages=num_stages, num_ranks=num_ranks)
    assert outcome.runs, outcome.refusal
    assert outcome.num_excused <= 1


@pytest.mark.slow
def test_a_wrong_order_of_rows_is_noticed_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """phi3 has queries, keys and values in one weight: taken for groups of heads, its keys are other ones."""

    def wrong(fields: list[Field], head_size: int, num_ranks: int) -> list[Layout]:
        found = layouts.possible_layouts(fields, head_size, num_ranks)
        return found[1:] if len(found) > 1 and len(fields) == 2 else found

    monkeypatch.setattr(division, "possible_layouts", wrong)
    one_at_a_time(monkeypatch)
    outcome = walk("phi3", tmp_path, num_ranks=2)
    assert "has other keys in its attention module 0" in outcome.refusal


@pytest.mark.slow
def test_a_model_whose_head_size_follows_from_its_heads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_at_a_time(monkeypatch)
    assert "No weight of the model has fewer rows" in walk("gpt2", tmp_path, num_ranks=2).refusal
    sizes = "it takes the head size from the number of heads, 8 with all of them and 16 with a rank's."
    for name in ("stablelm", "bert"):
        assert sizes in walk(name, tmp_path, num_ranks=2).refusal
    refusal = walk("diffllama", tmp_path, num_ranks=2).refusal
    assert "cannot be built with the heads that one of 2 ranks would have" in refusal and "key_value_heads 1" in refusal


def test_a_dimension_that_is_not_of_heads_alone_is_refused_by_name() -> None:
    config = AutoConfig.for_model("falcon", **ARCHITECTURES["falcon"].fields)
    with pytest.raises(UnsupportedModelError, match=r"transformer\.h\.0\.self_attention\.query_key_value\.weight has"):
        find_cuts(config, build, 2)
