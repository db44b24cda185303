"""Arguments of the Python API: prompts as token ids, and the commands' options under the names of their fields.

`--top-k 20` is `top_k=20`; names, defaults, ranges and contradictions are those of decoding/options.py. `temperature`
stands for `--temp`, `logit_bias` is a mapping, and `logprobs` is not an option of any command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from medusa_cli.decoding import settings, structure
from medusa_cli.decoding.fields import check_text, fields
from medusa_cli.decoding.options import (
    GENERATE_TEMPERATURE,
    AnswerArguments,
    DraftOptions,
    EngineArguments,
    EngineOptions,
    SamplingOptions,
)
from medusa_cli.decoding.settings import ModelSampling, Settings
from medusa_cli.decoding.shortening import Room, Shortener
from medusa_cli.decoding.thinking import NOTHING_SAID, REMEMBERED, Thinking
from medusa_cli.support.errors import MedusaError, WrongOption, is_reportable, worded

if TYPE_CHECKING:
    from medusa_cli.decoding.runtime import Engine

ANSWER_NAMES = frozenset(AnswerArguments.__annotations__)
"""Arguments of one answer."""
ENGINE_NAMES = frozenset(EngineArguments.__annotations__)
"""Arguments of a model."""
Message = Mapping[str, Any]
"""{"role": "user", "content": "..."}, as chat templates have it; assistants may call tools in place of content."""
Tools = Sequence[Mapping[str, Any]]
"""JSON schemas of functions, in OpenAI's format, for the model's template."""
Prompt = str | Sequence[Message] | Sequence[int]
Truncation = Literal["disabled", "auto"]
"""What happens to messages that do not fit the context: an error, or the oldest turns leave the prompt."""


def engine_options(given: Mapping[str, Any]) -> tuple[EngineOptions, DraftOptions]:
    """EngineArguments as the commands' options. MedusaError, one line, for unknown names and invalid values."""
    _check_names(given, ENGINE_NAMES)
    return _group(EngineOptions, given), _group(DraftOptions, given)


def answer_settings(given: Mapping[str, Any], model: ModelSampling = settings.NO_SAMPLING) -> Settings:
    """AnswerArguments as the engine takes them. MedusaError, one line, for invalid ones, or for contradictions.

    Defaults are the model's own, else those of `medusa generate`: the most likely text.
    """
    _check_names(given, ANSWER_NAMES)
    if given.get("json_schema") is not None:
        given = {**given, "json_schema": structure.schema_text(given["json_schema"])}
    sampling, draft = _group(SamplingOptions, given), _group(DraftOptions, given)
    with in_python_names():
        return settings.from_options(sampling, draft, GENERATE_TEMPERATURE, model)


@contextlib.contextmanager
def in_python_names() -> Iterator[None]:
    """Raises errors that people can put right as MedusaError, with options named as arguments are."""
    try:
        yield
    except (MedusaError, RuntimeError) as error:
        if not is_reportable(error):
            raise
        about = f"{error.option}: " if isinstance(error, WrongOption) else ""
        raise MedusaError(about + worded(error, name_of=str)) from error


