"""The application: endpoints, and what each does with a request. It runs in any ASGI server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import ASGIApp, Receive, Scope, Send

from medusa_cli import __version__
from medusa_cli.api.answer import Piece
from medusa_cli.server import asks, errors, page
from medusa_cli.server.answer_queue import AnswerQueue, Job
from medusa_cli.server.answers import ChatShape, Shape, TextShape
from medusa_cli.server.engine.remote import Engine
from medusa_cli.server.engine_queue import DEFAULT_WAITING, EngineQueue
from medusa_cli.server.errors import ApiError, shutting_down, wrong
from medusa_cli.server.guards import MOST_VALUES, Guards, client_of
from medusa_cli.server.messages_answer import MessagesShape
from medusa_cli.server.messages_request import CountRequest, MessagesRequest
from medusa_cli.server.metrics import CONTENT_TYPE, Metrics, ServerMetrics
from medusa_cli.server.reading import Comments, Reading
from medusa_cli.server.responses_answer import ResponsesShape
from medusa_cli.server.responses_request import ResponsesRequest
from medusa_cli.server.schemas import ChatRequest, ErrorBody, MessageErrorBody, TextRequest

MOST_BODY_BYTES = 8 << 20
MANY_FOR_ONE_ANSWER: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 403, 408, 413, 415, 429, 500, 503)
}

MANY_FOR_ONE_MESSAGE: dict[int | str, dict[str, Any]] = {
    status: {"model": MessageErrorBody} for status in MANY_FOR_ONE_ANSWER
}


@dataclass(frozen=True)
class Limits:
    """waiting: requests in the queue; body_bytes: of one request."""

    waiting: int = DEFAULT_WAITING
    body_bytes: int = MOST_BODY_BYTES


class EventStream(StreamingResponse):
    """on_end is called however the stream ends, even if the client left before the first event."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(events)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


class Server:
    """What the endpoints share. defaults: sampling options if a request sets none."""

    def __init__(self, engine: Engine, defaults: asks.Options, limits: Limits) -> None:
        self.engine = engine
        self.defaults = defaults
        self._prompts = asks.Prompts(engine)
        self.queue = AnswerQueue(engine, limits.waiting, lambda answer: self.metrics.count(answer))
        self.metrics = Metrics(self.queue, engine)

    async def answer(self, body: ChatRequest | TextRequest, shape: Shape, request: Request) -> Response:
        """The answer to a request, whole or streamed, once its turn has come. ApiError for what cannot be answered."""
        options = asks.options_for(body, self.defaults, self.engine)
        await asks.check_structure(body, options, self.engine)
        client = client_of(request.client.host if request.client else "")
        prompt = await self._prompts.tokens_of(body, options)
        tools = asks.offered(body) if isinstance(body, ChatRequest) else []
        is_raw = isinstance(body, TextRequest)
        one_call = not is_raw and body.parallel_tool_calls is False
        choice = None if is_raw else body.forced_tool
        job = Job(client, prompt.ids, options, prompt.left_out, tools, is_raw, one_call, choice)
        shape.prompt_tokens = prompt.count
        self.queue.submit(job)
        if body.stream:
            return EventStream(self._stream(shape, job), lambda: self.queue.drop(job))
        return await self._whole(request, shape, job)

    async def count(self, body: ChatRequest) -> int:
        """Tokens of a prompt. ApiError for what cannot be one."""
        return (await self._prompts.tokens_of(body, asks.options_for(body, self.defaults, self.engine))).count

    async def _whole(self, request: Request, shape: Shape, job: Job) -> Response:
        """The answer in one piece; a client that leaves in the meantime ends it."""
        leaving = asyncio.ensure_future(left(request))
        pieces: list[Piece] = []
        try:
            while True:
                found = await job.next_event(leaving)
                if isinstance(found, Sequence):
                    pieces += found
                if isinstance(found, (Sequence, Reading)):
                    continue
                if found.stop_reason == "cancelled":
                    raise shutting_down()
                return as_json(shape.whole(found, pieces))
        finally:
            leaving.cancel()
            self.queue.drop(job)

    async def _stream(self, shape: Shape, job: Job) -> AsyncIterator[bytes]:
        """Server-sent events. An error is the last one."""
        try:
            async for event in self._events(shape, job):
                yield event
        except Exception as error:
            yield _event(shape, shape.failed(errors.as_api_error(error)))

    async def _events(self, shape: Shape, job: Job) -> AsyncIterator[bytes]:
        for chunk in shape.opening():
            yield _event(shape, chunk)
        comments = Comments()
        while True:
            try:
                event = await asyncio.wait_for(job.events.get(), comments.seconds)
            except asyncio.TimeoutError:
                yield format_sse_event(comment=comments.comment())
                continue
            if isinstance(event, Reading):
                comments.read(event)
                continue
            if isinstance(event, BaseException):
                raise errors.as_api_error(event)
            if isinstance(event, Sequence):
                chunks = shape.step(event)
                for chunk in chunks:
                    yield _event(shape, chunk)
                if comments.wrote(bool(chunks)):
                    yield format_sse_event(comment=comments.comment())
                continue
            if event.stop_reason == "cancelled":
                raise shutting_down()
            for chunk in shape.closing(event):
                yield _event(shape, chunk)
            if not shape.named:
                yield format_sse_event(data_str="[DONE]")
            return


