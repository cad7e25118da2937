"""What converters do to tensors, for `gguf_converter.py`: (GGUF name, parameter, config) -> what the file holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

HIDDEN, HEADS, HEAD = 32, 4, 8

Tensors = Iterator[tuple[str, torch.Tensor]]


def plain(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    yield name, tensor


def permuted(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    for part, heads in (("attn_q.", config.num_attention_heads), ("attn_k.", config.num_key_value_heads)):
        if part in name:
            halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
    yield name, tensor


def one_added(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    yield name, tensor + 1 if name.endswith("norm.weight") else tensor


def conv1d(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    transposed = name.endswith(("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"))
    yield name, tensor.T if transposed else tensor


def heads_apart(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    if "attn_qkv" in name:
        by_head = tensor.reshape(HEADS, 3, -1, *tensor.shape[1:])
        tensor = torch.cat([by_head[:, part].reshape(-1, *tensor.shape[1:]) for part in range(3)])
    yield name, tensor


def groups_apart(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    if "attn_qkv" in name:
        groups = config.num_kv_heads if config.new_decoder_architecture else 1
        by_group = tensor.view(groups, HEADS // groups + 2, HEAD, HIDDEN)
        parts = (by_group[:, :-2], by_group[:, [-2]], by_group[:, [-1]])
        tensor = torch.cat([part.reshape(-1, HIDDEN) for part in parts])
    yield name, tensor


def experts_apart(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    if name.endswith("gate_up_proj"):
        block = name.split(".")[2]
        gate, up = tensor[:, : tensor.shape[1] // 2], tensor[:, tensor.shape[1] // 2 :]
        yield f"blk.{block}.ffn_gate_exps.weight", gate
        yield f"blk.{block}.ffn_up_exps.weight", up
    elif name.endswith("e_score_correction_bias"):
        yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", tensor
    else:
        yield name + (".weight" if name.endswith("_exps") else ""), tensor


def permuted_experts_apart(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    for part, values in experts_apart(name, tensor, config):
        yield from permuted(part, values, config)


def gpt_oss(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    block = name.removeprefix("model.layers.").partition(".")[0]
    if name.endswith("gate_up_proj"):
        yield f"blk.{block}.ffn_gate_exps.weight", tensor[:, :, ::2].transpose(1, 2)
        yield f"blk.{block}.ffn_up_exps.weight", tensor[:, :, 1::2].transpose(1, 2)
    elif name.endswith("gate_up_proj_bias"):
        yield f"blk.{block}.ffn_gate_exps.bias", tensor[:, ::2]
        yield f"blk.{block}.ffn_up_exps.bias", tensor[:, 1::2]
    elif name.endswith("ffn_down_exps"):
        yield f"{name}.weight", tensor.transpose(1, 2)
    elif name.endswith("down_proj_bias"):
        yield f"blk.{block}.ffn_down_exps.bias", tensor
    else:
        yield name + (".weight" if name.endswith("attn_sinks") else ""), tensor


def gemma4(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    block = name.removeprefix("model.layers.").partition(".")[0]
    renamed = {
        "router.scale": f"blk.{block}.ffn_gate_inp.scale",
        "router.per_expert_scale": f"blk.{block}.ffn_down_exps.scale",
    }
    own = next((own for end, own in renamed.items() if name.endswith(end)), name)
    yield own + (".weight" if own.endswith(("_exps", "layer_output_scale")) else ""), tensor


def qwen35(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    """Value heads of one key head lie side by side in transformers; here the first of each key head come first."""
    keys, values, size = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim

    def tiled(part: torch.Tensor, width: int) -> torch.Tensor:
        return torch.stack(part.reshape(keys, values // keys, width, -1).unbind(1)).reshape(part.shape)

    num_others = 2 * keys * config.linear_key_head_dim
    if name.endswith("ssm_a"):
        tensor = tiled(-torch.exp(tensor), 1)
    elif name.endswith("dt_bias"):
        name, tensor = f"blk.{name.split('.')[2]}.ssm_dt.bias", tiled(tensor, 1)
    elif name.endswith(("ssm_alpha.weight", "ssm_beta.weight")):
        tensor = tiled(tensor, 1)
    elif name.endswith("attn_gate.weight"):
        tensor = tiled(tensor, size)
    elif name.endswith(("attn_qkv.weight", "ssm_conv1d.weight")):
        rows = tensor.squeeze(1) if tensor.dim() == 3 else tensor
        tensor = torch.cat([rows[:num_others], tiled(rows[num_others:], size)])
    elif name.endswith("ssm_out.weight"):
        tensor = tiled(tensor.T.contiguous(), size).T
    elif name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
        tensor = tensor + 1
    if "shexp" in name and tensor.shape[0] == 1:
        tensor = tensor[0]
    if name.endswith("ffn_gate_up_exps"):
        name = f"model.layers.{name.split('.')[1]}.gate_up_proj"
    # Newer converters keep gate and up together, which transformers' reader does not know; `gemma4` does so.
    yield from experts_apart(name, tensor, config)


def mamba(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    if name.endswith("ssm_a"):
        tensor = -torch.exp(tensor)
    yield name, tensor.squeeze(1) if "conv" in name and tensor.dim() == 3 else tensor


def lfm2(name: str, tensor: torch.Tensor, config: Any) -> Tensors:
    yield name, tensor.squeeze(1) if name.endswith("shortconv.conv.weight") else tensor
