"""What is known of a run before weights are read: the model's files, its config, its tokenizer, and so the prompts.

Nothing here needs torch: the command line prepares while torch is imported, and refuses what cannot be before it loads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.config import EngineConfig, ModelConfig, ModelSource, read_environment
from octavo.engine.conversation import Message, list_conversations
from octavo.engine.grammar_compiler import GrammarCompiler
from octavo.engine.grammar_vocabulary import vocabulary_of
from octavo.engine.input_processor import InputProcessor, Prompt
from octavo.engine.intake import check_requests
from octavo.engine.sampling_defaults import read_sampling_defaults
from octavo.engine.tokenizer import Tokenizer, load_tokenizer
from octavo.formats.model_config import load_model_config
from octavo.formats.source import ModelFiles, locate, locate_tokenizer
from octavo.messages import StageReport
from octavo.models.reading_ahead import Form, read_ahead, stays_coded, stop_reading
from octavo.request import SamplingParams
from octavo.worker.cpu_dtype import fastest_dtype
from octavo.worker.host_memory import usable_cores

_MOST_READERS = 4
"""Threads that read weights ahead; one core is left to the thread that imports."""

_GPU_DRIVER = Path("/proc/driver/nvidia")

OnStage = Callable[[StageReport], None]


__all__ = [
    "OnStage",
    "Prepared",
    "check_prompts",
    "find_files",
    "prepare",
    "read_tokenizer",
    "render_chat",
    "stop_reading",
]


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is not loaded yet."""

    model_config: ModelConfig
    tokenizer: Tokenizer
    sampling_defaults: Mapping[str, Any] = {}


def prepare(config: EngineConfig, on_stage: OnStage) -> Prepared:
    """Find the files that `config` names and read what is not weights. Raises as the functions it calls.

    Weights that this process will load on a CPU are read ahead from here on, until they are loaded or `stop_reading`.
    """
    files = find_files(config, on_stage)
    if _loads_here(config, files):
        model = config.model
        dtype = fastest_dtype() if model.dtype == "auto" else model.dtype
        form = Form(dtype, stays_coded(model.quantization, dtype))
        read_ahead(files.weight_paths, form, min(_MOST_READERS, max(1, usable_cores() - 1)))
    defaults = read_sampling_defaults(config.model.generation_config, files)
    tokenizer = read_tokenizer(config, files, on_stage)
    return Prepared(model_config=load_model_config(files), tokenizer=tokenizer, sampling_defaults=defaults)


def _loads_here(config: EngineConfig, files: ModelFiles) -> bool:
    """Whether a GGUF model will be loaded by this process, onto a CPU; False where that is not sure yet."""
    parallel = config.parallel
    is_cpu = parallel.device == "cpu" or (parallel.device == "auto" and not _GPU_DRIVER.exists())
    is_alone = parallel.executor in ("auto", "inproc") and parallel.num_local_ranks == 1
    return files.kind == "gguf" and config.model.load_format != "dummy" and is_cpu and is_alone


def check_prompts(
    prepared: Prepared,
    config: EngineConfig,
    prompts: Prompt | Sequence[Prompt],
    sampling_params: SamplingParams | Sequence[SamplingParams],
    *,
    add_special_tokens: bool = True,
) -> None:
    """Raises the `RequestError` that `LLM.generate` would raise for a prompt or for parameters, as far as the length
    is known: where `max_model_len` is to be fitted to the memory, the model's own maximum stands for it."""
    model_config, asked = prepared.model_config, config.model.max_model_len
    longest = model_config.max_position
    length = longest if asked is None or asked < 0 else min(asked, longest)
    inputs = InputProcessor(
        prepared.tokenizer, max_model_len=length, max_position=longest, vocab_size=model_config.vocab_size
    )
    requests = inputs.process(prompts, sampling_params, add_special_tokens=add_special_tokens)
    check_requests(requests, vocab_size=model_config.vocab_size, max_model_len=length)


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message] | Sequence[Sequence[Message]],
    *,
    add_generation_prompt: bool = True,
) -> list[Prompt]:
    """The prompts that the model's chat template makes of one conversation, or of several.

    Raises `RequestError` when a message is none, when the model has no template, or the template refuses them.
    """
    return [
        tokenizer.apply_chat_template(conversation, add_generation_prompt=add_generation_prompt)
        for conversation in list_conversations(messages)
    ]


def find_files(config: EngineConfig, on_stage: OnStage) -> ModelFiles:
    """The model's files, downloaded or assembled where need be; stage `prepare_files`."""
    started = time.perf_counter()
    files = locate(config.model, read_environment())
    seconds = time.perf_counter() - started
    on_stage(StageReport(name="prepare_files", seconds=seconds, result=f"{files.kind} {files.path}"))
    return files


def compiler_of_files(config: EngineConfig, files: ModelFiles, vocab_size: int) -> GrammarCompiler:
    """A compiler of grammars for a core: it reads the tokenizer when the first grammar comes."""
    return GrammarCompiler(lambda: vocabulary_of(read_tokenizer(config, files, _unheard), vocab_size))


def _unheard(report: StageReport) -> None:
    """Nobody asks how long this stage took."""


def read_tokenizer(config: EngineConfig, files: ModelFiles, on_stage: OnStage) -> Tokenizer:
    """The tokenizer of `files`, or the one that `config` names in its stead; stage `load_tokenizer`."""
    started = time.perf_counter()
    if config.model.tokenizer is not None:
        is_same = config.model.tokenizer == config.model.model
        other = ModelSource(model=config.model.tokenizer, revision=config.model.revision if is_same else None)
        files = locate_tokenizer(other, read_environment())
    tokenizer = load_tokenizer(files, trust_remote_code=config.model.trust_remote_code)
    seconds = time.perf_counter() - started
    on_stage(StageReport(name="load_tokenizer", seconds=seconds, result=f"{tokenizer.vocab_size} tokens"))
    return tokenizer
