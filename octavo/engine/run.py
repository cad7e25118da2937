"""One batch of prompts on its way through the engine: hand in, step until all have ended, collect."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from octavo.engine.core_client import EngineCoreClient
from octavo.engine.figures import Figures, RunMeter
from octavo.engine.input_processor import PromptRequest, name_prompt
from octavo.engine.output_processor import CompletionUpdate, OutputProcessor
from octavo.engine.outputs import RequestOutput
from octavo.engine.turn import Turn
from octavo.errors import InvariantError, RequestError


class Run:
    """Some prompts, run to their end.

    Owns: the outputs that have come so far, and the measurements. Never: leaves a request of its own in the engine,
    whether it ends well, by an error, by Ctrl-C, or because the caller stopped listening.

    Parameters:
        turn: shared by all runs of one engine; a run has it while its `updates` are read.
    """

    def __init__(
        self,
        client: EngineCoreClient,
        processor: OutputProcessor,
        requests: Sequence[PromptRequest],
        *,
        turn: Turn | None = None,
    ) -> None:
        self._client = client
        self._processor = processor
        self._turn = turn or Turn()
        self.requests = tuple(requests)
        self._done: dict[str, RequestOutput] = {}
        self.started = time.perf_counter()
        """When the prompts were handed in (`time.perf_counter`)."""
        self._ended = self.started
        self.index_of = {request.request_id: index for index, request in enumerate(self.requests)}
        """Request id -> number of its prompt."""
        self.meter = RunMeter(
            num_prompt_tokens=sum(len(request.prompt_token_ids) * request.sampling.n for request in self.requests),
            num_sequences=sum(request.sampling.n for request in self.requests),
        )

    @property
    def num_prompts(self) -> int:
        return len(self.requests)

    @property
    def num_finished(self) -> int:
        """Prompts whose completions have all ended."""
        return len(self._done)

    def updates(self) -> Iterator[CompletionUpdate]:
        """Run the engine; what each step adds to each completion. To be iterated once.

        Raises `RequestError`, naming the prompt, when the core refuses or gives up one: then none of the others runs
        on. Closing the iterator early has the same effect without the error. Waits for runs of other threads to end;
        raises `RequestError` inside another run of this thread, and `OctavoError` when the engine was shut down.
        """
        with self._turn.taken():
            yield from self._updates()

    def _updates(self) -> Iterator[CompletionUpdate]:
        self.started = time.perf_counter()
        try:
            self._hand_in()
            while self._processor.num_unfinished:
                yield from self._step()
        finally:
            self._ended = time.perf_counter()
            unfinished = self._processor.abort_requests(self.index_of)
            if unfinished:
                self._client.abort_requests(unfinished)

    def finish(self) -> list[RequestOutput]:
        """Run to the end; the outputs in order of the prompts. Raises as `updates`."""
        for _ in self.updates():
            pass
        return self.outputs()

    def output_of(self, index: int) -> RequestOutput | None:
        """The output of prompt number `index`; None before it has finished, and where there is no such prompt."""
        if index >= len(self.requests):
            return None
        return self._done.get(self.requests[index].request_id)

    def outputs(self) -> list[RequestOutput]:
        """What has finished, in order of the prompts."""
        return [self._done[request_id] for request_id in self.index_of if request_id in self._done]

    def figures(self, *, load_s: float, num_blocks: int) -> Figures:
        """The figures of the run after its end."""
        return self.meter.figures(
            self.outputs(), load_s=load_s, wall_s=self._ended - self.started, num_blocks=num_blocks
        )

    def _hand_in(self) -> None:
        for index, request in enumerate(self.requests):
            try:
                for sequence in self._processor.add_request(request, now=self.started):
                    self._client.add_request(sequence)
            except RequestError as error:
                raise name_prompt(error, index, len(self.requests)) from None

    def _step(self) -> list[CompletionUpdate]:
        self._turn.require_open()
        if not self._client.has_unfinished_requests():
            lost = ", ".join(self._processor.unfinished_ids())
            raise InvariantError(f"the engine core has nothing to do, but requests {lost} have not ended")
        before = time.perf_counter()
        outputs = self._client.step()
        now = time.perf_counter()
        self.meter.observe(outputs, now - before)
        step = self._processor.process(outputs.outputs, now=now)
        if step.abort:
            self._client.abort_requests(step.abort)
        for request_id, error in step.failed:
            raise name_prompt(RequestError(str(error)), self.index_of[request_id], len(self.requests))
        self._done.update((output.request_id, output) for output in step.finished)
        return step.updates
