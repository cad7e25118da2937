"""Text to token ids and back, whatever file the vocabulary comes from."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.engine.chat_template import ChatTemplate
from octavo.engine.codec import TokenizerParts
from octavo.engine.folder_tokenizer import load_folder_tokenizer
from octavo.engine.gguf_tokenizer import load_gguf_tokenizer
from octavo.errors import RequestError
from octavo.formats.open_files import open_gguf
from octavo.formats.source import ModelFiles

FALLBACK = "octavo.engine.transformers_tokenizer"
"""Loaded by name, and only for a folder without a tokenizer.json: it takes transformers and seconds."""


class Tokenizer:
    """One model's tokenizer.

    **Owns:** its codec and its compiled chat template. **Never:** changes once made, so threads may share it.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._codec = parts.codec
        self._special = parts.special
        self._templates = dict(parts.chat_templates)
        self._compiled: dict[str, ChatTemplate] = {}

    @property
    def vocab_size(self) -> int:
        """One above the largest id that has a text; the model's own vocabulary may be padded beyond it."""
        return self._codec.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._special.bos_token_id

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """What `encode` puts before a text: the BOS token where the model was trained with one, else nothing."""
        return self._special.prefix_ids

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Any of these ends a completion."""
        return self._special.eos_token_ids

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark of the format rather than text."""
        return token_id in self._special.special_ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:  # noqa: FBT001, FBT002
        """The ids of `text`. Marks of the format in it become their own ids.

        `add_special_tokens` adds what the model was trained to see around a text, usually a BOS token in front. Text
        from `apply_chat_template` has it already: encode that without.
        """
        ids = self._codec.encode(text)
        if not add_special_tokens:
            return ids
        return [*self._special.prefix_ids, *ids, *self._special.suffix_ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:  # noqa: FBT001, FBT002
        """The text of `ids` as a whole, which need not be the sum of the texts of its parts.

        Bytes that are no character become U+FFFD; ids beyond the vocabulary have no text.
        """
        if skip_special_tokens:
            special_ids = self._special.special_ids
            ids = [token_id for token_id in ids if token_id not in special_ids]
        return self._codec.decode(ids)

    def token_bytes(self) -> list[bytes]:
        """By id: what each token adds to a text, behind others; marks as they are written.

        Raises `UnsupportedModelError` where that depends on the neighbours.
        """
        return self._codec.token_bytes()

    @property
    def has_chat_template(self) -> bool:
        return bool(self._templates)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,  # noqa: FBT001, FBT002
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text of a conversation, BOS mark included where the template writes one.

        `chat_template` is a Jinja source to use instead of the model's own; `variables` are handed to the template.
        Raises `RequestError` when there is no template, or it refuses the messages.
        """
        source = chat_template or self.template_source(has_tools=bool(tools))
        if source not in self._compiled:
            self._compiled[source] = ChatTemplate(source, self._mark_texts())
        return self._compiled[source].render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, **variables
        )

    def describe(self) -> dict[str, Any]:
        """What programs ask of a tokenizer, in the words of transformers: sizes, marks, the chat template."""
        marks = self._mark_texts()
        return {
            "tokenizer_class": type(self._codec).__name__,
            "vocab_size": self.vocab_size,
            "bos_token": marks.get("bos_token"),
            "eos_token": marks.get("eos_token"),
            "bos_token_id": self.bos_token_id,
            "eos_token_id": next(iter(self.eos_token_ids), None),
            "chat_template": self._templates.get("default"),
        }

    def template_source(self, *, has_tools: bool) -> str:
        """The Jinja source of the model's own chat template. Raises `RequestError` where it has none."""
        for name in ("tool_use", "default") if has_tools else ("default",):
            if name in self._templates:
                return self._templates[name]
        if self._templates:
            return next(iter(self._templates.values()))
        raise RequestError(
            "The model has no chat template: it was not made for conversations, or its file lacks the template.",
            remedy="Give a plain prompt, a template of your own, or a chat model such as demo-smollm2.",
        )

    def _mark_texts(self) -> dict[str, str]:
        """What templates call `bos_token` and `eos_token`."""
        texts = {}
        if self._special.bos_token_id is not None:
            texts["bos_token"] = self._codec.decode([self._special.bos_token_id])
        if self._special.eos_token_ids:
            texts["eos_token"] = self._codec.decode([self._special.eos_token_ids[0]])
        return texts


def load_tokenizer(files: ModelFiles, *, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of `files`.

    It takes 0.1 s for a GGUF vocabulary of SentencePiece's kind and 0.1 to 1 s for byte-level ones, so it may well run
    in a thread while weights load.
    Raises `ModelFileError` when there is no tokenizer or it is damaged, `UnsupportedModelError` for an unknown kind.
    """
    if files.kind == "gguf":
        return Tokenizer(load_gguf_tokenizer(open_gguf(files.path)))
    if (files.path / "tokenizer.json").is_file():
        return Tokenizer(load_folder_tokenizer(files.path))
    fallback = importlib.import_module(FALLBACK)
    parts: TokenizerParts = fallback.load_transformers_tokenizer(files.path, trust_remote_code=trust_remote_code)
    return Tokenizer(parts)
