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

NOT_COMPUTED_YET = ("bloom", "falcon 7B", "falcon 40B", "falcon 11B", "lfm2", "mamba")
"""Read exactly, and then refused for what their layers are."""


def test_every_architecture_has_a_case() -> None:
    assert {case.architecture for case in CASES.values()} == set(ARCHITECTURES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
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
    if name in NOT_COMPUTED_YET:
        return
    prompt = torch.randint(3, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    (logits,) = logits_in_chunks(load(files), [prompt], (7, 9))
    with torch.no_grad():
        whole = model(torch.tensor([prompt]), use_cache=False).logits[0]
    assert len(set(whole.argmax(-1).tolist())) >= 3
    torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-4)
