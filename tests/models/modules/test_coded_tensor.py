from __future__ import annotations

import pytest
import torch
from torch import nn

from octavo.models.modules.coded_tensor import CodedTensor, code_parameter, expand_used
from octavo.models.modules.weights import bytes_by_format, is_coded, is_plain_linear, weight_of
from tests.models.modules.test_panel_kernels import error, panels_of

pytestmark = pytest.mark.slow  # compiles kernels


class Tied(nn.Module):
    """An embedding, and a head that is the same parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 64, device="meta")
        self.head = nn.Linear(64, 40, bias=False, device="meta")
        self.panels = panels_of("Q4_1", 40, 64)
        self.embedding.weight = self.head.weight = code_parameter(self.panels, torch.bfloat16)


def test_layers_compute_with_it_as_it_is() -> None:
    model = Tied().to("cpu").eval()
    weight = model.head.weight
    assert isinstance(weight, CodedTensor) and weight.shape == (40, 64) and weight.dtype == torch.bfloat16
    assert is_plain_linear(model.head) and is_coded(model.head)
    tokens = torch.tensor([[3, 39], [0, 3]])
    with torch.inference_mode():
        rows = model.embedding(tokens)
        found = model.head(rows)
    assert weight.num_expansions == 0
    numbers = weight.numbers()
    assert torch.equal(rows, numbers[tokens])
    assert error(found, rows.double() @ numbers.double().T) < 3e-3
    assert torch.equal(weight_of([model.head]).apply(rows), found)


def test_whoever_wants_numbers_gets_them() -> None:
    model = Tied()
    weight = model.head.weight
    numbers = weight.numbers()  # type: ignore[operator]
    rows = torch.randn(3, 64).bfloat16()
    with torch.inference_mode():
        assert torch.equal(rows @ weight.t(), rows @ numbers.t())
        assert torch.equal(weight[5], numbers[5])
    assert torch.equal(weight + 1, numbers + 1)
    expand_used(model)
    assert type(model.head.weight.data) is torch.Tensor and model.head.weight is model.embedding.weight
    assert torch.equal(model.head.weight, numbers)


def test_what_is_shared_counts_once() -> None:
    model = Tied()
    found = bytes_by_format([weight_of([model.head])], [*model.parameters(), torch.zeros(3)])
    assert found == {"Q4_1": model.panels.num_bytes, "float32": 12}
