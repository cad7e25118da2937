"""What the engine core says about sequences, turned into what callers asked for: texts, log probabilities, completions.

The core knows token ids only. Here they become text, stop strings are found, and the sequences of one prompt are put
together again. A sequence whose stop string is found must be aborted in the core: `StepOutputs.abort` lists those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from octavo.engine.beam_search import Beam
from octavo.engine.detokenizer import Decoder, IncrementalDetokenizer, StopStrings
from octavo.engine.input_processor import PromptRequest
from octavo.engine.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
)
from octavo.errors import ExecutorError, InvariantError, OctavoError, RequestError
from octavo.messages import EngineCoreOutput, EngineCoreRequest, TokenLogprobs
from octavo.request import BeamSearchParams, FinishReason


class CompletionUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to one completion."""

    request_id: str
    index: int
    text: str
    """New text that no stop string can still take back."""
    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    """One entry for each of `token_ids`; None unless asked for."""
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache held for this completion."""
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """All of the prompt's, once, with the first completion's first token; None unless asked for."""


class StepOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """What one step of the core means for callers."""

    updates: list[CompletionUpdate]
    finished: list[RequestOutput]
    """Requests whose last completion ended in this step."""
    failed: list[tuple[str, OctavoError]]
    """(request id, what it ends with) of requests that the core gave up; they are forgotten here."""
    abort: list[str]
    """Core request ids that must not run on."""


def _error_of(output: EngineCoreOutput) -> OctavoError:
    message = output.error or "The request failed."
    if output.error_parameter is not None:
        return RequestError(message, parameter=output.error_parameter)
    return ExecutorError(message)


class OutputProcessor:
    """Owns: texts and tokens of every unfinished request. Never: talks to the core, or decides what runs."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._token_texts = TokenTexts(decoder)
        self._requests: dict[str, _RequestState] = {}
        self._completions: dict[str, _Completion] = {}
        """By core request id."""

    @property
    def num_unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    def add_request(self, request: PromptRequest, *, now: float) -> list[EngineCoreRequest]:
        """Expect news of `request` from now on (seconds on the caller's clock); the sequences to hand to the core."""
        sequences = request.sequences()
        state = _RequestState(request, now)
        for index, sequence in enumerate(sequences):
            completion = _Completion(state, index, sequence.request_id, self._decoder, self._token_texts)
            state.completions.append(completion)
            self._completions[sequence.request_id] = completion
        self._requests[request.request_id] = state
        return sequences

    def abort_requests(self, request_ids: Iterable[str]) -> list[str]:
        """Forget these requests (unknown ones are passed over); the core request ids to abort."""
        aborted: list[str] = []
        for request_id in request_ids:
            aborted += self._forget(request_id)
        return aborted

    def unfinished_ids(self) -> list[str]:
        """Request ids in the order they came."""
        return list(self._requests)

    def process(self, outputs: Sequence[EngineCoreOutput], *, now: float) -> StepOutputs:
        """Take one step's news. Outputs of requests that were aborted meanwhile are passed over."""
        step = StepOutputs(updates=[], finished=[], failed=[], abort=[])
        for output in outputs:
            completion = self._completions.get(output.request_id)
            if completion is None:
                continue
            if output.finish_reason is FinishReason.ERROR:
                request_id = completion.state.request.request_id
                step.abort.extend(key for key in self._forget(request_id) if key != output.request_id)
                step.failed.append((request_id, _error_of(output)))
                continue
            update = completion.add(output, now)
            step.updates.append(update)
            if update.finish_reason is None:
                continue
            del self._completions[output.request_id]
            if output.finish_reason is None:
                step.abort.append(output.request_id)
            if completion.state.is_finished:
                del self._requests[completion.state.request.request_id]
                step.finished.append(completion.state.output(now))
        return step

    def _forget(self, request_id: str) -> list[str]:
        state = self._requests.pop(request_id, None)
        if state is None:
            return []
        running = [completion.core_id for completion in state.completions if completion.finish_reason is None]
        for core_id in running:
            del self._completions[core_id]
        return running


class _RequestState:
    """One prompt under way. Owns: its completions and the log probabilities of its prompt."""

    def __init__(self, request: PromptRequest, arrived: float) -> None:
        self.request = request
        self.completions: list[_Completion] = []
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = (
            None if request.sampling.prompt_logprobs is None else [None]
        )
        self._arrived = arrived
        self._first_token_s: float | None = None

    @property
    def is_finished(self) -> bool:
        return all(completion.finish_reason is not None for completion in self.completions)

    def note_token(self, now: float) -> None:
        if self._first_token_s is None:
            self._first_token_s = now - self._arrived

    def output(self, now: float) -> RequestOutput:
        num_prompt_tokens = len(self.request.prompt_token_ids)
        if self.prompt_logprobs is not None and len(self.prompt_logprobs) != num_prompt_tokens:
            raise InvariantError(
                f"request {self.request.request_id}: {len(self.prompt_logprobs)} prompt log probabilities came for "
                f"{num_prompt_tokens} prompt tokens"
            )
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            prompt_logprobs=self.prompt_logprobs,
            outputs=[completion.output() for completion in self.completions],
            finished=self.is_finished,
            num_cached_tokens=self.completions[0].num_cached_tokens,
            metrics=RequestMetrics(first_token_s=self._first_token_s, finished_s=now - self._arrived),
        )


