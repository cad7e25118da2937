"""Modules that compute attention themselves: what is seen of them, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from octavo.errors import UnsupportedModelError
from octavo.models.adoption import adopt_attention, calls_interface, own_attention
from octavo.models.attention_probe import AttentionProbe
from octavo.models.mask_kind import MaskKind
from octavo.models.zoo import find_model
from tests.models.architectures import ARCHITECTURES, WINDOW


def build(name: str, **changes: Any) -> Any:
    config, model_class = find_model({"model_type": name.partition("-")[0], **ARCHITECTURES[name].fields, **changes})
    torch.manual_seed(0)
    model = model_class._from_config(config, dtype=torch.float32, attn_implementation=own_attention(model_class))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def probe(model: Any, length: int = 96) -> AttentionProbe:
    with torch.inference_mode():
        adopt_attention(model, length=length, vocab_size=100)
        found = AttentionProbe(model, length=length, vocab_size=100)
        found.check_independence()
    return found


def test_who_calls_the_interface() -> None:
    assert not calls_interface(build("bloom"))
    assert calls_interface(build("llama"))


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon-alibi"])
def test_slopes_are_seen(name: str) -> None:
    heads = {"n_heads": 8} if name == "mpt" else {"n_head": 8} if name == "bloom" else {"num_attention_heads": 8}
    calls = probe(build(name, **heads)).calls
    expected = torch.tensor([2.0**-power for power in range(1, 9)])
    if name == "falcon-alibi":  # Its default way hands the bias over inside the mask, scaled as scores are.
        expected = expected * 4**-0.5
    for call in calls:
        assert call.alibi_slopes is not None
        torch.testing.assert_close(call.alibi_slopes, expected)
        assert call.mask == MaskKind("full")
        assert call.scale == pytest.approx(call.head_size**-0.5)


def test_copies_of_keys_are_seen() -> None:
    assert {(call.num_heads, call.num_kv_heads) for call in probe(build("falcon-grouped")).calls} == {(4, 2)}
    assert {(call.num_heads, call.num_kv_heads) for call in probe(build("falcon")).calls} == {(4, 1)}


def test_a_window_in_a_buffer_is_seen() -> None:
    model = build("gpt_neo")
    assert [call.mask for call in probe(model).calls] == [MaskKind("window", WINDOW), MaskKind("full")] * 2
    assert {call.scale for call in probe(build("gpt_neo")).calls} == {1.0}


def test_a_bias_that_is_linear_only_near_the_query_is_refused() -> None:
    """Falcon rounds its bias to bfloat16, whatever the dtype: exact up to 256 tokens."""
    fields = {"max_position_embeddings": 400}
    assert len(probe(build("falcon-alibi", **fields), 250).calls) == 4
    with pytest.raises(UnsupportedModelError, match=r"not linear in .* beyond (\d+) tokens") as caught:
        probe(build("falcon-alibi", **fields), 400)
    longest = int(caught.value.remedy.split("--max-model-len ")[1].split(",")[0])
    assert longest > 250
    assert len(probe(build("falcon-alibi", **fields), longest).calls) == 4
    with pytest.raises(UnsupportedModelError):
        probe(build("falcon-alibi", **fields), longest + 1)


def test_a_bias_that_only_sixteen_bits_round_is_left_to_them() -> None:
    fields = {"num_attention_heads": 32, "hidden_size": 128}
    with pytest.raises(UnsupportedModelError, match="Use --dtype bfloat16"):
        probe(build("falcon-alibi", **fields))
    assert len(probe(build("falcon-alibi", **fields).to(torch.bfloat16)).calls) == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon-alibi", "gpt_neo"])
def test_roundings_of_sixteen_bits_are_no_bends(name: str, dtype: torch.dtype) -> None:
    exact = [call.alibi_slopes for call in probe(build(name)).calls]
    rounded = [call.alibi_slopes for call in probe(build(name).to(dtype)).calls]
    for ours, expected in zip(rounded, exact, strict=True):
        assert (ours is None) == (expected is None)
        if ours is not None:
            assert torch.allclose(ours, expected, rtol=2e-3)


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Any], tuple[torch.Tensor, None]]


def _softmaxed(scores: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, None]:
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~seen, -1e30), dim=-1) @ value, None


def plain(query: Any, key: Any, value: Any, mask: Any) -> Any:
    return _softmaxed(query @ key.transpose(-1, -2), value)


def capped(query: Any, key: Any, value: Any, mask: Any) -> Any:
    return _softmaxed(torch.tanh(query @ key.transpose(-1, -2)), value)


def biased(query: Any, key: Any, value: Any, mask: Any) -> Any:
    positions = torch.arange(query.shape[-2])
    return _softmaxed(
        query @ key.transpose(-1, -2) + (positions[:, None] - positions[None, :]).sqrt().nan_to_num(), value
    )


def two_way(query: Any, key: Any, value: Any, mask: Any) -> Any:
    return torch.softmax(query @ key.transpose(-1, -2), dim=-1) @ value, None


def twice(query: Any, key: Any, value: Any, mask: Any) -> Any:
    first, _ = plain(query, key, value, mask)
    return first - 0.5 * plain(query, key.flip(-1), value, mask)[0], None


def sharpened(query: Any, key: Any, value: Any, mask: Any) -> Any:
    weights = torch.softmax(
        (query @ key.transpose(-1, -2)).masked_fill(torch.ones(24, 24).triu(1).bool(), -1e30), dim=-1
    )
    return (weights * 2).clamp(max=1) @ value, None


@pytest.mark.parametrize(
    ("attend", "message"),
    [
        (capped, "does more to the products of queries and keys than to multiply them"),
        (biased, "adds to scores what is not linear in the distance of query and key"),
        (two_way, "masks otherwise than by full attention"),
        (twice, "uses its scores in a way that is not known"),
        (sharpened, "computes more than attention"),
    ],
)
def test_what_is_more_than_attention_is_refused(attend: Attend, message: str) -> None:
    model = build("gpt_neo", attention_types=[[["global"], 4]])
    for layer in model.transformer.h:
        layer.attn.attention._attn = plain
    assert len(probe(model, 24).calls) == 4
    model = build("gpt_neo", attention_types=[[["global"], 4]])
    model.transformer.h[2].attn.attention._attn = attend
    with pytest.raises(UnsupportedModelError, match=rf"Attention module 2 of the model {message}"):
        probe(model, 24)


def test_a_mask_that_nothing_describes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gpt_neo")
    monkeypatch.setattr(sys.modules[type(model).__module__], "create_causal_mask", lambda **_: None)
    for layer in model.transformer.h:
        del layer.attn.attention.bias
        layer.attn.attention._attn = plain
    with pytest.raises(UnsupportedModelError, match="computes its attention mask only while it runs"):
        probe(model)
