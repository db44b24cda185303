"""A server for an embedding model: OpenAI's /v1/embeddings, and a clear refusal of whatever wants text."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response
from numpy.typing import NDArray
from prometheus_client import Counter
from pydantic import Field, model_validator
from starlette.types import ASGIApp

from medusa_cli.server.app import (
    MANY_FOR_ONE_ANSWER,
    MANY_FOR_ONE_MESSAGE,
    Limits,
    as_json,
    guarded,
    left,
    new_app,
)
from medusa_cli.server.engine.messages import Rows
from medusa_cli.server.engine.remote import Engine, rows_of
from medusa_cli.server.engine.remote import Tokens as Prompt
from medusa_cli.server.engine_queue import EngineQueue, Task
from medusa_cli.server.errors import ApiError, shutting_down, wrong
from medusa_cli.server.guards import MOST_VALUES, client_of
from medusa_cli.server.known_fields import LACKING, supported
from medusa_cli.server.metrics import ServerMetrics
from medusa_cli.server.schemas import MOST_COUNT, Body, Count

MOST_INPUTS = 2048
MOST_TOKENS = 300_000
"""Of all inputs together. Both limits are OpenAI's."""
WRITING_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
MESSAGES_PATHS = ("/v1/messages", "/v1/messages/count_tokens")

Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[Annotated[int, Field(ge=0, le=MOST_COUNT)]], Field(min_length=1, fail_fast=True)]


class EmbeddingRequest(Body):
    """`POST /v1/embeddings`."""

    input: (
        Text
        | Tokens
        | Annotated[list[Text], Field(min_length=1, fail_fast=True)]
        | Annotated[list[Tokens], Field(min_length=1, fail_fast=True)]
    ) = Field(description="A text or its token ids, or a list of either.")
    model: str | None = Field(None, description="Ignored: the server has one model.")
    encoding_format: Literal["float", "base64"] | None = Field(None, description="base64: of float32, little-endian.")
    dimensions: Count | None = Field(None, description="Only the model's own number is supported.")

    @model_validator(mode="before")
    @classmethod
    def _is_supported(cls, data: Any) -> Any:
        return supported(data, cls.model_fields, {**LACKING, "add_special_tokens": (True,)})

    @model_validator(mode="after")
    def _few_inputs(self) -> EmbeddingRequest:
        if len(self.inputs) > MOST_INPUTS:
            raise ValueError(f"input: at most {MOST_INPUTS} texts")
        return self

    @property
    def inputs(self) -> list[str | list[int]]:
        """Each a text or its token ids."""
        one = isinstance(self.input, str) or isinstance(self.input[0], int)
        return [self.input] if one else self.input  # type: ignore[list-item,return-value]


@dataclass(eq=False)
class EmbeddingTask(Task):
    """texts: token ids. Its event is their embeddings, or what ended it."""

    texts: Sequence[Sequence[int]]

    @property
    def count(self) -> int:
        """Tokens of all texts."""
        return sum(map(len, self.texts))


@dataclass(frozen=True)
class Embedded:
    """Embeddings, a row for each text of the task."""

    task: EmbeddingTask
    rows: NDArray[np.float32]


class EmbeddingMetrics(ServerMetrics):
    """The metrics of a server for embeddings."""

    def __init__(self, queue: EngineQueue[Any, Any], engine: Engine) -> None:
        super().__init__(queue, engine)
        self.embeddings = Counter("medusa_embeddings", "Embeddings made.", registry=self.registry)

    def count(self, done: Embedded) -> None:
        """Counts what a request got."""
        self.prompt_tokens.inc(done.task.count)
        self.embeddings.inc(len(done.rows))


class EmbeddingQueue(EngineQueue[EmbeddingTask, Embedded]):
    """One request at a time."""

    def _result(self, job: EmbeddingTask) -> Embedded | None:
        found: list[Rows] = []
        work = job.work = self._engine.embedding(job.texts, found.append)
        if job.dropped:  # since this began
            work.cancel()
        work.run()
        rows = rows_of(found, self._engine.width)
        if len(rows) < len(job.texts):
            self._tell(job, shutting_down())  # or its client has left, and does not read this
            return None
        return Embedded(job, rows)


