"""Models cut into stages: together they compute what the whole does, and none has weights of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from octavo.attention.numba_cpu import NumbaCPU
from octavo.attention.torch_reference import TorchReference
from octavo.config import ModelSource
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.model_config import load_model_config
from octavo.models import loader
from octavo.models.hf_adapter import LoadedModel
from octavo.models.loader import load_model
from octavo.models.stage import PipelinePlace, Stage
from octavo.models.stage_cut import StageCut
from octavo.models.stage_parts import OtherEmbedding, OtherLayer, OtherPart
from tests.models.architectures import VOCAB_SIZE, folder_files, random_prompts, save_model
from tests.models.paged_run import PagedRun

QUICK = ("llama", "gemma2", "mpt", "deepseek_v3")
SLOW = ("gemma3_text", "gpt_oss", "mixtral", "qwen3_moe", "bloom", "gpt2", "opt", "falcon-alibi", "llama4_text", "xglm")


def load(folder: Path, place: PipelinePlace, **changes: Any) -> LoadedModel:
    files = folder_files(folder)
    config = load_model_config(files)
    options: dict[str, Any] = {"backend": TorchReference(), "dtype": torch.float32} | changes
    return load_model(
        ModelSource(model=str(folder)),
        files,
        config,
        device=torch.device("cpu"),
        block_size=4,
        kv_cache_dtype="auto",
        stage=place.stage(config.num_layers),
        **options,
    )


class StagedRun:
    """As `PagedRun`, through several stages."""

    def __init__(self, models: list[LoadedModel], lengths: list[int]) -> None:
        self._runs = [PagedRun(model, lengths) for model in models]
        self._hidden: torch.Tensor | None = None
        for model in models:
            self._watch(model)

    def _watch(self, model: LoadedModel) -> None:
        forward = model.forward

        def through(*given: torch.Tensor) -> torch.Tensor:
            self._hidden = forward(*given, self._hidden).clone()
            return self._hidden

        model.forward = through  # type: ignore[method-assign]
        if not model.stage.is_last:
            model.compute_logits = lambda hidden: hidden  # type: ignore[method-assign]

    def step(self, chunks: list[list[int]]) -> list[torch.Tensor]:
        self._hidden = None
        return [run.step(chunks) for run in self._runs][-1]


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_stages_together_compute_what_the_whole_does(name: str, num_stages: int, tmp_path: Path) -> None:
    save_model(name, tmp_path)
    one = load(tmp_path, PipelinePlace())
    parts = [load(tmp_path, PipelinePlace(number, num_stages)) for number in range(num_stages)]
    specs = [part.kv_cache_specs() for part in parts]
    assert {name: spec for each in specs for name, spec in each.items()} == one.kv_cache_specs()
    assert sum(len(each) for each in specs) == len(one.attention_layers)
    prompts = random_prompts((9, 4, 15))
    whole_run, staged_run = (PagedRun(one, [15] * 3), StagedRun(parts, [15] * 3))
    for start in (0, 4, 8):
        chunks = [prompt[start : start + 4 if start < 8 else None] for prompt in prompts]
        for expected, found in zip(whole_run.step(chunks), staged_run.step(chunks), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_few_tokens_go_through_programs_of_stages(tmp_path: Path) -> None:
    save_model("gemma3_text", tmp_path)
    backend = {"backend": NumbaCPU(num_threads=1)}
    one = load(tmp_path, PipelinePlace(), **backend)
    parts = [load(tmp_path, PipelinePlace(number, 3), **backend) for number in range(3)]
    runs = PagedRun(one, [8, 8]), StagedRun(parts, [8, 8])
    for chunks in ([[5, 6, 7], [8]], [[9], [11]]):
        expected, found = (run.step(chunks) for run in runs)
        assert torch.equal(torch.cat(found), torch.cat(expected))
    assert all(part._few_tokens.program(2) is not None for part in parts)


@pytest.mark.parametrize(("name", "is_tied"), [("llama", True), ("mixtral", False)])
def test_no_stage_has_weights_of_another(name: str, is_tied: bool, tmp_path: Path) -> None:
    model = save_model(name, tmp_path)
    assert bool(model.config.tie_word_embeddings) == is_tied  # type: ignore[union-attr]
    by_layer = {0: 0, 1: 0, 2: 0, 3: 0}
    for path, parameter in model.named_parameters():
        if ".layers." in path:
            by_layer[int(path.split(".")[2])] += parameter.nbytes
    embedding = model.get_input_embeddings().weight.nbytes  # type: ignore[operator]
    for number in range(3):
        part = load(tmp_path, PipelinePlace(number, 3))
        own = sum(by_layer[index] for index in part.stage.layers)
        ends = embedding * (part.stage.is_first + part.stage.is_last)
        # Beside them: a last norm, the tables of a rotary embedding, and norms' factors in float32.
        assert own + ends <= part.weight_bytes <= own + ends + 4096


def test_weights_of_other_stages_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be missing; one's own may not."""
    model = save_model("mixtral", tmp_path)
    weights = {name: tensor for name, tensor in model.state_dict().items() if ".layers.3." not in name}
    monkeypatch.setattr(loader, "read_safetensors_weights", lambda *_args, **_named: dict(weights))
    assert load(tmp_path, PipelinePlace(0, 2)).stage.layers == range(2)
    with pytest.raises(ModelFileError, match=r"lacks weights that the model has: model\.layers\.3\."):
        load(tmp_path, PipelinePlace(1, 2))


