from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from octavo.models.modules.rms_norm import FastRMSNorm, RMSNormKinds

SIZE = 40
CLASSES = {
    "llama": LlamaRMSNorm,
    "gemma3": Gemma3RMSNorm,
    "olmo2": Olmo2RMSNorm,
    "torch": lambda size: nn.RMSNorm(size, eps=1e-6),
}
DTYPES = (torch.bfloat16, torch.float32)


def norm(name: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    module = CLASSES[name](SIZE)
    with torch.no_grad():
        module.weight.add_(torch.randn(SIZE) * 0.3)
    return module.to(dtype)


def faster(module: nn.Module) -> FastRMSNorm:
    found = RMSNormKinds().faster(module)
    assert found is not None
    return found


def rows_of_shapes(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    wide = torch.randn(1, 6, 3 * 4 * SIZE).to(dtype)
    heads = wide[:, :, : 4 * SIZE].view(1, 6, 4, SIZE)
    return {
        "one row": torch.randn(SIZE).to(dtype),
        "rows": torch.randn(1, 6, SIZE).to(dtype),
        "rows of a slice": wide[:, :, SIZE : 2 * SIZE],
        "heads": heads,
        "heads first": heads.transpose(1, 2),
        "one token, heads first": heads[:, :1].transpose(1, 2),
        "two batches of heads": torch.randn(2, 3, 4, SIZE).to(dtype).transpose(1, 2),
        "strided rows": torch.randn(6, 2 * SIZE).to(dtype)[:, ::2],
        "a large row": 1000 * torch.randn(2, SIZE).to(dtype),
        "a tiny row": 1e-4 * torch.randn(2, SIZE).to(dtype),
        "zeros": torch.zeros(2, SIZE, dtype=dtype),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CLASSES)
def test_every_shape_comes_out_as_from_the_module(name: str, dtype: torch.dtype) -> None:
    module = norm(name, dtype)
    fast = faster(module)
    for what, rows in rows_of_shapes(dtype).items():
        with torch.no_grad():
            expected = module(rows)
        found = fast(rows)
        assert found.dtype == dtype, what
        if dtype == torch.float32:
            torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-6, msg=what)
        else:
            torch.testing.assert_close(found.float(), expected.float(), rtol=1e-2, atol=1e-6, msg=what)
            assert (found == expected).float().mean() > 0.98, what
        # Another shape in between must not leave its strides behind.
        torch.testing.assert_close(fast(rows), found, rtol=0, atol=0)


def test_heads_first_keep_their_order_in_memory() -> None:
    fast = faster(norm("gemma3", torch.bfloat16))
    rows = torch.randn(1, 6, 4, SIZE).bfloat16().transpose(1, 2)
    assert fast(rows).stride() == rows.stride()


@pytest.mark.parametrize("name", ["llama", "gemma3", "olmo2"])
def test_rows_of_another_dtype_come_out_as_from_the_module(name: str) -> None:
    module = norm(name, torch.float32)
    fast = faster(module)
    rows = torch.randn(1, 3, SIZE)
    fast(rows)  # The shape is known now, the dtype is another.
    for dtype in (torch.float16, torch.bfloat16):
        with torch.no_grad():
            expected = module(rows.to(dtype))
        assert torch.equal(fast(rows.to(dtype)), expected)
        assert fast(rows.to(dtype)).dtype == expected.dtype


def test_rows_of_another_size_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"rows \[2, 41\] on cpu for an RMSNorm of 40"):
        faster(norm("llama", torch.float32))(torch.randn(2, SIZE + 1))


def test_no_rows() -> None:
    assert faster(norm("llama", torch.float32))(torch.randn(1, 0, SIZE)).shape == (1, 0, SIZE)


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(SIZE)), nn.Parameter(torch.zeros(SIZE)), 1e-6


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(SIZE)), 1e-6

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.weight


class Halved(LlamaRMSNorm):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states) / 2


@pytest.mark.parametrize(
    "module",
    [
        Biased(),
        Scale(),
        Halved(SIZE),
        nn.LayerNorm(SIZE),
        nn.LayerNorm(SIZE, bias=False),
        nn.Linear(SIZE, 1, bias=False),
        norm("llama", torch.float16),
    ],
    ids=lambda module: type(module).__name__,
)
def test_other_modules_are_left_alone(module: nn.Module) -> None:
    assert RMSNormKinds().faster(module) is None


def test_a_class_is_tried_first_as_what_it_was_before() -> None:
    kinds = RMSNormKinds()
    kinds.faster(norm("gemma3", torch.bfloat16))
    assert kinds._variants[Gemma3RMSNorm][0][0] == 1
    assert kinds.faster(norm("gemma3", torch.bfloat16)) is not None
