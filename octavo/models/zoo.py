"""Find a model's classes in transformers, by the `model_type` of its config, importing only that model's modules."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.importing import complete_torch
from octavo.models.load_clock import part
from octavo.models.transformers_api import (
    CONFIG_MAPPING,
    CONFIG_MAPPING_NAMES,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    model_type_to_module_name,
)

logger = logging.getLogger(__name__)


@part("find_class")
def find_model(hf_config: dict[str, Any], *, code_folder: Path | None = None) -> tuple[Any, Any]:
    """(config object, causal-LM class) of transformers for a config dict; the text part of a composite model.

    `code_folder` holds the model's own code, and giving it is the consent to run that code: classes that the config's
    `auto_map` names are then taken from there. Without it such a model runs on transformers' own classes, where
    transformers knows its type, and is refused otherwise.

    Raises `UnsupportedModelError` when transformers has no such model type or no causal language model for it,
    `ModelFileError` when the model type's config class refuses the fields.
    """
    model_type = hf_config.get("model_type")
    own_classes = hf_config.get("auto_map")
    if isinstance(own_classes, Mapping) and "AutoModelForCausalLM" in own_classes:
        if code_folder is not None:
            return _find_own_model(own_classes, code_folder)
        if model_type not in CONFIG_MAPPING_NAMES:
            raise UnsupportedModelError(
                f"The model brings its own Python code (auto_map names {own_classes['AutoModelForCausalLM']}), and "
                "others' code runs only when asked for.",
                remedy="Read that code, then give --trust-remote-code if you trust it.",
            )
    if model_type not in CONFIG_MAPPING_NAMES:
        raise UnsupportedModelError(
            f"The config's model_type is {model_type!r}, which the installed transformers does not know.",
            remedy="Install a transformers version that has it, or use another model.",
        )
    fields = {key: value for key, value in hf_config.items() if key != "model_type"}
    try:
        config = CONFIG_MAPPING[model_type].from_dict(fields)
    except Exception as error:  # transformers raises errors of many kinds for fields it cannot use
        raise ModelFileError(
            f"transformers cannot use this config of type {model_type!r}: {error}",
            remedy="Correct the config's fields, or download it again.",
        ) from None
    quantization = getattr(config, "quantization_config", None)
    whole, config = config, config.get_text_config()
    if quantization is not None:
        config.quantization_config = quantization
    if config is not whole:
        # The head lies beside the parts, so whether it is the embedding is for the whole model to say.
        config.tie_word_embeddings = whole.tie_word_embeddings
    model_class = _causal_class(config.model_type)
    if model_class is None and config is not whole:
        # The text part may have no entry of its own: then the whole's class may be one that takes the text part.
        model_class = _causal_class(whole.model_type)
        if getattr(model_class, "config_class", None) is not type(config):
            model_class = None
    if model_class is None:
        raise UnsupportedModelError(
            f"The model type {config.model_type!r} has no causal language model in transformers.",
            remedy="Octavo runs causal language models only; use another model.",
        )
    return config, model_class


def _causal_class(model_type: str) -> Any:
    """transformers' causal-LM class for a model type; None when there is none."""
    class_name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    if class_name is None:
        return None
    if isinstance(class_name, tuple | list):
        class_name = class_name[0]
    # A class that another model type shares is not in this type's own package: transformers' root knows them all.
    package = importlib.import_module(f"transformers.models.{model_type_to_module_name(model_type)}")
    return getattr(package, class_name, None) or getattr(importlib.import_module("transformers"), class_name)


def _find_own_model(own_classes: Mapping[str, Any], folder: Path) -> tuple[Any, Any]:
    logger.warning("running Python code that the model in %s brings along (--trust-remote-code)", folder)
    complete_torch()  # nobody knows what that code asks of torch
    try:
        dynamic = importlib.import_module("transformers.dynamic_module_utils")
        config_class = dynamic.get_class_from_dynamic_module(own_classes["AutoConfig"], str(folder))
        model_class = dynamic.get_class_from_dynamic_module(own_classes["AutoModelForCausalLM"], str(folder))
        return config_class.from_pretrained(str(folder)), model_class
    except Exception as error:  # whatever the model's code raises
        raise UnsupportedModelError(
            f"The Python code that the model in {folder} brings along cannot be used: {type(error).__name__}: {error}.",
            remedy="Use another model, or one that transformers has classes for.",
        ) from error
