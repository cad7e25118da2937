"""The routes, and what stands around all of them: keys, limits, errors."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.engine.async_llm import AsyncLLM
from octavo.engine.input_processor import check_text
from octavo.errors import OctavoError
from octavo.observe.metrics import EngineMetrics
from octavo.server.access import OPEN_PATHS, Access
from octavo.server.answers import unix_time
from octavo.server.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from octavo.server.chat import Chats
from octavo.server.completions import Completions
from octavo.server.failures import ServerError, failure_of, speaking_of
from octavo.server.gate import Gate
from octavo.server.http_series import HttpSeries
from octavo.server.memory import memory_document
from octavo.server.page import page
from octavo.server.settings import ServerSettings
from octavo.server.unreadable import UNREADABLE, refusal_of

logger = logging.getLogger(__name__)


def make_app(
    engine: AsyncLLM, settings: ServerSettings, metrics: EngineMetrics, *, version: str
) -> tuple[FastAPI, Gate]:
    """The application, and the gate that its requests pass. The engine must have started before the first request."""
    app = FastAPI(title="Octavo", version=version, docs_url=None, redoc_url=None)
    access = Access(settings.api_keys, shares_prefixes=settings.shares_prefixes)
    gate = Gate(engine, settings, on_refusal=metrics.request_refused)

    async def identify(request: Request, authorization: Annotated[str | None, Header()] = None) -> None:
        request.state.owner = None
        if request.url.path not in OPEN_PATHS:
            request.state.owner = access.identify(authorization)

    app.router.dependencies.append(Depends(identify))
    app.add_middleware(_BodyLimit, max_bytes=settings.max_request_bytes)
    app.add_middleware(HttpSeries, registry=metrics.registry)
    _add_failures(app)
    _add_state(app, engine, gate, metrics, version)
    _add_cache(app, engine)
    _add_generation(app, engine, gate, access, settings)
    return app, gate


def _add_generation(app: FastAPI, engine: AsyncLLM, gate: Gate, access: Access, settings: ServerSettings) -> None:
    completions = Completions(engine, gate, access, settings)
    chats = Chats(engine, gate, access, settings)

    @app.post("/v1/completions", response_model=None)
    async def create_completion(request: Request, body: CompletionBody) -> Response:
        return await completions.post(request, body)

    @app.post("/v1/chat/completions", response_model=None)
    async def create_chat_completion(request: Request, body: ChatBody) -> Response:
        return await chats.post(request, body)

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        gate.note_unknown(body)
        gate.check_model(body.model)
        return await asyncio.to_thread(_tokenize, engine, chats, body)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, Any]:
        gate.note_unknown(body)
        gate.check_model(body.model)
        tokenizer = engine.get_tokenizer()
        size = max(engine.vocab_size, tokenizer.vocab_size)
        strange = [token_id for token_id in body.tokens if not 0 <= token_id < size]
        if strange:
            raise ServerError(
                400, f"{strange[0]} in tokens is no token id: they go from 0 to {size - 1}.", param="tokens"
            )
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
        return {"prompt": text}


def _tokenize(engine: AsyncLLM, chats: Chats, body: TokenizeBody) -> dict[str, Any]:
    if (body.prompt is None) == (body.messages is None):
        raise ServerError(400, "Give either prompt or messages.", param="prompt")
    tokenizer = engine.get_tokenizer()
    with speaking_of("messages" if body.prompt is None else "prompt"):
        text = chats.render(body) if body.prompt is None else body.prompt
        check_text(text, "The prompt")
    # A template writes its marks itself.
    special = body.add_special_tokens if body.add_special_tokens is not None else body.prompt is not None
    tokens = tokenizer.encode(text, add_special_tokens=special)
    texts = (
        [tokenizer.decode([token], skip_special_tokens=False) for token in tokens] if body.return_token_strs else None
    )
    return {"count": len(tokens), "max_model_len": engine.max_model_len, "tokens": tokens, "token_strs": texts}


def _add_state(app: FastAPI, engine: AsyncLLM, gate: Gate, metrics: EngineMetrics, version: str) -> None:
    started = unix_time()

    @app.get("/", include_in_schema=False)
    async def show_page() -> Response:
        return page()

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        engine.check_health()
        first = gate.names[0]
        cards = [
            {
                "id": name,
                "object": "model",
                "created": started,
                "owned_by": "octavo",
                "root": first,
                "parent": None,
                "max_model_len": engine.max_model_len,
            }
            for name in gate.names
        ]
        return {"object": "list", "data": cards}

    @app.get("/v1/models/{name:path}")
    async def show_model(name: str) -> dict[str, Any]:
        gate.check_model(name)
        return next(card for card in (await list_models())["data"] if card["id"] == name)

    @app.get("/health", response_model=None)
    async def health() -> Response:
        engine.check_health()
        return Response()

    @app.get("/ping", response_model=None)
    @app.post("/ping", response_model=None)
    async def ping() -> Response:
        return await health()

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": version}

    @app.get("/load")
    async def load() -> dict[str, int]:
        return {"server_load": engine.num_unfinished}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> Response:
        return Response(metrics.exposition(), media_type=metrics.content_type)

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        engine.check_health()
        return {**engine.get_tokenizer().describe(), "max_model_len": engine.max_model_len}


def _add_cache(app: FastAPI, engine: AsyncLLM) -> None:
    @app.get("/kv_cache")
    async def show_kv_cache() -> dict[str, Any]:
        return await memory_document(engine)

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> dict[str, bool]:
        return {"reset": await engine.reset_prefix_cache()}


def _add_failures(app: FastAPI) -> None:
    """All errors in OpenAI's shape."""

    @app.exception_handler(ServerError)
    @app.exception_handler(OctavoError)
    @app.exception_handler(TimeoutError)
    async def answer(request: Request, error: Exception) -> Response:
        failure = failure_of(error)
        if failure.status >= 500:
            logger.error("%s %s: %s", request.method, request.url.path, failure.message)
        return failure.response()

    @app.exception_handler(RequestValidationError)
    async def explain(request: Request, error: RequestValidationError) -> Response:
        return refusal_of(error.errors()).response()

    @app.exception_handler(HTTPException)
    async def relay(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # the framework's word for a body that its JSON reader gives up
            return ServerError(400, UNREADABLE).response()
        kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
        response = ServerError(error.status_code, f"{error.detail}: {request.url.path}", kind=kind).response()
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def confess(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed.", request.method, request.url.path, exc_info=error)
        return failure_of(error).response()


class _BodyLimit:
    """Refuses request bodies that are too long, whether their length is told or not."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise HTTPException(413, f"The request body is longer than {self._max_bytes} bytes")
            return message

        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > self._max_bytes:
            error = ServerError(413, f"The request body has {int(told)} bytes, and {self._max_bytes} are allowed.")
            await error.response()(scope, receive, send)
            return
        await self._app(scope, counted, send)
