"""Matchers against languages that can be written down, and forms that cannot be had."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine import grammar_compiler
from octavo.engine.grammar_compiler import GrammarCompiler, GrammarVocabulary
from octavo.errors import OctavoError, RequestError
from octavo.structured_outputs import StructuredOutputsParams
from tests.engine.byte_tokenizer import BOS, EOS
from tests.engine.toy_grammars import COMPILER, allowed, compiler_of

LETTERS = "abé"
BYTES = [bytes([byte]) for byte in sorted(set(LETTERS.encode()))]
MORE = [b"ab", b"aab", b"ba", b"\xc3\xa9", b"a\xc3", b"\xa9b", b"bb", b"abab"]
"""Tokens of several bytes, some of which end or begin inside a character."""


@settings(max_examples=40)
@given(
    st.lists(st.text(LETTERS, max_size=6), min_size=1, max_size=5, unique=True),
    st.lists(st.sampled_from(MORE), unique=True),
    st.randoms(use_true_random=False),
)
def test_a_mask_has_just_the_tokens_with_which_the_text_can_become_a_member(choices, more, random) -> None:
    tokens = BYTES + more
    matcher = compiler_of(tokens).matcher(StructuredOutputsParams(choice=choices))
    members, text, eos = [choice.encode() for choice in choices], b"", len(tokens)
    while not matcher.is_stopped():
        by_definition = [
            index for index, token in enumerate(tokens) if any(member.startswith(text + token) for member in members)
        ]
        by_definition += [eos] * (text in members)
        found = allowed(matcher.compute_bitmask())
        next_bytes = {member[len(text) :][:1] for member in members if member.startswith(text)}
        if len(next_bytes) == 1 and text not in members:
            # The next byte is forced: only the tokens that the tokenizer itself would use are left, of those there are.
            assert found
            assert set(found) <= set(by_definition)
        else:
            assert found == by_definition
        token = random.choice(found)
        assert matcher.consume_token(token)
        if token == eos:
            break
        text += tokens[token]
    assert text in members


def matches(form: StructuredOutputsParams, text: str) -> bool:
    matcher = COMPILER.matcher(form)
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("form", "members", "others"),
    [
        ({"regex": r"\d{2}-[a-c]+"}, ["12-abc"], ["1-a", "12-", "12-d", "x12-a"]),
        ({"regex": "^ab|cd$"}, ["ab", "cd"], ["abd", ""]),
        ({"regex": "a/b\n\u00e9"}, ["a/b\né"], ["a/b"]),
        ({"choice": ['"', "\\", "\n", "\x7f", "日本", "a", "ab", "😀"]}, ["\x7f", "\\", "ab", "日本", "😀"], ["b"]),
        ({"grammar": 'root ::= "(" root ")" | [0-9]+'}, ["((7))", "12"], ["((7)", "()"]),
        ({"grammar": "start: NAME (\",\" NAME)*\nNAME: /[a-z]+/"}, ["a,bc"], ["a,", ""]),
        ({"json_object": True}, ["{}", '{"a": [1, null]}', '{ "a":\n1}'], ["[]", "{", '{"a": 1,}']),
        ({"json_object": True, "disable_any_whitespace": True}, ['{"a":1}'], ['{"a": 1}', "{ }"]),
        ({"json_object": True, "whitespace_pattern": "[_]"}, ['{"a":_1}'], ['{"a": 1}']),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 11}}, ["3", "11"], ["2", "12", "3.5", '"3"']),
        ({"json": {"type": "string", "pattern": "x+y?"}}, ['"axb"', '"xy"'], ['"ab"']),
        ({"json": True}, ["null", "[]", "1"], ["nul"]),
        ({"json": {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}},
         ["[[],[[]]]"], ["[1]"]),
        ({"json": {"type": "object", "x-guidance": {"whitespace_flexible": False}}}, ["{ }"], ["["]),
    ],
)  # fmt: skip
def test_a_form_has_its_members_and_no_others(form, members, others) -> None:
    params = StructuredOutputsParams(**form)
    assert [text for text in members if not matches(params, text)] == []
    assert [text for text in others if matches(params, text)] == []


def test_marks_are_no_text_but_a_grammar_can_name_them() -> None:
    # The mark of the beginning is written <bos>.
    matcher = COMPILER.matcher(StructuredOutputsParams(regex="<bos>x|<b>y"))
    assert BOS not in allowed(matcher.compute_bitmask())
    assert not matcher.consume_token(BOS)
    matcher = COMPILER.matcher(StructuredOutputsParams(grammar=f'start: <[{BOS}]> "x"'))
    assert allowed(matcher.compute_bitmask()) == [BOS]
    assert matcher.consume_token(BOS)
    assert matcher.consume_token(ord("x"))
    assert matcher.is_stopped()
    assert allowed(matcher.compute_bitmask()) == [EOS]


PATHOLOGICAL = {
    "sixteen patterns at once": {
        "allOf": [{"type": "string", "pattern": f".*{char}.*"} for char in "abcdefghijklmnop"]
    },
    "2,000 optional properties": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(2000)}},
    "a choice of 20,000 objects": {
        "anyOf": [{"type": "object", "properties": {f"k{i}": {}}, "required": [f"k{i}"]} for i in range(2000)]
    },
    "counted powers": {"type": "string", "pattern": "((a{1,99}b){1,99}c){1,99}"},
    "120 levels": json.loads('{"items":' * 120 + "{}" + "}" * 120),
    "a loop of references": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
}


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_a_pathological_schema_is_used_or_refused_but_never_hangs(name: str) -> None:
    form = StructuredOutputsParams(json=PATHOLOGICAL[name])
    started = time.process_time()
    try:
        matcher = COMPILER.matcher(form)
    except RequestError:
        pass
    else:
        for _ in range(20):
            following = allowed(matcher.compute_bitmask())
            if matcher.is_error() or not matcher.consume_token(following[len(following) // 2]) or matcher.is_stopped():
                break
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "form",
    [
        {"json": {"type": "text"}},
        {"json": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
        {"json": {"type": "integer", "minimum": 5, "maximum": 3}},
        {"json": {"not": {"type": "string"}}},
        {"json": {"$ref": "#/nowhere"}},
        {"json": {"$ref": "http://example.com/schema"}},
        {"json": False},
        {"json": '{"items":' * 200 + "{}" + "}" * 200},
        {"regex": "(a"},
        {"regex": "(?=a)b"},
        {"regex": "(a)\\1"},
        {"grammar": 'root ::= "a'},
        {"grammar": "start: missing"},
        {"grammar": "hello"},
        {"grammar": 'root ::= ' + "(" * 5000},
        {"json_object": True, "whitespace_pattern": "("},
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_refused_in_one_sentence(form) -> None:
    with pytest.raises(RequestError) as caught:
        COMPILER.check(StructuredOutputsParams(**form))
    assert caught.value.parameter == "structured_outputs"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_a_vocabulary_cannot_write_is_refused() -> None:
    with pytest.raises(RequestError, match="structured_outputs"):
        compiler_of([b"a"]).check(StructuredOutputsParams(choice=["b"]))


def test_compiled_grammars_are_kept_as_long_as_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "MAX_KEPT", 2)
    compiler = compiler_of(BYTES)
    compiled = []
    compile_form = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda form: compiled.append(form.choice[0]) or compile_form(form))
    for text in ("a", "b", "a", "aa", "a", "b"):
        compiler.check(StructuredOutputsParams(choice=[text]))
    assert compiled == ["a", "b", "aa", "b"]


def test_matchers_of_one_form_go_their_own_ways_in_several_threads() -> None:
    form = StructuredOutputsParams(regex="[ab]+c")
    matchers = []
    threads = [threading.Thread(target=lambda: matchers.append(COMPILER.matcher(form))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second, *_ = matchers
    assert first.consume_token(ord("a"))
    assert first.consume_token(ord("c"))
    assert (first.is_stopped(), second.is_stopped()) == (True, False)
    assert ord("c") not in allowed(second.compute_bitmask())


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(grammar_compiler.importlib, "import_module", missing)
    with pytest.raises(OctavoError, match="pip install"):
        GrammarCompiler(lambda: None).check(StructuredOutputsParams(regex="a"))  # type: ignore[arg-type]


def _takes(form: StructuredOutputsParams, text: str) -> tuple[bool, bool]:
    """Whether `text` may be written, and whether the output may end there."""
    matcher = COMPILER.matcher(form)
    may_be = all(matcher.consume_token(byte) for byte in text.encode())
    return may_be, may_be and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "begun", "may_begin"),
    [
        ("so { </thin </think>\n\nyes", (True, True), (False, False)),
        ("</think>no", (True, True), (False, False)),
        ("so </think>maybe", (False, False), (False, False)),
        ("yes", (True, False), (True, True)),
        ("<think>so</think>\nno", (True, True), (True, True)),
        ("<think>so", (True, False), (True, False)),
        ("<think>so</think>\n\n\n\n\nno", (False, False), (False, False)),
    ],
)
def test_a_form_begins_behind_reasoning(text: str, begun: tuple[bool, bool], may_begin: tuple[bool, bool]) -> None:
    fields: dict[str, Any] = {"choice": ["yes", "no"], "reasoning_end": "</think>"}
    assert _takes(StructuredOutputsParams(**fields), text) == begun
    assert _takes(StructuredOutputsParams(**fields, reasoning_begin="<think>"), text) == may_begin


def test_reasoning_ends_with_a_special_token_and_not_with_its_letters() -> None:
    tokens = [bytes([byte]) for byte in range(128)]
    end, eos = 128, 129

    def encode(text: str) -> list[int]:
        return [end] if text == "</t>" else list(text.encode())

    vocabulary = GrammarVocabulary([*tokens, b"</t>", b""], (end, eos), (eos,), encode)
    form = StructuredOutputsParams(json={"type": "boolean"}, reasoning_end="</t>")
    matcher = GrammarCompiler(lambda: vocabulary).matcher(form)
    for token in b"hm </t>":
        assert matcher.consume_token(token)
    assert eos not in allowed(matcher.compute_bitmask()), "it cannot end in its reasoning"
    assert end in allowed(matcher.compute_bitmask())
    for token in (*b"true", end, *b"true"):
        assert matcher.consume_token(token)
    assert matcher.is_stopped()
