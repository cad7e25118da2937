"""What llama.cpp's converters do to tensors besides renaming them, undone.

- The rows of Q and K are permuted where llama.cpp rotates neighbouring pairs and transformers halves (Llama and its
  kin).
- Norms that multiply by `1 + weight` are stored as `1 + weight` (Gemma, Nemotron).
- Q, K and V of one matrix lie head by head in transformers, one after another in GGUF (Falcon, GPT-NeoX, BLOOM).
- Matrices of transformers' Conv1D (GPT-2) and the experts of gpt-oss are transposed.
- The gate and up matrices of all experts, one tensor each, are one parameter in transformers.
- Mamba's A is stored as -exp(A_log), as is that of the gated delta rule (Qwen 3.5), whose value heads lie by their
  place among those of one key head, and by key head in transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch

Undo = Callable[[str, torch.Tensor, Any], torch.Tensor]
"""(GGUF name, tensor, transformers config) -> tensor as transformers has it."""

Halves = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Parameter of all experts' gate and up matrices -> the views of gate and of up."""


def _unchanged(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    return tensor


def _consecutive(parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = parameter.chunk(2, dim=1)
    return gate, up


def _interleaved(parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return parameter[..., ::2], parameter[..., 1::2]


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """How one architecture's tensors become transformers' parameters."""

    undo: Undo = _unchanged
    halves: Halves = _consecutive
    exact: tuple[str, ...] = ()
    """Ends of the names of matrices that are undone in float32, whatever the dtype of computation."""


def _unpermute_rotary(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    if ".attn_q." in name:
        num_heads = config.num_attention_heads
    elif ".attn_k." in name:
        num_heads = config.num_key_value_heads
    else:
        return tensor
    pairs = tensor.view(num_heads, tensor.shape[0] // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _norm_minus_one(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    return tensor - 1 if name.endswith("norm.weight") else tensor


def _interleave_heads(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """[3 x heads x size, ...], all Q first, to [heads x (q, k, v) x size, ...]."""
    if ".attn_qkv." not in name:
        return tensor
    heads = config.num_attention_heads
    parts = tensor.view(3, heads, tensor.shape[0] // 3 // heads, *tensor.shape[1:])
    return parts.transpose(0, 1).reshape(tensor.shape)


def _interleave_head_groups(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """All Q, all K, all V to groups of the Q heads that share a K and a V head: (q, ..., q, k, v) each."""
    if ".attn_qkv." not in name:
        return tensor
    groups = config.num_kv_heads if config.new_decoder_architecture or not config.multi_query else 1
    size = tensor.shape[0] // (config.num_attention_heads + 2 * groups)
    rest = tensor.shape[1:]
    apart = torch.split(tensor, [config.num_attention_heads * size, groups * size, groups * size])
    parts = [part.view(groups, part.shape[0] // groups, *rest) for part in apart]
    return torch.cat(parts, dim=1).reshape(tensor.shape)


_CONV1D_TENSORS = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")


def _transpose_conv1d(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    return tensor.T.contiguous() if name.endswith(_CONV1D_TENSORS) else tensor


def _transpose_experts(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    return tensor.transpose(1, 2).contiguous() if name.endswith("_exps.weight") else tensor


def _logarithm_of_decay(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    return torch.log(-tensor) if name.endswith(".ssm_a") else tensor


def _undo_delta(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Norms are stored as `1 + weight` but for that of the states; value heads lie the other way round."""
    part = name.partition(".")[2].partition(".")[2]
    size = config.linear_value_head_dim
    if part == "ssm_a":
        return _by_key_head(torch.log(-tensor), 0, 1, config)
    if part in ("ssm_dt.bias", "ssm_alpha.weight", "ssm_beta.weight"):
        return _by_key_head(tensor, 0, 1, config)
    if part == "attn_gate.weight":
        return _by_key_head(tensor, 0, size, config)
    if part in ("attn_qkv.weight", "ssm_conv1d.weight"):
        num_others = 2 * config.linear_key_head_dim * config.linear_num_key_heads
        return torch.cat([tensor[:num_others], _by_key_head(tensor[num_others:], 0, size, config)])
    if part == "ssm_out.weight":
        return _by_key_head(tensor, 1, size, config)
    return tensor if part == "ssm_norm.weight" else _norm_minus_one(name, tensor, config)


def _by_key_head(tensor: torch.Tensor, dim: int, size: int, config: Any) -> torch.Tensor:
    """Value heads of `size` numbers each along `dim`: from [place, key head] to [key head, place]."""
    heads = config.linear_num_key_heads
    shape = tensor.shape
    apart = tensor.reshape(*shape[:dim], config.linear_num_value_heads // heads, heads, size, *shape[dim + 1 :])
    return apart.transpose(dim, dim + 1).reshape(shape)


CONVERSIONS: dict[str, Conversion] = {
    **dict.fromkeys(("llama", "granite", "smollm3", "olmo", "arcee"), Conversion(undo=_unpermute_rotary)),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "nemotron"), Conversion(undo=_norm_minus_one)),
    **dict.fromkeys(("bloom", "gptneox"), Conversion(undo=_interleave_heads)),
    "falcon": Conversion(undo=_interleave_head_groups),
    "gpt2": Conversion(undo=_transpose_conv1d),
    "gpt-oss": Conversion(undo=_transpose_experts, halves=_interleaved),
    **dict.fromkeys(("qwen35", "qwen35moe"), Conversion(undo=_undo_delta)),
    "mamba": Conversion(undo=_logarithm_of_decay, exact=(".ssm_a",)),
}
"""By GGUF architecture; one that is absent stores what transformers has."""
