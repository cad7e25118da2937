"""Made-up weights: no two things alike, the same on every rank, and the memory of one matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from octavo.models.parallel.trial_weights import NUM_TOKENS, TrialWeights, with_few_tokens
from octavo.models.zoo import find_model
from tests.models.architectures import ARCHITECTURES
from tests.models.parallel.parts import build

CPU = torch.device("cpu")


def empty(name: str, **fields: Any) -> Any:
    config, model_class = find_model({"model_type": name, **ARCHITECTURES[name].fields, **fields}, code_folder=None)
    return build(model_class, config)


def test_all_values_are_there_and_follow_from_names() -> None:
    one, other = empty("mixtral"), empty("mixtral")
    for model in (one, other):
        TrialWeights(CPU).fill(model)
    again = dict(other.named_parameters())
    for name, parameter in one.named_parameters():
        assert not parameter.is_meta and torch.equal(parameter, again[name])
        if parameter.dim() > 1:
            assert 0.3 < float(parameter.std()) * parameter.shape[-1] ** 0.5 < 3
            matrix = parameter.flatten(0, -3)[0] if parameter.dim() > 2 else parameter
            assert len(matrix.unique(dim=0)) == len(matrix)
    queries, keys = one.model.layers[0].self_attn.q_proj.weight, one.model.layers[0].self_attn.k_proj.weight
    assert not torch.equal(queries[: len(keys)], keys)


def test_they_take_the_memory_of_one_matrix_for_each_size_of_numbers() -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8}
    model = empty("llama", **sizes)
    TrialWeights(CPU).fill(model)
    storages = {parameter.untyped_storage() for parameter in model.parameters() if parameter.dim() > 1}
    in_memory = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    assert in_memory < 0.2 * sum(parameter.nbytes for parameter in model.parameters())


def test_what_is_one_weight_stays_one_and_buffers_keep_their_values() -> None:
    model = nn.Sequential(nn.Linear(4, 4, device="meta"), nn.Linear(4, 4, device="meta"))
    model[1].weight = model[0].weight
    model.register_buffer("angles", torch.arange(3.0))
    TrialWeights(CPU).fill(model)
    assert model[0].weight is model[1].weight
    assert model.angles.tolist() == [0, 1, 2]


def test_parameters_that_a_class_draws_by_itself_are_the_same_on_every_rank() -> None:
    """Some classes compute a parameter of others' values, which then has values where the others have none."""
    drawn = [nn.ParameterDict({"bias": nn.Parameter(torch.rand(4))}) for _ in range(2)]
    for model in drawn:
        TrialWeights(CPU).fill(model)
    assert torch.equal(drawn[0]["bias"], drawn[1]["bias"])


def test_few_words_are_left_of_a_vocabulary() -> None:
    model = with_few_tokens(empty("llama", vocab_size=1000))
    assert model.get_input_embeddings().weight.shape[0] == model.get_output_embeddings().weight.shape[0] == NUM_TOKENS
