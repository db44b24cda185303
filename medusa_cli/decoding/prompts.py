"""Conversations as tokens for a model to continue, by its own chat template (Jinja), rendered in a sandbox."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from medusa_cli.decoding.described_tools import described
from medusa_cli.decoding.thinking import NOTHING_SAID, Thinking, remembered
from medusa_cli.parts.call_formats import as_text, is_silent, may_call
from medusa_cli.parts.splitter import Grammar
from medusa_cli.support.errors import MedusaError, OptionError

Message = dict[str, Any]
"""{"role", "content"}, both text, and whatever else a template reads ("tool_calls")."""
Tool = Mapping[str, Any]
Tools = Sequence[Tool]
"""What the model may call: JSON schemas of functions, in OpenAI's format."""
RAW_HINT = "use `medusa generate --raw`, which takes the prompt as it is"


class PromptTooLong(OptionError):
    """A prompt that leaves no room for an answer. values: its `tokens`, and how many the `context` holds."""


def check_fits(tokens: Sequence[int], context: int) -> None:
    """PromptTooLong if the prompt and an answer do not fit a context of that many tokens."""
    if len(tokens) >= context:
        raise PromptTooLong(
            "the prompt has {tokens} tokens, the context holds {context}: shorten it, or give a larger {ctx_size}",
            tokens=len(tokens),
            context=context,
        )


class Tokenizer(Protocol):
    """The part of native.Model needed here."""

    @property
    def chat_template(self) -> str | None:
        """The model's own template, in Jinja."""

    @property
    def bos_text(self) -> str:
        """The begin-of-text token, as text."""

    @property
    def eos_text(self) -> str:
        """The end-of-text token, as text."""

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text."""


def grammar_of(model: Tokenizer) -> Grammar:
    """How the model's answers are read."""
    return Grammar.of(model.chat_template, functools.partial(model.tokenize, add_special=False))


def chat_tokens(
    model: Tokenizer,
    messages: Sequence[Message],
    *,
    bare_if_no_template: bool = False,
    tools: Tools | None = None,
    thinking: Thinking = NOTHING_SAID,
) -> list[int]:
    """Token ids of a conversation in the model's own template, up to where the assistant speaks.

    bare_if_no_template: a model without a template gets the texts alone. tools: for the template. MedusaError when the
    template does not render the conversation, or is missing without bare_if_no_template.
    """
    if bare_if_no_template and not model.chat_template:
        return model.tokenize("\n\n".join(message["content"] for message in messages))
    return rendered_tokens(model, rendered(model, messages, tools, thinking))


def rendered(
    model: Tokenizer, messages: Sequence[Message], tools: Tools | None = None, thinking: Thinking = NOTHING_SAID
) -> str:
    """The text of a conversation in the model's own template. MedusaError when there is none, or it fails."""
    source, texts = model.chat_template, {"bos_text": model.bos_text, "eos_text": model.eos_text}
    names = thinking.names(variables(source)) if source else {}
    text = render(source, messages, tools=tools, names=names, **texts)
    if source and thinking.on is False and not thinking.has_switch(variables(source)):
        marks = grammar_of(model).marks
        if marks is not None and marks.are_in(source):
            text += marks.without_thinking(text, bool(tools))
    return text


def rendered_tokens(model: Tokenizer, text: str) -> list[int]:
    """Token ids of rendered text: one begin-of-text token, even if the template writes its own."""
    has_bos = bool(model.bos_text) and text.startswith(model.bos_text)
    return model.tokenize(text, add_special=not has_bos, parse_special=True)


# --- templates -------------------------------------------------------------------------------------


class TemplateRefusal(Exception):
    """The template itself refused the conversation (its raise_exception)."""


def _refuse(message: object = "") -> NoReturn:
    raise TemplateRefusal(str(message))


def _now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Templates expect plain JSON: Jinja's own filter would escape <, > and & for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, default=_listed, **options)


