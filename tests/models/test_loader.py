"""Weights from folders, right and wrong."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.config import LayerConfig, ModelSource
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.model_config import load_model_config
from octavo.models.hf_adapter import LoadedModel
from tests.models.architectures import ARCHITECTURES, folder_files, load_folder, random_prompts, save_model
from tests.models.paged_run import logits_in_chunks

LLAMA = ARCHITECTURES["llama"].model_config("llama")


def _logits(model: LoadedModel) -> torch.Tensor:
    return logits_in_chunks(model, random_prompts((20,)), (7,))[0]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model("llama", tmp_path)
    return tmp_path


def _edit(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_shards_hold_the_same_model(saved: Path, tmp_path: Path) -> None:
    whole = _logits(load_folder(saved, LLAMA))
    tensors = load_file(saved / "model.safetensors")
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    (sharded / "config.json").write_bytes((saved / "config.json").read_bytes())
    names = sorted(tensors)
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        save_file({name: tensors[name] for name in part}, sharded / f"model-{number:05}-of-00002.safetensors")
    assert torch.equal(_logits(load_folder(sharded, LLAMA)), whole)


def test_tied_embeddings_are_the_head(saved: Path) -> None:
    assert "lm_head.weight" not in load_file(saved / "model.safetensors")
    model = load_folder(saved, LLAMA)
    embedding = dict(model._base.named_parameters())["embed_tokens.weight"]
    torch.testing.assert_close(model.compute_logits(torch.eye(32)), embedding.T)


def test_a_tied_head_may_be_stored_too(saved: Path) -> None:
    without = _logits(load_folder(saved, LLAMA))
    _edit(saved, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    assert torch.equal(_logits(load_folder(saved, LLAMA)), without)


def test_dtypes_may_be_mixed(saved: Path) -> None:
    def mix(tensors: dict[str, torch.Tensor]) -> None:
        for dtype, (name, tensor) in zip(
            itertools.cycle((torch.float64, torch.float16)), list(tensors.items()), strict=False
        ):
            tensors[name] = tensor.half().to(dtype)

    _edit(saved, lambda tensors: tensors.update({name: tensor.half().float() for name, tensor in tensors.items()}))
    whole = _logits(load_folder(saved, LLAMA))
    _edit(saved, mix)
    assert torch.equal(_logits(load_folder(saved, LLAMA)), whole)


def test_weights_arrive_in_the_compute_dtype(saved: Path) -> None:
    model = load_folder(saved, LLAMA, dtype=torch.bfloat16)
    assert model.compute_logits(torch.zeros(1, 32, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert {spec.dtype for spec in model.kv_cache_specs().values()} == {"bfloat16"}  # type: ignore[union-attr]
    num_parameters = sum(tensor.numel() for tensor in load_file(saved / "model.safetensors").values())
    head = 160 * 32  # tied, but packed for itself where bfloat16 weights are packed
    assert 2 * num_parameters <= model.weight_bytes <= 1.05 * 2 * (num_parameters + head)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop("model.layers.2.mlp.up_proj.weight"),
            r"lacks weights .*: .*layers.2.mlp.up_proj.weight\.",
        ),
        (lambda t: t.update({"model.extra": torch.zeros(3)}), r"holds weights that the model has not: model.extra\."),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(31)}),
            r"of another shape than the model's: model.norm.weight\.",
        ),
        (lambda t: [t.pop(name) for name in list(t) if "layers.1." in name], r"layers.1.*, .*, .* and 6 more\."),
    ],
    ids=["missing", "left over", "misshapen", "many"],
)
def test_weights_that_do_not_fit_are_refused(saved: Path, change: Any, message: str) -> None:
    _edit(saved, change)
    with pytest.raises(ModelFileError, match=message):
        load_folder(saved, LLAMA)


def test_a_truncated_file_is_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match=r"model.safetensors cannot be read: .*Download the file again"):
        load_folder(saved, LLAMA)


def test_a_config_alone_needs_dummy_weights(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"holds a config but no weights.*--load-format dummy"):
        load_folder(saved, LLAMA)
    one, same, other = (
        _logits(load_folder(saved, LLAMA, source=ModelSource(model=str(saved), load_format="dummy", seed=seed)))
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (LayerConfig(kind="mla", head_size=16), "Layer 3 has latent attention, but attends to other K and V"),
        (
            LayerConfig(kind="mamba", state_shapes=((3, 8),), state_dtypes=("auto",)),
            "Layer 3 .* keeps no state in a cache",
        ),
        (LayerConfig(kind="chunked_local", chunk=8, num_kv_heads=2, head_size=8), "Layer 3 .* chunks of 8 tokens, but"),
    ],
)
def test_what_cannot_be_computed_is_named(saved: Path, layer: LayerConfig, message: str) -> None:
    config = msgspec.structs.replace(LLAMA, layers=(*LLAMA.layers[:3], layer))
    with pytest.raises(UnsupportedModelError, match=message):
        load_folder(saved, config)


def test_a_model_with_attention_classes_of_its_own_is_built(tmp_path: Path) -> None:
    fields = {"model_type": "falcon", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"vocab_size": 160}))
    config = ARCHITECTURES["llama"]._replace(kinds="FF").model_config("falcon")
    with pytest.raises(UnsupportedModelError, match=r"its KV heads: the config says 2, but when it runs it is 1"):
        load_folder(tmp_path, config, source=ModelSource(model=str(tmp_path), load_format="dummy"))


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.mark.slow
def test_a_model_with_code_of_its_own_runs_with_consent(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(saved / "modules"))
    expected = _logits(load_folder(saved, LLAMA))
    (saved / "own.py").write_text(OWN_CODE)
    fields = json.loads((saved / "config.json").read_text())
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    (saved / "config.json").write_text(json.dumps(fields | {"model_type": "own", "auto_map": auto_map}))
    config = load_model_config(folder_files(saved))
    assert (config.architecture, len(config.layers)) == ("OwnForCausalLM", len(LLAMA.layers))
    with pytest.raises(UnsupportedModelError, match=r"brings its own Python code .* --trust-remote-code"):
        load_folder(saved, config)
    source = ModelSource(model=str(saved), trust_remote_code=True)
    assert torch.equal(_logits(load_folder(saved, config, source=source)), expected)
