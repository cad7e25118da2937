"""The one door to transformers: everything of it that Octavo uses, imported without what Octavo does not use.

A plain import of one of transformers' modelling modules takes three times as long as it must. It reads the source of
every model there is (twice, to know which class lies where), and pulls in torch's compiler, sympy and torch's
distributed tensors, none of which a forward needs. So, when nothing has imported transformers before:

- `transformers` and `transformers.models` start as shells that know only their folder. The first name asked of a shell
  that is no submodule opens the real package, so `from transformers import AutoModel` works afterwards as before.
- transformers is told that torch has no distributed support, which it must cope with on some builds of torch. Its own
  tensor parallelism and FSDP stay off in this process; Octavo's ranks do not use them.
- `torch._dynamo` is stood in for by the few decorators that transformers applies while it is imported. They change only
  how functions compile, which Octavo does not do; any other name opens the real module.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_LOADING = "transformers.core_model_loading"

_DYNAMO = "torch._dynamo"
_DYNAMO_NAMES = ("allow_in_graph", "assume_constant_result", "disable")
_DYNAMO_VMAP = "torch._dynamo._trace_wrapped_higher_order_op"


class _PackageShell(ModuleType):
    """A package of which only the folder is known. Owns: nothing. Never: stays once a name of the package is needed."""

    def __init__(self, name: str, folder: str) -> None:
        super().__init__(name)
        spec = ModuleSpec(name, None, origin=f"{folder}/__init__.py", is_package=True)
        spec.submodule_search_locations = [folder]
        self.__spec__ = spec
        self.__path__ = [folder]
        self.__file__ = spec.origin
        self.__package__ = name

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return importlib.metadata.version(self.__name__)
        if name.startswith("__"):
            raise AttributeError(name)
        if importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        return getattr(self._open(), name)

    def _open(self) -> ModuleType:
        """The real package, run now if this shell still stands in `sys.modules`."""
        if sys.modules.get(self.__name__) is self:
            spec = importlib.util.spec_from_file_location(
                self.__name__, self.__file__, submodule_search_locations=list(self.__path__)
            )
            assert spec is not None and spec.loader is not None
            package = importlib.util.module_from_spec(spec)
            sys.modules[self.__name__] = package
            spec.loader.exec_module(package)
        return sys.modules[self.__name__]


class _DynamoStandIn(ModuleType):
    """`torch._dynamo` while transformers is imported: decorators that decorate nothing. Owns, never: nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        for decorator in _DYNAMO_NAMES:
            setattr(self, decorator, _undecorated)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _remove_stand_ins()
        return getattr(importlib.import_module(self.__name__), name)


def _undecorated(function: Any = None, *args: Any, **kwargs: Any) -> Any:
    return (lambda decorated: decorated) if function is None else function


class _VmapHelper:
    """Becomes the real context manager of that name once somebody enters it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module(_DYNAMO_VMAP).TransformGetItemToIndex(*args, **kwargs)


def _remove_stand_ins() -> None:
    for name in (_DYNAMO, _DYNAMO_VMAP):
        if isinstance(sys.modules.get(name), _DynamoStandIn):
            del sys.modules[name]


@contextmanager
def _narrowly() -> Iterator[None]:
    """Import transformers inside this as the module's top says; does nothing when it is imported already."""
    found = importlib.util.find_spec("transformers")
    if "transformers" in sys.modules or found is None or not found.submodule_search_locations:
        yield
        return
    folder = found.submodule_search_locations[0]
    sys.modules["transformers"] = _PackageShell("transformers", folder)
    sys.modules["transformers.models"] = _PackageShell("transformers.models", f"{folder}/models")
    if _DYNAMO not in sys.modules:
        sys.modules[_DYNAMO] = _DynamoStandIn(_DYNAMO)
        sys.modules[_DYNAMO_VMAP] = _DynamoStandIn(_DYNAMO_VMAP)
        sys.modules[_DYNAMO_VMAP].__dict__["TransformGetItemToIndex"] = _VmapHelper
    _answer_without_distributed()
    # `processing_utils` runs the package's own `__init__` for a module object that only image models look at.
    utils: Any = importlib.import_module("transformers.utils")
    run_package = utils.direct_transformers_import
    utils.direct_transformers_import = lambda *args, **kwargs: sys.modules["transformers"]
    try:
        importlib.import_module("transformers.processing_utils")
        yield
    finally:
        utils.direct_transformers_import = run_package
        _remove_stand_ins()


def _answer_without_distributed() -> None:
    """Let transformers ask once whether torch has distributed support, and remember that it has not."""
    is_available = torch.distributed.is_available
    try:
        torch.distributed.is_available = lambda: False
        importlib.import_module("transformers.utils.import_utils").is_torch_distributed_available()
    finally:
        torch.distributed.is_available = is_available


