"""The three questions that evaluation tasks ask of a model: how likely is this after that, how likely is this text, and
what comes next until a stop. `octavo/evaluate/lm_eval_model.py` lets lm-eval ask them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.engine.llm import LLM
from octavo.errors import RequestError
from octavo.evaluate import scoring
from octavo.evaluate.scoring import Score, score_sequences
from octavo.request import SamplingParams

MAX_NEW_TOKENS = 256
"""Longest continuation where a task does not say."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
"""Arguments of a generation that are fields of `SamplingParams`."""


class TaskModel:
    """A loaded model as tasks see it.

    Owns: nothing; the `LLM` is the caller's. Never: runs anything but whole batches.

    Parameters:
        adds_bos: whether texts begin with a BOS token; None does as the model's tokenizer does by itself.
    """

    def __init__(self, llm: LLM, *, adds_bos: bool | None = None) -> None:
        self.llm = llm
        self.tokenizer = llm.get_tokenizer()
        self.max_length = llm.max_model_len - 1
        """Most tokens of a text with its context: the engine keeps room for one that it generates."""
        bos = self.tokenizer.bos_token_id
        if adds_bos and bos is None:
            raise RequestError("The tokenizer has no BOS token to add.", remedy="Leave out add_bos_token.")
        marks = self.tokenizer.prefix_ids
        if adds_bos is not None:
            marks = (bos,) if adds_bos and bos is not None else ()
        self._marks = tuple(marks)

    @property
    def first_context(self) -> int:
        """The token that stands before a text without context: BOS, or the end of a sequence where there is none.

        Raises `RequestError` when the tokenizer has neither.
        """
        found = [self.tokenizer.bos_token_id, *self.tokenizer.eos_token_ids]
        for token_id in found:
            if token_id is not None:
                return token_id
        raise RequestError(
            "The tokenizer has neither a BOS nor an end-of-sequence token, so a text without context cannot be scored.",
            remedy="Give each text a context.",
        )

    def encode(self, text: str, *, with_marks: bool = True) -> list[int]:
        """Token ids, behind BOS where this model's texts have one; a text that brings its own gets no second."""
        token_ids = self.tokenizer.encode(text, add_special_tokens=False)
        marks = list(self._marks) if with_marks else []
        return token_ids if token_ids[: len(marks)] == marks else [*marks, *token_ids]

    def score_pairs(self, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> list[Score]:
        """For each (context, continuation) in token ids what the model says of the continuation.

        What is longer than `max_length` loses the beginning of its context. Raises `RequestError` for a context that is
        empty, or lost altogether.
        """
        return list(score_sequences(self.llm, (self._fitted(*pair) for pair in pairs)))

    def score_texts(self, texts: Iterable[str]) -> list[float]:
        """The log probability of each whole text: every token is scored once.

        `first_context` stands before the first token. A text of more than `max_length` tokens is cut into windows of
        that length, in which every token but the first is scored; the last one reaches back as far as it can.
        """
        totals = []
        for text in texts:
            token_ids = [self.first_context, *self.encode(text, with_marks=False)]
            totals.append(sum(sum(score.logprobs) for score in score_sequences(self.llm, self._cut(token_ids))))
        return totals

    def complete(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """For each (context, arguments) the text that follows, without the stop string that ended it.

        Arguments: `until` (texts that end it), `max_gen_toks`, `do_sample` (without it the most likely token is always
        taken), and sampling parameters. A context that leaves no room loses its beginning. Raises `RequestError` for an
        argument that is not known.
        """
        prompts, params = [], []
        for context, arguments in requests:
            sampling = sampling_of(arguments)
            room = self.llm.max_model_len - (sampling.max_tokens or MAX_NEW_TOKENS)
            if room < 1:
                raise RequestError(
                    f"max_gen_toks is {sampling.max_tokens}, but the max_model_len of {self.llm.max_model_len} leaves "
                    "no room for a prompt beside them.",
                    remedy="Lower it, or raise max_model_len.",
                )
            prompts.append({"prompt_token_ids": self.encode(context)[-room:]})
            params.append(sampling)
        return [output.outputs[0].text for output in self.llm.start_run(prompts, params).finish()]

    def _fitted(self, context: Sequence[int], continuation: Sequence[int]) -> scoring.Sequence:
        kept = [*context, *continuation][-self.max_length :]
        return scoring.Sequence(token_ids=kept, num_context=len(kept) - len(continuation))

    def _cut(self, token_ids: list[int]) -> Iterable[scoring.Sequence]:
        scored = 1
        while scored < len(token_ids):
            end = min(scored - 1 + self.max_length, len(token_ids))
            begin = max(0, end - self.max_length)
            yield scoring.Sequence(token_ids=token_ids[begin:end], num_context=scored - begin)
            scored = end


def sampling_of(arguments: Mapping[str, Any]) -> SamplingParams:
    """The sampling parameters that a task's generation arguments mean. Raises `RequestError` for unknown ones."""
    given = dict(arguments)
    until = given.pop("until", None) or ()
    max_tokens = given.pop("max_gen_toks", given.pop("max_new_tokens", MAX_NEW_TOKENS))
    is_sampled = given.pop("do_sample", given.get("temperature", 0.0) > 0)
    fields = {name: given.pop(name) for name in _SAMPLING if name in given}
    if given:
        raise RequestError(
            f"{next(iter(given))} is no argument of a generation that is known.",
            remedy=f"Known are until, max_gen_toks, do_sample, {', '.join(_SAMPLING)}.",
        )
    if not is_sampled:
        fields["temperature"] = 0.0
    stop = (until,) if isinstance(until, str) else tuple(text for text in until if text)
    return SamplingParams(max_tokens=max_tokens, stop=stop, **fields)
