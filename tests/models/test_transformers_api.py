"""What the narrow import leaves out, and that everything left out is there when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEFT_OUT = ("torch._dynamo", "sympy", "torch.distributed.tensor", "torch._inductor")


LOADING = """
import sys, tempfile, json, pathlib, torch
from octavo.attention.torch_reference import TorchReference
from octavo.config import ModelSource
from octavo.formats.model_config import load_model_config
from octavo.formats.source import ModelFiles
from octavo.models.loader import load_model
folder = pathlib.Path(tempfile.mkdtemp())
fields = dict(model_type=sys.argv[1], vocab_size=64, hidden_size=32, mamba_dt_rank=4, num_experts=2,
    intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
(folder / "config.json").write_text(json.dumps(fields))
files = ModelFiles(kind="folder", path=folder, config_path=folder / "config.json", weight_paths=(), name="m")
load_model(ModelSource(model=str(folder), load_format="dummy"), files, load_model_config(files),
    device=torch.device("cpu"), dtype=torch.float32, backend=TorchReference(), block_size=16, kv_cache_dtype="auto")
print([name for name in sys.argv[2:] if name in sys.modules])
"""


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llama", "jamba"])
def test_loading_and_running_a_model_imports_no_compiler_and_says_nothing(model_type: str) -> None:
    """Jamba's classes would say that packages with kernels for a GPU are missing."""
    done = _run(LOADING, model_type, *LEFT_OUT)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


@pytest.mark.slow
def test_transformers_is_whole_afterwards() -> None:
    program = """
import octavo.models.transformers_api
import transformers.models.llama.modeling_llama as llama
import transformers, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.models import gpt2
assert LlamaForCausalLM is llama.LlamaForCausalLM
assert transformers.models.llama.modeling_llama is llama
assert transformers.__version__.count(".") == 2
assert gpt2.GPT2Config is transformers.GPT2Config
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
model = AutoModelForCausalLM.from_config(config).eval()
print(model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False, eos_token_id=None).shape)
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist())
print(torch.distributed.is_available())
"""
    shape, compiled, distributed = _run(program).stdout.split("\n")[:3]
    assert shape == "torch.Size([1, 7])"
    assert compiled == "[2.0, 2.0]"
    assert distributed == "True"


@pytest.mark.slow
def test_a_transformers_that_is_imported_already_stays_as_it_is() -> None:
    program = """
import transformers, sys
package = sys.modules["transformers"]
import octavo.models.transformers_api
assert sys.modules["transformers"] is package
print(transformers.AutoConfig.__name__)
"""
    assert _run(program).stdout.strip() == "AutoConfig"
