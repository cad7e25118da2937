"""Whole models through the cache, in ragged chunks, against transformers' own forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.attention.torch_reference import TorchReference
from octavo.config import LayerConfig
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.kv_specs import kv_cache_specs
from octavo.formats.model_config import load_model_config
from octavo.kv.specs import FullAttentionSpec, SlidingWindowSpec
from tests.models.architectures import ARCHITECTURES, WINDOW, folder_files, load_folder, random_prompts, save_model
from tests.models.paged_run import PagedRun, logits_in_chunks

QUICK = ("llama", "gemma3_text", "gpt_oss", "bloom", "gpt_neo", "deepseek_v3")


def _names() -> list[object]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ARCHITECTURES]


def _relative_error(model: torch.nn.Module, prompt: list[int], logits: torch.Tensor) -> float:
    with torch.no_grad():
        expected = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return float((logits - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", _names())
def test_chunks_through_the_cache_equal_a_whole_forward(name: str, tmp_path: Path) -> None:
    theirs = save_model(name, tmp_path)
    config = load_model_config(folder_files(tmp_path))
    assert config.layers == ARCHITECTURES[name].model_config(name).layers
    model = load_folder(tmp_path, config)
    specs, shared = kv_cache_specs(config, block_size=4, dtype="float32")
    assert (model.kv_cache_specs(), model.shared_layers) == (specs, shared)
    prompts = random_prompts((2 * WINDOW + 9, 5, 3 * WINDOW))
    for prompt, logits in zip(prompts, logits_in_chunks(model, prompts, (3, 8, 1)), strict=True):
        assert _relative_error(theirs, prompt, logits) < 1e-5
        assert len(set(logits.argmax(-1).tolist())) > 1
    assert all(layer.num_calls > 0 for layer in model.attention_layers.values())
    assert len(model.attention_layers) == 4


@pytest.mark.parametrize("change", [-1, 1])
def test_a_window_off_by_one_shows(change: int, tmp_path: Path) -> None:
    theirs = save_model("gemma3_text", tmp_path)
    model = load_folder(tmp_path, ARCHITECTURES["gemma3_text"].model_config("gemma3_text"))
    for layer in model.attention_layers.values():
        if layer.window is not None:
            layer.window += change
    prompts = random_prompts((2 * WINDOW + 9,))
    (logits,) = logits_in_chunks(model, prompts, (8,))
    assert _relative_error(theirs, prompts[0], logits) > 1e-3


def test_specs_are_those_of_the_layers(tmp_path: Path) -> None:
    save_model("gemma3_text", tmp_path)
    model = load_folder(tmp_path, ARCHITECTURES["gemma3_text"].model_config("gemma3_text"), dtype=torch.bfloat16)
    full = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="bfloat16")
    window = SlidingWindowSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="bfloat16", window=WINDOW)
    assert model.kv_cache_specs() == {"layers.0": window, "layers.1": full, "layers.2": window, "layers.3": full}
    assert model.shared_layers == {}
    assert [layer.scale for layer in model.attention_layers.values()] == [pytest.approx(256**-0.5)] * 4


def test_what_the_config_gets_wrong_is_refused_by_name(tmp_path: Path) -> None:
    save_model("gemma3_text", tmp_path)
    architecture = ARCHITECTURES["gemma3_text"]
    with pytest.raises(UnsupportedModelError, match="its KV heads: the config says 4, but when it runs it is 2"):
        load_folder(tmp_path, architecture.model_config("gemma3_text", num_kv_heads=4))
    with pytest.raises(UnsupportedModelError, match="its head size: the config says 16"):
        load_folder(tmp_path, architecture.model_config("gemma3_text", head_size=16))
    with pytest.raises(UnsupportedModelError, match=r"Layer 1 disagrees .* a sliding window of 7 tokens, but .* full"):
        load_folder(tmp_path, architecture._replace(kinds="SSSF").model_config("gemma3_text"))
    with pytest.raises(UnsupportedModelError, match=r"Layer 2 disagrees .* full attention, but .* window of 7 tokens"):
        load_folder(tmp_path, architecture._replace(kinds="SFFF").model_config("gemma3_text"))
    with pytest.raises(UnsupportedModelError, match="the config has 3 layers"):
        load_folder(tmp_path, architecture._replace(kinds="SFS").model_config("gemma3_text"))


def test_a_layer_that_does_not_call_is_refused(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"Layer 4 of llama never calls transformers' attention interface"):
        load_folder(tmp_path, ARCHITECTURES["llama"]._replace(kinds="FFFFF").model_config("llama"))


def test_a_layer_without_a_cache_that_calls_is_refused(tmp_path: Path) -> None:
    import msgspec

    save_model("llama", tmp_path)
    config = ARCHITECTURES["llama"].model_config("llama")
    layers = (*config.layers[:3], LayerConfig(kind="none"))
    with pytest.raises(UnsupportedModelError, match=r"Layer 3 of llama calls .* a layer of kind 'none'"):
        load_folder(tmp_path, msgspec.structs.replace(config, layers=layers))


def test_logits_of_rows_do_not_depend_on_the_other_rows(tmp_path: Path) -> None:
    save_model("granite", tmp_path)
    model = load_folder(tmp_path, ARCHITECTURES["granite"].model_config("granite"))
    hidden = torch.randn(6, 32)
    logits = model.compute_logits(hidden)
    assert logits.shape == (6, 160)
    torch.testing.assert_close(model.compute_logits(hidden[4:5]), logits[4:5])


def test_requests_of_one_step_do_not_mix(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    model = load_folder(tmp_path, ARCHITECTURES["llama"].model_config("llama"), backend=TorchReference())
    prompts = random_prompts((9, 13))
    alone = [PagedRun(model, [len(prompt)]).step([prompt])[0] for prompt in prompts]
    together = PagedRun(model, [9, 13]).step(prompts)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gpt_oss", "qwen3_moe", "gemma3n_text", "gpt2", "bloom", "deepseek_v3"])
def test_sixteen_bits_stay_near(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = save_model(name, tmp_path)
    model = load_folder(tmp_path, ARCHITECTURES[name].model_config(name), dtype=dtype)
    (prompt,) = random_prompts((3 * WINDOW,))
    (logits,) = logits_in_chunks(model, [prompt], (8, 1))
    with torch.no_grad():
        expected = theirs(torch.tensor([prompt]), use_cache=False).logits[0]
        reference = theirs.to(dtype)(torch.tensor([prompt]), use_cache=False).logits[0]
    error = (logits.float() - expected).norm() / expected.norm()
    allowed = (reference.float() - expected).norm() / expected.norm()
    assert logits.dtype == reference.dtype
    assert error < 2 * allowed + 0.01


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(value: float, tmp_path: Path) -> None:
    theirs = save_model("llama", tmp_path)
    with torch.no_grad():
        theirs.model.norm.weight[3] = value
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ModelFileError, match="not numbers: its weights hold NaN or infinity"):
        load_folder(tmp_path, ARCHITECTURES["llama"].model_config("llama"))
