"""Compilers and tables over the vocabulary of `ByteTokenizer`, and outputs that follow them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from octavo.engine.grammar_compiler import GrammarCompiler, GrammarVocabulary
from octavo.engine.grammar_table import GrammarTable
from octavo.engine.grammar_vocabulary import compiler_for
from octavo.messages import SchedulerOutput
from octavo.request import Request, SamplingParams
from octavo.structured_outputs import StructuredOutputsParams
from tests.engine.byte_tokenizer import EOS, ByteTokenizer

TOKENIZER = ByteTokenizer()
COMPILER = compiler_for(TOKENIZER, TOKENIZER.vocab_size)


def compiler_of(tokens: list[bytes]) -> GrammarCompiler:
    """Over these tokens, and one behind them that ends an output. It knows a text by its single bytes."""

    def encode(text: str) -> list[int]:
        return [tokens.index(bytes([byte])) for byte in text.encode() if bytes([byte]) in tokens]

    eos = len(tokens)
    return GrammarCompiler(lambda: GrammarVocabulary([*tokens, b""], (eos,), (eos,), encode))


def allowed(mask: bytes) -> list[int]:
    """The tokens of a mask."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")).tolist()


def sampling_step(*requests: Request) -> SchedulerOutput:
    """A step in which these requests get their next token."""
    for request in requests:
        request.num_computed_tokens = request.num_tokens
    return SchedulerOutput(step=1, num_scheduled_tokens={request.request_id: 1 for request in requests})


def admitted(table: GrammarTable, name: str, form: StructuredOutputsParams, **sampling: Any) -> Request:
    """A request that `table` has a matcher for."""
    params = SamplingParams(structured_outputs=form, **sampling)
    request = Request(name, [1, 2], params, eos_token_ids=(EOS,), max_output_tokens=1000)
    table.add(request, form)
    ready = []
    while not ready:
        ready = table.take_ready(10.0)
    assert [(found.request.request_id, found.error) for found in ready] == [(name, None)]
    assert request.sampling.structured_outputs is None
    return request


def write(
    table: GrammarTable, request: Request, choose: Callable[[list[int], int], int], max_tokens: int
) -> tuple[bytes, bool]:
    """(what comes out, whether it ended) when `choose` takes each token of the allowed ones, told its number."""
    tokens = TOKENIZER.token_bytes()
    text = b""
    for number in range(max_tokens):
        step = table.masked(sampling_step(request))
        token = choose(allowed(step.token_masks[request.request_id]), number)
        request.append_token(token)
        ended = table.follow({request.request_id: token})
        assert not table.take_broken()
        if token == EOS:
            assert ended == {request.request_id}
            return text, True
        text += tokens[token]
        if ended:
            return text, True
    return text, False
