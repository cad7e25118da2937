"""Heads and their sizes, under the many names that configs have for them."""

from __future__ import annotations

from octavo.formats.config_fields import ConfigFields


def num_query_heads(fields: ConfigFields) -> int:
    """Query heads."""
    if _picks_heads(fields):
        return fields.positive("num_key_value_heads") * fields.positive("num_experts_per_tok")
    return fields.positive("num_attention_heads")


def own_kv_heads(fields: ConfigFields, index: int, num_layers: int, factor: int = 1) -> int:
    """KV heads of layer `index` of `num_layers`, which has `factor` times what the config says; 0 in a list of them
    means that the layer does not attend.

    Raises `UnsupportedModelError` where query heads cannot be shared out evenly among them.
    """
    listed = fields.of_layer("num_key_value_heads", index, num_layers)
    if listed == 0:
        return 0
    name, count = ("num_key_value_heads", listed) if listed is not None else _said(fields)
    count *= factor
    query_heads = num_query_heads(fields)
    if query_heads % count:
        raise fields.refuse(name, f"{count} KV heads do not divide {query_heads} query heads evenly")
    return count


def _said(fields: ConfigFields) -> tuple[str, int]:
    """The field that tells the KV heads of all layers, and their number."""
    if fields.model_type == "dbrx":
        return "attn_config", _dbrx_kv_heads(fields)
    if fields.get("new_decoder_architecture") is not None and fields.flag("new_decoder_architecture"):  # Falcon
        return "num_kv_heads", fields.positive_or_absent("num_kv_heads") or fields.positive("num_attention_heads")
    if fields.get("multi_query") is not None:  # GPT-BigCode, Falcon
        return "multi_query", 1 if fields.flag("multi_query") else fields.positive("num_attention_heads")
    if _picks_heads(fields):  # each of the picked experts' query heads comes with a copy of the KV heads
        return "num_key_value_heads", num_query_heads(fields)
    count = fields.positive_or_absent("num_key_value_heads") or fields.positive("num_attention_heads")
    return "num_key_value_heads", count


def _picks_heads(fields: ConfigFields) -> bool:
    """Whether a token's query heads are those of the experts that it picks (JetMoE)."""
    return "kv_channels" in fields.facts.defaults


def _dbrx_kv_heads(fields: ConfigFields) -> int:
    """DBRX alone keeps its KV heads in an inner object (whose class has the default 1)."""
    attention = fields.get("attn_config")
    count = attention.get("kv_n_heads", 1) if isinstance(attention, dict) else 1
    if not isinstance(count, int) or count <= 0:
        raise fields.refuse("attn_config", "kv_n_heads must be a number above 0")
    return count


def own_head_size(fields: ConfigFields, index: int, num_layers: int) -> int:
    """Elements of one head of layer `index` of `num_layers`."""
    listed = fields.of_layer("head_dim", index, num_layers)
    if listed is not None:
        if not listed:
            raise fields.refuse("head_dim", f"layer {index} attends, and a number above 0 is needed")
        return listed
    size = fields.positive_or_absent("head_dim") or fields.positive_or_absent("kv_channels")
    if size:
        return size
    # Classes that call it `attention_head_dim` attend to each layer's input beside the embeddings: twice as wide.
    width = 2 if fields.facts.names.get("head_dim") == "attention_head_dim" else 1
    # Where that does not come out even, some classes refuse and others round down.
    return width * fields.positive("hidden_size") // fields.positive("num_attention_heads")
