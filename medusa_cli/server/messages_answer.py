"""From an answer to the response of Anthropic's `/v1/messages`: a list of blocks, whole or as it comes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from medusa_cli.api.answer import Answer, CallPiece, Piece
from medusa_cli.server.answers import Shape, counters
from medusa_cli.server.engine.remote import Engine
from medusa_cli.server.errors import ANTHROPIC_PATH, ApiError
from medusa_cli.server.order import Said, Thought, of_whole_calls

REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}
"""Anthropic's words for OpenAI's finish reasons."""


class MessagesShape(Shape):
    """/v1/messages. A block goes on until something of another kind comes."""

    named = True

    def __init__(self, engine: Engine, stops: Sequence[str]) -> None:
        super().__init__()
        self._engine, self._stops = engine, stops
        self._id = f"msg_{secrets.token_hex(12)}"
        self._block = ""  # its kind, or the id of its call
        self._count = 0

    def _message(self, content: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._engine.name}
        return {**head, "content": content, "stop_reason": None, "stop_sequence": None, **more}

    def opening(self) -> list[dict[str, Any]]:
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": 0}
        return [{"type": "message_start", "message": self._message([], usage=usage)}]

    def step(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        events = []
        for one in self.order.of(pieces):
            if isinstance(one, (Thought, Said)):
                kind, more = ("text", {}) if isinstance(one, Said) else ("thinking", {"signature": ""})
                events += self._in_block(kind, {"type": kind, kind: "", **more})
                events.append(self._delta({"type": f"{kind}_delta", kind: one.text}))
            elif isinstance(one, CallPiece):
                events += self._in_block(one.id, {"type": "tool_use", "id": one.id, "name": one.name, "input": {}})
                events.append(self._delta({"type": "input_json_delta", "partial_json": one.arguments}))
            elif self._block == one.id:
                events += self._close()
        return events

    def _in_block(self, block: str, begin: dict[str, Any]) -> list[dict[str, Any]]:
        """The block's beginning, if it is not begun yet."""
        if self._block == block:
            return []
        events = self._close()
        self._block = block
        return [*events, {"type": "content_block_start", "index": self._count, "content_block": begin}]

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._count, "delta": delta}

    def _close(self) -> list[dict[str, Any]]:
        if not self._block:
            return []
        self._block, self._count = "", self._count + 1
        return [{"type": "content_block_stop", "index": self._count - 1}]

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        delta = {
            "type": "message_delta",
            "delta": self._end(answer),
            "usage": usage(answer),
            "medusa": counters(answer),
        }
        return [*self._close(), delta, {"type": "message_stop"}]

    def _end(self, answer: Answer) -> dict[str, Any]:
        reason = self.reason(answer)
        if reason == "stop" and answer.stop_reason == "stop" and (stop := self._stop_of(answer)) is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": REASONS[reason], "stop_sequence": None}

    def _stop_of(self, answer: Answer) -> str | None:
        """Which text ended the answer."""
        whole = b"".join(map(self._engine.token_bytes, answer.tokens)).decode("utf-8", "replace")
        after = whole[whole.rfind(answer.text) + len(answer.text) :]
        found = [stop for stop in self._stops if after.lstrip().startswith(stop.lstrip())]
        return next(iter(found or self._stops), None)

    def whole(self, answer: Answer, pieces: Sequence[Piece]) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        for event in self.step(of_whole_calls(answer, pieces)):
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "": ""})
            elif event["type"] == "content_block_delta":
                blocks[-1][""] += list(event["delta"].values())[1]
        for block in blocks:
            text, kind = block.pop(""), block["type"]
            block |= {"input": json.loads(text)} if kind == "tool_use" else {kind: text}
        return self._message(blocks, **self._end(answer), usage=usage(answer), medusa=counters(answer))

    def failed(self, error: ApiError) -> dict[str, Any]:
        return error.body(ANTHROPIC_PATH)


def usage(answer: Answer) -> dict[str, Any]:
    """Anthropic's counts: cached tokens are not among those of the input."""
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_read_input_tokens": answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(answer.tokens),
    }
