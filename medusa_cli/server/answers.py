"""From an answer to the bodies of OpenAI's interface: whole, and in chunks while it comes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from medusa_cli.server.engine import Answer, Engine, Piece
from medusa_cli.server.tool_calls import Call, ToolReader

COUNTERS = (
    "tokens_per_second",
    "tokens_per_step",
    "prompt_tokens_per_second",
    "steps",
    "acceptance_per_depth",
    "ttft_ms",
    "accept",
)
"""Of the keys of docs/design.md, Reporting: what clients are told. Those of the machine (memory) stay here."""


def usage(answer: Answer) -> dict[str, Any]:
    """OpenAI's counts of tokens."""
    made = len(answer.tokens)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": made,
        "total_tokens": answer.prompt_tokens + made,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def counters(answer: Answer) -> dict[str, Any]:
    """The extension field `medusa` of an answer."""
    found = {key: answer.stats.get(key) for key in COUNTERS}
    return {"stop_reason": answer.stop_reason, "seed": answer.seed, **found}


def finish_reason(answer: Answer) -> str:
    """OpenAI's word for why it ended."""
    return "length" if answer.stop_reason in ("length", "context_full", "loop") else "stop"


class Shape:
    """One answer in the shape of one endpoint; pieces come in by `chunk`, or all together by `whole`."""

    kind = ""
    chunk_kind = ""
    id_prefix = ""

    def __init__(self, engine: Engine, *, logprobs: int | None, drafted: bool) -> None:
        self._engine = engine
        self._logprobs = logprobs
        self._drafted = drafted
        self._head = {"id": self.id_prefix + secrets.token_hex(12), "created": int(time.time()), "model": engine.name}

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._head, "object": self.chunk_kind, "choices": choices, **more}

    def usage_chunk(self, answer: Answer) -> dict[str, Any]:
        """The last chunk, where it was asked for."""
        return self._chunk([], usage=usage(answer))

    def _extension(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        if not self._drafted:
            return {}
        return {"medusa": {"pieces": [{"text": piece.text, "drafted": piece.drafted} for piece in pieces]}}

    def _text_of(self, token: int) -> str:
        return self._engine.token_bytes(token).decode("utf-8", "replace")

    # What differs between endpoints.

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first piece."""
        raise NotImplementedError

    def step(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        """The chunk of one step; None where nothing can be shown yet."""
        raise NotImplementedError

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        """Chunks after the last piece."""
        raise NotImplementedError

    def whole(self, answer: Answer, pieces: Sequence[Piece]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        raise NotImplementedError


class ChatShape(Shape):
    """/v1/chat/completions."""

    kind, chunk_kind, id_prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def __init__(self, engine: Engine, *, logprobs: int | None, drafted: bool, tools: ToolReader | None) -> None:
        super().__init__(engine, logprobs=logprobs, drafted=drafted)
        self._tools = tools

    def _delta(self, delta: dict[str, Any], reason: str | None = None, chances: Any = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": chances, "finish_reason": reason}

    def opening(self) -> list[dict[str, Any]]:
        return [self._chunk([self._delta({"role": "assistant", "content": ""})])]

    def step(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        text = "".join(piece.text for piece in pieces)
        shown = self._tools.feed(text) if self._tools else text
        chances = self._chances(pieces)
        if not shown and chances is None:
            return None
        return self._chunk([self._delta({"content": shown}, chances=chances)], **self._extension(pieces))

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        rest, calls = self._tools.finish() if self._tools else ("", [])
        chunks = [self._chunk([self._delta({"content": rest})])] if rest else []
        if calls:
            listed = [{"index": index, **_as_call(call)} for index, call in enumerate(calls)]
            chunks.append(self._chunk([self._delta({"tool_calls": listed})]))
        reason = "tool_calls" if calls else finish_reason(answer)
        return [*chunks, self._chunk([self._delta({}, reason)], medusa=counters(answer))]

    def whole(self, answer: Answer, pieces: Sequence[Piece]) -> dict[str, Any]:
        text, calls = answer.text, list[Call]()
        if self._tools:
            shown = self._tools.feed(text)
            rest, calls = self._tools.finish()
            text = shown + rest
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
        if calls:
            message["tool_calls"] = [_as_call(call) for call in calls]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._chances(pieces),
            "finish_reason": "tool_calls" if calls else finish_reason(answer),
        }
        return {
            **self._head,
            "object": self.kind,
            "choices": [choice],
            "usage": usage(answer),
            "medusa": {**counters(answer), **self._extension(pieces).get("medusa", {})},
        }

    def _chances(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        entries = []
        for piece in pieces:
            if piece.token is not None and piece.logprob is not None:
                top = [self._chance(one.token, one.logprob) for one in piece.top[: self._logprobs]]
                entries.append({**self._chance(piece.token, piece.logprob), "top_logprobs": top})
        return {"content": entries, "refusal": None} if entries else None

    def _chance(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._engine.token_bytes(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, LOWEST_LOGPROB), "bytes": list(raw)}


class TextShape(Shape):
    """/v1/completions."""

    kind = chunk_kind = "text_completion"
    id_prefix = "cmpl-"

    def __init__(self, engine: Engine, *, logprobs: int | None, drafted: bool) -> None:
        super().__init__(engine, logprobs=logprobs, drafted=drafted)
        self._offset = 0

    def _choice(self, text: str, reason: str | None = None, chances: Any = None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": chances, "finish_reason": reason}

    def opening(self) -> list[dict[str, Any]]:
        return []

    def step(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        text, chances = "".join(piece.text for piece in pieces), self._chances(pieces)
        if not text and chances is None:
            return None
        return self._chunk([self._choice(text, chances=chances)], **self._extension(pieces))

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        return [self._chunk([self._choice("", finish_reason(answer))], medusa=counters(answer))]

    def whole(self, answer: Answer, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {
            **self._head,
            "object": self.kind,
            "choices": [self._choice(answer.text, finish_reason(answer), self._chances(pieces))],
            "usage": usage(answer),
            "medusa": {**counters(answer), **self._extension(pieces).get("medusa", {})},
        }

    def _chances(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for piece in pieces:
            if piece.token is None or piece.logprob is None:
                continue
            text = self._text_of(piece.token)
            found["tokens"].append(text)
            found["token_logprobs"].append(max(piece.logprob, LOWEST_LOGPROB))
            top = {self._text_of(one.token): max(one.logprob, LOWEST_LOGPROB) for one in piece.top[: self._logprobs]}
            found["top_logprobs"].append(top)
            found["text_offset"].append(self._offset)
            self._offset += len(text)
        return found if found["tokens"] else None


LOWEST_LOGPROB = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON lacks."""


def _as_call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
