"""Steps of few tokens as one program, beside the same steps by the model's own modules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.attention.numba_cpu import NumbaCPU
from octavo.attention.torch_reference import TorchReference
from octavo.models.decoder_program import MAX_ROWS, FewTokens, _weights
from octavo.models.hf_adapter import LoadedModel
from octavo.models.modules import weights
from octavo.models.modules.weights import Weight
from tests.models.architectures import ARCHITECTURES, load_folder, random_prompts, save_model
from tests.models.paged_run import PagedRun, logits_in_chunks

FORMS = {
    "llama": "norms before",
    "qwen2": "biases",
    "qwen3": "norms of heads",
    "phi3": "joint products",
    "mistral": "windows",
    "smollm3": "layers without rotation",
    "exaone4": "norms behind, some layers without rotation",
    "gemma": "a scaled embedding",
    "gemma2": "norms before and behind, soft caps",
    "gemma3_text": "two kinds of angles",
    "granite": "multipliers of the embedding and of what is added",
}
OTHERS = ("olmo2", "mixtral", "gpt_oss", "gemma3n_text", "phi", "gpt2", "bloom", "opt", "cohere2", "gpt_neox")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def load(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    save_model(name, folder)
    return load_folder(folder, ARCHITECTURES[name].model_config(name), backend=NumbaCPU(), dtype=dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_a_program_computes_what_the_model_does(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    check_program(load(name, tmp_path, dtype), dtype)


@pytest.mark.parametrize("name", ["qwen2", "gemma3_text"])
def test_a_program_multiplies_weights_in_blocks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CPU with instructions for bfloat16 does: few rows by blocks in the program, more by oneDNN outside it."""
    monkeypatch.setattr(weights, "can_pack", lambda dtype: dtype == torch.bfloat16)
    monkeypatch.setattr(weights, "PackedWeight", BlockedWeight)
    model = load(name, tmp_path, torch.bfloat16)
    used = {type(weight) for weight in decoder_weights(model)}
    assert used == {BlockedWeight}
    check_program(model, torch.bfloat16)


class BlockedWeight:
    """In place of `PackedWeight`: packed by `in_blocks` as oneDNN packs where it multiplies pairs, on any CPU."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.num_bytes, self.dtype = weight.nbytes + (0 if bias is None else bias.nbytes), weight.dtype
        self._weight, self._bias = weight.detach(), None if bias is None else bias.detach()
        packed = weights.in_blocks(self._weight, 48, 32)
        self.address = packed.data_ptr()
        blocks = weights.Blocks(48, packed[0].nbytes)
        shape = (weight.shape[0], weight.shape[1])
        self.few_rows = weights.BlockRows(self.address, blocks, shape, packed, self._bias)
        self._calls = self.few_rows.calls()

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        num_rows = rows.numel() // rows.shape[-1]
        if num_rows > self.few_rows.max_rows:
            return torch.nn.functional.linear(rows, self._weight, self._bias)
        return weights.run_calls(self._calls, rows.contiguous(), num_rows, self._weight.shape[0])

    def plain(self) -> torch.Tensor:
        return self._weight


def decoder_weights(model: LoadedModel) -> list[Weight | None]:
    """Of all layers."""
    decoder = model._few_tokens._decoder
    assert decoder is not None
    return [weight for form in decoder.layers for weight in _weights(form)]


def check_program(model: LoadedModel, dtype: torch.dtype) -> None:
    """The same logits by the program as by the model's own modules."""
    prompts = random_prompts((37, 5, 21))
    chunk_sizes = (1, 3, 17)
    found = logits_in_chunks(model, prompts, chunk_sizes)
    program = model._few_tokens.program(1)
    assert program is not None and program is model._few_tokens.program(program.max_rows)
    assert program.max_rows > 1
    calls = [layer.num_calls for layer in model.attention_layers.values()]
    assert len(set(calls)) == 1 and calls[0] > 0
    model._few_tokens = FewTokens(None)
    expected = logits_in_chunks(model, prompts, chunk_sizes)
    assert [layer.num_calls for layer in model.attention_layers.values()] == [2 * count for count in calls]
    for mine, theirs in zip(found, expected, strict=True):
        errors = (mine.float() - theirs.float()).norm(dim=1) / theirs.float().norm(dim=1)
        assert float(errors.max()) < TOLERANCE[dtype], float(errors.max())


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_run_as_they_are(name: str, tmp_path: Path) -> None:
    model = load(name, tmp_path)
    (prompt,) = random_prompts((9,))
    logits_in_chunks(model, [prompt], (2,))
    assert model._few_tokens.program(1) is None


def test_many_tokens_go_through_the_model(tmp_path: Path) -> None:
    model = load("llama", tmp_path)
    PagedRun(model, [9])
    program = model._few_tokens.program(1)
    assert program is not None
    assert model._few_tokens.program(program.max_rows) is program
    assert model._few_tokens.program(program.max_rows + 1) is None
    assert model._few_tokens.program(MAX_ROWS + 1) is None


def test_layers_bound_anew_get_a_new_program(tmp_path: Path) -> None:
    model = load("llama", tmp_path)
    assert model._few_tokens.program(1) is None, "no layer is bound yet"
    (prompt,) = random_prompts((9,))
    (first,) = logits_in_chunks(model, [prompt], (2,))
    program = model._few_tokens.program(1)
    (second,) = logits_in_chunks(model, [prompt], (2,))
    assert model._few_tokens.program(1) is not program
    assert torch.equal(first, second)


def test_another_backend_is_called_as_ever(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    model = load_folder(tmp_path, ARCHITECTURES["llama"].model_config("llama"), backend=TorchReference())
    PagedRun(model, [9])
    assert model._few_tokens.program(1) is None


def test_positions_beyond_the_first_table_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.models.decoder_program._FIRST_POSITIONS", 4)
    model = load("gemma3_text", tmp_path)
    (prompt,) = random_prompts((40,))
    (found,) = logits_in_chunks(model, [prompt], (3,))
    model._few_tokens = FewTokens(None)
    (expected,) = logits_in_chunks(model, [prompt], (3,))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
