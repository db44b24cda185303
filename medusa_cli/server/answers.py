"""From an answer to the response bodies of OpenAI's interface: whole, and in chunks as it comes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from medusa_cli.api.answer import Answer, CallPiece, Piece
from medusa_cli.decoding.thinking import REMEMBERED
from medusa_cli.server.engine.remote import Engine
from medusa_cli.server.errors import ApiError
from medusa_cli.server.order import Order, Said, Thought
from medusa_cli.server.schemas import ChatRequest, Sampled

COUNTERS = (
    "tokens_per_second",
    "tokens_per_step",
    "prompt_tokens_per_second",
    "steps",
    "acceptance_per_depth",
    "ttft_ms",
    "parts",
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
        "completion_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
    }


def counters(answer: Answer) -> dict[str, Any]:
    """The extension field `medusa` of an answer."""
    found = {key: answer.stats.get(key) for key in COUNTERS}
    return {"stop_reason": answer.stop_reason, "seed": answer.seed, "left_out": answer.left_out, **found}


class Shape:
    """One answer in the shape of one endpoint; pieces come in by `step`, or all together by `whole`."""

    named = False
    """Whether events of a stream have names: their `type`. Else the last one is `[DONE]`."""
    prompt_tokens = 0
    """How long the prompt is."""

    def __init__(self) -> None:
        self.order = Order()

    def reason(self, answer: Answer) -> str:
        """OpenAI's word for why the answer ended. A call that broke off ends it as a limit would."""
        if answer.stop_reason in ("length", "context_full", "loop") or self.order.open:
            return "length"
        return "tool_calls" if answer.calls else "stop"

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first piece."""
        return []

    def step(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """The chunks of one step."""
        raise NotImplementedError

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        """Chunks after the last piece."""
        raise NotImplementedError

    def whole(self, answer: Answer, pieces: Sequence[Piece]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        raise NotImplementedError

    def failed(self, error: ApiError) -> dict[str, Any]:
        """The last chunk of a stream that ends with an error."""
        return error.body()


class Completion(Shape):
    """What OpenAI's two kinds of completions have in common."""

    kind = ""
    chunk_kind = ""
    id_prefix = ""

    def __init__(self, engine: Engine, request: Sampled) -> None:
        super().__init__()
        self._engine = engine
        self._logprobs = request.chances
        self._drafted = bool(request.drafted)
        self._wants_usage = request.wants_usage
        self._head = {"id": self.id_prefix + secrets.token_hex(12), "created": int(time.time()), "model": engine.name}

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._head, "object": self.chunk_kind, "choices": choices, **more}

    def _extension(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        if not self._drafted:
            return {}
        return {"medusa": {"pieces": [{"text": piece.text, "drafted": piece.drafted} for piece in pieces]}}

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        last = self._chunk([self._last(self.reason(answer))], medusa=counters(answer))
        return [last, self._chunk([], usage=usage(answer))] if self._wants_usage else [last]

    def whole(self, answer: Answer, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {
            **self._head,
            "object": self.kind,
            "choices": [self._choice(answer, self._chances(pieces))],
            "usage": usage(answer),
            "medusa": {**counters(answer), **self._extension(pieces).get("medusa", {})},
        }

    def _chances(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        told = [piece for piece in pieces if piece.token is not None and piece.logprob is not None]
        told = [piece for piece in told if not piece.thought]
        return self._listed(told) if told else None

    # What differs between the two.

    def _last(self, reason: str) -> dict[str, Any]:
        """The choice of the last chunk."""
        raise NotImplementedError

    def _choice(self, answer: Answer, chances: Any) -> dict[str, Any]:
        """The choice of a whole answer."""
        raise NotImplementedError

    def _listed(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Log-probabilities of pieces that all have one."""
        raise NotImplementedError


class ChatShape(Completion):
    """/v1/chat/completions."""

    kind, chunk_kind, id_prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def __init__(self, engine: Engine, request: ChatRequest) -> None:
        super().__init__(engine, request)
        self._called: list[str] = []

    def _delta(self, delta: dict[str, Any], reason: str | None = None, chances: Any = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": chances, "finish_reason": reason}

    def opening(self) -> list[dict[str, Any]]:
        return [self._chunk([self._delta({"role": "assistant", "content": ""})])]

    def step(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        chances, chunks = self._chances(pieces), []
        added = self.order.of(pieces)
        if chances and not any(isinstance(one, Said) for one in added):
            added.append(Said(""))
        for one in added:
            if isinstance(one, Thought):
                chunks.append(self._chunk([self._delta({REMEMBERED: one.text})]))
            elif isinstance(one, Said):
                more = self._extension(pieces)
                chunks.append(self._chunk([self._delta({"content": one.text}, chances=chances)], **more))
                chances, pieces = None, ()
            elif isinstance(one, CallPiece):
                chunks += self._calling(one)
        return chunks

    def _calling(self, piece: CallPiece) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = [{"function": {"arguments": piece.arguments}}]
        if piece.id not in self._called:
            self._called.append(piece.id)
            deltas.insert(0, {"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": ""}})
        at = self._called.index(piece.id)
        return [self._chunk([self._delta({"tool_calls": [{"index": at, **delta}]})]) for delta in deltas]

    def _last(self, reason: str) -> dict[str, Any]:
        return self._delta({}, reason)

    def _choice(self, answer: Answer, chances: Any) -> dict[str, Any]:
        content = answer.text or (None if answer.calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if answer.thinking:
            message[REMEMBERED] = answer.thinking
        if answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.calls
            ]
        return {"index": 0, "message": message, "logprobs": chances, "finish_reason": self.reason(answer)}

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


class TextShape(Completion):
    """/v1/completions."""

    kind = chunk_kind = "text_completion"
    id_prefix = "cmpl-"
    _offset = 0

    def _part(self, text: str, chances: Any = None, reason: str | None = None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": chances, "finish_reason": reason}

    def step(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        text = "".join(piece.text for piece in pieces)
        chances = self._chances(pieces)
        return [self._chunk([self._part(text, chances)], **self._extension(pieces))] if text or chances else []

    def _last(self, reason: str) -> dict[str, Any]:
        return self._part("", reason=reason)

    def _choice(self, answer: Answer, chances: Any) -> dict[str, Any]:
        return self._part(answer.text, chances, self.reason(answer))

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
