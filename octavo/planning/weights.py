"""What the weights take on each rank, from the tensors that a model's files list.

How tensors are divided is a rule by their names and shapes, which is what the engine does (docs/ranks.md): matrices are
cut over tensor-parallel ranks; most vectors, routers, the projections into a latent and mixers with a recurrent state
are whole on every rank, and K and V projections are cut no finer than KV heads. Layers lie on their pipeline stage, the
embedding on the first, head and last norm on the last; a tied embedding is on both. Of a composite model the text part
alone is loaded; a part for images or sound that belongs to the text model's own class is whole on every rank, and on
the first stage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from octavo.config import DTYPE_BYTES, ModelConfig
from octavo.errors import ConfigError
from octavo.formats.open_files import open_gguf
from octavo.formats.safetensors import read_safetensors_header, read_safetensors_total
from octavo.formats.source import SAFETENSORS_INDEX, ModelFiles
from octavo.formats.text_names import text_names
from octavo.kv.base import ceil_div
from octavo.planning.parameters import WeightTensor, count_tensors, is_composite, why_uncounted


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the weights."""

    total_bytes: int
    by_rank: tuple[int, ...]
    source: str
    """Where the total is from, for people."""


def stored_tensors(files: ModelFiles, dtype: str) -> list[WeightTensor]:
    """The tensors that the weight files list, from their headers, plain floats of safetensors as they are in `dtype`.
    Of a composite model those of the text part, under the names that the text model alone has.

    Raises `ModelFileError` for a damaged file.
    """
    tensors: list[WeightTensor] = []
    for path in files.weight_paths:
        if files.kind == "gguf":
            found = open_gguf(path).tensors
            tensors += [WeightTensor(name, tuple(info.shape), info.num_bytes) for name, info in found.items()]
        else:
            header = read_safetensors_header(path)
            tensors += [
                WeightTensor(
                    name,
                    info.shape,
                    math.prod(info.shape) * DTYPE_BYTES[dtype] if info.dtype in _PLAIN_FLOATS else info.num_bytes,
                )
                for name, info in header.items()
            ]
    if files.kind == "gguf":
        return tensors
    names = text_names([tensor.name for tensor in tensors])
    return [tensor._replace(name=names[tensor.name]) for tensor in tensors if tensor.name in names]


def divide(
    tensors: Iterable[WeightTensor], stages: Sequence[range], *, tensor_parallel_size: int, num_kv_heads: int
) -> tuple[int, ...]:
    """Bytes by rank, stage by stage. With one rank that is the sum of all."""
    tensors = list(tensors)
    stage_of = {layer: stage for stage, layers in enumerate(stages) for layer in layers}
    is_tied = not any(_HEAD.search(tensor.name) for tensor in tensors)
    with_states = {mixer[1] for tensor in tensors if (mixer := _STATE.match(tensor.name)) is not None}
    by_stage = [0] * len(stages)
    for tensor in tensors:
        mixer = _MIXER.match(tensor.name)
        is_whole = mixer is not None and mixer[0] in with_states
        is_other = _OTHER_PART.search(tensor.name) is not None
        parts = 1 if is_whole or is_other else _parts(tensor, tensor_parallel_size, num_kv_heads)
        num_bytes = ceil_div(tensor.num_bytes, parts)
        layer = None if is_other else _LAYER.search(tensor.name)
        if layer is not None:
            by_stage[stage_of.get(int(layer[1]), -1)] += num_bytes
        elif is_other:
            by_stage[0] += num_bytes
        elif _EMBEDDING.search(tensor.name):
            for stage in {0, len(stages) - 1} if is_tied else {0}:
                by_stage[stage] += num_bytes
        else:
            by_stage[-1] += num_bytes
    return tuple(num_bytes for num_bytes in by_stage for _ in range(tensor_parallel_size))


