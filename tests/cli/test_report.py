"""The closing line and headings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from octavo.cli.report import closing_line, heading, json_document, label_of, progress_line, shortened
from octavo.engine.figures import Figures, RunMeter
from octavo.engine.outputs import CompletionOutput, RequestOutput

FIGURES = Figures(
    load_s=3.456, ttft_s=0.25, prefill_tokens_per_s=1234.56, decode_tokens_per_s=45.67, output_tokens_per_s=44.44,
    wall_s=2.0, prompt_tokens=1200, output_tokens=89, hit_tokens=16, num_blocks=101, peak_rss_bytes=2**30,
)  # fmt: skip


def _output(prompt: str | None, num_completions: int = 1) -> RequestOutput:
    completions = [CompletionOutput(index=index, text="t", token_ids=[5]) for index in range(num_completions)]
    return RequestOutput(request_id="0", prompt=prompt, prompt_token_ids=[1, 2], outputs=completions, finished=True)


def test_the_closing_line_has_all_figures_that_a_person_asks_for() -> None:
    meter = RunMeter(num_prompt_tokens=1200, num_sequences=1)
    meter.peak_used_blocks = 25
    assert closing_line(FIGURES, meter, usable_blocks=100) == (
        "prompt 1,200 tokens at 1234.6 tok/s | output 89 tokens at 44.4 tok/s (decode 45.7) | "
        "KV cache use at most 25 of 100 blocks (25.0%) | hit tokens 16 | ready after 3.46 s, first token 0.25 s later"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hi", "hi"),
        ("a\n  b" + "x" * 70, "a b" + "x" * 54 + "..."),
        ({"prompt": "hi", "cache_salt": "s"}, "hi"),
        ({"prompt_token_ids": [1, 2]}, "token ids [1, 2]"),
        ({"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]}, "hi"),
        ({"messages": []}, ""),
    ],
)
def test_a_prompt_is_called_by_its_text(source: Any, expected: str) -> None:
    assert shortened(label_of(source)) == expected


def test_a_heading_says_which_prompt_and_completion() -> None:
    completion = CompletionOutput(index=1, text="t", token_ids=[5])
    assert heading(0, ["hi", "ho", "hm"], completion, num_completions=1) == "--- prompt 1 of 3: hi"
    assert heading(2, ["hi", "ho", "hm"], completion, num_completions=2) == "--- prompt 3 of 3, completion 2 of 2: hm"


def test_progress_counts_prompts_only_where_there_are_several() -> None:
    run = SimpleNamespace(
        meter=RunMeter(num_prompt_tokens=9, num_sequences=1), started=0.0, num_prompts=1, num_finished=0
    )
    run.meter.num_used_blocks = 1
    assert progress_line(run, usable_blocks=10).startswith("prompt 0 tokens | output 0 tokens, 0.0 tok/s")
    assert progress_line(run, usable_blocks=10).endswith("KV cache 10.0%")
    run.num_prompts = 4
    assert progress_line(run, usable_blocks=10).startswith("0 of 4 prompts done | ")


def test_a_plan_without_cache_has_no_share() -> None:
    assert "(0%)" in closing_line(FIGURES, RunMeter(num_prompt_tokens=0, num_sequences=0), usable_blocks=0)


def test_the_document_is_one_line_of_json() -> None:
    text = json_document([_output("a\nb", 2)], FIGURES, {"weight_bytes": 7})
    assert "\n" not in text
    document = msgspec.json.decode(text)
    assert [output["index"] for output in document["outputs"]] == [0, 1]
    assert document["outputs"][0]["logprobs"] is None
    assert document["figures"]["prefill_tokens_per_s"] == 1234.56
    assert document["settings"] == {"weight_bytes": 7}
