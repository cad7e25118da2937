"""Whom `octavo chat` talks with: a model in this process, or a server with OpenAI's API."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from octavo.cli.startup import start
from octavo.errors import ConfigError, OctavoError
from octavo.request import SamplingParams

TIMEOUT_S = 600.0
"""For one read from a server: a long prompt takes a while."""


class Partner(ABC):
    """The other side of a conversation. Owns: what it took to start, until it is left as a context manager."""

    name: str
    """What is talked with."""

    @abstractmethod
    def answer(self, messages: Sequence[Mapping[str, str]]) -> Iterator[str]:
        """The next turn, piece by piece. Raises `OctavoError` where there is none; closing it ends the request."""

    @abstractmethod
    def note(self) -> str:
        """The figures of the last answer, in one line; empty where none is known."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LocalPartner(Partner):
    """A model in this process. Raises what `LLM` raises."""

    def __init__(self, options: Mapping[str, Any], sampling: SamplingParams, *, verbose: bool) -> None:
        self._llm, _ = start(options, _require_template, verbose=verbose, quiet=False)
        self._sampling = sampling
        self._run: Any = None
        self.name = str(options["model"])

    def answer(self, messages: Sequence[Mapping[str, str]]) -> Iterator[str]:
        self._run = self._llm.start_run(self._llm.render_chat(messages), self._sampling, add_special_tokens=False)
        for update in self._run.updates():
            yield update.text

    def note(self) -> str:
        if self._run is None or not self._run.num_finished:
            return ""
        found = self._run.figures(load_s=self._llm.load_s, num_blocks=self._llm.plan.figures.num_blocks)
        return (
            f"prompt {found.prompt_tokens} tokens, {found.hit_tokens} of them cached; output {found.output_tokens} "
            f"tokens at {found.decode_tokens_per_s:.1f} tok/s; first token after {found.ttft_s:.2f} s"
        )

    def close(self) -> None:
        self._llm.shutdown()


def _require_template(prepared: Any, _: object) -> None:
    """Raises `RequestError` for a model that was not made for conversations."""
    prepared.tokenizer.template_source(has_tools=False)


class ServerPartner(Partner):
    """A server with OpenAI's API.

    Raises `ConfigError` when nothing answers at `url`, or it has no such model.
    """

    def __init__(self, url: str, sampling: SamplingParams, *, model: str | None, api_key: str | None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url} is no address of a server.", remedy="Write http://HOST:PORT")
        self._base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}/v1"
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {api_key}"} if api_key else {}
        )
        self._fields = {
            name: value
            for name, value in msgspec.structs.asdict(sampling).items()
            if name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "max_tokens")
            and value is not None
        }
        self._usage: Mapping[str, Any] = {}
        names = [card["id"] for card in self._get("models")["data"]]
        if model is not None and model not in names:
            raise ConfigError(f"--model is {model}, and {url} has {', '.join(names)}.", remedy="Name one of these.")
        self._model = model or names[0]
        self.name = f"{self._model} at {self._base.removesuffix('/v1')}"

    def answer(self, messages: Sequence[Mapping[str, str]]) -> Iterator[str]:
        body = {
            **self._fields,
            "model": self._model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._usage = {}
        with self._open("chat/completions", json.dumps(body).encode()) as answer:
            for event in _events(answer):
                if "error" in event:
                    raise OctavoError(f"The server gave the answer up: {event['error'].get('message')}")
                self._usage = event.get("usage") or self._usage
                for choice in event.get("choices", []):
                    yield choice["delta"].get("content") or ""

    def note(self) -> str:
        if not self._usage:
            return ""
        cached = (self._usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return (
            f"prompt {self._usage['prompt_tokens']} tokens, {cached} of them cached; "
            f"output {self._usage['completion_tokens']} tokens"
        )

    def close(self) -> None:
        """Nothing stays open between answers."""

    def _get(self, path: str) -> Any:
        with self._open(path, None) as answer:
            return json.load(answer)

    def _open(self, path: str, body: bytes | None) -> http.client.HTTPResponse:
        request = urllib.request.Request(f"{self._base}/{path}", body, self._headers)
        try:
            answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            raise OctavoError(f"The server refuses (status {error.code}): {_message(error)}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise ConfigError(
                f"No server answers at {self._base}: {reason}.", remedy="Start one with: octavo serve MODEL"
            ) from None
        return answer


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The documents of server-sent events. Raises `OctavoError` when the connection breaks."""
    try:
        for line in answer:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                yield json.loads(line[6:])
    except (OSError, http.client.HTTPException) as error:
        raise OctavoError(f"The connection to the server broke: {error or type(error).__name__}.") from None


def _message(error: urllib.error.HTTPError) -> str:
    """What the server says of an error; its first words where it does not speak as OpenAI's does."""
    text = error.read(2000).decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return text[:200] or error.reason
