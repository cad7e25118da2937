"""Load a model: transformers' classes, the files' weights in the dtype of computation, attention through the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import msgspec
import torch
from torch import nn

from octavo.attention.backend import AttentionBackend
from octavo.config import ModelConfig, ModelSource
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.formats.model_config import read_hf_config
from octavo.formats.source import ModelFiles
from octavo.models.adoption import own_attention
from octavo.models.attention_interface import ATTENTION_NAME
from octavo.models.cache_window import check_cache_window
from octavo.models.coded_parameters import CodedParameters, code_linears
from octavo.models.gguf_weights import read_gguf_weights
from octavo.models.hf_adapter import LoadedModel, adapt_model
from octavo.models.load_clock import part
from octavo.models.modules.mapped_weights import give_back_freed
from octavo.models.parallel.division import find_part
from octavo.models.parallel.own_sources import own_sources
from octavo.models.parallel.rank_config import rank_model_config
from octavo.models.parallel.rank_part import RankPart, tensors_of
from octavo.models.parallel.trial_weights import NUM_TOKENS
from octavo.models.peers import Peers
from octavo.models.quantization import check_quantization, choose_quantization, quantization_of
from octavo.models.safetensors_weights import read_safetensors_weights
from octavo.models.stage import Stage, stage_config, whole
from octavo.models.stage_cut import StageCut
from octavo.models.text_part import text_part
from octavo.models.transformers_api import WeightConversions, narrow_loading, quiet, without_values
from octavo.models.zoo import find_model

_NO_ROTATION = 1e29

_DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def load_model(
    source: ModelSource,
    files: ModelFiles,
    model_config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    backend: AttentionBackend,
    block_size: int,
    kv_cache_dtype: str,
    stage: Stage | None = None,
    peers: Peers | None = None,
) -> LoadedModel:
    """The model of `files`, or of a pipeline the `stage`'s part of it, ready to run once its layers are bound.

    `kv_cache_dtype` is a dtype name, or `auto` for `dtype`. With `source.load_format` "dummy" the weights are random
    (seeded by `source.seed`) and no weight file is read. With `peers` it is this rank's part of the model, and every
    one of them must call this.

    Raises `ModelFileError` when weights are missing, left over, misshapen or unreadable, `UnsupportedModelError`
    (naming the property) when the model cannot be computed exactly.
    """
    stage, num_ranks = stage or whole(model_config.num_layers), 1 if peers is None else peers.size
    model_config = rank_model_config(stage_config(model_config, stage), num_ranks)
    hf_config = read_hf_config(files)
    config, model_class = find_model(hf_config, code_folder=files.path if source.trust_remote_code else None)
    limit = source.max_model_len or -1
    max_model_len = limit if limit > 0 else model_config.max_position
    check_cache_window(config, model_config, max_model_len)
    quantization = quantization_of(hf_config)
    if source.load_format != "dummy":
        check_quantization(quantization, files.path)
    stored = choose_quantization(source.quantization, files, quantization, device, dtype, num_ranks=num_ranks)
    cut = _cut_to(stage, model_config, dtype)
    config = config if cut is None else cut.config_for(config)
    give_back_freed()
    with quiet():
        part = None if peers is None else _find_part(model_class, config, stage, model_config, peers, device)
        model = _load_weights(
            source,
            files,
            model_class,
            config,
            dtype,
            cut,
            part,
            is_quantized=quantization is not None,
            stays_coded=stored == "gguf",
        )
        _complete(model.to(device).eval(), cut, part, is_coded=stored == "int8")
        return adapt_model(
            model,
            model_config,
            backend=backend,
            max_model_len=max_model_len,
            block_size=block_size,
            kv_cache_dtype=_DTYPE_NAMES[dtype] if kv_cache_dtype == "auto" else kv_cache_dtype,
            stage=stage,
            border=None if cut is None else cut.border,
        )


def _cut_to(stage: Stage, model_config: ModelConfig, dtype: torch.dtype) -> StageCut | None:
    """None for a stage that is the whole model."""
    if stage.is_first and stage.is_last:
        return None
    return StageCut(stage, hidden_size=model_config.hidden_size, vocab_size=model_config.vocab_size, dtype=dtype)


def _find_part(
    model_class: Any, config: Any, stage: Stage, model_config: ModelConfig, peers: Peers, device: torch.device
) -> RankPart:
    """This rank's part of the model, or of the stage of one."""
    few_words = msgspec.structs.replace(model_config, vocab_size=min(model_config.vocab_size, NUM_TOKENS))
    cut = _cut_to(stage, few_words, torch.float32)
    finish = _leave if cut is None else cut.finish
    return find_part(config, partial(_empty_model, model_class, cut=cut), peers, device, finish=finish)


