from __future__ import annotations

import pytest
import torch

from octavo.models.modules.panel_weight import PanelWeight, numbers_of
from tests.models.modules.test_panel_kernels import error, panels_of

pytestmark = pytest.mark.slow  # compiles kernels


def test_layers_of_several_codings_share_a_product() -> None:
    parts = [panels_of("Q4_K", 64, 256), panels_of("Q8_0", 24, 256), panels_of("Q6_K", 40, 256)]
    bias = torch.randn(128).bfloat16()
    weight = PanelWeight(parts, bias, torch.bfloat16)
    plain = weight.plain()
    assert plain.dtype == torch.bfloat16 and plain.shape == (128, 256)
    assert weight.num_bytes == sum(part.num_bytes for part in parts) + bias.nbytes
    for shape in ((256,), (1, 256), (2, 9, 256)):
        rows = torch.randn(*shape).bfloat16()
        found = weight.apply(rows)
        assert found.shape == (*shape[:-1], 128)
        assert error(found, rows.double() @ plain.double().T + bias.double()) < 6e-3


def test_rows_may_lie_apart() -> None:
    weight = PanelWeight([panels_of("Q4_1", 20, 64)], None, torch.float32)
    wide = torch.randn(5, 200)
    assert torch.equal(weight.apply(wide[:, 8:72]), weight.apply(wide[:, 8:72].contiguous()))
    assert torch.equal(weight.apply(wide[:, :128:2]), weight.apply(wide[:, :128:2].contiguous()))


def test_numbers_of_some_outputs() -> None:
    panels = panels_of("Q5_0", 40, 64)
    every = numbers_of(panels, torch.float32)
    assert torch.equal(numbers_of(panels, torch.float32, torch.tensor([39, 0, 0])), every[[39, 0, 0]])
    assert numbers_of(panels, torch.bfloat16, torch.zeros(0, dtype=torch.long)).shape == (0, 64)
