"""Masks on real ranks: an output keeps its form whoever samples it, and is the same on one rank and on several."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from octavo import LLM, SamplingParams, StructuredOutputsParams
from tests.parity.tiny import HYBRID, build_model

REGEX = "[a-f]{2}([0-9]|é){3,6}!"
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["novel", "play"]}, "year": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "year"],
    "additionalProperties": False,
}
FORMED = StructuredOutputsParams(regex=REGEX)
PARAMS = [
    SamplingParams(temperature=0, max_tokens=40, structured_outputs=FORMED),
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=1.5, seed=3, max_tokens=40, structured_outputs=FORMED, logprobs=2),
    SamplingParams(
        temperature=0,
        max_tokens=80,
        structured_outputs=StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True),
    ),
    SamplingParams(temperature=1.5, seed=5, max_tokens=40, n=2, structured_outputs=FORMED),
]
PROMPTS = ["".join(chr(97 + (start + step * step) % 26) for step in range(40)) for start in range(5)]


def _write_byte_tokenizer(folder: Path) -> None:
    """In place of the words: ids 0 to 2 are pad, eos and bos, and each byte is a token."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<pad>": 0, "<eos>": 1, "<bos>": 2} | {name: 3 + index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<eos>", "<bos>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def _outputs(folder: Path, tensor_parallel_size: int, pipeline_parallel_size: int) -> list[list[str]]:
    with LLM(
        str(folder),
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        dtype="float32",
        kv_memory="2MiB",
        max_model_len=160,
        block_size=8,
        max_num_batched_tokens=64,
    ) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [[completion.text for completion in output.outputs] for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2), (2, 2)])
def test_masks_hold_on_every_rank(tensor: int, pipeline: int, tmp_path: Path) -> None:
    build_model(tmp_path, HYBRID)
    _write_byte_tokenizer(tmp_path)
    alone = _outputs(tmp_path, 1, 1)
    found = _outputs(tmp_path, tensor, pipeline)
    assert found == alone
    for index in (0, 2, 4):
        for text in found[index]:
            assert re.fullmatch(REGEX, text), text
    assert json.loads(found[3][0]).keys() == {"kind", "year"}
    assert not re.match("[a-f]{2}", found[1][0]), "it has no form to keep"
