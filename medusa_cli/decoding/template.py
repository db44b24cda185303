"""A model's own chat template (Jinja), rendered in a sandbox: messages in, prompt text out."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from medusa_cli.support.errors import MedusaError

Message = dict[str, Any]
"""{"role", "content"}, both text, and what else a template reads ("tool_calls")."""
Tools = Sequence[Mapping[str, Any]]
"""What the model may call: JSON schemas of functions, in the way of OpenAI."""
RAW_HINT = "use `medusa generate --raw`, which takes the prompt as it is"


class TemplateRefusal(Exception):
    """The template itself refused the conversation (its raise_exception)."""


def _refuse(message: object = "") -> NoReturn:
    raise TemplateRefusal(str(message))


def _now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Templates expect plain JSON: Jinja's own filter would escape <, > and & for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


@functools.lru_cache(maxsize=8)
def _compile(source: str) -> Any:
    from jinja2 import TemplateError

    from medusa_cli.decoding.template_bounds import BoundedEnvironment

    environment = BoundedEnvironment(
        {"tojson": _to_json}, trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    try:
        return environment.from_string(source)
    except (TemplateError, RecursionError) as error:
        raise MedusaError(f"the model's chat template does not parse ({_first_line(error)}): {RAW_HINT}") from error


def render(
    source: str | None,
    messages: Sequence[Message],
    *,
    tools: Tools | None = None,
    bos_text: str = "",
    eos_text: str = "",
) -> str:
    """Prompt text for `messages` ({"role", "content"}), ending where the assistant is to speak.

    A template that refuses system messages gets the system prompt at the head of the first user turn. MedusaError
    when the model has no template, its template fails, or it does not know of tools.
    """
    if not source:
        raise MedusaError(f"the model has no chat template: {RAW_HINT}")
    if tools and "tools" not in source:
        raise MedusaError(
            "the model's chat template does not support tools: leave them out, or choose a model that calls tools"
        )
    names = {"bos_token": bos_text, "eos_token": eos_text, **({"tools": list(tools)} if tools else {})}
    try:
        return _render(source, messages, names)
    except TemplateRefusal as refusal:
        folded = _fold_system(messages)
        if folded is None:
            raise MedusaError(f"the model's chat template refused the conversation: {refusal}") from refusal
    try:
        return _render(source, folded, names)
    except TemplateRefusal as refusal:
        raise MedusaError(f"the model's chat template refused the conversation: {refusal}") from refusal


def _render(source: str, messages: Sequence[Message], names: dict[str, Any]) -> str:
    template = _compile(source)
    from medusa_cli.decoding import template_bounds

    try:
        with template_bounds.within(template_bounds.SECONDS):
            text: str = template.render(
                messages=[dict(message) for message in messages], add_generation_prompt=True, **names
            )
    except TemplateRefusal:
        raise
    except Exception as error:  # a template is a program of the model's author: it can fail in any way
        raise MedusaError(f"the model's chat template failed ({_first_line(error)}): {RAW_HINT}") from error
    return text


def _fold_system(messages: Sequence[Message]) -> list[Message] | None:
    """`messages` with a leading system message moved into the user turn behind it; None when there is none."""
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return None
    first = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