def _check_names(given: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in given:
        if name not in known:
            other = ENGINE_NAMES | ANSWER_NAMES
            where = "" if name not in other else (" of an answer" if name in ANSWER_NAMES else " of Model()")
            hint = f": it is an argument{where}" if where else f": choose from {', '.join(sorted(known))}"
            raise MedusaError(f"unknown argument {name!r}{hint}")


def _group(group: Any, given: Mapping[str, Any]) -> Any:
    """An option group, filled with the values that belong to it."""
    options = fields(group)
    return group(**{name: options[name].checked(value) for name, value in given.items() if name in options})


# --- prompts ---------------------------------------------------------------------------------------


def tokens_of(
    engine: Engine, prompt: Prompt, tools: Tools | None, raw: bool, thinking: Thinking = NOTHING_SAID
) -> list[int]:
    """Token ids. MedusaError, one line, if it is not a prompt or does not go through the model's template."""
    if isinstance(prompt, str):
        if not prompt:
            raise MedusaError("the prompt is empty: give some text")
        check_text("the prompt", prompt)
        if raw:
            return engine.raw_tokens(prompt)
        return engine.chat_tokens([{"role": "user", "content": prompt}], tools=tools, thinking=thinking)
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
        raise MedusaError(f"a prompt is text, messages or token ids, not {type(prompt).__name__}")
    if not prompt:
        raise MedusaError("the prompt is empty: give some messages or tokens")
    if raw:
        raise MedusaError("raw=True needs a prompt that is text")
    if isinstance(prompt[0], Mapping):
        checked = [_message(one, number) for number, one in enumerate(prompt)]
        return engine.chat_tokens(checked, tools=tools, thinking=thinking)
    if tools:
        raise MedusaError("tools need the chat template: give text or messages, not tokens")
    return [_token(one, engine.model.n_vocab) for one in prompt]


def leaves_out(prompt: Prompt, raw: bool, truncation: Truncation) -> bool:
    """Whether turns of the prompt may be left out. MedusaError for another word, and if the prompt has no turns."""
    if truncation not in get_args(Truncation):
        raise MedusaError(f"truncation takes {' or '.join(map(repr, get_args(Truncation)))}, not {truncation!r:.60}")
    if truncation == "disabled":
        return False
    if raw or isinstance(prompt, str) or not prompt or not isinstance(prompt[0], Mapping):
        raise MedusaError("truncation='auto' needs a prompt of messages: text and tokens have no turns to leave out")
    return True


def shortened(
    engine: Engine,
    messages: Sequence[Message],
    tools: Tools | None,
    most: int,
    longest: int | None,
    thinking: Thinking = NOTHING_SAID,
) -> tuple[list[int], int]:
    """Token ids without the oldest turns if these do not fit the context, and how many messages are left out.

    most: tokens that the answer may get; -1: any number. longest: as in Shortener. MedusaError, one line, if it is not
    a prompt, and for a message that is too long.
    """
    checked = [_message(one, number) for number, one in enumerate(messages)]

    def prompt_of(some: Sequence[dict[str, Any]]) -> list[int]:
        return engine.chat_tokens(some, tools=tools, thinking=thinking)

    def count(text: str) -> int:
        return len(engine.model.tokenize(text, add_special=False, parse_special=True))

    return Shortener(checked, Room(engine.n_ctx, most), prompt_of, count, longest).tokens()


def schemas_of(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """The names of tools, and the schemas of their arguments. MedusaError if one has no name."""
    found: dict[str, Mapping[str, Any]] = {}
    for number, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        if not isinstance(function.get("name"), str):
            raise MedusaError(f"tool {number} is not like {{'type': 'function', 'function': {{'name': ...}}}}")
        schema = function.get("parameters")
        found[function["name"]] = schema if isinstance(schema, Mapping) else {}
    return found


def _token(value: Any, vocabulary: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) < vocabulary:
        raise MedusaError(f"{value!r:.60} is not a token id: they go from 0 to {vocabulary - 1}")
    return int(value)


def _message(value: Any, number: int) -> dict[str, Any]:
    """A message with its content as one text."""
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise MedusaError(f"message {number} is not like {{'role': 'user', 'content': '...'}}: {value!r:.60}")
    message = dict(value)
    if not isinstance(message.get(REMEMBERED) or "", str):
        raise MedusaError(f"message {number}: its {REMEMBERED} must be text")
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        content = message["content"] = "".join(_part(part, number) for part in content)
    if content is None and message.get("tool_calls"):
        message["content"] = ""
    elif not isinstance(content, str):
        raise MedusaError(f"message {number}: its content must be text, not {type(content).__name__}")
    else:
        check_text(f"message {number}", content)
    return message


def _part(part: Any, number: int) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise MedusaError(f"message {number}: only parts of type 'text' can be read, not {part!r:.60}")
