"""A transformers model as the model runner sees it: flattened tokens in, hidden states out, logits on request.

    hidden = model.forward(token_ids, positions, query_start, seq_lens)   [T, hidden_size]
    logits = model.compute_logits(hidden[rows])                           [N, vocab_size], in compute dtype

`forward` runs every layer over the step's tokens; the attention layers read their `AttentionGroup.metadata`, which the
model runner sets before each call. `compute_logits` runs the model's own head on any rows of `hidden` (each request's
last row for sampling, or many rows in chunks for prompt log probabilities), with all the scaling and soft-capping that
the model's class applies; rows are independent of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from octavo.attention.backend import AttentionBackend, AttentionLayer
from octavo.attention.state import StateLayer
from octavo.config import LayerConfig, ModelConfig, layer_name
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.kv.specs import AttentionSpec, ChunkedLocalSpec, FullAttentionSpec, LayerSpec, MLASpec, SlidingWindowSpec
from octavo.models.adoption import adopt_attention, calls_interface
from octavo.models.attention_interface import BoundAttention, set_hook
from octavo.models.attention_probe import AttentionProbe
from octavo.models.attention_recorder import AttentionCall
from octavo.models.decoder import Decoder, DecoderRecorder
from octavo.models.decoder_program import FewTokens
from octavo.models.latent_attention import BoundLatentAttention, LatentProjection, with_latents
from octavo.models.load_clock import part
from octavo.models.mask_kind import MaskKind
from octavo.models.modules.coded_tensor import expand_used
from octavo.models.modules.fused_attention import Heads
from octavo.models.modules.replacement import replace_modules
from octavo.models.modules.weights import bytes_by_format
from octavo.models.parallel.rank_modules import each_rank_alone, is_divided
from octavo.models.plain_head import plain_head
from octavo.models.stage import Stage
from octavo.models.stage_parts import Border
from octavo.models.state_adapter import bind_mixers, examine_mixers
from octavo.models.state_mixer import each_token_alone

_SMALL_MODEL_BYTES = 1 << 30
"""Below this, examining and packing a model on one thread takes well under a second."""

_REMEDY = "Octavo cannot run this model yet; use another one."


class LoadedModel:
    """A model whose attention goes through the KV cache.

    Owns: the transformers model and its attention layers. Never: a cache; layers are bound by the worker.
    """

    def __init__(
        self,
        model: Any,
        *,
        model_config: ModelConfig,
        attention_layers: dict[str, AttentionLayer],
        state_layers: dict[str, StateLayer],
        shared_layers: dict[str, str],
        weight_formats: dict[str, int],
        probe: AttentionProbe,
        decoder: Decoder | None,
        stage: Stage,
        border: Border | None,
    ) -> None:
        self.stage = stage
        self.attention_layers = attention_layers
        """By layer name, sharing layers included, in the order of the layers."""
        self.state_layers = state_layers
        """By name: what keeps a state, beside attention or instead of it."""
        self.cache_layers: dict[str, AttentionLayer | StateLayer] = _in_order(attention_layers, state_layers)
        """Both of them, in the order of the layers."""
        self.shared_layers = shared_layers
        """Layer that keeps nothing -> the layer whose cache it reads."""
        self.vocab_size = model_config.vocab_size
        self.hidden_size = model_config.hidden_size
        self.weight_formats = weight_formats
        """Bytes of the weights and constants in memory, as computed with, by how their numbers are kept."""
        self._border = border
        self._base = model.get_submodule(probe.base_path)
        self._given_hidden = _GivenHidden(self._base, probe.output_type)
        self._position_input = probe.position_input
        self._few_tokens = FewTokens(decoder)
        self._head = model
        self._plain_head: nn.Module | None = None
        owner_path, _, attribute = probe.base_path.rpartition(".")
        setattr(model.get_submodule(owner_path), attribute, self._given_hidden)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all of them."""
        return sum(self.weight_formats.values())

    def kv_cache_specs(self) -> dict[str, LayerSpec]:
        """What each layer keeps in the cache; a sharing layer has no entry."""
        return {
            name: layer.spec  # type: ignore[misc]
            for name, layer in self.cache_layers.items()
            if layer.kv_sharing_target is None
        }

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        query_start: torch.Tensor,
        seq_lens: torch.Tensor,
        received: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states [T, hidden_size] of the step's T tokens: after the last norm; of a pipeline's other stages than
        the last after their last layer.

        token_ids, positions: int64 [T], request after request; query_start: int32 [R + 1]; seq_lens: int32 [R], both as
        in `AttentionMetadata`, which must be set in every layer's group. received: what the stage before this one
        returned; None on the first.
        """
        if (program := self._few_tokens.program(len(token_ids))) is not None:
            return program.forward(token_ids, positions, received)
        given, border = self._position_input.at(positions), self._border
        if border is not None and received is not None:
            border.received = received[None]
        hidden: torch.Tensor = self._base(input_ids=token_ids[None], use_cache=False, **given)[0]
        if border is not None and border.sent is not None:
            hidden = border.sent
            border.sent = None
        return hidden[0]

    @torch.inference_mode()
    def look_for_plain_head(self, hidden: torch.Tensor) -> None:
        """From now on call the head directly if it is one linear layer; `hidden` [N, hidden_size] is to try it on."""
        self._plain_head = plain_head(self._head, self.compute_logits, hidden)

    @torch.inference_mode()
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, vocab_size] from [N, hidden_size]."""
        if self._plain_head is not None:
            found: torch.Tensor = self._plain_head(hidden)
            return found
        self._given_hidden.hidden = hidden[None]
        output = self._head(input_ids=hidden.new_zeros((1, hidden.shape[0]), dtype=torch.long), use_cache=False)
        logits: torch.Tensor = output.logits[0]
        return logits


