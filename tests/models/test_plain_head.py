from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from octavo.models.modules.linear import PackedLinear
from octavo.models.plain_head import plain_head
from tests.models.architectures import ARCHITECTURES, load_folder, save_model


class Model(nn.Module):
    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.head = PackedLinear(nn.Linear(8, 12).requires_grad_(requires_grad=False))
        self.change = change

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.change == "before":
            hidden = hidden * 2
        logits = self.head(hidden[None])[0]
        if self.change == "twice":
            self.head(hidden)
        return logits.tanh() if self.change == "behind" else logits


@pytest.mark.parametrize("change", ["", "before", "behind", "twice"])
def test_only_a_product_alone_is_a_plain_head(change: str) -> None:
    model = Model(change)
    with torch.inference_mode():
        found = plain_head(model, model.logits, torch.randn(3, 8))
    assert found is (model.head if not change else None)
    assert not model.head._forward_hooks


@pytest.mark.parametrize(("name", "is_plain"), [("llama", True), ("gemma2", False), ("granite", False)])
def test_a_models_head_is_called_directly_where_it_is_plain(name: str, is_plain: bool, tmp_path: Path) -> None:
    save_model(name, tmp_path)
    model = load_folder(tmp_path, ARCHITECTURES[name].model_config(name))
    hidden = torch.randn(3, 32)
    assert (model._plain_head is not None) == is_plain
    found = model.compute_logits(hidden)
    model._plain_head = None
    torch.testing.assert_close(found, model.compute_logits(hidden))
