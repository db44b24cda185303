"""Errors as clients expect them: OpenAI's {"error": {"message", "type", "param", "code"}}, or Anthropic's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from medusa_cli.server.engine.failures import EngineClosed, EngineError, EngineFailed, EngineLost
from medusa_cli.support.errors import MedusaError, describe, report

MOST_OF_A_MESSAGE = 500
KIND = re.compile(r"(str|int|bool|float|[a-z-]+\[.*)$")
"""What pydantic puts into the place of an error for each kind that a field may be of."""
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}

ANTHROPIC_PATH = "/v1/messages"
ANTHROPIC_TYPES = {**TYPES, 413: "request_too_large", 503: "overloaded_error"}


class ApiError(Exception):
    """A request that gets `status` and the reason, one line for a person."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message[:MOST_OF_A_MESSAGE]
        self.param = param
        self.code = code
        self.headers = headers

    def body(self, path: str = "") -> dict[str, Any]:
        """What a client of that endpoint gets."""
        if path.startswith(ANTHROPIC_PATH):
            kind = ANTHROPIC_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str) -> JSONResponse:
        return JSONResponse(self.body(path), self.status, self.headers)


def wrong(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A value that is not allowed: 400."""
    return ApiError(400, message, param=param, code=code)


def shutting_down() -> ApiError:
    """The server is shutting down: 503."""
    return ApiError(503, "the server is shutting down", code="shutting_down")


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told about `error`. Paths and internals stay here: they go to the log, not to clients."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, MedusaError):
        return wrong(describe(error))
    if isinstance(error, RequestValidationError):
        return _invalid(error.errors())
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=dict(error.headers or {}))
    if isinstance(error, EngineClosed):
        return shutting_down()
    if isinstance(error, EngineLost):
        return ApiError(
            500, "the engine ended while it worked on this, and is started again: ask again", code="engine_ended"
        )
    if not isinstance(error, EngineFailed):  # that is in the log
        log(error)
    return ApiError(500, "the engine failed; the server's log has the reason")


def log(error: BaseException) -> None:
    """One printable line on stderr."""
    with contextlib.suppress(OSError):  # nobody is reading it
        report(error)


def add_handlers(app: FastAPI) -> None:
    """Every error of `app` leaves in the shape of its endpoint."""

    async def answered(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response(request.url.path)

    # After an error that is only an Exception, the connection is closed, which its next request would run into.
    for kind in (ApiError, MedusaError, EngineError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answered)


def _invalid(problems: Sequence[Any]) -> ApiError:
    """The deepest error that pydantic found, with the client's name for the field: `messages[0].content`.

    Where a field may be of several kinds, that is the one of the kind that fits best.
    """
    unknown = {"type": "", "loc": (), "msg": "the request cannot be read"}
    first = max(problems, key=lambda problem: len(problem["loc"]), default=unknown)
    if first["type"] == "json_invalid":
        return wrong("the body is not JSON")
    place = ""
    for part in [part for part in first["loc"] if part != "body" and not KIND.match(str(part))]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    place = place.encode("utf-8", "replace").decode()
    if first["type"] == "extra_forbidden":
        return wrong(f"{place} is not known here: leave it out", place, "unknown_parameter")
    message = str(first["msg"]).removeprefix("Value error, ").encode("utf-8", "replace").decode()
    return wrong(f"{place}: {message}" if place else message, place or None)
