from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from octavo.config import ModelSource, read_environment
from octavo.errors import ModelFileError
from octavo.formats.kv_specs import kv_cache_specs
from octavo.formats.model_config import load_model_config, read_hf_config
from octavo.formats.source import ModelFiles, locate
from octavo.kv.specs import FullAttentionSpec, SlidingWindowSpec
from tests.formats import build

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10,
}  # fmt: skip


def files_of(folder: Path, config: bytes) -> ModelFiles:
    (folder / "config.json").write_bytes(config)
    return locate(ModelSource(model=str(folder)), read_environment())


def test_a_folder_with_a_config_alone(tmp_path: Path) -> None:
    model = load_model_config(files_of(tmp_path, json.dumps(CONFIG).encode()))
    assert model.name == tmp_path.name
    assert model.weight_bytes is None
    assert model.dtype == "float32"


def test_the_weights_tell_the_dtype_where_the_config_does_not(tmp_path: Path) -> None:
    weights = {"big": np.zeros((64, 8), dtype=np.float16), "small": np.zeros(8, dtype=np.float32)}
    build.write(tmp_path / "model.safetensors", build.safetensors(weights))
    model = load_model_config(files_of(tmp_path, json.dumps(CONFIG).encode()))
    assert (model.dtype, model.weight_bytes) == ("float16", 1024 + 32)
    stated = load_model_config(files_of(tmp_path, json.dumps(CONFIG | {"torch_dtype": "bfloat16"}).encode()))
    assert stated.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"{", "cannot be read"), (b"[" * 9999, "cannot be read"), (b"[]", "not an object"), (b"\xff", "cannot be read")],
)
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        read_hf_config(files_of(tmp_path, text))
    assert "config.json" in str(caught.value)


@pytest.mark.model
def test_the_demo_model_is_planned_from_its_header() -> None:
    model = load_model_config(locate(ModelSource(model="demo"), read_environment()))
    assert (model.architecture, model.max_position, model.weight_bytes) == ("Gemma3ForCausalLM", 32768, 246587904)
    specs, shared = kv_cache_specs(model, block_size=16, dtype="bfloat16")
    assert not shared
    kinds = [type(specs[f"layers.{index}"]) for index in range(18)]
    assert kinds == [FullAttentionSpec if index % 6 == 5 else SlidingWindowSpec for index in range(18)]
    window = specs["layers.0"]
    assert isinstance(window, SlidingWindowSpec)
    assert (window.window, window.num_kv_heads, window.head_size, window.page_bytes) == (512, 1, 256, 16384)


@pytest.mark.model
def test_planning_loads_no_device_library() -> None:
    program = (
        "import sys\n"
        "from octavo.config import ModelSource, read_environment\n"
        "from octavo.formats.model_config import load_model_config\n"
        "from octavo.formats.source import locate\n"
        "load_model_config(locate(ModelSource(model='demo-smollm2'), read_environment()))\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numba', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
