"""A tokenizer's vocabulary as grammars see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.engine.grammar_compiler import GrammarCompiler, GrammarVocabulary


class VocabularySource(Protocol):
    """The part of a tokenizer that this module needs."""

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """Ids that end a sequence."""

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark of the format rather than text."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:  # noqa: FBT001, FBT002
        """The token ids of `text`."""

    def token_bytes(self) -> list[bytes]:
        """What each token adds to a text."""


def vocabulary_of(tokenizer: VocabularySource, vocab_size: int) -> GrammarVocabulary:
    """The vocabulary of a model that has `vocab_size` logits: what the tokenizer lacks of them is no text.

    Where the model has no end-of-sequence token, one that can never be sampled stands for it.
    """
    tokens = tokenizer.token_bytes()[:vocab_size]
    tokens += [b""] * (vocab_size - len(tokens))
    marks = [token_id for token_id in range(vocab_size) if tokenizer.is_special(token_id)]
    eos = tuple(token_id for token_id in tokenizer.eos_token_ids if 0 <= token_id < vocab_size)
    if not eos:
        tokens.append(b"")
        eos = (vocab_size,)
    return GrammarVocabulary(
        tokens=tokens,
        special_ids=tuple(dict.fromkeys((*marks, *eos))),
        eos_token_ids=eos,
        encode=lambda text: [index for index in tokenizer.encode(text, add_special_tokens=False) if index < vocab_size],
    )


def compiler_for(tokenizer: VocabularySource, vocab_size: int) -> GrammarCompiler:
    """A compiler that looks at the vocabulary when the first grammar comes."""
    return GrammarCompiler(lambda: vocabulary_of(tokenizer, vocab_size))
