"""lm-eval's local-completions: a task of likelihoods, equal to our own offline figures."""

import json
import os
from pathlib import Path

import lm_eval
from lm_eval.models.openai_completions import LocalCompletionsAPI

context, continuations, figures = json.loads(os.environ["OCTAVO_FIGURES"])
data = Path(os.environ["OCTAVO_FOLDER"]) / "data.jsonl"
data.write_text(json.dumps({"question": context, "choices": continuations, "answer": 0}))
task = {
    "task": "capitals",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(data.parent / "cache")},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "question",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
}
model = LocalCompletionsAPI(
    base_url=os.environ["OCTAVO_URL"] + "/v1/completions", model=os.environ["OCTAVO_MODEL"], tokenizer_backend="remote",
    max_length=2048,
)  # fmt: skip
results = lm_eval.simple_evaluate(model=model, tasks=[task], log_samples=True, bootstrap_iters=0)
(sample,) = results["samples"]["capitals"]
found = [float(answer[0][0]) for answer in sample["resps"]]
assert all(abs(ours - theirs) < 1e-3 for ours, theirs in zip(figures, found, strict=True)), (figures, found)
print(f"loglikelihoods {[round(value, 3) for value in found]}, acc {results['results']['capitals']['acc,none']}")
