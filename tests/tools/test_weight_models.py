from __future__ import annotations

import itertools

from tools.weight_models import NUMBERS, Recipe


def test_no_two_fields_are_alike_in_all_models() -> None:
    same = {("num_experts", "n_routed_experts", "num_local_experts")}  # names of one thing
    for first, second in itertools.combinations(NUMBERS, 2):
        if not any({first, second} <= set(names) for names in same):
            assert NUMBERS[first][:3] != NUMBERS[second][:3], (first, second)


def test_models_are_built_with_the_chosen_numbers_and_with_one_field_changed() -> None:
    recipe = Recipe("llama", "LlamaForCausalLM")
    base = recipe.build(0)
    assert base.tensors["model.embed_tokens.weight"] == (211, 48)
    assert "lm_head.weight" in base.tensors
    changed = {probe.field: probe for probe in recipe.probes()}
    assert changed["attention_bias"].value is True
    assert changed["attention_bias"].built.num_parameters > base.num_parameters
    assert "lm_head.weight" not in changed["tie_word_embeddings"].built.tensors