_PLAIN_FLOATS = ("F32", "F16", "BF16")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blk|blocks|block)\.(\d+)\.")
_OTHER_PART = re.compile(r"vision|visual|audio|image|multi_modal|mm_")
_EMBEDDING = re.compile(r"embed_tokens|wte|token_embd|embed_in|word_embeddings|(?:^|\.)embeddings?\.")
_HEAD = re.compile(r"lm_head|(?:^|\.)output\.|embed_out")
_WHOLE = re.compile(
    r"q_a_proj|kv_a_proj|attn_q_a|attn_kv_a|(?:mlp|mixer|moe|feed_forward)\.(?:gate|router)\.|router|ffn_gate_inp"
    r"|\.ssm_|\.shortconv\.|down_proj_bias"
)
_CUT_VECTOR = re.compile(r"\.(?:[qkv]_proj|gate_proj|up_proj)\.bias$|\.sinks$")
"""Biases of what is cut by its outputs, and one number for each query head."""
_KEY_VALUE = re.compile(r"\.(?:k_proj|v_proj|attn_k|attn_v)\.")
_MIXER = re.compile(r"(?:.*\.)?(?:layers|h|blocks|block)\.\d+\.\w+\.")
_STATE = re.compile(rf"({_MIXER.pattern})(?:A_log$|\w*conv\w*\.)")
"""A tensor that only a mixer with a recurrent state has: a decay, or a convolution over the last tokens."""


def _parts(tensor: WeightTensor, num_ranks: int, num_kv_heads: int) -> int:
    """Over how many ranks the tensor is cut."""
    is_vector = sum(size > 1 for size in tensor.shape) < 2
    if (is_vector and not _CUT_VECTOR.search(tensor.name)) or _WHOLE.search(tensor.name):
        return 1
    return min(num_ranks, num_kv_heads) if _KEY_VALUE.search(tensor.name) else num_ranks


def find_weights(
    files: ModelFiles,
    config: Mapping[str, Any],
    model: ModelConfig,
    stages: Sequence[range],
    *,
    tensor_parallel_size: int,
    dtype: str,
    given: int | None,
) -> Weights:
    """What the weights take: `given`, or as the files list them, or as the config says in `dtype`.

    Raises `ConfigError` where none of these tells.
    """
    num_kv_heads = max((layer.num_kv_heads for layer in model.layers), default=1) or 1
    tensors, source = stored_tensors(files, dtype), f"{files.path.name}: {_files_text(files)}"
    has_parts = is_composite(config)
    if has_parts:  # some keep the text model's own names, and other parts beside them
        tensors = [tensor for tensor in tensors if not _OTHER_PART.search(tensor.name)]
    if not tensors:
        counted = count_tensors(config, dtype)
        tensors, source = counted or [], f"counted from the config, in {dtype}"
    by_rank = divide(tensors, stages, tensor_parallel_size=tensor_parallel_size, num_kv_heads=num_kv_heads)
    total = sum(tensor.num_bytes for tensor in tensors)
    # The total of an index is that of all parts.
    listed = None if files.weight_paths or (has_parts and tensors) else _listed_total(files)
    if given is not None or listed is not None:
        known, source = (given, "--weights") if given is not None else (listed or 0, f"{SAFETENSORS_INDEX}: total_size")
        if known != total:
            by_rank = _in_proportion(known, by_rank, total, num_ranks=len(stages) * tensor_parallel_size)
            total = known
    elif not tensors:
        raise ConfigError(
            f"The weights of {model.name} are unknown: there are no files of them, and {why_uncounted(config)}.",
            remedy="Give --weights SIZE, or the cache's own bytes with --kv-memory.",
        )
    return Weights(total_bytes=total, by_rank=by_rank, source=source)


def _files_text(files: ModelFiles) -> str:
    count = len(files.weight_paths)
    return f"{count} file{'s' if count != 1 else ''} of weights"


def _listed_total(files: ModelFiles) -> int | None:
    index = files.path / SAFETENSORS_INDEX
    return read_safetensors_total(index) if files.kind == "folder" and index.is_file() else None


def _in_proportion(known: int, by_rank: tuple[int, ...], total: int, *, num_ranks: int) -> tuple[int, ...]:
    """`known` bytes, divided as the tensors are, or evenly where they are not known."""
    if not total:
        return (ceil_div(known, num_ranks),) * num_ranks
    return tuple(ceil_div(known * own, total) for own in by_rank)
