"""Opening a model by name: files, config and weights together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.attention.torch_reference import TorchReference
from octavo.config import ModelSource, layer_name, read_environment
from octavo.errors import ModelFileError
from octavo.models.opening import open_model
from tests.parity.tiny import HYBRID, build_model


@pytest.mark.slow
def test_a_folder_is_opened(tmp_path: Path) -> None:
    build_model(tmp_path, HYBRID)
    config, model = open_model(
        ModelSource(model=str(tmp_path), max_model_len=64),
        read_environment(),
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        backend=TorchReference(),
        block_size=8,
        kv_cache_dtype="float32",
    )
    assert config.num_layers == 5
    assert list(model.attention_layers) == [layer_name(i) for i in range(5)]
    spec = model.attention_layers[layer_name(2)].spec
    assert (spec.block_size, spec.dtype) == (8, "float32")


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no file or folder"):
        open_model(
            ModelSource(model=str(tmp_path / "absent.gguf")),
            read_environment(),
            device=torch.device("cpu"),
            dtype=torch.float32,
            backend=TorchReference(),
            block_size=8,
            kv_cache_dtype="auto",
        )
