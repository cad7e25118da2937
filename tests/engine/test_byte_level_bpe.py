from __future__ import annotations

import pytest

from octavo.engine.byte_level_bpe import SPLITTINGS, build_byte_level, build_spaced, splitting_of
from octavo.engine.library_codec import LibraryCodec
from octavo.errors import ModelFileError, UnsupportedModelError
from tests.engine.scripts import TEXTS


def _byte_letters() -> list[str]:
    """GPT-2's spelling of the 256 bytes: printable ones as they are, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


LETTERS = _byte_letters()
SPACE = LETTERS[0x20]
MERGES = ["l o", "lo w", f"{SPACE} low", "1 2", "12 3", "i n", "in g"]
TOKENS = [*LETTERS, *(merge.replace(" ", "", 1) for merge in MERGES), "<|end|>", "<think>"]
KINDS = [1] * (len(TOKENS) - 2) + [3, 4]


def codec(pre: str) -> LibraryCodec:
    return LibraryCodec(build_byte_level(TOKENS, KINDS, MERGES, pre))


def pieces(pre: str, text: str) -> list[str]:
    return [TOKENS[index].replace(SPACE, "_") for index in codec(pre).encode(text)]


def words(pre: str, text: str) -> list[str]:
    """How the text is cut before merging."""
    tokenizer = build_byte_level(TOKENS, KINDS, MERGES, pre)
    return [text[start:stop] for _, (start, stop) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "It's 1234  a\n\n2", ["It", "'s", " 1234", " ", " a", "\n", "\n", "2"]),
        ("default", "don't", ["don", "'t"]),
        # The digits are cut off first, so the whole of the spaces before them is one piece.
        ("smollm", "x  12\n\n3", ["x", "  ", "1", "2", "\n\n", "3"]),
        ("llama-bpe", "It'S 12345!\n\n x", ["It", "'S", " ", "123", "45", "!\n\n", " x"]),
        ("qwen2", "12 (a)\n", ["1", "2", " (", "a", ")\n"]),
        ("seed-coder", "12 (a)\n", ["1", "2", " (", "a", ")", "\n"]),
        ("gpt-4o", "camelCaseIT's", ["camel", "Case", "IT's"]),
        ("tekken", "camelCase 12", ["camel", "Case", " ", "1", "2"]),
        ("deepseek-v3", "1234年の本 a_b", ["123", "4", "年の本", " a", "_b"]),
        ("falcon", "a,b 1234", ["a", ",", "b", " ", "123", "4"]),
        ("bloom", "one,two three", ["one", ",", "two", " three"]),
        ("kimi-k2", "It's中文CaseB 1234/\n", ["It's", "中文", "Case", "B", " ", "123", "4", "/\n"]),
        ("tiny_aya", "1234567 camelCase's", ["1", "234", "567", " camel", "Case's"]),
        ("superbpe", "a 1234567 b", ["a ", "1", "234", "567", " b"]),
        ("bailingmoe", "It's 12\n\n", ["It", "'s", " ", "1", "2", "\n\n"]),
        ("exaone-moe", "two words 12", ["two words", " ", "1", "2"]),
        ("jais-2", "a     b", ["a", "    ", " b"]),
        ("ufakzeka", "Ali'nin 12", ["Ali", "'nin", " ", "1", "2"]),
        ("laguna", "a \n\nb", ["a", " ", "\n\n", "b"]),
        ("minicpm5", "It's 12345", ["It", "'s", " ", "123", "45"]),
        ("spark2_5", "a.b 12\n\n", ["a", ".b", " ", "1", "2", "\n", "\n"]),
        ("youtu", "한글中文It's", ["한글", "中文", "It's"]),
    ],
)
def test_text_is_cut_as_each_models_was(pre: str, text: str, expected: list[str]) -> None:
    assert words(pre, text) == expected


KNOWN_TO_LLAMA_CPP = """
afmoe a.x-4.0 bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe command-r dbrx deepseek-coder
deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone exaone4 exaone-moe f2llmv2 falcon falcon3 falcon-h1 gemma4
gigachat glm4 glm5 gpt-2 gpt3-finnish gpt-4o granite-docling granite-embed-multi-311m granite-embed-multi-97m grok-2
hunyuan hunyuan-dense hy_v4 jais jais-2 jina-de jina-es jina-v1-en jina-v2-code jina-v2-de jina-v2-es jina-v5-nano
joyai-llm kanana2 kimi-k2 kormo laguna lfm2 llada-moe llama3 llama4 llama-bpe llama-v3 megrez mellum mellum2 midm-2.0
minerva-7b minicpm5 minimax-m2 modern-bert mpt olmo phi-2 pixtral poro-chat qwen2 qwen35 refact roberta-bpe sarvam-moe
seed-coder smaug-bpe smollm solar-open spark2_5 stablelm2 starcoder superbpe talkie tekken tiny_aya trillion ufakzeka
viking whitespace youtu
"""
"""Of mid 2026."""

LEFT_OUT = {
    **dict.fromkeys(
        (
            "granite-embed-multi-311m", "granite-embed-multi-97m", "jina-de", "jina-es", "jina-v1-en", "jina-v2-code",
            "jina-v2-de", "jina-v2-es", "modern-bert", "roberta-bpe", "whitespace",
        ),
        "models that embed texts",
    ),
    **dict.fromkeys(("gemma4", "sarvam-moe"), "not byte-level"),
    "chameleon": "its architecture is not mapped",
    "afmoe": "groups digits by code, and its architecture is not mapped",
}  # fmt: skip


def test_every_name_that_files_use_is_known_or_left_out_for_a_reason() -> None:
    names = set(KNOWN_TO_LLAMA_CPP.split())
    assert names - set(SPLITTINGS) == set(LEFT_OUT)
    assert set(SPLITTINGS) <= names


@pytest.mark.parametrize("pre", SPLITTINGS)
def test_every_cutting_keeps_the_text(pre: str) -> None:
    tokenizer = codec(pre)
    for name, text in TEXTS.items():
        kept = tokenizer.decode(tokenizer.encode(text))
        if not splitting_of(pre).nfc:
            assert kept == text, name


def test_merges_in_their_order() -> None:
    assert pieces("gpt-2", "low low 123ing") == ["low", "_low", "_", "123", "ing"]


def test_marks_stay_whole_wherever_they_stand() -> None:
    assert pieces("gpt-2", "low<|end|>low<think>") == ["low", "<|end|>", "low", "<think>"]


def test_whole_words_win_over_merges() -> None:
    tokens = [*TOKENS, "w!"]
    tokenizer = LibraryCodec(build_byte_level(tokens, [*KINDS, 1], MERGES, "llama-bpe"))
    assert tokenizer.encode("w") == [TOKENS.index("w")]
    assert "".join(tokens[index] for index in tokenizer.encode("low")) == "low"


def test_composed_text_where_the_model_wants_it() -> None:
    decomposed = "e\u0301"
    assert codec("qwen2").decode(codec("qwen2").encode(decomposed)) == "é"
    assert codec("gpt-2").decode(codec("gpt-2").encode(decomposed)) == decomposed


def test_half_a_character_shows_as_such() -> None:
    ids = codec("gpt-2").encode("é")
    assert codec("gpt-2").decode(ids[:1]) == "\ufffd"


def test_an_unknown_cutting_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'hal9000'") as caught:
        splitting_of("hal9000")
    assert "--tokenizer" in caught.value.remedy


def test_merges_of_tokens_that_are_not_there_are_refused() -> None:
    with pytest.raises(ModelFileError, match="do not fit together"):
        build_byte_level(TOKENS, KINDS, ["q x"], "gpt-2")


def test_spaced_vocabularies_with_merges() -> None:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "<s>"]
    tokenizer = LibraryCodec(build_spaced(tokens, [2] + [6] * 256 + [1] * 3 + [3], ["▁ a"]))
    ids = tokenizer.encode("a a<s>é")
    assert [tokens[index] for index in ids] == ["a", "▁a", "<s>", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "a a<s>é"
