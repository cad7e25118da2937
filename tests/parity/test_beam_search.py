"""Beam search equals that of transformers (`early_stopping="never"`), alone and in a batch, in float32.

What transformers found with the demo model is kept in tests/data/parity/demo-beams.json, because it takes minutes; the
last test asks it again.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from octavo import LLM
from octavo.request import BeamSearchParams
from tests.parity.recorded import weights
from tests.parity.reference import load_gguf
from tests.parity.tiny import HYBRID, VOCAB_SIZE, build_model

pytestmark = pytest.mark.timeout(1800)

RECORDED = Path(__file__).parent.parent / "data" / "parity" / "demo-beams.json"
"""For each prompt: its text, its token ids, the tokens of three beams, and the sums of their log probabilities."""

FULL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}


class Reference:
    """A tiny model in a folder."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.model = build_model(folder, config, spread=0.12)
        with torch.no_grad():  # an end of sequence that is likely enough to come at different lengths
            self.model.lm_head.weight[1] *= 3.0
        self.model.save_pretrained(folder)


def find_beams(model: Any, prompt: list[int], params: BeamSearchParams) -> tuple[list[list[int]], list[float]]:
    """What transformers finds: (tokens up to the end of the sequence, scores)."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        max_new_tokens=params.max_tokens,
        do_sample=False,
        length_penalty=params.length_penalty,
        early_stopping="never",
        eos_token_id=None if params.ignore_eos else 1,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    rows = [row[len(prompt) :] for row in found.sequences.tolist()]
    if not params.ignore_eos:
        rows = [row[: row.index(1) + 1] if 1 in row else row for row in rows]
    return rows, found.sequences_scores.tolist()


@pytest.fixture(scope="module", params=["full", "hybrid"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp(request.param), FULL if request.param == "full" else HYBRID)


@pytest.mark.slow
@pytest.mark.parametrize("caching", [True, False])
def test_beams_are_those_of_transformers(reference: Reference, caching: bool) -> None:
    rng = random.Random(5)
    prompts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (1, 7, 16, 31, 70)]
    ended = 0
    with LLM(str(reference.folder), dtype="float32", kv_memory="8MiB", enable_prefix_caching=caching) as llm:
        for width, penalty, ignore_eos in ((2, 1.0, False), (3, 0.5, False), (4, 0.0, False), (5, 2.0, True)):
            params = BeamSearchParams(
                beam_width=width,
                max_tokens=14,
                length_penalty=penalty,
                ignore_eos=ignore_eos,
                include_stop_str_in_output=True,
            )
            outputs = llm.beam_search(prompts, params)
            for prompt, output in zip(prompts, outputs, strict=True):
                rows, scores = find_beams(reference.model, prompt, params)
                assert [sequence.tokens[len(prompt) :] for sequence in output.sequences] == rows
                for sequence, row, score in zip(output.sequences, rows, scores, strict=True):
                    assert sequence.cum_logprob / len(row) ** penalty == pytest.approx(score, abs=2e-4)
                    ended += sequence.finish_reason == "stop"
    assert ended > 5, "sequences of different lengths must be compared"


def recorded() -> list[tuple[str, list[int], list[list[int]], list[float]]]:
    return msgspec.json.decode(RECORDED.read_bytes(), type=list[tuple[str, list[int], list[list[int]], list[float]]])


def check_recorded(
    beams: list[list[int]], sums: list[float], wanted: list[list[int]], wanted_sums: list[float]
) -> None:
    assert beams == wanted
    assert sums == pytest.approx(wanted_sums, abs=2e-3)


@pytest.mark.slow
@pytest.mark.model
def test_the_demo_model_finds_what_transformers_found() -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=10, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for _, prompt, _, _ in recorded()]
    with LLM("demo", dtype="float32", kv_memory="256MiB", max_model_len=256) as llm:
        outputs = llm.beam_search(prompts, params)
        for output, (text, prompt, wanted, wanted_sums) in zip(outputs, recorded(), strict=True):
            assert llm.get_tokenizer().encode(text) == prompt
            beams = [sequence.tokens[len(prompt) :] for sequence in output.sequences]
            check_recorded(beams, [sequence.cum_logprob for sequence in output.sequences], wanted, wanted_sums)


@pytest.mark.long
@pytest.mark.model
def test_the_recording_is_what_transformers_finds() -> None:
    model = load_gguf(weights("demo"))
    for _, prompt, wanted, wanted_sums in recorded():
        beams, scores = find_beams(model, prompt, BeamSearchParams(beam_width=3, max_tokens=10, ignore_eos=True))
        check_recorded(beams, [score * 10 for score in scores], wanted, wanted_sums)
