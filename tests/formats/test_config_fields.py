from __future__ import annotations

import subprocess
import sys

import pytest

from octavo.errors import UnsupportedModelError
from octavo.formats.config_fields import ConfigFields, TypeFacts, config_table
from tools.imports import ROOT

FACTS = TypeFacts(
    architecture="ToyForCausalLM", names={"hidden_size": "n_embd"}, defaults={"n_embd": 64, "head_dim": None}
)


def fields(**values: object) -> ConfigFields:
    return ConfigFields(values, "toy", FACTS)


def test_a_value_is_found_under_either_name_and_else_the_default() -> None:
    assert fields(n_embd=8).whole("hidden_size") == 8
    assert fields(hidden_size=8).whole("hidden_size") == 8
    assert fields().whole("hidden_size") == 64
    assert fields().whole("vocab_size") is None
    assert fields(n_embd=8).states("hidden_size")
    assert not fields(n_embd=None).states("hidden_size")


def test_a_null_is_not_the_default() -> None:
    assert fields(n_embd=None).whole("hidden_size") is None


def test_knowing_a_field_means_stating_it_or_having_it_in_the_class() -> None:
    assert fields().knows("head_dim")
    assert not fields().knows("kv_lora_rank")
    assert fields(kv_lora_rank=3).knows("kv_lora_rank")


def test_a_field_that_no_code_reads_means_nothing() -> None:
    """OPT takes a head count along that its attention ignores; Qwen 2 reads a head size that its class lacks."""
    table = config_table()
    opt = ConfigFields({"num_key_value_heads": 2}, "opt", table["opt"])
    assert opt.whole("num_key_value_heads") is None
    qwen = ConfigFields({"head_dim": 32, "v_head_dim": 64}, "qwen2", table["qwen2"])
    assert (qwen.whole("head_dim"), qwen.whole("v_head_dim")) == (32, None)


@pytest.mark.parametrize("value", ["8", -1, 2.5, True, [8], 1 << 60, float("inf"), float("nan")])
def test_what_is_no_whole_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(UnsupportedModelError, match="toy model has hidden_size = ") as caught:
        fields(n_embd=value).whole("hidden_size")
    assert caught.value.numbers == {"field": "hidden_size"}
    assert caught.value.remedy


def test_whole_floats_count_as_whole_numbers() -> None:
    assert fields(n_embd=8.0).whole("hidden_size") == 8


@pytest.mark.parametrize("value", [None, 0])
def test_a_number_that_must_be_there_is_refused_when_it_is_not(value: object) -> None:
    with pytest.raises(UnsupportedModelError, match="above 0"):
        fields(vocab_size=value).positive("vocab_size")


@pytest.mark.parametrize("value", ["full", [1, 2], {"a": 1}, ["x"] * 20_000])
def test_lists_are_checked(value: object) -> None:
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        fields(layer_types=value).list_of("layer_types", str)


def test_flags_are_checked() -> None:
    assert fields(multi_query=True).flag("multi_query") is True
    assert fields().flag("multi_query") is False
    with pytest.raises(UnsupportedModelError, match="true or false"):
        fields(multi_query="yes").flag("multi_query")


def test_overrides_hold_for_one_layer_alone() -> None:
    base = fields(head_dim=64)
    assert base.with_overrides({"head_dim": 128}).whole("head_dim") == 128
    assert base.whole("head_dim") == 64


def test_the_table_knows_the_usual_types() -> None:
    table = config_table()
    assert table["llama"].architecture == "LlamaForCausalLM"
    assert table["gemma3"].text == ("text_config", "gemma3_text")
    assert table["gpt2"].names["num_hidden_layers"] == "n_layer"
    assert table["mistral"].masks == ("sliding",)
    assert table["olmoe"].masks == ()
    assert len(table) > 190


@pytest.mark.slow
def test_the_table_is_what_the_installed_transformers_says() -> None:
    """When this fails, run `python -m tools.make_config_defaults` and look at what changed."""
    done = subprocess.run([sys.executable, "-m", "tools.make_config_defaults", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "octavo/formats/config_defaults.json is stale"
