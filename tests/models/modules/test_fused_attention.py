from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.models.modules.fused_attention import FusedAttention
from octavo.models.modules.gated_mlp import GatedMLP
from tests.models.architectures import ARCHITECTURES, load_folder, random_prompts, save_model
from tests.models.paged_run import logits_in_chunks

FUSED = ("llama", "qwen3", "gemma3_text", "phi3")
"""Plain, with a norm of heads, with both and windows, with one joint layer and a rotary part."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model_type", FUSED)
def test_modules_of_the_kind_are_found_and_compute_the_same(model_type: str, tmp_path: Path) -> None:
    theirs = save_model(model_type, tmp_path)
    model = load_folder(tmp_path, ARCHITECTURES[model_type].model_config(model_type))
    kinds = [type(module) for module in model._base.modules()]
    assert kinds.count(FusedAttention) == len(ARCHITECTURES[model_type].kinds)
    assert kinds.count(GatedMLP) == len(ARCHITECTURES[model_type].kinds)
    prompts = random_prompts((40, 3))
    for logits, prompt in zip(logits_in_chunks(model, prompts, (9, 1)), prompts, strict=True):
        with torch.no_grad():
            expected = theirs(torch.tensor([prompt]), use_cache=False).logits[0]
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", ["clip", "gate", "scale"])
def test_a_module_that_does_more_is_left(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a class adds to queries or keys is seen by what its modules hand over, at every magnitude."""
    from transformers.models.llama import modeling_llama

    rotate = modeling_llama.apply_rotary_pos_emb

    def changed(query: torch.Tensor, key: torch.Tensor, *angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query, key = rotate(query, key, *angles)
        if change == "clip":
            return query.clamp(-8, 8), key.clamp(-8, 8)
        if change == "gate":
            return query * torch.sigmoid(query), key
        return query, key * 1.01

    theirs = save_model("llama", tmp_path)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", changed)
    model = load_folder(tmp_path, ARCHITECTURES["llama"].model_config("llama"))
    assert not any(isinstance(module, FusedAttention) for module in model._base.modules())
    assert any(isinstance(module, GatedMLP) for module in model._base.modules())
    (prompt,) = random_prompts((20,))
    (logits,) = logits_in_chunks(model, [prompt], (7,))
    with torch.no_grad():
        expected = theirs(torch.tensor([prompt]), use_cache=False).logits[0]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
