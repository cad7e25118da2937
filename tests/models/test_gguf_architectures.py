"""Random models of every GGUF architecture, written as converters write them, against transformers' own forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.config import ModelSource, read_environment
from octavo.formats.gguf_architectures import ARCHITECTURES
from octavo.formats.model_config import read_hf_config
from octavo.formats.source import locate
from octavo.models.gguf_weights import read_gguf_weights
from octavo.models.zoo import find_model
from tests.models.gguf_converter import CASES, VOCAB_SIZE, one_added, random_model, write_gguf
from tests.models.paged_run import logits_in_chunks
from tests.models.test_gguf_weights import load

WITH_STATE = ("lfm2", "mamba")
"""Compared by their weights alone: `logits_in_chunks` binds no recurrent state."""

BEYOND_TRANSFORMERS = (
    "olmo", "olmoe", "phi2", "starcoder", "granite", "command-r", "cohere2", "glm4", "smollm3", "seed_oss", "arcee",
    "ernie4_5",
)  # fmt: skip
"""Architectures that transformers' own table has not: tried in the long tier."""

LEFT_OUT = {
    "general": "no architecture",
    "tokenizer": "no architecture",
    "mistral": "its files say llama",
    "t5": "an encoder-decoder",
    "umt5": "an encoder-decoder",
    "deci": "transformers has no class for it",
    "gemma4": "its files leave sizes of layers to the reader",
}
"""What transformers' own table has besides."""


def test_every_architecture_has_a_case() -> None:
    assert {case.architecture for case in CASES.values()} == set(ARCHITECTURES)


@pytest.mark.slow
def test_every_architecture_that_transformers_maps_is_read_or_left_out_for_a_reason() -> None:
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    ours = {case.model_type for case in CASES.values()} | {"gemma3"}
    assert set(GGUF_CONFIG_MAPPING) - ours == set(LEFT_OUT) - ours


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in BEYOND_TRANSFORMERS else pytest.mark.slow) for name in CASES],
)
def test_parameters_and_logits_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = random_model(case)
    write_gguf(tmp_path / "model.gguf", case, model)
    files = locate(ModelSource(model=str(tmp_path / "model.gguf")), read_environment())
    config, model_class = find_model(read_hf_config(files))
    with torch.device("meta"):
        shapes = {key: tensor.shape for key, tensor in model_class(config).state_dict().items()}
    found = read_gguf_weights(files.weight_paths, shapes, config, torch.float32).parameters
    expected = model.state_dict()
    if config.tie_word_embeddings:
        expected.pop("lm_head.weight")
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        # One added and taken away again, or the logarithm of an exponential, is not the same to the bit.
        is_rounded = case.convert is one_added or key.endswith("A_log")
        tolerance = 1e-6 if is_rounded else 0.0
        torch.testing.assert_close(found[key], tensor, rtol=tolerance, atol=tolerance)
    if name in WITH_STATE:
        return
    prompt = torch.randint(3, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    (logits,) = logits_in_chunks(load(files), [prompt], (7, 9))
    with torch.no_grad():
        whole = model(torch.tensor([prompt]), use_cache=False).logits[0]
    assert len(set(whole.argmax(-1).tolist())) >= 3
    torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2 with a head"])
def test_shards_are_one_model(name: str, tmp_path: Path) -> None:
    """Later shards name no architecture, and the output matrix may lie in any of them."""
    model = random_model(CASES[name])
    write_gguf(tmp_path / "model.gguf", CASES[name], model, tensors_per_shard=11)
    shards = sorted(tmp_path.glob("*.gguf"))
    assert len(shards) > 2
    files = locate(ModelSource(model=str(shards[1])), read_environment())
    assert list(files.weight_paths) == shards
    prompt = torch.randint(3, VOCAB_SIZE, (20,), generator=torch.Generator().manual_seed(1)).tolist()
    (logits,) = logits_in_chunks(load(files), [prompt], (7,))
    with torch.no_grad():
        whole = model(torch.tensor([prompt]), use_cache=False).logits[0]
    torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-4)
