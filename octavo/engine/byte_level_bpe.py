"""Byte-level BPE from a GGUF vocabulary: GPT-2's scheme, with the text cut into words first as each model's was.

The library does the work. Building it from the file's lists is faster than reading back a tokenizer.json that was made
of them (1.0 against 1.2 s for 128,256 words, 0.4 against 0.5 s for 151,936), so nothing is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from octavo.errors import ModelFileError, UnsupportedModelError

CONTROL, USER_DEFINED = 3, 4

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
_SEED = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?{u}*{l}+{c}|[^\r\n\p{L}\p{N}]?{u}+{l}*{c}|{n}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"


def _cased(digits: str, contraction: str = "") -> str:
    """Words end where lower case turns into upper case (`camelCase` is two)."""
    pattern = _CASED.replace("{u}", _UPPER).replace("{l}", _LOWER).replace("{n}", digits)
    return pattern.replace("{c}", contraction) + _SPACES


_GPT4O = _cased(r"\p{N}{1,3}", _CONTRACTION + "?")
_TEKKEN = _cased(r"\p{N}")
_CONTRACTED = _cased(r"\p{N}", _CONTRACTION + "?")
_THOUSANDS = r"\d{1,3}(?=(?:\d{3})*\b)"
_KIMI = r"\p{Han}+|" + _cased(r"\p{N}{1,3}", _CONTRACTION + "?").replace(
    _UPPER, _UPPER.replace("]", r"&&[^\p{Han}]]")
).replace(_LOWER, _LOWER.replace("]", r"&&[^\p{Han}]]")).replace("[\\r\\n/]*", "[\\r\\n]*")
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|"
    + r"\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2 = _LLAMA3.replace(
    r"|\s+(?!\S)|\s+", "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"|\s{1}"
)
_PUNCTUATED = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _SPACES
)
_SPARK = _PUNCTUATED.replace(r"+[\r\n]*|\s*[\r\n]+|", r"+|[\r\n]|")
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_WIDE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_LETTERS = (
    r"\s?["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-"
    "\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-"
    "\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+"
)


class Splitting(NamedTuple):
    """How a model's text is cut before merging: by each pattern in turn, what matches and what lies between."""

    patterns: tuple[str, ...]
    nfc: bool = False
    """The text is brought into Unicode's composed form first."""
    whole_words: bool = False
    """A word that is a token stays whole, whatever the merges would make of it."""
    add_bos: bool = False
    """What holds when the file does not say whether a BOS token is added."""


_DIGITS_THEN_GPT2 = Splitting((r"\p{N}", _GPT2))

SPLITTINGS: dict[str, Splitting] = {
    "default": Splitting((_GPT2,)),
    **dict.fromkeys(
        (
            "gpt-2",
            "phi-2",
            "a.x-4.0",
            "gigachat",
            "mellum",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
        ),
        Splitting((_GPT2,)),
    ),
    **dict.fromkeys(("olmo", "mpt"), Splitting((_GPT2,), nfc=True)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS_THEN_GPT2
    ),
    "command-r": Splitting((r"\p{N}", _GPT2), nfc=True),
    "falcon": Splitting((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        Splitting((_LLAMA3,), whole_words=True, add_bos=True),
    ),
    "seed-coder": Splitting((_SEED,)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), Splitting((_LLAMA3,))),
    **dict.fromkeys(("glm4", "glm5"), Splitting((_LLAMA3,), whole_words=True)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2", "f2llmv2"),
        Splitting((_QWEN2,), nfc=True),
    ),
    "ufakzeka": Splitting((_QWEN2.removeprefix(_CONTRACTION + "|"),)),
    "laguna": Splitting((r"[^\n]+|[\n]+", _QWEN2)),
    "minicpm5": Splitting((r"\p{N}{1,3}", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")), whole_words=True),
    "jais-2": Splitting((_JAIS2,)),
    "qwen35": Splitting((_QWEN35,), nfc=True),
    "tekken": Splitting((_TEKKEN,), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"), Splitting((_GPT4O,))),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), Splitting((_THOUSANDS, _GPT4O))),
    "kimi-k2": Splitting((_KIMI,)),
    "youtu": Splitting((_YOUTU, _CONTRACTED), whole_words=True),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), Splitting((r"\p{N}{1,3}", _CJK, _PUNCTUATED))
    ),
    "spark2_5": Splitting((r"\p{N}{1,3}", _CJK, _SPARK, r"\p{N}")),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), Splitting((_BAILING,))),
    "exaone-moe": Splitting((_EXAONE_MOE,)),
    "superbpe": Splitting((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "deepseek-llm": Splitting(
        (
            r"[\r\n]",
            _DEEPSEEK_LETTERS,
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _WIDE,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _WIDE, r"\p{N}")),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), Splitting((_BLOOM,))),
    "viking": Splitting((_BLOOM, r"\p{N}")),
}
"""`tokenizer.ggml.pre` -> how to cut. Sources: the models' own tokenizer.json files; for models after 2025,
the reading that llama.cpp gives to the name, which knows no composed forms."""


def splitting_of(name: str) -> Splitting:
    """Raises `UnsupportedModelError` for a name that is not in the table: a guess would give other ids."""
    if name not in SPLITTINGS:
        raise UnsupportedModelError(
            f"The GGUF file's text is cut into words in a way that is not known here: tokenizer.ggml.pre is {name!r}.",
            remedy="Give the original model's folder or hub id as --tokenizer.",
        )
    return SPLITTINGS[name]


def build_byte_level(tokens: Sequence[str], kinds: Sequence[int], merges: Sequence[str], pre: str) -> Tokenizer:
    """The library's tokenizer for a byte-level vocabulary.

    Raises `UnsupportedModelError` for an unknown `pre`, `ModelFileError` when a merge names a token that is not there.
    """
    splitting = splitting_of(pre)
    tokenizer = _with_merges(tokens, merges, ignore_merges=splitting.whole_words)
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    cuts: list[Any] = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in splitting.patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    add_marks(tokenizer, tokens, kinds)
    return tokenizer


def build_spaced(tokens: Sequence[str], kinds: Sequence[int], merges: Sequence[str]) -> Tokenizer:
    """The library's tokenizer for a vocabulary of SentencePiece's kind that comes with merges: Gemma 4's."""
    tokenizer = _with_merges(tokens, merges, byte_fallback=True, fuse_unk=True)
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    add_marks(tokenizer, tokens, kinds)
    return tokenizer


def _with_merges(tokens: Sequence[str], merges: Sequence[str], **options: bool) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # A token may hold a space itself, but never as its first character.
    pairs = [(merge[:cut], merge[cut + 1 :]) for merge in merges if (cut := merge.find(" ", 1)) > 0]
    try:
        return Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, **options))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(
            f"The vocabulary and the merges of the GGUF file do not fit together: {error}.",
            remedy="Download the file again, or convert the model again.",
        ) from None


def add_marks(tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Tokens that stay whole wherever they stand in the text, the longest first."""
    pairs = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if token]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token, kind in pairs if kind == CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False, special=False) for token, kind in pairs if kind == USER_DEFINED]
    )
