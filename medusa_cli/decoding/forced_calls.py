"""Calls of tools by grammars: those that an answer has to be, and the arguments of strict tools."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding import structure
from medusa_cli.grammars.rules import Rules, any_of, literal, of_json
from medusa_cli.grammars.schema import expression_of
from medusa_cli.parts.call_formats import HERMES, LISTED, LISTS, LLAMA, MISTRAL, format_of, is_silent
from medusa_cli.parts.marks import CHANNEL, MESSAGE
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from medusa_cli import native

NO_JSON = ("<function=", "<arg_key>")
"""Templates with these teach calls that only begin like those in JSON."""


@dataclass(frozen=True)
class WrittenCall:
    """A call that an answer has to be. opening, closing: what is around the text that follows the grammar."""

    opening: str
    closing: str
    structure: native.Grammar


@dataclass(frozen=True)
class _Form:
    """A call in JSON. before, after: within the text, around each call; arguments: their key."""

    opening: str
    closing: str
    before: str = ""
    after: str = ""
    arguments: str = "arguments"


def is_harmony(template: str) -> bool:
    """Whether a template names the tool before a message that is its arguments."""
    return CHANNEL in template and MESSAGE in template


def _form(template: str) -> _Form:
    """How the models of a template write a call. MedusaError if that is no JSON object with the name in it."""
    form = None if is_harmony(template) else format_of(template)
    if form is HERMES:
        has_marks = "<tool_call>" in template or is_silent(template)
        return _Form("<tool_call>\n", "\n</tool_call>") if has_marks else _Form("", "")
    if form is LLAMA:
        return _Form("", "", arguments="parameters")
    if form is MISTRAL and "[ARGS]" not in template:
        return _Form("[TOOL_CALLS]", "", "[", "]")
    if form is LISTED and (opens := next((mark for mark in LISTS if mark in template), None)):
        return _Form(opens, LISTS[opens], "[", "]")
    raise MedusaError(
        "tool_choice: the format in which this model writes calls cannot be enforced: use auto and say so in the prompt"
    )


def written_call(template: str | None, tools: Sequence[Mapping[str, Any]], name: str) -> WrittenCall:
    """The call of one of the tools, or of the one named. MedusaError, one line, for what cannot be enforced."""
    form = _form(template or "")
    functions = [tool["function"] for tool in tools]
    chosen = [one for one in functions if not name or one["name"] == name]
    if not chosen:
        raise MedusaError(f"tool_choice: there is no tool {name[:60]!r}" if name else "tool_choice: there are no tools")
    return WrittenCall(form.opening, form.closing, structure.compiled(_gbnf(form, json.dumps(chosen))))


def strict_calls(template: str | None, tools: Sequence[Mapping[str, Any]]) -> dict[str, native.Grammar]:
    """The strict ones of some tools, and the grammars of their arguments; none where these are not written in JSON.

    MedusaError, one line, for a schema that cannot be enforced.
    """
    functions = [tool.get("function", tool) for tool in tools]
    grammars = {
        one["name"]: structure.compiled(_arguments(one["name"], json.dumps(one.get("parameters"))))
        for one in functions
        if one.get("strict") is True
    }
    is_json = is_harmony(template or "") or format_of(template or "").head is not None
    return grammars if is_json and not any(mark in (template or "") for mark in NO_JSON) else {}


@functools.lru_cache(maxsize=32)
def _arguments(name: str, schema: str) -> str:
    rules = Rules()
    return rules.text(_expression(rules, "tools", name, json.loads(schema)))


def _expression(rules: Rules, field: str, name: str, schema: Any) -> str:
    """That of a tool's arguments. field: of the request, for errors."""
    try:
        return expression_of(rules, schema or {"type": "object", "additionalProperties": False})
    except MedusaError as error:
        raise MedusaError(f"{field}: the tool {name[:60]!r}: {error}") from error


@functools.lru_cache(maxsize=32)
def _gbnf(form: _Form, functions: str) -> str:
    rules = Rules()
    calls = []
    for one in json.loads(functions):
        arguments = _expression(rules, "tool_choice", one["name"], one.get("parameters"))
        named = literal('{"name": ') + " " + of_json(one["name"]) + " " + literal(f', "{form.arguments}": ')
        calls.append(rules.of(f"{named} {arguments} {literal('}')}"))
    return rules.text(f"{literal(form.before)} {any_of(calls)} {literal(form.after)}")
