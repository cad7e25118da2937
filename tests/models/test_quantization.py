"""Quantised checkpoints: read through transformers where that works, refused by name where it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.errors import ConfigError, ModelFileError, UnsupportedModelError
from octavo.formats.source import ModelFiles
from octavo.models import quantization
from octavo.models.quantization import PACKAGES, check_quantization, choose_quantization, quantization_of
from tests.models.architectures import ARCHITECTURES, load_folder, random_prompts, save_model
from tests.models.paged_run import logits_in_chunks

BLOCK = 16


def test_what_a_config_says() -> None:
    assert quantization_of({}) is None
    assert quantization_of({"quantization_config": None}) is None
    assert quantization_of({"quantization_config": {"quant_method": "awq"}}) == "awq"
    assert quantization_of({"text_config": {"quantization_config": {"quant_method": "gptq"}}}) == "gptq"
    assert quantization_of({"quantization_config": {"load_in_4bit": True}}) == "bitsandbytes"
    for stated in ({}, [], "awq", {"quant_method": 3}):
        with pytest.raises(ModelFileError, match="without a quant_method"):
            quantization_of({"quantization_config": stated})


@pytest.mark.parametrize("method", PACKAGES)
def test_a_missing_package_is_named(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "_is_installed", lambda package: False)
    names = " and ".join(PACKAGES[method])
    with pytest.raises(UnsupportedModelError, match=f"quantised with '{method}', and reading them needs {names}, not"):
        check_quantization(method, Path("m"))
    monkeypatch.setattr(quantization, "_is_installed", lambda package: True)
    check_quantization(method, Path("m"))


def test_a_method_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="quantised with 'new', which nothing here can read; known are"):
        check_quantization("new", Path("m"))


def test_packages_are_looked_for_without_importing_them() -> None:
    assert quantization._is_installed("numpy")
    assert not quantization._is_installed("no_such_package.part")


def chosen(asked: str, *, kind: str = "gguf", method: str | None = None, device: str = "cpu", dtype: str) -> str:
    files = ModelFiles(kind=kind, path=Path("m"), config_path=None, weight_paths=(), name="m")  # type: ignore[arg-type]
    return choose_quantization(asked, files, method, device=torch.device(device), dtype=getattr(torch, dtype))


def test_how_weights_are_kept() -> None:
    assert chosen("auto", dtype="bfloat16") == "gguf" and chosen("auto", dtype="float32") == "none"
    assert chosen("auto", kind="folder", dtype="bfloat16") == "none"
    assert chosen("auto", device="cuda", dtype="bfloat16") == "none"
    assert chosen("auto", kind="folder", method="awq", dtype="bfloat16") == "none"
    for asked in ("none", "gguf", "int8"):
        assert chosen(asked, dtype="float32") == chosen(asked, dtype="bfloat16") == asked
    assert chosen("int8", kind="folder", dtype="bfloat16") == "int8"


@pytest.mark.parametrize(
    ("asked", "given", "message"),
    [
        ("int8", {"device": "cuda", "dtype": "bfloat16"}, "int8 is computed on a CPU alone, and the device is cuda"),
        ("int8", {"dtype": "float16"}, "int8 has no kernel for float16"),
        ("gguf", {"kind": "folder", "dtype": "bfloat16"}, "gguf keeps the weights of a GGUF file, and m is none"),
        ("int8", {"kind": "folder", "method": "awq", "dtype": "bfloat16"}, "are quantised with 'awq' already"),
    ],
)
def test_what_cannot_be_is_refused(asked: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chosen(asked, **given)


def set_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def quantise_blocks(folder: Path) -> dict[str, torch.Tensor]:
    """Store the layers' matrices as float8 with a scale for each block; returns what they then stand for."""
    stored = load_file(folder / "model.safetensors")
    meant: dict[str, torch.Tensor] = {}
    for name, weight in list(stored.items()):
        if weight.dim() < 2 or "layers" not in name:
            continue
        rows, columns = weight.shape[0] // BLOCK, weight.shape[1] // BLOCK
        blocks = weight.view(rows, BLOCK, columns, BLOCK)
        scale = (blocks.abs().amax(dim=(1, 3), keepdim=True) / 448).float()
        small = (blocks / scale).to(torch.float8_e4m3fn)
        stored[name] = small.view(weight.shape)
        stored[f"{name}_scale_inv"] = scale.view(rows, columns)
        meant[name] = (small.float() * scale).view(weight.shape)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return meant


@pytest.mark.slow
def test_float8_blocks_are_read(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    model = save_model("llama", tmp_path)
    meant = quantise_blocks(tmp_path)
    set_config(tmp_path, quantization_config={"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]})
    (prompt,) = random_prompts((20,))
    (logits,) = logits_in_chunks(load_folder(tmp_path, ARCHITECTURES["llama"].model_config("llama")), [prompt], (7,))
    model.load_state_dict(meant, strict=False)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def quantise_experts(folder: Path) -> dict[str, torch.Tensor]:
    """Store the experts as 4-bit numbers with an exponent for 32 of them; returns what they then stand for."""
    stored = load_file(folder / "model.safetensors")
    meant: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(2)
    for name, weight in list(stored.items()):
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        experts, inputs, outputs = stored.pop(name).shape
        codes = torch.randint(0, 16, (experts, outputs, inputs // 32, 32), generator=generator, dtype=torch.uint8)
        exponents = torch.randint(121, 125, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8)
        stored[f"{name}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        stored[f"{name}_scales"] = exponents
        values = FP4[codes.long()] * 2.0 ** (exponents.float() - 127)[..., None]
        meant[name] = values.view(experts, outputs, inputs).transpose(1, 2).contiguous()
        assert meant[name].shape == weight.shape
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return meant


@pytest.mark.slow
def test_four_bit_experts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    fields = ARCHITECTURES["gpt_oss"].fields | {"intermediate_size": 64}
    monkeypatch.setitem(ARCHITECTURES, "gpt_oss-wide", ARCHITECTURES["gpt_oss"]._replace(fields=fields))
    model = save_model("gpt_oss-wide", tmp_path)
    meant = quantise_experts(tmp_path)
    set_config(tmp_path, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    (prompt,) = random_prompts((20,))
    (logits,) = logits_in_chunks(
        load_folder(tmp_path, ARCHITECTURES["gpt_oss"].model_config("gpt_oss")), [prompt], (7,)
    )
    model.load_state_dict(meant, strict=False)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_numbers_that_nothing_explains_are_refused(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    quantise_blocks(tmp_path)
    config = ARCHITECTURES["llama"].model_config("llama")
    with pytest.raises(UnsupportedModelError, match=r"as float8_e4m3fn, and no quantization_config in"):
        load_folder(tmp_path, config)
    set_config(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UnsupportedModelError, match=r"quantised with 'gptq', and reading them needs .*gptqmodel"):
        load_folder(tmp_path, config)
