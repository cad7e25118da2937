"""Cut a model down to one pipeline stage: before its weights are read by structure, afterwards by running it.

Before: decoder layers are the one list of as many modules as the config has layers; those of other stages make room for
stand-ins, so their weights are never read. Afterwards a forward over a few tokens shows that the cut is sound: layers
run once each, in order; each works on the very tensor that the one before returned; and nothing else goes from one to
another, nor from the embedding to layers behind it. A model of which that is not so is refused by what differs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from octavo.errors import UnsupportedModelError
from octavo.models.adoption import calls_interface, use_own_attention
from octavo.models.attention_interface import AttentionHook, AttentionInput, clear_hook, set_hook
from octavo.models.construction import after_construction
from octavo.models.load_clock import part
from octavo.models.stage import Stage
from octavo.models.stage_parts import Border, Nothing, OtherEmbedding, OtherLayer, OtherPart, given_hidden

_NUM_TOKENS = 4
_MOST_RETURNED = 4
"""Most things that a layer is tried to return."""

_REMEDY = "Use --pipeline-parallel-size 1, or another model."


class StageCut:
    """One stage of one model. Owns: where it meets its neighbours, and which weights are theirs."""

    def __init__(self, stage: Stage, *, hidden_size: int, vocab_size: int, dtype: torch.dtype) -> None:
        self.stage = stage
        self.border = Border(hidden_size, dtype)
        self.left_out: set[str] = set()
        """Names of the weights of other stages."""
        self._hidden_size, self._vocab_size, self._dtype = hidden_size, vocab_size, dtype

    def config_for(self, config: Any) -> Any:
        """transformers' config for this stage: one that has neither embedding nor head ties no weights."""
        if self.stage.is_first or self.stage.is_last or not getattr(config, "tie_word_embeddings", False):
            return config
        config = copy.deepcopy(config)
        config.tie_word_embeddings = False
        return config

    def constructing(self, model_class: Any) -> AbstractContextManager[None]:
        """Models of this class constructed inside are cut as soon as they are."""
        return after_construction(model_class, self.cut)

    def cut(self, model: Any) -> None:
        """Put stand-ins for the parts of other stages into a model without weights, or with random ones.

        Raises `UnsupportedModelError` for a model whose layers are not in one list.
        """
        before = set(model.state_dict())
        layers = self._layers(model)
        for index, layer in enumerate(list(layers)):
            if index not in self.stage.layers:
                layers[index] = OtherLayer(layer, self.border, is_earlier=index < self.stage.layers.start)
        # A tied head and the embedding are one weight, which files have once: both stay until it is read.
        if not getattr(model.config, "tie_word_embeddings", False):
            self._drop_ends(model)
        self.left_out = before - set(model.state_dict())

    @part("examine_stage")
    @torch.inference_mode()
    def finish(self, model: Any) -> None:
        """Make the stage of a model that has its weights whole.

        Raises `UnsupportedModelError`, with what differs, for a model that cannot be cut.
        """
        if not calls_interface(model):
            use_own_attention(model)
        self._drop_ends(model)
        layers = self._layers(model)
        behind = self._fit_form(model, layers)
        if not self.stage.is_first:
            self._check_embedding(model, layers)
        if not self.stage.is_last:
            self._check_sent(model)
            for module in behind:
                _replace(model, module, OtherPart(module, self._dtype))
        self.border.sent = None

    def _fit_form(self, model: Any, layers: nn.ModuleList) -> list[nn.Module]:
        """Let stand-ins return what layers do; the modules that the base model runs behind them."""
        tried: list[_Run] = []
        for count in range(_MOST_RETURNED + 1):
            self.border.num_returned = count
            run = self._run(model, layers)
            if run.fault is None:
                return run.behind
            tried.append(run)
        fitting = [run for count, run in enumerate(tried) if run.num_returned == count]
        raise self._refusal(model, (fitting or tried)[0].fault or "")

    def _layers(self, model: Any) -> nn.ModuleList:
        lists = [
            (path, module)
            for path, module in model.named_modules()
            if isinstance(module, nn.ModuleList) and len(module) == self.stage.num_layers
        ]
        # Of encoders for other inputs, which may have as many layers, lists lie deeper.
        depth = min((path.count(".") for path, _ in lists), default=0)
        lists = [(path, one) for path, one in lists if path.count(".") == depth]
        if len(lists) != 1:
            raise self._refusal(
                model,
                f"it keeps them in {len(lists) or 'no'} lists of {self.stage.num_layers}, where there must be one",
            )
        layers = lists[0][1]
        if sum(len(list(layer.parameters())) for layer in layers) != len(list(layers.parameters())):
            raise self._refusal(model, "some of their weights are the same for several layers")
        return layers

    def _drop_ends(self, model: Any) -> None:
        """Put stand-ins for the embedding and the head, where they are another stage's."""
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        if not self.stage.is_first and not isinstance(embedding, OtherEmbedding):
            if not hasattr(embedding, "embedding_dim"):
                raise self._refusal(model, f"their input comes from a {type(embedding).__name__}, not an embedding")
            _replace(model, embedding, OtherEmbedding(embedding, self.border, self._dtype))
        if not self.stage.is_last and isinstance(head, nn.Module) and not isinstance(head, OtherPart):
            _replace(model, head, OtherPart(head, self._dtype))

    def _run(self, model: Any, layers: nn.ModuleList) -> _Run:
        """One forward over a few tokens."""
        run = _Run(layers)
        modules = list(model.modules())
        for module in modules:
            set_hook(module, _Passing())
        tokens = torch.arange(1, _NUM_TOKENS + 1, device=model.device) * 7919 % self._vocab_size
        try:
            with run.watch(_owner(model, layers)):
                model(input_ids=tokens[None], use_cache=False)
            run.check_order()
        except _Unsound as error:
            run.fault = str(error)
        except Exception as error:  # whatever transformers' code raises, the user gets one sentence
            told = (str(error).splitlines() or [type(error).__name__])[0]
            run.fault = f"they need more of the layers before than their hidden states ({told})"
        finally:
            for module in modules:
                clear_hook(module)
        return run

    def _check_embedding(self, model: Any, layers: nn.ModuleList) -> None:
        """Nothing but what the stage before sends reaches the own layers: the embedding holds no numbers."""
        embedding, ends = model.get_input_embeddings(), []
        for filling in (0.0, float("nan")):
            embedding.filling = filling
            ends.append(_hidden_of(self._run(model, layers).returned[self.stage.layers[-1]]))
        if bool(torch.isfinite(ends[0]).all()) and not torch.equal(*ends):
            raise self._refusal(model, "they read the embedding beside the hidden states")

    def _check_sent(self, model: Any) -> None:
        sent, wanted = self.border.sent, (1, _NUM_TOKENS, self._hidden_size)
        assert sent is not None
        if tuple(sent.shape) != wanted:
            raise self._refusal(model, f"what they hand on has the shape {list(sent.shape)}, not {list(wanted)}")
        if sent.dtype != self._dtype:
            raise self._refusal(model, f"what they hand on is {sent.dtype}, and the model {self._dtype}")

    def _refusal(self, model: Any, fault: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"The layers of {type(model).__name__} cannot be divided over pipeline stages: {fault}.", remedy=_REMEDY
        )