def _complete(model: Any, cut: StageCut | None, part: RankPart | None, *, is_coded: bool) -> None:
    """Make a model that has its weights a rank's or a stage's part, and code what is to be."""
    if part is not None:
        part.connect(model)
    if cut is not None:
        cut.finish(model)
    if is_coded:
        code_linears(model)


def _leave(_model: Any) -> None:
    """A model that is not cut into stages needs nothing."""


def _load_weights(
    source: ModelSource,
    files: ModelFiles,
    model_class: Any,
    config: Any,
    dtype: torch.dtype,
    cut: StageCut | None,
    part: RankPart | None,
    *,
    is_quantized: bool,
    stays_coded: bool,
) -> Any:
    """The transformers model. Nothing but the model holds its weights afterwards, so that each can be let go of."""
    if source.load_format == "dummy":
        whole = _random_model(model_class, config, dtype, source.seed, cut)
        return _part_of_whole(whole, model_class, cut, part)
    if not files.weight_paths:
        raise ModelFileError(
            f"{files.path} holds a config but no weights.",
            remedy="Add the model's .safetensors files, or ask for random weights with --load-format dummy.",
        )
    if files.kind == "folder":
        weights = text_part(read_safetensors_weights(files.weight_paths, is_quantized=is_quantized))
        if is_quantized or part is None:
            whole = _build(model_class, config, dtype, weights, files, cut)
            return _part_of_whole(whole, model_class, cut, part)
        empty = _empty_model(model_class, part.config, cut, part)
        weights = own_sources(weights, WeightConversions(empty), part)
        return _build(model_class, part.config, dtype, weights, files, cut, part)
    empty = _empty_model(model_class, config if part is None else part.config, cut, part)
    shapes = {name: parameter.shape for name, parameter in empty.state_dict().items()}
    coded = CodedParameters(_matrices(empty), dtype) if stays_coded else None
    left_out = () if cut is None else cut.left_out
    gguf = read_gguf_weights(files.weight_paths, shapes, config, dtype, coded, left_out, part)
    model = _build(model_class, empty.config, dtype, gguf.parameters, files, cut, part)
    if coded is not None:
        coded.install(model)
    _divide_rotary(model, gguf.rotary_factors)
    return model


def _part_of_whole(whole: Any, model_class: Any, cut: StageCut | None, part: RankPart | None) -> Any:
    """A rank's part of a model that has to be whole at first: its numbers are random, or in a quantiser's modules."""
    if part is None:
        return whole
    sources, made = dict(tensors_of(whole)), _empty_model(model_class, part.config, cut, part)
    if lacking := [name for name, _ in tensors_of(made) if name not in sources]:
        raise UnsupportedModelError(
            f"The quantised weights of {model_class.__name__} cannot be divided over ranks: there is no {lacking[0]}.",
            remedy="Set --tensor-parallel-size to 1, or use the unquantised version of the model.",
        )
    part.fill(made, sources, copied=True)
    return made


def _matrices(model: Any) -> dict[str, torch.Size]:
    """Shapes of the weights of linear layers and embeddings, by name."""
    return {
        f"{path}.weight": module.weight.shape
        for path, module in model.named_modules()
        if type(module) is nn.Linear or isinstance(module, nn.Embedding)
    }


@part("build_model")
def _random_model(model_class: Any, config: Any, dtype: torch.dtype, seed: int, cut: StageCut | None) -> Any:
    def construct(attention: str) -> Any:
        torch.manual_seed(seed)
        return model_class._from_config(config, dtype=dtype, attn_implementation=attention)

    with torch.random.fork_rng(devices=[]), _refusing(model_class), _cutting(cut, None, model_class):
        return _with_attention(model_class, construct)