def create_app(
    engine: Engine, defaults: asks.Options, host: str, api_key: str | None, limits: Limits
) -> tuple[ASGIApp, Server]:
    """The guarded application and what it runs on. host: the address to bind to."""
    server = Server(engine, defaults, limits)
    app = new_app(server)
    _add_endpoints(app, server)
    page.add_page(app)
    return guarded(app, server, host, api_key, limits.body_bytes, MOST_VALUES + engine.n_ctx), server


class Served(Protocol):
    """What is behind an application."""

    @property
    def engine(self) -> Engine: ...

    @property
    def queue(self) -> EngineQueue[Any, Any]: ...

    @property
    def metrics(self) -> ServerMetrics: ...


def new_app(server: Served, **facts: int) -> FastAPI:
    """An application with the endpoints of all servers. facts: more of what it tells about its model."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        server.queue.start()
        yield
        await server.queue.stop()

    app = FastAPI(
        title="medusa",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
    )
    errors.add_handlers(app)
    _add_model_endpoints(app, server, facts)
    return app


def guarded(app: FastAPI, server: Served, host: str, api_key: str | None, body_bytes: int, body_values: int) -> ASGIApp:
    """The application behind its guards."""

    def count(status: int) -> None:
        server.metrics.responses.labels(str(status)).inc()

    return Guards(app, host, api_key, body_bytes, body_values, count)


def _add_endpoints(app: FastAPI, server: Server) -> None:
    engine = server.engine

    @app.post("/v1/chat/completions", responses=MANY_FOR_ONE_ANSWER)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await server.answer(body, ChatShape(engine, body), request)

    @app.post("/v1/completions", responses=MANY_FOR_ONE_ANSWER)
    async def completions(body: TextRequest, request: Request) -> Response:
        return await server.answer(body, TextShape(engine, body), request)

    @app.post("/v1/responses", responses=MANY_FOR_ONE_ANSWER)
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        return await server.answer(body.chat(), ResponsesShape(engine, body), request)

    @app.post("/v1/messages", responses=MANY_FOR_ONE_MESSAGE)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        return await server.answer(body.chat(), MessagesShape(engine, body.stop_sequences or ()), request)

    @app.post("/v1/messages/count_tokens", responses=MANY_FOR_ONE_MESSAGE)
    async def count_tokens(body: CountRequest) -> dict[str, int]:
        return {"input_tokens": await server.count(body.as_chat())}

    @app.post("/v1/embeddings", responses={400: {"model": ErrorBody}})
    async def embeddings() -> None:
        raise wrong(f"{engine.name} writes text and has no embeddings: ask a server with an embedding model", "model")


def _add_model_endpoints(app: FastAPI, server: Served, facts: dict[str, int]) -> None:
    engine, begun = server.engine, int(time.time())
    model = {"id": engine.name, "object": "model", "created": begun, "owned_by": "medusa", "n_ctx": engine.n_ctx}
    model |= facts

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name}", responses={404: {"model": ErrorBody}})
    async def one_model(name: str) -> dict[str, Any]:
        if name != engine.name:
            raise ApiError(404, "there is no such model here", param="model", code="model_not_found")
        return model

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "model": engine.name, "waiting": server.queue.waiting}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        return Response(server.metrics.text(), media_type=CONTENT_TYPE)


async def left(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def as_json(body: Any) -> Response:
    return Response(json.dumps(body, ensure_ascii=False, allow_nan=False), media_type="application/json")


def _event(shape: Shape, body: Any) -> bytes:
    data = json.dumps(body, ensure_ascii=False, allow_nan=False)
    return format_sse_event(data_str=data, event=body["type"] if shape.named else None)