class _GivenHidden(nn.Module):
    """Stands in for the base model inside the causal-LM class, so that the class's own head runs on given rows.

    Owns: the rows of the call under way. Never: registers the base model as a submodule.
    """

    def __init__(self, base: nn.Module, output_type: type) -> None:
        super().__init__()
        self.__dict__["_base"] = base
        self._output_type = output_type
        self.hidden: torch.Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_base"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._output_type(last_hidden_state=self.hidden)


def _in_order(
    attention_layers: dict[str, AttentionLayer], state_layers: dict[str, StateLayer]
) -> dict[str, AttentionLayer | StateLayer]:
    both: dict[str, AttentionLayer | StateLayer] = {**attention_layers, **state_layers}
    return dict(sorted(both.items(), key=lambda item: (int(item[0].split(".")[1]), item[0])))


def adapt_model(
    model: Any,
    model_config: ModelConfig,
    *,
    backend: AttentionBackend,
    max_model_len: int,
    block_size: int,
    kv_cache_dtype: str,
    stage: Stage,
    border: Border | None,
) -> LoadedModel:
    """Examine `model`, give each attention module an `AttentionLayer`, wrap it.

    Of a pipeline it is cut down to its `stage`, which meets the others at `border`, and so is `model_config`.

    Raises `UnsupportedModelError` when the model computes something else than what its config promised or than Octavo
    can compute; the message names the property.
    """
    with torch.inference_mode(), _few_threads(model):
        if not calls_interface(model):
            adopt_attention(model, stage.layers.start, length=max_model_len, vocab_size=model_config.vocab_size)
        mixers = examine_mixers(model, model_config)
        with each_token_alone(mixers):
            probe = AttentionProbe(model, length=max_model_len, vocab_size=model_config.vocab_size)
            latent_layers = [index for index, layer in enumerate(model_config.layers) if layer.kind == "mla"]
            calls, projections = with_latents(probe.calls, latent_layers)
            _check_layers(calls, model_config, max_model_len)
            heads = _heads(calls)
            linears = [call for call in probe.seen.linears if call.linear.weight is not None]
            with each_rank_alone(model):
                replaced = replace_modules(model, probe.seen._replace(linears=linears), heads)
            expand_used(model)
            with (recorder := DecoderRecorder(model.get_submodule(probe.base_path), stage)).watch():
                probe.check_independence(is_divided=is_divided(model))
            decoder = None if is_divided(model) else recorder.decoder()
        states = bind_mixers(mixers, model_config, block_size=block_size, dtype=kv_cache_dtype)
    layers: dict[str, AttentionLayer] = {}
    for call in sorted(calls, key=lambda call: call.layer_index):
        described = model_config.layers[call.layer_index]
        layer = _attention_layer(call, described, backend, block_size=block_size, dtype=kv_cache_dtype)
        layers[layer.name] = layer
        _bind(replaced.modules.get(call.module, call.module), layer, projections.get(call.layer_index))
    shared = {name: layer.kv_sharing_target for name, layer in layers.items() if layer.kv_sharing_target is not None}
    loaded = LoadedModel(
        model,
        model_config=model_config,
        attention_layers=layers,
        state_layers=states,
        shared_layers=shared,
        weight_formats=bytes_by_format(replaced.weights, (*model.parameters(), *model.buffers())),
        probe=probe,
        decoder=decoder,
        stage=stage,
        border=border,
    )
    _check_head(loaded, probe, type(model).__name__)
    return loaded


def _bind(module: nn.Module, layer: AttentionLayer, projection: LatentProjection | None) -> None:
    """Let `module`'s attention go through `layer`."""
    set_hook(module, BoundAttention(layer) if projection is None else BoundLatentAttention(layer, projection))


def _check_numbers(probe: AttentionProbe, class_name: str) -> None:
    """Refuse logits that are no numbers."""
    if not bool(torch.isfinite(probe.logits).all()):
        raise ModelFileError(
            f"The logits of {class_name} are not numbers: its weights hold NaN or infinity, or are too large "
            f"for {probe.logits.dtype}.",
            remedy="Download the weights again, or try --dtype float32.",
        )


