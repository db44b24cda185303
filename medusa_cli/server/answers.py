"""From an answer to the response bodies of OpenAI's interface: whole, and in chunks as it comes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from medusa_cli.api.answer import Answer, Piece
from medusa_cli.api.model import Model
from medusa_cli.server.schemas import Sampled
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
"""Keys of docs/design.md, Reporting, that clients get. Those about the machine (memory) stay here."""


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
    return {"stop_reason": answer.stop_reason, "seed": answer.seed, "left_out": answer.left_out, **found}


def finish_reason(answer: Answer) -> str:
    """OpenAI's word for why the answer ended."""
    return "length" if answer.stop_reason in ("length", "context_full", "loop") else "stop"


class Shape:
    """One answer in the shape of one endpoint; pieces come in by `step`, or all together by `whole`."""

    kind = ""
    chunk_kind = ""
    id_prefix = ""

    def __init__(self, engine: Model, request: Sampled) -> None:
        self._engine = engine
        self._logprobs = request.chances
        self._drafted = bool(request.drafted)
        self._head = {"id": self.id_prefix + secrets.token_hex(12), "created": int(time.time()), "model": engine.name}

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._head, "object": self.chunk_kind, "choices": choices, **more}

    def usage_chunk(self, answer: Answer) -> dict[str, Any]:
        """The last chunk, if it was asked for."""
        return self._chunk([], usage=usage(answer))

    def _extension(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        if not self._drafted:
            return {}
        return {"medusa": {"pieces": [{"text": piece.text, "drafted": piece.drafted} for piece in pieces]}}

    def step(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        """The chunk of one step; None if nothing can be shown yet."""
        shown, chances = self._shown("".join(piece.text for piece in pieces)), self._chances(pieces)
        if not shown and chances is None:
            return None
        return self._chunk([self._part(shown, chances)], **self._extension(pieces))

    def whole(self, answer: Answer, pieces: Sequence[Piece]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        return {
            **self._head,
            "object": self.kind,
            "choices": [self._choice(answer, self._chances(pieces))],
            "usage": usage(answer),
            "medusa": {**counters(answer), **self._extension(pieces).get("medusa", {})},
        }

    def _chances(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        told = [piece for piece in pieces if piece.token is not None and piece.logprob is not None]
        return self._listed(told) if told else None

    # What differs between endpoints.

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first piece."""
        return []

    def _shown(self, text: str) -> str:
        """The part of the answer so far that can be shown and has not been yet."""
        return text

    def _part(self, text: str, chances: Any) -> dict[str, Any]:
        """The choice of a chunk."""
        raise NotImplementedError

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        """Chunks after the last piece."""
        raise NotImplementedError

    def _choice(self, answer: Answer, chances: Any) -> dict[str, Any]:
        """The choice of a whole answer."""
        raise NotImplementedError

    def _listed(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Log-probabilities of pieces that all have one."""
        raise NotImplementedError


class ChatShape(Shape):
    """/v1/chat/completions."""

    kind, chunk_kind, id_prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def __init__(self, engine: Model, request: Sampled, tools: ToolReader | None) -> None:
        super().__init__(engine, request)
        self._tools = tools

    def _delta(self, delta: dict[str, Any], reason: str | None = None, chances: Any = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": chances, "finish_reason": reason}

    def opening(self) -> list[dict[str, Any]]:
        return [self._chunk([self._delta({"role": "assistant", "content": ""})])]

    def _shown(self, text: str) -> str:
        return self._tools.feed(text) if self._tools else text

    def _part(self, text: str, chances: Any) -> dict[str, Any]:
        return self._delta({"content": text}, chances=chances)

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        rest, calls = self._tools.finish() if self._tools else ("", [])
        chunks = [self._chunk([self._delta({"content": rest})])] if rest else []
        if calls:
            listed = [{"index": index, **_as_call(call)} for index, call in enumerate(calls)]
            chunks.append(self._chunk([self._delta({"tool_calls": listed})]))
        reason = "tool_calls" if calls else finish_reason(answer)
        return [*chunks, self._chunk([self._delta({}, reason)], medusa=counters(answer))]

    def _choice(self, answer: Answer, chances: Any) -> dict[str, Any]:
        text = self._shown(answer.text)
        rest, calls = self._tools.finish() if self._tools else ("", [])
        message: dict[str, Any] = {"role": "assistant", "content": text + rest or (None if calls else "")}
        if calls:
            message["tool_calls"] = [_as_call(call) for call in calls]
        reason = "tool_calls" if calls else finish_reason(answer)
        return {"index": 0, "message": message, "logprobs": chances, "finish_reason": reason}

    def _listed(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        entries = []
        for piece in pieces:
            top = [self._chance(one) for one in piece.top[: self._logprobs]]
            entries.append({**self._chance(piece), "top_logprobs": top})
        return {"content": entries, "refusal": None}

    def _chance(self, told: Any) -> dict[str, Any]:
        raw = self._engine.token_bytes(told.token)
        logprob = max(told.logprob, LOWEST_LOGPROB)
        return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


class TextShape(Shape):
    """/v1/completions."""

    kind = chunk_kind = "text_completion"
    id_prefix = "cmpl-"
    _offset = 0

    def _part(self, text: str, chances: Any = None, reason: str | None = None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": chances, "finish_reason": reason}

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        return [self._chunk([self._part("", reason=finish_reason(answer))], medusa=counters(answer))]

    def _choice(self, answer: Answer, chances: Any) -> dict[str, Any]:
        return self._part(answer.text, chances, finish_reason(answer))

    def _listed(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        def text_of(one: Any) -> str:
            return self._engine.token_bytes(one.token).decode("utf-8", "replace")

        def chance(one: Any) -> float:
            return max(one.logprob, LOWEST_LOGPROB)

        texts = [text_of(piece) for piece in pieces]
        offsets = list(accumulate(map(len, texts), initial=self._offset))
        self._offset = offsets.pop()
        return {
            "tokens": texts,
            "token_logprobs": [chance(piece) for piece in pieces],
            "top_logprobs": [{text_of(one): chance(one) for one in piece.top[: self._logprobs]} for piece in pieces],
            "text_offset": offsets,
        }


LOWEST_LOGPROB = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON lacks."""


def _as_call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
