"""Words have one sense each: class names are made of the glossary's words and of everyday ones, and no thing has two
names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.imports import ROOT, sources

_EVERYDAY_WORDS = """
abort access accumulator actor add aligned angle answer architecture argument array ask async attempt attention auto
batch bind body bound box bucket byte cache cached call chat chats check client codec compiler completion
completions computed config convolution core count counts cross cut data dead deadline decoder demo derived
detokenize detokenizer device element embedding encoder ended endpoint engine entry environment error event facts
failed fair fast few field fields figures file files finish fit float fold format found frame full fused gate gated
gathered generation gone heads help hook host incremental info input invariant job json kernel keyword kind kinds kv
layer library limit line linear link list listener lm load loaded local log logprob logprobs lookup loop manager
mapped marks mask memory meta metadata meter metrics mixer model module new no norm nothing office open options
other output outputs override packed paged parallel parameters params parser part partner parts path piece pipeline
place placement plain post prepared probe probed process processor question queue raw reading ready reason reasoning
record recorder recurrence reference refused remote replaced report request reset restarts retained rotary row rows
rule rules run runnable runner running sampler sampling scheduler scratch screen search section seen segment sent
sentence sequence series server settings shape shares sink sliding small socket source special splitting stages
start started state static stats status stop stream strided strings stuck switch table talk task team template text
thread threaded throughput tile times token tokenize tokenizer tokens told too tool traffic type unsupported update
usage vector vocabulary watchdog watched weight weights work worker wrapper writer
"""
"""Words in everyday use, or in the everyday use of the field, that need no entry in the glossary."""

_NAMES_OF_THINGS = """
b bpe cpu cuda ggml gguf hermes inproc llama llm mamba mistral mla mlp mp multiproc numba octavo ray rms safetensors
torch transformers
"""
"""Libraries, formats, devices and kinds of layer, called what everybody calls them."""

SECOND_NAMES = {
    "page_table": "block table",
    "out_loc": "slot mapping",
    "seq_group": "request",
    "past_length": "num_computed_tokens",
    "past_key_values": "the cache view",
    "kv_indptr": "query_start and the block table",
    "physical_block": "block",
    "logical_block": "column of the block table",
    "num_cached_blocks_gpu": "num_cached_blocks",
    "cached_len": "num_computed_tokens",
    "sector": "block",
}
"""Names that other engines give to things that have a name here."""


def _glossary() -> set[str]:
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    return {word for entry in re.findall(r"\*\*([^*]+)\*\*", text) for word in entry.lower().split()}


def _words(name: str) -> list[str]:
    """`KVCacheConfig` -> kv, cache, config."""
    parted = re.sub(r"^(KV|LLM|MLA|MLP|RMS|GGUF|HF)", r"\1 ", name)
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", parted)]


def _known(word: str, known: set[str]) -> bool:
    return word in known or (word.endswith("s") and word[:-1] in known)


def test_class_names_are_made_of_known_words() -> None:
    known = _glossary() | set(_EVERYDAY_WORDS.split()) | set(_NAMES_OF_THINGS.split())
    unknown = {
        f"{source.name}.{node.name}": word
        for source in sources()
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        for word in _words(node.name)
        if not _known(word, known)
    }
    assert not unknown, f"give these words an entry in docs/glossary.md: {unknown}"


def test_no_thing_has_a_second_name() -> None:
    found = {
        f"{source.name}: {name}": f"is called {ours}"
        for source in sources()
        for name in _identifiers(source.tree)
        for theirs, ours in SECOND_NAMES.items()
        if re.search(rf"(^|_){theirs}(_|$)", name)
    }
    assert not found, found


def test_the_glossary_has_no_word_that_nobody_uses() -> None:
    text = "\n".join(source.text.lower() for source in sources())
    unused = [word for word in _glossary() if not re.search(rf"{re.escape(word.rstrip('s'))}", text)]
    assert not unused, f"strike these out of docs/glossary.md: {unused}"


def test_names_are_split_into_words() -> None:
    assert _words("KVCacheConfig") == ["kv", "cache", "config"]
    assert _words("NoCacheMemoryError") == ["no", "cache", "memory", "error"]
    assert _words("MLASpec") == ["mla", "spec"]


def _identifiers(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name.lower()
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