@part("check_head")
def _check_head(loaded: LoadedModel, probe: AttentionProbe, class_name: str) -> None:
    """Refuse logits that are no numbers, or that the head does not make of given hidden states alone."""
    _check_numbers(probe, class_name)
    if not loaded.stage.is_last:
        return
    logits = loaded.compute_logits(probe.hidden[0])
    # Row by row: of many words, what is compared takes several times the memory of the logits.
    if not all(torch.allclose(*rows, rtol=1e-2, atol=1e-2) for rows in zip(logits, probe.logits[0], strict=True)):
        raise UnsupportedModelError(
            f"The logits of {class_name} depend on more than the hidden states of its base model.",
            remedy=_REMEDY,
        )
    loaded.look_for_plain_head(probe.hidden[0])


@contextmanager
def _few_threads(model: Any) -> Iterator[None]:
    """One thread for a small model: few rows gain little from more, and on a busy machine threads wait long."""
    num_threads = torch.get_num_threads()
    if sum(parameter.nbytes for parameter in model.parameters()) < _SMALL_MODEL_BYTES:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _heads(calls: list[AttentionCall]) -> dict[nn.Module, Heads]:
    """What each attention module that makes keys of its own makes of a row."""
    return {
        call.module: Heads(call.num_heads, call.num_kv_heads, call.head_size, call.value_size)
        for call in calls
        if call.shares_with is None
    }


def _attention_layer(
    call: AttentionCall, layer: LayerConfig, backend: AttentionBackend, *, block_size: int, dtype: str
) -> AttentionLayer:
    window = layer.window if layer.kind == "sliding_window" else None
    chunk = layer.chunk if layer.kind == "chunked_local" else None
    return AttentionLayer(
        layer_name(call.layer_index),
        spec=_spec(call, layer, window=window, chunk=chunk, block_size=block_size, dtype=dtype),
        num_heads=call.num_heads,
        scale=call.scale,
        backend=backend,
        window=window,
        chunk=chunk,
        soft_cap=call.soft_cap,
        sinks=call.sinks,
        alibi_slopes=call.alibi_slopes,
        kv_sharing_target=None if call.shares_with is None else layer_name(call.shares_with),
    )


def _spec(
    call: AttentionCall, layer: LayerConfig, *, window: int | None, chunk: int | None, block_size: int, dtype: str
) -> AttentionSpec | MLASpec:
    if layer.kind == "mla":
        return MLASpec(block_size=block_size, latent_size=call.head_size, value_size=call.value_size, dtype=dtype)
    sizes: dict[str, Any] = {
        "block_size": block_size,
        "num_kv_heads": call.num_kv_heads,
        "head_size": call.head_size,
        "head_size_v": None if call.value_size == call.head_size else call.value_size,
        "dtype": dtype,
    }
    if window is not None:
        return SlidingWindowSpec(**sizes, window=window)
    return FullAttentionSpec(**sizes) if chunk is None else ChunkedLocalSpec(**sizes, chunk=chunk)


def _check_layers(calls: list[AttentionCall], model_config: ModelConfig, max_model_len: int) -> None:
    """Refuse unless the layers that called are those that the config names, with the properties it names."""
    called = {call.layer_index for call in calls}
    for index, layer in enumerate(model_config.layers):
        attends = layer.kind not in ("mamba", "none")
        if attends != (index in called):
            does = "never calls" if attends else "calls"
            raise UnsupportedModelError(
                f"Layer {index} of {model_config.architecture} {does} transformers' attention interface, but its "
                f"config makes it a layer of kind {layer.kind!r}.",
                remedy=_REMEDY,
                layer=index,
            )
    if called and max(called) >= len(model_config.layers):
        raise UnsupportedModelError(
            f"Layer {max(called)} computes attention, but the config has {len(model_config.layers)} layers.",
            remedy=_REMEDY,
        )
    for call in calls:
        _check_layer(call, model_config.layers[call.layer_index], max_model_len)


def _promised_mask(layer: LayerConfig, max_model_len: int) -> MaskKind:
    """What the config says of a layer's mask. A window or chunk that no sequence outgrows is none."""
    if layer.kind == "sliding_window" and layer.window is not None and layer.window < max_model_len:
        return MaskKind("window", layer.window)
    if layer.kind == "chunked_local" and layer.chunk is not None and layer.chunk < max_model_len:
        # Alone in its chunk, a token sees what it sees in a window of one.
        return MaskKind("chunk", layer.chunk) if layer.chunk > 1 else MaskKind("window", 1)
    return MaskKind("full")


def _check_layer(call: AttentionCall, layer: LayerConfig, max_model_len: int) -> None:
    promised_mask = _promised_mask(layer, max_model_len)
    for name, promised, seen in (
        ("KV heads", layer.num_kv_heads, call.num_kv_heads),
        ("head size", layer.head_size, call.head_size),
        ("value head size", layer.head_size_v or layer.head_size, call.value_size),
        ("mask", promised_mask.describe(), call.mask.describe() if call.mask is not None else "none"),
        ("layer it shares its cache with", layer.kv_sharing_target, call.shares_with),
    ):
        if promised != seen:
            raise UnsupportedModelError(
                f"Layer {call.layer_index} disagrees with the model's config about its {name}: the config says "
                f"{promised}, but when it runs it is {seen}.",
                remedy=_REMEDY,
                layer=call.layer_index,
            )