@part("build_model")
def _build(
    model_class: Any,
    config: Any,
    dtype: torch.dtype,
    weights: dict[str, torch.Tensor],
    files: ModelFiles,
    cut: StageCut | None,
    part: RankPart | None = None,
) -> Any:
    """The model with these weights, or a rank's part with its own of them.

    transformers renames, merges and ties them as it does for its own checkpoints.
    """

    def construct(attention: str) -> Any:
        return model_class.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            dtype=dtype,
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )

    with (
        _refusing(model_class),
        narrow_loading(
            model_class, has_exact_names=files.kind == "gguf", keep=None if part is None else part.keep_if_whole
        ),
        _cutting(cut, part, model_class),
    ):
        model, report = _with_attention(model_class, construct)
    for what, names in (
        ("lacks weights that the model has", report["missing_keys"]),
        ("holds weights that the model has not", _own(report["unexpected_keys"], cut, model.base_model_prefix)),
        ("holds weights of another shape than the model's", [entry[0] for entry in report["mismatched_keys"]]),
    ):
        if names:
            raise ModelFileError(f"{files.path} {what}: {_some(names)}.", remedy="Download or convert it again.")
    if part is not None:
        part.settle(model)
    return model


def _with_attention(model_class: Any, construct: Callable[[str], Any]) -> Any:
    """What `construct` gives for Octavo's attention, or the model's own where it has classes for those alone."""
    try:
        return construct(ATTENTION_NAME)
    except KeyError as error:
        if error.args != (ATTENTION_NAME,):
            raise
        return construct(own_attention(model_class))


@contextmanager
def _cutting(cut: StageCut | None, part: RankPart | None, model_class: Any) -> Iterator[None]:
    """Models of this class constructed inside are cut to the stage `cut` and the rank's `part`, where given."""
    with ExitStack() as contexts:
        for each in (cut, part):
            if each is not None:
                contexts.enter_context(each.constructing(model_class))
        yield


def _own(names: Iterable[str], cut: StageCut | None, prefix: str) -> list[str]:
    """Those `names` of weights that are not another stage's. The base model's weights may lack its name, `prefix`."""
    left_out = set() if cut is None else cut.left_out
    return [name for name in names if name not in left_out and f"{prefix}.{name}" not in left_out]


@contextmanager
def _refusing(model_class: Any) -> Iterator[None]:
    """Whatever transformers raises inside this becomes one sentence."""
    try:
        yield
    except (MemoryError, UnsupportedModelError):
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"transformers cannot build {model_class.__name__}: {type(error).__name__}: {error}.",
            remedy="Octavo cannot run this model; use another one.",
        ) from error


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    listed = ", ".join(ordered[:3])
    return listed if len(ordered) <= 3 else f"{listed} and {len(ordered) - 3} more"


@part("list_parameters")
def _empty_model(model_class: Any, config: Any, cut: StageCut | None, part: RankPart | None = None) -> Any:
    """The model without values."""

    def construct(attention: str) -> Any:
        config._attn_implementation = attention
        return model_class(config)

    with _refusing(model_class), without_values(), _cutting(cut, part, model_class):
        return _with_attention(model_class, construct)


def _divide_rotary(model: Any, factors: torch.Tensor | None) -> None:
    """Divide the rotary frequencies, where layers differ those of full ones, by the factors that the file brings along.

    A factor beyond all numbers stands for what is not rotated.
    """
    if factors is None:
        return
    kinds = ("inv_freq", "full_attention_inv_freq")
    buffers = [buffer for name, buffer in model.named_buffers() if name.rpartition(".")[2] in kinds]
    if not buffers or any(buffer.shape != factors.shape for buffer in buffers):
        raise ModelFileError(
            f"The file has {factors.numel()} rotary factors, which fit none of the model's rotary embeddings.",
            remedy="Use the safetensors version of the model.",
        )
    for buffer in buffers:
        buffer /= factors.where(factors < _NO_ROTATION, torch.inf).to(buffer.device)
