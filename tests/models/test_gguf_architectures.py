"""Random models of every GGUF architecture, written as converters write them, against transformers' own forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.config import ModelSource, read_environment
from octavo.errors import UnsupportedModelError
from octavo.formats.gguf_architectures import ARCHITECTURES
from octavo.formats.model_config import read_hf_config
from octavo.formats.source import locate
from octavo.models.gguf_weights import read_gguf_weights
from octavo.models.zoo import find_model
from tests.formats import build
from tests.models.gguf_converter import CASES, VOCAB_SIZE, random_model, write_gguf
from tests.models.gguf_layouts import one_added, qwen35
from tests.models.paged_run import logits_in_chunks
from tests.models.test_gguf_weights import load
from tests.parity.reference import count_excused, greedy, load_gguf
from tests.parity.tiny import write_tokenizer

WITH_STATE = ("lfm2", "mamba", "qwen35", "qwen35moe")
"""Compared by their weights here, and by what the engine generates below: `logits_in_chunks` binds no state."""

GEMMA4 = tuple(name for name in CASES if name.startswith("gemma4"))

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
}
"""What transformers' own table has besides."""


def test_every_architecture_has_a_case() -> None:
    assert {case.architecture for case in CASES.values()} == set(ARCHITECTURES)


@pytest.mark.slow
def test_every_architecture_that_transformers_maps_is_read_or_left_out_for_a_reason() -> None:
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
    from transformers.integrations.gguf import GGUF_CONFIG_ARCHS

    ours = {case.model_type.removesuffix("_text") for case in CASES.values()}
    assert set(GGUF_CONFIG_MAPPING) - ours == set(LEFT_OUT) - ours
    assert set(GGUF_CONFIG_ARCHS) <= set(ARCHITECTURES)


@pytest.mark.parametrize("name", ["deci", "t5", "umt5", "qwen3next"])
def test_what_is_left_out_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = build.write(tmp_path / "m.gguf", build.gguf({"general.architecture": name}))
    with pytest.raises(UnsupportedModelError, match=rf"architecture '{name}', which cannot be mapped"):
        read_hf_config(locate(ModelSource(model=str(path)), read_environment()))


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
        is_rounded = case.convert in (one_added, qwen35) or key.endswith("A_log")
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
@pytest.mark.parametrize("name", [*WITH_STATE, *GEMMA4])
def test_the_engine_generates_what_transformers_does(name: str, tmp_path: Path) -> None:
    """From the file alone: the plan's cache, chunks, a batch, and prefix hits the second time."""
    original = random_model(CASES[name])
    write_gguf(tmp_path / "model.gguf", CASES[name], original)
    write_tokenizer(tmp_path, VOCAB_SIZE)
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in (40, 2, 17, 33)]
    references = [greedy(original, prompt, 12) for prompt in prompts]
    if name in WITH_STATE:  # transformers' own reader leaves Gemma 4's heads and MLPs at its class's defaults
        read = load_gguf(tmp_path / "model.gguf")
        assert [greedy(read, prompt, 12).token_ids for prompt in prompts] == [ref.token_ids for ref in references]
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    options = {"tokenizer": str(tmp_path), "dtype": "float32", "kv_memory": "4MiB"}
    with LLM(model=str(tmp_path / "model.gguf"), block_size=4, max_num_batched_tokens=23, **options) as llm:
        for num_hits in (0, 1):
            outputs = llm.generate(given, sampling, use_tqdm=False)
            assert count_excused([list(output.outputs[0].token_ids) for output in outputs], references) == 0
            assert sum(bool(output.num_cached_tokens) for output in outputs) >= num_hits


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
