"""Octavo as a model of lm-eval (the EleutherAI evaluation harness), installed apart: `pip install octavo[eval]`.

    import lm_eval
    from octavo import LLM
    from octavo.evaluate.lm_eval_model import OctavoLM

    lm_eval.simple_evaluate(model=OctavoLM(LLM("demo")), tasks=["arc_easy"])

Importing this module also registers the name `octavo`: `simple_evaluate(model="octavo", model_args="model=demo")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from octavo.engine.llm import LLM
from octavo.evaluate.tasks import MAX_NEW_TOKENS, TaskModel


@register_model("octavo")
class OctavoLM(TemplateLM):  # type: ignore[misc]
    """lm-eval's questions, asked of an `LLM`.

    Owns: the `LLM`, if it was made here. Never: pads, or cuts a batch: the engine's scheduler does what fits.

    Parameters:
        model: a loaded `LLM`, or what `LLM` takes for one, with its `options`.
        add_bos_token: whether texts begin with BOS; None does as the model's tokenizer does by itself.
        batch_size, max_batch_size: taken because lm-eval hands them over; without effect.
        device: as of `LLM`; lm-eval hands over None where nothing was asked.
    """

    def __init__(
        self,
        model: LLM | str = "demo",
        *,
        add_bos_token: bool | None = None,
        batch_size: object = None,
        max_batch_size: object = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        llm = model if isinstance(model, LLM) else LLM(model, device=device or "auto", **options)
        self.tasks = TaskModel(llm, adds_bos=add_bos_token)
        self._device = llm.device
        self.batch_size = "auto"
        self.max_length = self.tasks.max_length
        self.max_gen_toks = MAX_NEW_TOKENS

    @property
    def eot_token_id(self) -> int:
        ends = self.tasks.tokenizer.eos_token_ids
        return ends[0] if ends else self.tasks.first_context

    @property
    def prefix_token_id(self) -> int:
        return self.tasks.first_context

    @property
    def tokenizer_name(self) -> str:
        return self.tasks.llm.model_name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:  # noqa: FBT001
        return self.tasks.encode(string, with_marks=add_special_tokens is not False)

    def loglikelihood_rolling(
        self,
        requests: Sequence[Any],
        disable_tqdm: bool = False,  # noqa: FBT001, FBT002 - lm-eval's signature
    ) -> list[float]:
        return self.tasks.score_texts(request.args[0] for request in requests)

    def generate_until(
        self,
        requests: Sequence[Any],
        disable_tqdm: bool = False,  # noqa: FBT001, FBT002 - lm-eval's signature
    ) -> list[str]:
        return self.tasks.complete([request.args for request in requests])

    def apply_chat_template(self, chat_history: Sequence[dict[str, Any]], add_generation_prompt: bool = True) -> str:  # noqa: FBT001, FBT002
        return self.tasks.tokenizer.apply_chat_template(chat_history, add_generation_prompt=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:  # noqa: FBT001, FBT002
        """lm-eval notes it in its results; the model's own is the one that is applied."""
        return self.tokenizer_name if chat_template else ""

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        scores = self.tasks.score_pairs((context, continuation) for _, context, continuation in requests)
        answers = [(sum(score.logprobs), score.is_greedy) for score in scores]
        for (texts, _, _), answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers
