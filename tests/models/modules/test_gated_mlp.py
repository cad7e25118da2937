from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3MLP
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.phi3.configuration_phi3 import Phi3Config
from transformers.models.phi3.modeling_phi3 import Phi3MLP

from octavo.models.modules.gated_mlp import GatedMLP, faster_mlp
from octavo.models.modules.weights import weight_of

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 56}
MLPS = {
    "silu": lambda: LlamaMLP(LlamaConfig(**SIZES)),
    "relu": lambda: LlamaMLP(LlamaConfig(**SIZES, hidden_act="relu")),
    "gelu_tanh": lambda: Gemma3MLP(Gemma3TextConfig(**SIZES)),
    "joint": lambda: Phi3MLP(Phi3Config(**SIZES, pad_token_id=0)),
    "biases": lambda: LlamaMLP(LlamaConfig(**SIZES, mlp_bias=True)),
}
DTYPES = (torch.float32, torch.bfloat16)

pytestmark = pytest.mark.slow  # compiles a kernel


def faster(module: Any) -> GatedMLP | None:
    linears = [module.gate_up_proj] if hasattr(module, "gate_up_proj") else [module.gate_proj, module.up_proj]
    return faster_mlp(module, weight_of(linears), module.down_proj, in_size=32, size=56)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MLPS)
@torch.inference_mode()
def test_modules_of_the_kind_are_found(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = MLPS[name]().to(dtype).eval()
    fast = faster(module)
    assert fast is not None
    for shape in ((1, 1, 32), (1, 9, 32), (1, 70, 32)):
        rows = 3 * torch.randn(shape).to(dtype)
        expected = module(rows)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        assert float((fast(rows) - expected).norm()) <= tolerance * float(expected.norm())


class Unlike(nn.Module):
    """Nearly a gated layer: what is different shows at some magnitude only, or at every one."""

    def __init__(self, difference: str) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(32, 56, bias=False), nn.Linear(32, 56, bias=False)
        self.down_proj = nn.Linear(56, 32, bias=False)
        self.difference = difference

    def forward(self, rows: torch.Tensor, *others: Any) -> torch.Tensor:
        gate, up = self.gate_proj(rows), self.up_proj(rows)
        if self.difference == "clamp":
            gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        if self.difference == "offset":
            up = up + 1
        if self.difference == "erf":
            return self.down_proj(nn.functional.gelu(gate) * up)
        if self.difference == "swapped":
            gate, up = up, gate
        if self.difference == "scaled":
            return 0.9 * self.down_proj(nn.functional.silu(gate) * up)
        return self.down_proj(nn.functional.silu(gate) * up)


@pytest.mark.parametrize("difference", ["clamp", "offset", "erf", "swapped", "scaled"])
@torch.inference_mode()
def test_modules_of_another_kind_are_left(difference: str) -> None:
    torch.manual_seed(0)
    assert faster(Unlike(difference)) is None
    assert faster(Unlike("none")) is not None


@torch.inference_mode()
def test_a_module_that_wants_more_than_rows_is_left() -> None:
    class Wants(Unlike):
        def forward(self, rows: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
            return super().forward(rows) + more

    assert faster(Wants("none")) is None