def _listed(value: Any) -> list[Any]:
    """What filters such as `map` make, for JSON."""
    if not isinstance(value, Iterator):
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")
    return list(value)


@functools.lru_cache(maxsize=8)
def variables(source: str) -> frozenset[str]:
    """What a template can be told. MedusaError if it does not parse."""
    from jinja2 import meta

    _compile(source)
    environment = _environment()
    return frozenset(meta.find_undeclared_variables(environment.parse(source)))


@functools.cache
def _environment() -> Any:
    from medusa_cli.decoding.template_bounds import BoundedEnvironment, GenerationTag

    environment = BoundedEnvironment(
        {"tojson": _to_json},
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationTag],
    )
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    return environment


@functools.lru_cache(maxsize=8)
def _compile(source: str) -> Any:
    from jinja2 import TemplateError

    try:
        return _environment().from_string(source)
    except (TemplateError, RecursionError) as error:
        raise MedusaError(f"the model's chat template does not parse ({_first_line(error)}): {RAW_HINT}") from error


def _shown(tool: Tool) -> Tool:
    """A tool as the model sees it: whether its calls are strict is for the engine alone."""
    if isinstance(function := tool.get("function"), Mapping):
        return {**tool, "function": _shown(function)}
    return {name: value for name, value in tool.items() if name != "strict"}


def render(
    source: str | None,
    messages: Sequence[Message],
    *,
    tools: Tools | None = None,
    names: Mapping[str, Any] | None = None,
    bos_text: str = "",
    eos_text: str = "",
) -> str:
    """Prompt text for `messages` ({"role", "content"}), ending where the assistant is to speak.

    names: further variables of the template. One that refuses system messages gets the system prompt at the head of
    the first user turn; one that says nothing of tools gets them described there. MedusaError when the model has no
    template, its template fails, or it shows calls but does not take tools.
    """
    if not source:
        raise MedusaError(f"the model has no chat template: {RAW_HINT}")
    if tools and not may_call(source):
        raise MedusaError(
            "the model's chat template does not support tools: leave them out, or choose a model that calls tools"
        )
    texts = {"bos_token": bos_text, "eos_token": eos_text}
    tools = list(map(_shown, tools or []))
    messages = [_with_calls(message, source) for message in remembered(messages, source)]
    if is_silent(source):
        messages, tools = described(messages, tools), []
    names = {**texts, **({"tools": tools} if tools else {}), **(names or {})}
    refused: TemplateRefusal | None = None
    for tried in (messages, _fold_system(messages)):
        try:
            if tried is not None:
                return _render(source, tried, names)
        except TemplateRefusal as refusal:
            refused = refusal
    raise MedusaError(f"the model's chat template refused the conversation: {refused}") from refused


def _with_calls(message: Message, source: str) -> Message:
    """Some templates (Granite 3, LFM2, those without tools) leave out earlier calls: they get them as text."""
    if not (calls := message.get("tool_calls")):
        return message
    try:
        return {**message, "content": message["content"] + as_text(calls, source)}
    except (KeyError, TypeError, ValueError) as error:
        raise MedusaError('tool_calls: a call has a "function" with "name" and "arguments"') from error


def _render(source: str, messages: Sequence[Message], names: dict[str, Any]) -> str:
    template = _compile(source)
    from medusa_cli.decoding import template_bounds

    try:
        with template_bounds.within(template_bounds.SECONDS):
            return str(
                template.render(messages=[dict(message) for message in messages], add_generation_prompt=True, **names)
            )
    except TemplateRefusal:
        raise
    except Exception as error:  # a template is a program by the model's author: it can fail in any way
        raise MedusaError(f"the model's chat template failed ({_first_line(error)}): {RAW_HINT}") from error


def _fold_system(messages: Sequence[Message]) -> list[Message] | None:
    """`messages` with a leading system message moved into the user turn after it; None if there is none."""
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return None
    first = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
