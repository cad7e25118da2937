"""Small tokenizers whose texts can be checked by eye."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BOS, EOS = 256, 257
WORDS = {300: "the", 301: " cat", 302: " sat", 303: "<b>", 304: ""}


class ByteTokenizer:
    """Ids 0-255 are bytes, a few words have ids of their own, 256 and 257 are special."""

    eos_token_ids = (EOS,)
    bos_token_id = BOS
    vocab_size = 320

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        content = b""
        for token_id in ids:
            if self.is_special(token_id):
                content += b"" if skip_special_tokens else {BOS: b"<bos>", EOS: b"<eos>"}[token_id]
            else:
                content += WORDS[token_id].encode() if token_id in WORDS else bytes([token_id])
        return content.decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in (BOS, EOS)

    def token_bytes(self) -> list[bytes]:
        marks = {BOS: b"<bos>", EOS: b"<eos>"}
        words = {token_id: text.encode() for token_id, text in WORDS.items()}
        known = {token_id: bytes([token_id]) for token_id in range(256)} | marks | words
        return [known.get(token_id, b"") for token_id in range(self.vocab_size)]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        turns = "".join(f"<{turn['role']}>{turn['content']}" for turn in messages)
        tool_names = "".join(f"<tool>{tool['function']['name']}" for tool in tools or ())
        given = "".join(f"<{name}>{value}" for name, value in variables.items())
        return (chat_template or "") + tool_names + given + turns + "<assistant>" * add_generation_prompt

    def template_source(self, *, has_tools: bool) -> str:
        return "{{ messages }}"

    def describe(self) -> dict[str, Any]:
        return {"tokenizer_class": "ByteTokenizer", "vocab_size": 320, "bos_token": "<bos>", "eos_token": "<eos>"}


class SpaceDroppingTokenizer(ByteTokenizer):
    """Like SentencePiece decoders: the space before the first decoded token is dropped."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return super().decode(ids, skip_special_tokens).removeprefix(" ")
