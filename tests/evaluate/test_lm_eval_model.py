"""A task of lm-eval, on data made here, has the same answers from Octavo as from lm-eval's model of transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.llm import LLM
from octavo.evaluate.tasks import TaskModel
from tests.parity.tiny import HYBRID, build_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CHOICES = [" w9 w11", " w40", " w200 w201 w202"]


def _task(name: str, data: Path, **fields: Any) -> dict[str, Any]:
    files = {"data_files": {"test": str(data)}, "cache_dir": str(data.parent / "cache")}
    return {"task": name, "dataset_path": "json", "dataset_kwargs": files, "test_split": "test", **fields}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    pytest.importorskip("lm_eval", reason="lm-eval is an extra of its own: pip install octavo[eval]")
    from lm_eval.models.huggingface import HFLM
    from transformers import PreTrainedTokenizerFast

    from octavo.evaluate.lm_eval_model import OctavoLM

    folder: Path = tmp_path_factory.mktemp("toy")
    model = build_model(folder, HYBRID)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<eos>", bos_token="<bos>", pad_token="<pad>"
    )
    with LLM(str(folder), dtype="float32", kv_memory="4MiB") as llm:
        yield OctavoLM(llm), HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, add_bos_token=False)


def _samples(lm: Any, task: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    import lm_eval

    results = lm_eval.simple_evaluate(model=lm, tasks=[task], log_samples=True, bootstrap_iters=0)
    (metrics,) = results["results"].values()
    (samples,) = results["samples"].values()
    return metrics, [sample["resps"] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]


def test_choices_have_the_likelihoods_of_transformers_and_of_our_own(models: tuple[Any, Any], tmp_path: Path) -> None:
    ours, theirs = models
    data = tmp_path / "data.jsonl"
    questions = ["w5 w6 w7", "w100", " ".join(f"w{3 + index * 7 % 300}" for index in range(60))]
    rows = [{"question": question, "choices": CHOICES, "answer": i % 3} for i, question in enumerate(questions)]
    data.write_text("\n".join(map(json.dumps, rows)))
    task = _task(
        "toy_choice",
        data,
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="answer",
        target_delimiter="",
        metric_list=[{"metric": "acc"}],
    )
    (our_metrics, mine), (their_metrics, reference) = _samples(ours, dict(task)), _samples(theirs, dict(task))
    assert our_metrics["acc,none"] == their_metrics["acc,none"]
    flat = [[(float(score), greedy) for ((score, greedy),) in answers] for answers in mine]
    expected = [[(float(score), greedy) for ((score, greedy),) in answers] for answers in reference]
    tasks: TaskModel = ours.tasks
    for question, scores, theirs_of_it in zip(questions, flat, expected, strict=True):
        assert [score for score, _ in scores] == pytest.approx([score for score, _ in theirs_of_it], abs=1e-4)
        assert [greedy for _, greedy in scores] == [greedy for _, greedy in theirs_of_it]
        pairs = [(tasks.encode(question), tasks.encode(choice)) for choice in CHOICES]
        assert [sum(score.logprobs) for score in tasks.score_pairs(pairs)] == pytest.approx([s for s, _ in scores])


def test_whole_texts_have_the_likelihood_of_transformers(models: tuple[Any, Any], tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    texts = [" ".join(f"w{3 + index * step % 300}" for index in range(50)) for step in (7, 11, 13)]
    data.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    task = _task(
        "toy_text",
        data,
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "bits_per_byte"}],
    )
    (mine, _), (reference, _) = (_samples(lm, dict(task)) for lm in models)
    assert mine["bits_per_byte,none"] == pytest.approx(reference["bits_per_byte,none"], rel=1e-4)


def test_generations_are_those_of_transformers(models: tuple[Any, Any], tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    rows = [{"question": question, "answer": "w9"} for question in ("w5 w6 w7", "w100 w200", "w42")]
    data.write_text("\n".join(map(json.dumps, rows)))
    task = _task(
        "toy_generation",
        data,
        output_type="generate_until",
        doc_to_text="{{question}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["w3 "], "max_gen_toks": 12, "do_sample": False},
        metric_list=[{"metric": "exact_match"}],
    )
    (_, mine), (_, reference) = (_samples(lm, dict(task)) for lm in models)
    assert [answer[0][0].split() for answer in mine] == [answer[0][0].split() for answer in reference]
    assert len({str(answer) for answer in mine}) == 3


def test_the_name_is_registered_and_takes_arguments(models: tuple[Any, Any], tmp_path: Path) -> None:
    from lm_eval.api.registry import get_model

    build_model(tmp_path, HYBRID)
    arguments = f"model={tmp_path},max_model_len=32,kv_memory=4MiB,dtype=float32,add_bos_token=True"
    made = get_model("octavo").create_from_arg_string(arguments, {"batch_size": 1, "device": "cpu"})
    assert (made.max_length, made.prefix_token_id, made.eot_token_id) == (31, 2, 1)
    assert made.tok_encode("w5") == [2, 5]
    assert made.tok_encode("w5", add_special_tokens=False) == [5]
    made.tasks.llm.shutdown()
