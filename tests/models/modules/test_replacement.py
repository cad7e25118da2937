from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from octavo.models.modules.fused_attention import FusedAttention
from octavo.models.modules.gated_mlp import GatedMLP
from octavo.models.modules.linear import FusedLinear, PackedLinear
from octavo.models.modules.replacement import Replaced, replace_modules, watch_calls
from octavo.models.modules.rms_norm import FastRMSNorm
from octavo.models.modules.weights import bytes_by_format
from tests.models.architectures import ARCHITECTURES, load_folder, random_prompts, save_model
from tests.models.paged_run import logits_in_chunks


def bytes_beside(model: nn.Module, replaced: Replaced) -> int:
    """Bytes of weights that no parameter of the model holds."""
    parameters = list(model.parameters())
    return sum(bytes_by_format(replaced.weights, parameters).values()) - sum(tensor.nbytes for tensor in parameters)


packs = pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 kernels")


class Block(nn.Module):
    """Two layers of one input, one of another, one that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False)
        self.down, self.twice = nn.Linear(24, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.never = nn.Linear(16, 16, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self.down(self.gate(rows) * self.up(rows))
        return self.twice(self.twice(rows))


@packs
def test_layers_of_one_input_are_joined() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"block": Block()}).bfloat16()
    rows = torch.randn(1, 3, 16).bfloat16()
    with torch.inference_mode():
        with watch_calls(model) as calls:
            expected = model["block"](rows)
        num_bytes = bytes_beside(model, replace_modules(model, calls, {}))
        torch.testing.assert_close(model["block"](rows), expected, rtol=2e-2, atol=2e-2)
    block = model["block"]
    assert isinstance(block.gate, FusedLinear) and isinstance(block.up, FusedLinear)
    assert block.gate.fused is block.up.fused
    assert isinstance(block.down, PackedLinear) and isinstance(block.twice, PackedLinear)
    assert type(block.never) is nn.Linear
    assert num_bytes == 2 * (3 * 16 * 24 + 16 * 16)
    assert sum(parameter.numel() for parameter in model.parameters()) == 16 * 16


def test_watching_leaves_no_hook() -> None:
    model = nn.ModuleDict({"block": Block()}).bfloat16()
    with watch_calls(model):
        pass
    assert not any(module._forward_pre_hooks for module in model.modules())


@packs
def test_a_whole_model_is_replaced_and_stays_the_same(tmp_path: Path) -> None:
    theirs = save_model("gemma3_text", tmp_path).bfloat16()
    model = load_folder(tmp_path, ARCHITECTURES["gemma3_text"].model_config("gemma3_text"), dtype=torch.bfloat16)
    kinds = [type(module) for module in model._base.modules()]
    assert kinds.count(FastRMSNorm) == 4 * 4 + 1
    assert kinds.count(FusedAttention) == kinds.count(GatedMLP) == 4
    assert kinds.count(PackedLinear) == 4 * 2
    assert nn.Linear not in kinds
    (prompt,) = random_prompts((40,))
    (logits,) = logits_in_chunks(model, [prompt], (9,))
    with torch.no_grad():
        expected = theirs(torch.tensor([prompt]), use_cache=False).logits[0]
    error = (logits.float() - expected.float()).norm() / expected.float().norm()
    assert error < 0.03


def test_modules_not_known_keep_joined_layers(tmp_path: Path) -> None:
    """Neither attention nor feed-forward module is replaced when its parts are in no known relation."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"block": Block()})
    rows = torch.randn(1, 3, 16)
    with torch.inference_mode():
        with watch_calls(model) as calls:
            expected = model["block"](rows)
        replaced = replace_modules(model, calls, {})
        torch.testing.assert_close(model["block"](rows), expected)
    assert replaced.modules == {} and isinstance(model["block"].gate, FusedLinear)
    assert isinstance(model["block"].down, PackedLinear)
    assert bytes_beside(model, replaced) == 4 * (3 * 16 * 24 + 16 * 16)


def test_bytes_that_a_parameter_holds_are_not_counted_twice() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(32, 16), nn.Linear(16, 32, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(ids))

    model = nn.ModuleDict({"tied": Tied()})
    ids = torch.tensor([3, 7])
    with torch.inference_mode():
        with watch_calls(model) as calls:
            expected = model["tied"](ids)
        assert bytes_beside(model, replace_modules(model, calls, {})) == 0
        torch.testing.assert_close(model["tied"](ids), expected)