def test_unknown_weights_are_refused_in_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_model("mixtral", tmp_path)
    weights = model.state_dict() | {"model.layers.9.self_attn.q_proj.weight": torch.zeros(3, 3)}
    monkeypatch.setattr(loader, "read_safetensors_weights", lambda *_args, **_named: dict(weights))
    with pytest.raises(ModelFileError, match=r"holds weights that the model has not: model\.layers\.9\."):
        load(tmp_path, PipelinePlace(0, 2))


class Config:
    tie_word_embeddings = False


class Layer(nn.Module):
    def __init__(self, change: str) -> None:
        super().__init__()
        self.linear, self.change = nn.Linear(8, 8), change

    def forward(self, hidden: torch.Tensor, beside: Any = None) -> Any:
        if self.change == "a list filled":
            beside.append(hidden)
        out = self.linear(hidden)
        return (out, out + 1) if self.change in ("a second result", "unused second results") else out


class Toy(nn.Module):
    """A model with a twist between its layers."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.config, self.change = Config(), change
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)
        self.layers = nn.ModuleList([Layer(change) for _ in range(4)])
        self.norm = nn.LayerNorm(8)
        if change == "a part of two layers":
            self.layers[2].linear = self.layers[1].linear
        if change == "an activation of all":
            self.layers[1].act = self.layers[2].act = nn.ReLU()
        if change == "an encoder with as many layers":
            self.encoder = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])})
        if change == "two lists":
            self.others = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> torch.Tensor:
        embedded = hidden = self.embed(input_ids)
        if self.change == "a norm at both ends":
            hidden = self.norm(hidden)
        beside: Any = [] if self.change == "a list filled" else None
        for layer in [*self.layers, self.layers[0]] if self.change == "a layer twice" else self.layers:
            if self.change == "the embedding":
                beside = embedded
            if self.change == "a sum in between":
                hidden = hidden + embedded
            hidden = layer(hidden, beside)
            if isinstance(hidden, tuple):
                hidden, second = hidden
                beside = second if self.change == "a second result" else None
        return self.head(self.norm(hidden))


class Reader(Layer):
    def forward(self, hidden: torch.Tensor, beside: Any = None) -> Any:
        return self.linear(hidden) + 0.5 * beside


def cut(change: str = "", *, number: int = 1, hidden_size: int = 8) -> tuple[Toy, StageCut]:
    stage_cut = StageCut(
        Stage(range(number, number + 2), 4), hidden_size=hidden_size, vocab_size=32, dtype=torch.float32
    )
    model = Toy(change)
    if change == "the embedding":
        model.layers = nn.ModuleList([Reader(change) for _ in range(4)])
    stage_cut.cut(model)
    return model, stage_cut


@pytest.mark.parametrize(
    "change", ["", "unused second results", "an activation of all", "an encoder with as many layers"]
)
def test_a_row_of_layers_can_be_cut(change: str) -> None:
    model, stage_cut = cut(change)
    assert {name.split(".")[1] for name in model.state_dict() if name.startswith("layers")} == {"1", "2"}
    assert {name.split(".")[0] for name in stage_cut.left_out} == {"layers", "embed", "head"}
    stage_cut.finish(model)
    kinds = [type(part) for part in (model.embed, *model.layers, model.norm, model.head)]
    assert kinds == [OtherEmbedding, OtherLayer, Layer, Layer, OtherLayer, OtherPart, OtherPart]
    stage_cut.border.received = torch.randn(1, 5, 8)
    model(torch.zeros(1, 5, dtype=torch.long))
    expected = stage_cut.border.received
    for layer in model.layers[1:3]:
        expected = layer.linear(expected)
    assert stage_cut.border.sent is not None and torch.equal(stage_cut.border.sent, expected)


def test_a_norm_that_runs_before_the_layers_too_is_kept() -> None:
    model, stage_cut = cut("a norm at both ends", number=0)
    stage_cut.finish(model)
    assert isinstance(model.norm, nn.LayerNorm)
    model(torch.tensor([[3, 4]]))
    expected = model.norm(model.embed(torch.tensor([[3, 4]])))
    for layer in model.layers[:2]:
        expected = layer.linear(expected)
    assert stage_cut.border.sent is not None and torch.equal(stage_cut.border.sent, expected)


@pytest.mark.parametrize(
    ("change", "number", "reason"),
    [
        ("a second result", 1, "layer 2 is given what an earlier one returned beside its hidden states"),
        ("a second result", 2, "layer 3 is given what an earlier one returned beside its hidden states"),
        ("a sum in between", 1, "layer 1 works on something else than what layer 0 returned"),
        ("a list filled", 1, "layer 1 leaves something for others in what it is given"),
        ("a layer twice", 0, "they do not run once each, one after the other"),
        ("the embedding", 1, "they read the embedding beside the hidden states"),
        ("a part of two layers", 1, "some of their weights are the same for several layers"),
        ("two lists", 1, "it keeps them in 2 lists of 4, where there must be one"),
    ],
)
def test_what_goes_between_layers_beside_hidden_states_is_refused(change: str, number: int, reason: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        model, stage_cut = cut(change, number=number)
        stage_cut.finish(model)
    assert caught.value.fact == f"The layers of Toy cannot be divided over pipeline stages: {reason}."
    assert caught.value.remedy


def test_another_shape_of_hidden_states_is_refused() -> None:
    model, stage_cut = cut(number=0, hidden_size=16)
    with pytest.raises(UnsupportedModelError, match=r"hand on has the shape \[1, 4, 8\], not \[1, 4, 16\]"):
        stage_cut.finish(model)


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    stage_cut = StageCut(Stage(range(2), 3), hidden_size=8, vocab_size=VOCAB_SIZE, dtype=torch.float32)
    with pytest.raises(UnsupportedModelError, match="it keeps them in no lists of 3"):
        stage_cut.cut(Toy())