class MetaParameters(TorchFunctionMode):
    """What a model's constructor allocates without filling it goes to the meta device; everything else stays real.

    transformers builds whole models on the meta device. There torch computes even `arange` with its Python reference
    operators, and those import its compiler: a second at every start, for a handful of rotary frequencies.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


@contextmanager
def without_values() -> Iterator[None]:
    """Models constructed inside this have their buffers, but neither memory nor values for their parameters."""
    with MetaParameters(), no_init_weights():
        yield


def auto_tokenizer() -> Any:
    """transformers' `AutoTokenizer`, imported for the few models that need it: 40 ms more than the rest of this."""
    return importlib.import_module("transformers.models.auto.tokenization_auto").AutoTokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Inside this, transformers says nothing below an error and shows no progress.

    What it says once in a process (that it falls back to its own implementations, at their first call) is said then.
    """
    verbosity, had_progress = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    try:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_progress:
            transformers_logging.enable_progress_bar()


class WeightConversions:
    """How transformers makes the parameters of a model of a checkpoint's tensors. Owns: its patterns for that model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._parameters = model.state_dict()
        mapping = sys.modules["transformers.modeling_utils"].get_model_conversion_mapping(model)
        converter: Any = sys.modules[_LOADING].WeightConverter
        self._converters = [entry for entry in mapping if isinstance(entry, converter)]
        self._renamings = [entry for entry in mapping if not isinstance(entry, converter)]

    def parameters_of(self, names: Iterable[str]) -> dict[str, tuple[str, str | None]]:
        """For each tensor's name the parameter that it belongs to (of several the first), and the pattern of the
        conversion that it goes through, or None."""
        loading: Any = sys.modules[_LOADING]
        ordered = sorted(names, key=loading.dot_natural_key)  # as it is done when weights are loaded
        prefix = self._model.base_model_prefix
        return {
            name: loading.rename_source_key(name, self._renamings, self._converters, prefix, self._parameters)
            for name in ordered
        }

    def are_told_apart_by_size(self, pattern: str) -> bool:
        """Whether the conversion makes several parameters of one tensor, and looks up in the model how long each is."""
        split: Any = sys.modules[_LOADING].Split
        found = next(entry for entry in self._converters if pattern in entry.source_patterns)
        return any(isinstance(operation, split) for operation in found.operations)

    def convert(self, parameter: str, sources: Iterable[tuple[str, str, torch.Tensor]]) -> torch.Tensor | None:
        """What `parameter` becomes of tensors, each given with its name and pattern; None where that fails or gives
        several parameters."""
        given = list(sources)
        found = next(entry for entry in self._converters if given[0][1] in entry.source_patterns)
        mapping = copy.deepcopy(found)
        for name, pattern, tensor in given:
            mapping.add_tensor(parameter, name, pattern, tensor)
        try:
            made = mapping.convert(parameter, model=self._model, config=self._model.config)
        except Exception:  # whatever transformers' code raises: these tensors are not what it was made for
            return None
        values = made.get(parameter) if len(made) == 1 else None
        return values[0] if isinstance(values, list) else values


@contextmanager
def narrow_loading(
    model_class: Any,
    *,
    has_exact_names: bool = False,
    keep: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
) -> Iterator[None]:
    """Inside this, `model_class.from_pretrained` constructs `without_values`, not on the meta device.

    With `has_exact_names` the weights bear the parameters' names already: the renamings of all the checkpoints that
    transformers knows, a thousand patterns, are not compiled to look for others. `keep` gives what becomes of a
    parameter of some name and value, as soon as that is there.
    """
    contexts = model_class.get_init_context
    loading: Any = sys.modules["transformers.modeling_utils"]
    converting: Any = sys.modules[_LOADING]
    renamings = loading.get_model_conversion_mapping
    set_parameter = converting.set_param_for_module

    def set_kept(model: Any, name: str, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return set_parameter(model, name, value if keep is None else keep(name, value), *args, **kwargs)

    def narrow_contexts(*args: Any, **kwargs: Any) -> list[Any]:
        made = contexts(*args, **kwargs)
        return [without_values() if isinstance(context, torch.device) else context for context in made]

    try:
        model_class.get_init_context = narrow_contexts
        if has_exact_names:
            loading.get_model_conversion_mapping = lambda *args, **kwargs: []
        converting.set_param_for_module = set_kept
        yield
    finally:
        converting.set_param_for_module = set_parameter
        del model_class.get_init_context
        loading.get_model_conversion_mapping = renamings


with _narrowly():
    from transformers.initialization import no_init_weights
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASK_FUNCTIONS
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.modeling_outputs import ModelOutput
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface, PreTrainedModel
    from transformers.models.auto.configuration_auto import (
        CONFIG_MAPPING,
        CONFIG_MAPPING_NAMES,
        model_type_to_module_name,
    )
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.utils import logging as transformers_logging

__all__ = [
    "ALL_ATTENTION_FUNCTIONS",
    "CONFIG_MAPPING",
    "CONFIG_MAPPING_NAMES",
    "MASK_FUNCTIONS",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AttentionInterface",
    "AttentionMaskInterface",
    "ModelOutput",
    "PreTrainedModel",
    "WeightConversions",
    "auto_tokenizer",
    "eager_mask",
    "model_type_to_module_name",
    "narrow_loading",
    "quiet",
    "without_values",
]
