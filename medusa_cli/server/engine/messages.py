"""What the server and its engine's process tell each other: a line of JSON for each message, both ways.

The engine reads files and prompts of strangers. So what comes from it is only ever data, checked against these types.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from medusa_cli.api.answer import Answer, Piece
from medusa_cli.decoding.thinking import Thinking

MOST_BYTES = 64 << 20
"""Of a line from the engine."""


@dataclass(frozen=True)
class Caches:
    """The prompt caches of all conversations. memory, disk: bytes. folder: where they survive the server, or "".

    shared: clients share caches, and can then tell what others have asked. secret: makes clients those of this server.
    """

    memory: int
    shared: bool = False
    folder: str = ""
    disk: int = 0
    secret: str = ""


# --- to the engine ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """The first message. options: of a model that writes. embedder: of one that does not; refusal: why it cannot be
    served with the options that were given, or "". quiet: nothing is said while it loads.
    """

    model: str
    options: dict[str, Any]
    embedder: dict[str, Any]
    refusal: str
    caches: Caches
    quiet: bool = False


@dataclass(frozen=True)
class Render:
    """Asks for the tokens of a prompt: Tokenized."""

    id: int
    prompt: str | list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    raw: bool
    thinking: Thinking


@dataclass(frozen=True)
class Shorten:
    """The same without the oldest turns if these do not fit the context. most: tokens of the answer."""

    id: int
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    most: int
    thinking: Thinking


@dataclass(frozen=True)
class Tokenize:
    """Asks for the tokens of texts to embed: Tokenized, up to the text with which they are more than `most`."""

    id: int
    texts: list[str]
    most: int


@dataclass(frozen=True)
class Check:
    """Whether a schema, a grammar, a call or the arguments of strict tools can be enforced: Done."""

    id: int
    json_schema: str | None
    grammar: str | None
    tools: list[dict[str, Any]]
    choice: str | None


@dataclass(frozen=True)
class Measure:
    """Asks for the bytes of the longest token: Measured."""

    id: int


@dataclass(frozen=True)
class Ask:
    """Asks for an answer: Read, Wrote, then Answered. One at a time."""

    id: int
    client: str
    prompt: list[int]
    options: dict[str, Any]
    tools: list[dict[str, Any]]
    raw: bool
    one_call: bool
    choice: str | None


@dataclass(frozen=True)
class Embed:
    """Asks for embeddings of tokens: Rows, then Done. One at a time."""

    id: int
    texts: list[list[int]]


@dataclass(frozen=True)
class Cancel:
    """Ends an answer, under way or to come."""

    id: int


@dataclass(frozen=True)
class Close:
    """Asks for the end, after prompt caches are saved."""


@dataclass(frozen=True)
class Hurry:
    """No further prompt caches are to be saved."""


# --- from the engine -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The model is loaded. width: numbers of an embedding; 0: it writes text."""

    name: str
    n_ctx: int
    n_vocab: int
    chat_template: str | None
    sampling: dict[str, float]
    width: int


@dataclass(frozen=True)
class Failed:
    """The model is not loaded: one line."""

    text: str


@dataclass(frozen=True)
class Tokenized:
    """texts: tokens; none where there are more than the context holds. counts: how many there are.

    left_out: how many messages are missing.
    """

    id: int
    texts: list[list[int]]
    counts: list[int]
    left_out: int = 0


@dataclass(frozen=True)
class Measured:
    id: int
    count: int


@dataclass(frozen=True)
class Read:
    """How many tokens of a prompt are read, of those that were not cached."""

    id: int
    done: int
    total: int


@dataclass(frozen=True)
class Wrote:
    """A step of an answer. spelled: tokens and their bytes, as Latin-1, where log-probabilities name them."""

    id: int
    pieces: list[Piece]
    spelled: list[tuple[int, str]]


@dataclass(frozen=True)
class Answered:
    """The end of an answer, without its pieces. sessions: conversations with a prompt cache. spelled: as in Wrote."""

    id: int
    answer: Answer
    sessions: int
    spelled: list[tuple[int, str]]


@dataclass(frozen=True)
class Rows:
    """Some embeddings: float32, little-endian, as base64."""

    id: int
    data: str


@dataclass(frozen=True)
class Done:
    id: int


@dataclass(frozen=True)
class Refused:
    """What was asked for cannot be. wrong: the client can put it right; too_long: by a shorter message."""

    id: int
    text: str
    kind: Literal["wrong", "too_long", "failed"]


@dataclass(frozen=True)
class Log:
    """A line for the server's log."""

    text: str


Question = Render | Shorten | Tokenize | Check | Measure
Asked = Ask | Embed
ToEngine = Load | Question | Asked | Cancel | Close | Hurry
Reply = Tokenized | Measured | Answered | Done | Refused
FromEngine = Ready | Failed | Reply | Read | Wrote | Rows | Log
TO_ENGINE = {
    one.__name__: one for one in (Load, Render, Shorten, Tokenize, Check, Measure, Ask, Embed, Cancel, Close, Hurry)
}
FROM_ENGINE = {
    one.__name__: one for one in (Ready, Failed, Tokenized, Measured, Read, Wrote, Answered, Rows, Done, Refused, Log)
}


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def encode(message: ToEngine | FromEngine) -> bytes:
    """One line."""
    kind: Any = type(message)
    return json.dumps([kind.__name__, _adapter(kind).dump_python(message, warnings=False)]).encode() + b"\n"


def to_engine(line: bytes) -> Any:
    """What the server says: a ToEngine."""
    return _decoded(line, TO_ENGINE)


def from_engine(line: bytes) -> Any:
    """What the engine says: a FromEngine. ValueError for what is none."""
    return _decoded(line, FROM_ENGINE)


def _decoded(line: bytes, kinds: dict[str, Any]) -> Any:
    try:
        name, values = json.loads(line)
        return _adapter(kinds[name]).validate_python(values)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"no message: {line[:60]!r}") from error