class _Completion:
    """One sequence under way. Owns: its tokens, its text and their log probabilities."""

    def __init__(
        self, state: _RequestState, index: int, core_id: str, decoder: Decoder, token_texts: TokenTexts
    ) -> None:
        sampling = state.request.sampling
        self.state = state
        self.core_id = core_id
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.num_cached_tokens = 0
        self._index = index
        self._sampling = sampling
        self._token_texts = token_texts
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] | None = None if sampling.logprobs is None else []
        self._cumulative_logprob = 0.0
        self._text = StopStrings(sampling.stop, include_in_output=sampling.include_stop_str_in_output)
        self._detokenizer = IncrementalDetokenizer(
            decoder,
            state.request.prompt_token_ids,
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
        )

    def add(self, output: EngineCoreOutput, now: float) -> CompletionUpdate:
        """Take what one step says about this sequence."""
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        if self.state.prompt_logprobs is not None and output.prompt_logprobs:
            self.state.prompt_logprobs.extend(self._dicts(output.prompt_logprobs))
        if output.new_token_ids:
            self.state.note_token(now)
        num_before = len(self._token_ids)
        prompt_logprobs = self.state.prompt_logprobs if not num_before and output.new_token_ids else None
        stop = self._take_tokens(output)
        if stop is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP, stop
        elif output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        if self.finish_reason is not None:
            self._text.finish()
        return CompletionUpdate(
            request_id=self.state.request.request_id,
            index=self._index,
            text=self._text.take(),
            token_ids=self._token_ids[num_before:],
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=None if self._logprobs is None else self._logprobs[num_before:],
            num_cached_tokens=self.num_cached_tokens,
            prompt_logprobs=prompt_logprobs if self._index == 0 else None,
        )

    def output(self) -> CompletionOutput:
        return CompletionOutput(
            index=self._index,
            text=self._text.text,
            token_ids=self._token_ids,
            cumulative_logprob=None if self._logprobs is None else self._cumulative_logprob,
            logprobs=self._logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            num_cached_tokens=self.num_cached_tokens,
        )

    def _take_tokens(self, output: EngineCoreOutput) -> str | None:
        """Append the new tokens up to the one that completes a stop string; that string, if any."""
        stop: str | None = None
        num_taken = 0
        # A stop token is a sign, not text, unless the caller asks to see what stopped the completion.
        is_sign = output.finish_reason is FinishReason.STOP and not output.last_is_text
        silent_last = is_sign and not self._sampling.include_stop_str_in_output
        for token_id in output.new_token_ids:
            self._token_ids.append(token_id)
            num_taken += 1
            if not (silent_last and num_taken == len(output.new_token_ids)):
                stop = self._take_text(self._detokenizer.add(token_id) if self._sampling.detokenize else "")
            if stop is not None:
                break
        if stop is None and output.finish_reason is not None and self._sampling.detokenize:
            stop = self._take_text(self._detokenizer.finish())
        if self._logprobs is not None:
            for entry in self._dicts(output.logprobs[:num_taken]):
                self._logprobs.append(entry)
                self._cumulative_logprob += next(iter(entry.values())).logprob
        return stop

    def _take_text(self, new: str) -> str | None:
        return self._text.add(new, may_stop=len(self._token_ids) > self._sampling.min_tokens)

    def _dicts(self, places: Sequence[TokenLogprobs]) -> list[dict[int, Logprob]]:
        return [logprob_dict(place, self._token_texts) for place in places]


def logprob_dict(place: TokenLogprobs, texts: Mapping[int, str]) -> dict[int, Logprob]:
    """What is known of one place, by token id: the chosen token first, then the best ones."""
    entry: dict[int, Logprob] = {}
    for position, (token_id, logprob) in enumerate(zip(place.token_ids, place.logprobs, strict=True)):
        if token_id not in entry:
            rank = place.rank if position == 0 else position
            entry[token_id] = Logprob(logprob=logprob, rank=rank, decoded_token=texts[token_id])
    return entry


class TokenTexts(dict[int, str]):
    """The text of each token by itself. Owns: those that were asked for, at most one for each of the vocabulary."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self._decoder = decoder

    def __missing__(self, token_id: int) -> str:
        text = self[token_id] = self._decoder.decode([token_id], skip_special_tokens=False)
        return text


def describe_beams(
    prompt_token_ids: list[int], beams: Sequence[Beam], decoder: Decoder, params: BeamSearchParams
) -> BeamSearchOutput:
    """The finished `beams` of a prompt as sequences."""
    texts = TokenTexts(decoder)
    sequences = []
    for beam in beams:
        ended = beam.finish_reason is FinishReason.STOP
        shown = beam.token_ids[:-1] if ended and not params.include_stop_str_in_output else beam.token_ids
        tokens = [*prompt_token_ids, *shown]
        sequences.append(
            BeamSearchSequence(
                tokens=tokens,
                text=decoder.decode(tokens, params.skip_special_tokens),
                cum_logprob=beam.logprob,
                logprobs=[logprob_dict(place, texts) for place in beam.places],
                finish_reason=beam.finish_reason or FinishReason.LENGTH,
                stop_reason=beam.token_ids[-1] if ended else None,
            )
        )
    return BeamSearchOutput(sequences=sequences)
