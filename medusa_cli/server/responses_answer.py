"""From an answer to the response of OpenAI's `/v1/responses`: a list of items, whole or as it comes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from medusa_cli.api.answer import Answer, CallPiece, Piece
from medusa_cli.server.answers import Shape, counters
from medusa_cli.server.engine.remote import Engine
from medusa_cli.server.errors import ApiError
from medusa_cli.server.order import Said, Thought, of_whole_calls
from medusa_cli.server.responses_request import ResponsesRequest

KINDS = {"reasoning": "reasoning_text", "message": "output_text"}
"""The parts that items with a text consist of; also the beginning of the names of their events."""


class ResponsesShape(Shape):
    """/v1/responses. An item with a text goes on until something of another kind comes, a call until it is whole."""

    named = True

    def __init__(self, engine: Engine, request: ResponsesRequest) -> None:
        super().__init__()
        self._id = f"resp_{secrets.token_hex(12)}"
        self._head = {
            "object": "response",
            "created_at": int(time.time()),
            "model": engine.name,
            "instructions": request.instructions,
            "metadata": request.metadata or {},
            "tools": [tool.model_dump() for tool in request.tools or []],
            "tool_choice": _told(request.tool_choice) or "auto",
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "max_output_tokens": request.max_output_tokens,
            "text": {"format": _told(request.text and request.text.format) or {"type": "text"}},
            "truncation": request.truncation or "disabled",
            "store": False,
        }
        self._items: list[dict[str, Any]] = []
        self._open = ""
        self._calls: dict[str, int] = {}  # the items of those that are not whole, by their ids
        self._told = 0

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        empty = {"error": None, "incomplete_details": None, "usage": None}
        return {"id": self._id, **self._head, "status": status, "output": self._items, **empty, **more}

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        self._told += 1
        return {"type": f"response.{kind}", "sequence_number": self._told - 1, **more}

    def opening(self) -> list[dict[str, Any]]:
        return [self._event(kind, response=self._response("in_progress")) for kind in ("created", "in_progress")]

    def step(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        events = []
        for one in self.order.of(pieces):
            if isinstance(one, (Thought, Said)):
                kind = "message" if isinstance(one, Said) else "reasoning"
                events += self._begin(kind)
                self._items[-1]["content"][0]["text"] += one.text
                more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
                events.append(self._within(f"{KINDS[kind]}.delta", content_index=0, delta=one.text, **more))
            else:
                events += self._calling(one) if isinstance(one, CallPiece) else self._end_call(one.id, "completed")
        return events

    def _within(self, kind: str, at: int = -1, **more: Any) -> dict[str, Any]:
        """An event about an item, the newest one if not said otherwise."""
        at %= len(self._items)
        return self._event(kind, output_index=at, item_id=self._items[at]["id"], **more)

    def _added(self, item: dict[str, Any]) -> dict[str, Any]:
        self._items.append(item)
        return self._event("output_item.added", output_index=len(self._items) - 1, item=_copy(item))

    def _begin(self, kind: str) -> list[dict[str, Any]]:
        """An item with a text, if it is not begun yet."""
        if self._open == kind:
            return []
        events = self._end("completed")
        self._open = kind
        more: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        item: dict[str, Any] = {
            "id": f"{kind[:3]}_{secrets.token_hex(12)}",
            "type": kind,
            "status": "in_progress",
            "content": [],
            **more,
        }
        events.append(self._added(item))
        part: dict[str, Any] = {"type": KINDS[kind], "text": ""}
        item["content"] = [part | {"annotations": [], "logprobs": []} if kind == "message" else part]
        events.append(self._within("content_part.added", content_index=0, part=dict(item["content"][0])))
        return events

    def _end(self, status: str) -> list[dict[str, Any]]:
        if not self._open:
            return []
        item, kind = self._items[-1], self._open
        self._open, item["status"] = "", status
        part = item["content"][0]
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return [
            self._within(f"{KINDS[kind]}.done", content_index=0, text=part["text"], **more),
            self._within("content_part.done", content_index=0, part=dict(part)),
            self._event("output_item.done", output_index=len(self._items) - 1, item=_copy(item)),
        ]

    def _calling(self, piece: CallPiece) -> list[dict[str, Any]]:
        events = []
        if piece.id not in self._calls:
            head = {"id": f"fc_{secrets.token_hex(12)}", "type": "function_call", "call_id": piece.id}
            events = self._end("completed")
            events.append(self._added({**head, "name": piece.name, "arguments": "", "status": "in_progress"}))
            self._calls[piece.id] = len(self._items) - 1
        at = self._calls[piece.id]
        self._items[at]["arguments"] += piece.arguments
        return [*events, self._within("function_call_arguments.delta", at, delta=piece.arguments)]

    def _end_call(self, call: str, status: str) -> list[dict[str, Any]]:
        at = self._calls.pop(call)
        item = self._items[at]
        item["status"] = status
        events = []
        if status == "completed":
            more = {"arguments": item["arguments"], "name": item["name"]}
            events.append(self._within("function_call_arguments.done", at, **more))
        return [*events, self._event("output_item.done", output_index=at, item=_copy(item))]

    def _ended(self, answer: Answer) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The events that end the last item, and the whole response."""
        is_cut = self.reason(answer) == "length"
        status = "incomplete" if is_cut else "completed"
        events = self._end(status)
        for call in list(self._calls):
            events += self._end_call(call, "incomplete")
        details = {"incomplete_details": {"reason": "max_output_tokens"}} if is_cut else {}
        return events, self._response(status, usage=usage(answer), medusa=counters(answer), **details)

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        events, response = self._ended(answer)
        return [*events, self._event(response["status"], response=response)]

    def whole(self, answer: Answer, pieces: Sequence[Piece]) -> dict[str, Any]:
        self.step(of_whole_calls(answer, pieces))
        return self._ended(answer)[1]

    def failed(self, error: ApiError) -> dict[str, Any]:
        told = error.body()
        return {**told["error"], **told, "type": "error", "sequence_number": self._told}


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "content": [dict(part) for part in item["content"]]} if "content" in item else dict(item)


def usage(answer: Answer) -> dict[str, Any]:
    """The counts of tokens, by the names of this interface."""
    made = len(answer.tokens)
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
        "total_tokens": answer.prompt_tokens + made,
    }


def _told(asked: Any) -> Any:
    """A part of a request as its answer repeats it."""
    return asked.model_dump(by_alias=True, exclude_none=True) if isinstance(asked, BaseModel) else asked
