"""Checks forms of outputs and makes matchers for them, over one tokenizer's vocabulary.

llguidance does the work: an Earley parser over a lexer of derivatives, which walks the vocabulary as a trie. It is
imported with the first request that asks for a form, because most processes meet none.
"""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from octavo.engine.grammar_text import grammar_text
from octavo.errors import OctavoError, RequestError
from octavo.structured_outputs import StructuredOutputsParams

LIMITS = {
    "initial_lexer_fuel": 300_000,
    "step_lexer_fuel": 200_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "max_items_in_row": 2_000,
    "step_max_items": 50_000,
    "verbose_errors": False,
}
"""What one grammar may cost: a few tenths of a second and some tens of MiB at most to compile, and some tens of
milliseconds for a token. Names of llguidance's; its own defaults let a schema of 700 characters take four seconds."""

MAX_KEPT = 32
"""Compiled grammars that are kept, those used last."""

_PLAINLY = {"NoExtensionBias": "it speaks of itself without an end, so that no text has it"}
"""What the library says -> what it means."""

_REMEDY = "Mend it, or ask for a simpler one."


class GrammarVocabulary(NamedTuple):
    """The tokens as a grammar sees them."""

    tokens: list[bytes]
    """By id, one for each logit; empty where an id is no text."""
    special_ids: tuple[int, ...]
    """Marks of the format: no text is made of them, but a grammar can name them."""
    eos_token_ids: tuple[int, ...]
    """They end an output, where the grammar lets it end."""
    encode: Callable[[str], list[int]]
    """A text as the model would see it, nothing added."""


class Matcher(Protocol):
    """A place in a grammar. The verbs of llguidance's `LLMatcher` that are used here; none of them raises."""

    def compute_bitmask(self) -> bytes:
        """The tokens that may follow; bit `i % 8` of byte `i // 8` is token i."""

    def consume_token(self, token_id: int, /) -> bool:
        """Go on by a token; False where it may not follow."""

    def is_stopped(self) -> bool:
        """Whether nothing can follow."""

    def is_accepting(self) -> bool:
        """Whether the text so far has the form."""

    def is_error(self) -> bool:
        """Whether a limit was met, or a token refused; then nothing else can be asked."""

    def get_error(self) -> str:
        """What happened."""

    def deep_copy(self) -> Any:
        """Another matcher in this place."""


class GrammarCompiler:
    """Owns: the vocabulary in the library's form, and the grammars compiled last. Never: a place in a grammar: every
    matcher is the caller's own. Threads may share it; they compile one after the other.

    Parameters:
        load: what tokens there are; called once, when the first grammar is asked for.
    """

    def __init__(self, load: Callable[[], GrammarVocabulary]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._kept: OrderedDict[StructuredOutputsParams, Matcher] = OrderedDict()

    def check(self, params: StructuredOutputsParams) -> None:
        """Raises `RequestError` for a form that cannot be understood, or costs more than `LIMITS`."""
        self.matcher(params)

    def matcher(self, params: StructuredOutputsParams) -> Matcher:
        """A matcher at the beginning of a text. Raises as `check`, and what loading the vocabulary raises."""
        with self._lock:
            found = self._kept.get(params)
            if found is None:
                found = self._compile(params)
                self._kept[params] = found
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(params)
            copy: Matcher = found.deep_copy()
            return copy

    def _compile(self, params: StructuredOutputsParams) -> Matcher:
        library = _library()
        if self._tokenizer is None:
            vocabulary = self._load()
            self._tokenizer, self._encode = _library_tokenizer(library, vocabulary), vocabulary.encode
            self._special = frozenset(vocabulary.special_ids)
        text = grammar_text(params, self._mark_id)
        matcher: Matcher = library.LLMatcher(
            self._tokenizer, text, log_level=0, limits=library.LLParserLimits(**LIMITS)
        )
        if matcher.is_error():
            raise _refusal(params, matcher.get_error())
        mask = matcher.compute_bitmask()  # the first one finds what compiling has put off
        if matcher.is_error():
            raise _refusal(params, matcher.get_error())
        if not mask.strip(b"\0"):
            raise _refusal(params, "no text of this model's tokens has it")
        return matcher

    def _mark_id(self, text: str) -> int | None:
        ids = self._encode(text)
        return ids[0] if len(ids) == 1 and ids[0] in self._special else None


def _library() -> Any:
    try:
        return importlib.import_module("llguidance")
    except ImportError:
        raise OctavoError(
            "Structured outputs need the library llguidance, which is not installed.",
            remedy='Install it with: pip install "octavo[run]"',
        ) from None


def _library_tokenizer(library: Any, vocabulary: GrammarVocabulary) -> Any:
    wrapper = library.TokenizerWrapper(_Vocabulary(vocabulary))
    return library.LLTokenizer(wrapper, eos_token=list(vocabulary.eos_token_ids))


class _Vocabulary:
    """What the library asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.special_token_ids = list(vocabulary.special_ids)
        self._encode = vocabulary.encode
        special = frozenset(vocabulary.special_ids)
        self._ids = {token: index for index, token in enumerate(vocabulary.tokens) if token and index not in special}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """The ids of a text that a grammar forces: those that the model knows it by, where they are exactly this text;
        the longest tokens that fit, one after the other, where a tokenizer adds something, or the text is cut inside
        a character."""
        try:
            ids = self._encode(text.decode())
        except UnicodeDecodeError:
            ids = []
        return ids if b"".join(self.tokens[index] for index in ids) == text else self._greedy(text)

    def _greedy(self, text: bytes) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                break  # no token of this model begins so: the library finds out by itself
            ids.append(self._ids[text[start:end]])
            start = end
        return ids


def _refusal(params: StructuredOutputsParams, reason: str) -> RequestError:
    (kind,) = (name for name in ("json", "regex", "choice", "grammar", "json_object") if getattr(params, name))
    what = {"json": "JSON schema", "regex": "regular expression", "json_object": "whitespace_pattern"}.get(kind, kind)
    short = " ".join(reason.partition("<non-verbose/>")[0].split())
    short = _PLAINLY.get(short, short)
    short = short if len(short) <= 200 else f"{short[:197]}..."
    return RequestError(
        f"The {what} in structured_outputs cannot be used: {short.rstrip('.')}.",
        remedy=_REMEDY,
        parameter="structured_outputs",
    )
