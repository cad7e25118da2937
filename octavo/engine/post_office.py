"""Every unfinished request of an event loop, and the way of the core's news to whoever reads it."""

from __future__ import annotations

import asyncio
import logging
import time

from octavo.engine.detokenizer import Decoder
from octavo.engine.input_processor import PromptRequest
from octavo.engine.mailbox import Mailbox
from octavo.engine.observer import EngineObserver
from octavo.engine.output_processor import OutputProcessor
from octavo.errors import ExecutorError, OctavoError, RequestError
from octavo.messages import EngineCoreOutputs, EngineCoreRequest

logger = logging.getLogger(__name__)


class PostOffice:
    """Owns: the mailbox and the texts of every unfinished request. Never: talks to the core; what must be aborted
    there is returned, as ids of sequences."""

    def __init__(self, decoder: Decoder, observer: EngineObserver) -> None:
        self._observer = observer
        self._texts = OutputProcessor(decoder)
        self._mailboxes: dict[str, Mailbox] = {}
        """By the request's own number: a name may come again while old news of it is on its way."""
        self._numbers: dict[str, str] = {}
        """What callers call a request -> its number."""
        self._owners: dict[str, str] = {}
        """Id of a sequence in the core -> number of its request."""
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._mailboxes)

    async def wait_empty(self) -> None:
        """Wait until no request is under way."""
        await self._empty.wait()

    def open(self, request: PromptRequest, name: str) -> tuple[Mailbox, list[EngineCoreRequest]]:
        """A mailbox for `request`, which its caller calls `name`, and the sequences to hand to the core.

        Raises `RequestError` when an unfinished request has the name.
        """
        number = request.request_id
        if name in self._numbers or number in self._mailboxes:
            raise RequestError(f"Request id {name!r} is in use.", remedy="Choose an id that no unfinished request has.")
        now = time.perf_counter()
        sequences = self._texts.add_request(request, now=now)
        mailbox = self._mailboxes[number] = Mailbox(request, name)
        self._numbers[name] = number
        self._empty.clear()
        self._owners.update((sequence.request_id, number) for sequence in sequences)
        self._observer.request_arrived(request, now)
        return mailbox, sequences

    def find(self, name: str) -> Mailbox | None:
        """The mailbox of the unfinished request that its caller calls `name`."""
        return self._mailboxes.get(self._numbers.get(name, ""))

    def give_up(self, mailbox: Mailbox) -> list[str]:
        """Nobody reads this request any more. Nothing happens when it has ended."""
        if self._mailboxes.get(mailbox.request.request_id) is not mailbox:
            return []
        unfinished = self._close(mailbox)
        self._observer.request_failed(mailbox.request, None, time.perf_counter())
        return unfinished

    def fail(self, request_id: str, error: OctavoError) -> list[str]:
        """A request, or the request of a sequence, ends with `error`; unknown ones are passed over."""
        mailbox = self._mailboxes.get(self._owners.get(request_id, request_id))
        if mailbox is None:
            return []
        unfinished = self._close(mailbox)
        self._observer.request_failed(mailbox.request, error, time.perf_counter())
        mailbox.fail(error)
        return unfinished

    def fail_all(self, error: OctavoError) -> None:
        """Every request ends with `error`; the core that had them is gone."""
        for number in list(self._mailboxes):
            self.fail(number, error)

    def deliver(self, outputs: EngineCoreOutputs) -> list[str]:
        """Put one step's news into the mailboxes. Where that fails by accident, each request in it does."""
        now = time.perf_counter()
        self._observer.step_ended(outputs, now)
        try:
            return self._deliver(outputs, now)
        except Exception:
            logger.exception("The news of a step cannot be used: the requests in it end.")
            error = ExecutorError(
                "What the engine core said of the request cannot be used.", remedy="The server's log has the details."
            )
            return [left for output in outputs.outputs for left in self.fail(output.request_id, error)]

    def _deliver(self, outputs: EngineCoreOutputs, now: float) -> list[str]:
        step = self._texts.process(outputs.outputs, now=now)
        abort = list(step.abort)
        for update in step.updates:
            self._mailboxes[update.request_id].put(update)
        for output in step.finished:
            mailbox = self._mailboxes[output.request_id]
            self._close(mailbox)
            self._observer.request_finished(output, now)
            mailbox.finish(output)
        for request_id, error in step.failed:
            abort += self.fail(request_id, error)
        return abort

    def _close(self, mailbox: Mailbox) -> list[str]:
        number = mailbox.request.request_id
        del self._mailboxes[number], self._numbers[mailbox.name]
        for sequence in mailbox.request.sequences():
            del self._owners[sequence.request_id]
        if not self._mailboxes:
            self._empty.set()
        return self._texts.abort_requests([number])