class _Unsound(Exception):
    """The layers do more than to hand on hidden states."""


class _Passing(AttentionHook):
    """Answers attention with the values, so that a forward goes through. Owns, never: nothing."""

    def attend(self, given: AttentionInput) -> torch.Tensor:
        return given.own_values()


@dataclass(eq=False)
class _Run:
    """One forward, layer by layer. Owns: what layers have returned so far."""

    layers: nn.ModuleList
    fault: str | None = None
    """Why it does not do; None where it does."""
    num_returned: int | None = None
    """How own layers return hidden states, as `Border.num_returned`; None where none was reached."""
    behind: list[nn.Module] = field(default_factory=list)
    """What the base model runs once the last layer is done, and not earlier, on what that returned."""
    before_end: list[nn.Module] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    returned: list[Any] = field(default_factory=list)
    before: dict[int, Any] = field(default_factory=dict)

    @contextmanager
    def watch(self, owner: nn.Module) -> Iterator[None]:
        """Look at the layers' calls inside this; `owner` has the list of layers."""
        handles = []
        for index, layer in enumerate(self.layers):
            handles.append(
                layer.register_forward_pre_hook(
                    lambda _layer, args, kwargs, index=index: self._enter(index, args, kwargs), with_kwargs=True
                )
            )
            handles.append(
                layer.register_forward_hook(
                    lambda layer, args, kwargs, result, index=index: self._leave(index, layer, args, kwargs, result),
                    with_kwargs=True,
                )
            )
        others = [child for child in owner.children() if child is not self.layers]
        handles += [child.register_forward_hook(self._end) for child in others]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def check_order(self) -> None:
        if self.order != list(range(len(self.layers))):
            raise _Unsound("they do not run once each, one after the other")

    def _enter(self, index: int, args: Any, kwargs: Any) -> None:
        self.order.append(index)
        hidden = given_hidden(args, kwargs)
        if not isinstance(hidden, torch.Tensor):
            raise _Unsound(f"layer {index} is not given its hidden states first")
        if self.returned and hidden is not _hidden_of(self.returned[-1]):
            raise _Unsound(f"layer {index} works on something else than what layer {index - 1} returned")
        beside = [_flat(result[1:]) for result in self.returned if isinstance(result, tuple | list)]
        tensors = {id(extra) for extras in beside for extra in extras if isinstance(extra, torch.Tensor)}
        for value in _flat([args[1:], {name: kwargs[name] for name in kwargs if name != "hidden_states"}]):
            if isinstance(value, Nothing) or id(value) in tensors:
                raise _Unsound(f"layer {index} is given what an earlier one returned beside its hidden states")
        self.before[index] = _contents([args, kwargs])

    def _leave(self, index: int, layer: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if not isinstance(layer, OtherLayer):
            self.num_returned = len(result) if isinstance(result, tuple | list) else 0
        if self.before[index] != _contents([args, kwargs]):
            raise _Unsound(f"layer {index} leaves something for others in what it is given")
        if not isinstance(_hidden_of(result), torch.Tensor):
            raise _Unsound(f"layer {index} does not return its hidden states first")
        self.returned.append(result)

    def _end(self, module: nn.Module, args: Any, _result: Any) -> None:
        if len(self.returned) < len(self.layers):
            self.before_end.append(module)
        elif args and args[0] is _hidden_of(self.returned[-1]) and not any(module is one for one in self.before_end):
            self.behind.append(module)


def _hidden_of(result: Any) -> Any:
    return result[0] if isinstance(result, tuple | list) and result else result


def _flat(value: Any) -> Iterator[Any]:
    """What lies in these containers."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for member in value:
            yield from _flat(member)
    else:
        yield value


def _contents(value: Any) -> Any:
    """Which objects lie where in these containers."""
    if isinstance(value, dict):
        return {name: _contents(member) for name, member in value.items()}
    return [_contents(member) for member in value] if isinstance(value, list | tuple) else id(value)


def _owner(model: nn.Module, layers: nn.ModuleList) -> nn.Module:
    return next(module for module in model.modules() if any(child is layers for child in module.children()))


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` is a part of `model`."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child is old:
                setattr(module, name, new)