class EmbeddingServer:
    """What the endpoints share."""

    def __init__(self, engine: Engine, waiting: int) -> None:
        self.engine = engine
        self.queue = EmbeddingQueue(engine, waiting, lambda done: self.metrics.count(done))
        self.metrics: EmbeddingMetrics = EmbeddingMetrics(self.queue, engine)
        self._one = asyncio.Semaphore(1)  # a tokenizer takes a hundred times the text's memory

    async def embeddings(self, body: EmbeddingRequest, request: Request) -> Response:
        """The embeddings of a request, once its turn has come. ApiError for what has none."""
        width = self.engine.width
        if body.dimensions not in (None, width):
            raise wrong(f"this model's embeddings have {width} dimensions: leave dimensions out", "dimensions")
        async with self._one:
            texts = await run_in_threadpool(self._tokens, body.inputs)
        client = client_of(request.client.host if request.client else "")
        task = EmbeddingTask(client, texts)
        self.queue.submit(task)
        leaving = asyncio.ensure_future(left(request))
        try:
            found: Embedded = await task.next_event(leaving)
        finally:
            leaving.cancel()
            self.queue.drop(task)
        shape = _base64 if body.encoding_format == "base64" else _numbers
        data = [
            {"object": "embedding", "index": index, "embedding": shape(row)} for index, row in enumerate(found.rows)
        ]
        usage = {"prompt_tokens": task.count, "total_tokens": task.count}
        return as_json({"object": "list", "data": data, "model": self.engine.name, "usage": usage})

    def _tokens(self, inputs: Sequence[str | list[int]]) -> list[list[int]]:
        """ApiError 400 for an input that the model cannot take."""
        tokenized = iter(self.engine.tokens_of_texts([one for one in inputs if isinstance(one, str)], MOST_TOKENS))
        texts: list[list[int]] = []
        left_over = MOST_TOKENS
        for index, given in enumerate(inputs):
            found = next(tokenized) if isinstance(given, str) else Prompt(given, len(given))
            name = f"input[{index}]" if len(inputs) > 1 else "input"
            if not found.count:
                raise wrong(f"{name}: it has no tokens", "input")
            if found.count > self.engine.n_ctx:
                text = f"{name} has {found.count} tokens, this model takes at most {self.engine.n_ctx}: shorten it"
                raise wrong(text, "input", "context_length_exceeded")
            if (highest := max(found.ids)) >= self.engine.n_vocab:
                raise wrong(f"{name}: token {highest}: the vocabulary ends at {self.engine.n_vocab - 1}", "input")
            if (left_over := left_over - found.count) < 0:
                raise wrong(f"the inputs have more than {MOST_TOKENS} tokens: send them in several requests", "input")
            texts.append(found.ids)
        return texts


def _numbers(row: NDArray[np.float32]) -> list[float]:
    return [float(value) for value in row]


def _base64(row: NDArray[np.float32]) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def create_embedding_app(
    engine: Engine, host: str, api_key: str | None, limits: Limits
) -> tuple[ASGIApp, EmbeddingServer]:
    """The guarded application and what it runs on. host: the address to bind to."""
    server = EmbeddingServer(engine, limits.waiting)
    app = new_app(server, n_embd=engine.width)
    _add_endpoints(app, server)
    return guarded(app, server, host, api_key, limits.body_bytes, MOST_VALUES + MOST_TOKENS), server


def _add_endpoints(app: FastAPI, server: EmbeddingServer) -> None:
    name = server.engine.name

    @app.post("/v1/embeddings", responses=MANY_FOR_ONE_ANSWER)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        return await server.embeddings(body, request)

    async def writes_no_text() -> None:
        raise ApiError(
            400, f"{name} makes embeddings and writes no text: ask a server with another model", param="model"
        )

    for path in WRITING_PATHS:
        app.post(path, responses=MANY_FOR_ONE_ANSWER)(writes_no_text)
    for path in MESSAGES_PATHS:
        app.post(path, responses=MANY_FOR_ONE_MESSAGE)(writes_no_text)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return PlainTextResponse(f"{name} makes embeddings: POST /v1/embeddings. It writes no text to chat with.\n")
