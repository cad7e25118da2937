"""A tokenizer's tokens as many as a model has logits."""

from __future__ import annotations

from octavo.engine.grammar_vocabulary import compiler_for, vocabulary_of
from octavo.structured_outputs import StructuredOutputsParams
from tests.engine.byte_tokenizer import BOS, EOS, ByteTokenizer
from tests.engine.toy_grammars import allowed


def test_tokens_are_cut_or_filled_up_to_the_models() -> None:
    whole = vocabulary_of(ByteTokenizer(), 400)
    assert len(whole.tokens) == 400
    assert whole.tokens[ord("a")] == b"a"
    assert whole.tokens[301] == b" cat"
    assert set(whole.tokens[310:]) == {b""}
    assert whole.special_ids == (BOS, EOS)
    assert whole.eos_token_ids == (EOS,)
    assert whole.encode("ab") == [97, 98]


def test_where_no_token_ends_an_output_one_that_is_never_sampled_stands_for_it() -> None:
    small = vocabulary_of(ByteTokenizer(), 200)
    assert (small.eos_token_ids, len(small.tokens)) == ((200,), 201)
    assert small.encode("\u00e9") == [195, 169]
    matcher = compiler_for(ByteTokenizer(), 200).matcher(StructuredOutputsParams(regex="a+"))
    assert allowed(matcher.compute_bitmask()) == [ord("a")]
    assert matcher.consume_token(ord("a"))
    assert allowed(matcher.compute_bitmask()) == [ord("a"), 200]
