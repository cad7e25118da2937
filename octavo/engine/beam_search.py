"""Search for the most likely continuations of prompts, over shared blocks.

The definition, for a width W. A beam is a continuation with the sum of the log probabilities of its tokens. At every
step each beam is continued by every token of the vocabulary, and the continuations are put in order of their sums
(equal ones by beam, then by token id). Those among the first W that end, by an end-of-sequence token or by having
`max_tokens` tokens, are finished; the first W that do not end are the next beams. The answer is the W finished ones of
the best score, which is the sum divided by `length ** length_penalty`, where the length counts generated tokens, the
end-of-sequence token included. The search ends early only when no beam can beat the worst of W finished ones any more.

A beam is a request of one token that keeps its blocks. Its continuations are its children (`octavo.sched.forks`): full
blocks are shared, the last one is copied, and nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from octavo.engine.core_client import EngineCoreClient
from octavo.engine.input_processor import PromptRequest, name_prompt
from octavo.errors import InvariantError, RequestError
from octavo.messages import EngineCoreOutput, EngineCoreRequest, TokenLogprobs
from octavo.request import BeamSearchParams, FinishReason, SamplingParams


class Beam(NamedTuple):
    """A continuation under way or finished."""

    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0
    """Sum over its tokens."""
    parent: int = 0
    """Index of the beam of the step before that it continues."""
    places: tuple[TokenLogprobs, ...] = ()
    """At each of its tokens, the best ones that there were."""
    finish_reason: FinishReason | None = None


class BeamSearch:
    """One prompt's search, step by step; it knows of no engine.

    Owns: the beams, the finished ones. Never: asks for anything; it is told the best tokens of each beam.
    """

    def __init__(self, params: BeamSearchParams, *, max_tokens: int, eos_token_ids: Sequence[int]) -> None:
        self._params = params
        self._max_tokens = max_tokens
        self._eos = frozenset(() if params.ignore_eos else eos_token_ids)
        self._finished: list[tuple[float, Beam]] = []
        """(score, beam), the best first; at most `beam_width`."""
        self.beams: list[Beam] = [Beam()]
        """The best first; empty when the search is over."""

    def num_wanted(self, vocab_size: int) -> int:
        """Best tokens of each beam that `advance` must be told: enough to find `beam_width` that do not end."""
        return min(vocab_size, self._params.beam_width + len(self._eos))

    def advance(self, best: Sequence[TokenLogprobs]) -> None:
        """One step: `best[i]` are the best tokens after `beams[i]` (behind the chosen one, which does not count)."""
        width = self._params.beam_width
        order = sorted(
            (-(beam.logprob + logprob), index, token_id)
            for index, (beam, place) in enumerate(zip(self.beams, best, strict=True))
            for token_id, logprob in zip(place.token_ids[1:], place.logprobs[1:], strict=True)
        )
        continued: list[Beam] = []
        for number, (cost, index, token_id) in enumerate(order):
            if len(continued) == width or (number >= width and self._is_last_step):
                break
            reason = self._reason(token_id)
            if reason is None or number < width:
                parent = self.beams[index]
                token_ids, places = (*parent.token_ids, token_id), (*parent.places, best[index])
                beam = Beam(token_ids, -cost, index, places, reason)
                if reason is None:
                    continued.append(beam)
                else:
                    self._finished.append((self._score(beam.logprob, len(token_ids)), beam))
        self._finished.sort(key=lambda scored: -scored[0])
        del self._finished[width:]
        self.beams = continued if self._may_improve(continued) else []

    def finished(self) -> list[Beam]:
        """The best first."""
        return [beam for _, beam in self._finished]

    @property
    def _is_last_step(self) -> bool:
        return len(self.beams[0].token_ids) + 1 == self._max_tokens

    def _reason(self, token_id: int) -> FinishReason | None:
        if token_id in self._eos:
            return FinishReason.STOP
        return FinishReason.LENGTH if self._is_last_step else None

    def _score(self, logprob: float, length: int) -> float:
        return float(logprob / length**self._params.length_penalty)

    def _may_improve(self, continued: Sequence[Beam]) -> bool:
        """Whether any beam could still come before the last of enough finished ones: a sum never grows, and a length
        above 0 helps most at its greatest, one below 0 at its least."""
        if not continued or len(self._finished) < self._params.beam_width:
            return bool(continued)
        length = self._max_tokens if self._params.length_penalty > 0 else len(continued[0].token_ids) + 1
        return self._score(continued[0].logprob, length) > self._finished[-1][0]


class BeamRun:
    """Searches for several prompts in one engine.

    Owns: the requests that stand for beams. Never: leaves one of them, or its blocks, in the engine, however it ends.

    Parameters:
        vocab_size: of the model.
        num_at_once: prompts searched for at the same time; the others wait.
    """

    def __init__(
        self,
        client: EngineCoreClient,
        requests: Sequence[PromptRequest],
        params: BeamSearchParams,
        *,
        vocab_size: int,
        num_at_once: int,
    ) -> None:
        self._client = client
        self._requests = requests
        self._params = params
        self._vocab_size = vocab_size
        self._num_at_once = num_at_once
        self.searches = [
            BeamSearch(
                params,
                max_tokens=request.sampling.max_tokens or 1,
                eos_token_ids=[token_id for token_id in request.eos_token_ids if token_id < vocab_size],
            )
            for request in requests
        ]
        self._parents: dict[int, list[str]] = {}
        """By prompt under way: the requests of its beams, in their order."""
        self._answers: dict[int, dict[str, TokenLogprobs]] = {}
        """By prompt under way: what has come for them."""
        self._prompt_of: dict[str, int] = {}
        """Requests of beams that the engine holds in some form -> number of their prompt."""
        self._num_made = 0

    def run(self, on_finish: Callable[[], None]) -> None:
        """Search to the end; `on_finish` is called after each prompt.

        Raises `RequestError`, naming the prompt, when the core refuses or gives up one.
        """
        waiting = iter(range(len(self._requests)))
        try:
            self._begin(waiting)
            while self._parents:
                if not self._client.has_unfinished_requests():
                    raise InvariantError(f"the engine core has nothing to do, but {list(self._parents)} have not ended")
                for index in self._take(self._client.step().outputs):
                    self._advance(index)
                    if not self.searches[index].beams:
                        on_finish()
                self._begin(waiting)
        finally:
            if self._prompt_of:
                self._client.abort_requests(list(self._prompt_of))

    def _begin(self, waiting: Iterator[int]) -> None:
        """Let prompts start while there may be more at once."""
        while len(self._parents) < self._num_at_once:
            index = next(waiting, None)
            if index is None:
                return
            self._start_beams(index, parents=[])

    def _take(self, outputs: Sequence[EngineCoreOutput]) -> list[int]:
        """Note what has come; the prompts all of whose beams have answered."""
        ready = []
        for output in outputs:
            index = self._prompt_of.get(output.request_id)
            if index is None:
                continue
            if output.finish_reason is FinishReason.ERROR:
                raise self._named(RequestError(output.error or "The request failed."), index)
            answers = self._answers[index]
            answers[output.request_id] = output.logprobs[0]
            if len(answers) == len(self._parents[index]):
                ready.append(index)
        return ready

    def _advance(self, index: int) -> None:
        """One step of a search: its new beams start, and the old ones give up their blocks to them."""
        parents, answers, search = self._parents.pop(index), self._answers.pop(index), self.searches[index]
        search.advance([answers[parent] for parent in parents])
        if search.beams:
            self._start_beams(index, parents=parents)
        self._client.abort_requests(parents)
        for parent in parents:
            del self._prompt_of[parent]

    def _start_beams(self, index: int, *, parents: Sequence[str]) -> None:
        request, search = self._requests[index], self.searches[index]
        self._parents[index], self._answers[index] = [], {}
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            ignore_eos=True,
            detokenize=False,
            logprobs=search.num_wanted(self._vocab_size),
        )
        for beam in search.beams:
            self._num_made += 1
            name = f"{request.request_id}/{self._num_made}"
            message = EngineCoreRequest(
                request_id=name,
                prompt_token_ids=[*request.prompt_token_ids, *beam.token_ids],
                sampling=sampling,
                priority=request.priority,
                cache_salt=request.cache_salt,
                parent_id=parents[beam.parent] if parents else None,
                keep_blocks=True,
            )
            try:
                self._client.add_request(message)
            except RequestError as error:
                raise self._named(error, index) from None
            self._prompt_of[name] = index
            self._parents[index].append(name)

    def _named(self, error: RequestError, index: int) -> RequestError:
        return name_prompt(error, index, len(self._requests))
