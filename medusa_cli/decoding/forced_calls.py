"""Calls of tools that follow a grammar: those that an answer has to be, and those of strict tools.

What begins and ends them, and the grammar of what is between.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding import structure
from medusa_cli.grammars.rules import Rules, any_of, literal, of_json
from medusa_cli.grammars.schema import expression_of
from medusa_cli.parts.call_formats import HERMES, LISTED, LISTS, LLAMA, MISTRAL, format_of
from medusa_cli.parts.marks import CHANNEL, MESSAGE
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from medusa_cli import native

ANY_ARGUMENTS = {"type": "object", "additionalProperties": True}


@dataclass(frozen=True)
class WrittenCall:
    """A call whose text follows a grammar. opening, closing: what is around that text."""

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

    @property
    def mark(self) -> str:
        """What the model writes where it decides to call a tool; "": nothing that only calls begin with."""
        return self.opening.rstrip()


def _form(template: str) -> _Form:
    """How the models of a template write a call. MedusaError if that is no JSON object with the name in it."""
    form = None if CHANNEL in template and MESSAGE in template else format_of(template)
    if form is HERMES:
        has_marks = "<tool_call>" in template
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
    return WrittenCall(form.opening, form.closing, structure.compiled(_gbnf(form, "tool_choice", json.dumps(chosen))))


@dataclass(frozen=True)
class StrictCalls:
    """The calls of an answer that need not call anything. mark: a token; what the model writes after it is `call`."""

    mark: str
    call: WrittenCall


def strict_calls(
    template: str | None, is_token: Callable[[str], bool], tools: Sequence[Mapping[str, Any]], one_call: bool
) -> StrictCalls | None:
    """The calls of tools of which some are strict; None: none is, or calls of this model begin with no token.

    one_call: there is at most one. MedusaError, one line, for a schema that cannot be enforced.
    """
    functions = [tool.get("function", tool) for tool in tools]
    if not any(one.get("strict") is True for one in functions):
        return None
    try:
        form = _form(template or "")
    except MedusaError:
        return None
    others = ("<function=", "<arg_key>")  # after the same mark, but not JSON
    if not form.mark or not is_token(form.mark) or any(one in (template or "") for one in others):
        return None
    told = [
        one if one.get("strict") is True else {"name": one["name"], "parameters": ANY_ARGUMENTS} for one in functions
    ]
    gbnf = _gbnf(form, "tools", json.dumps(told), several=form.before != "" and not one_call)
    call = WrittenCall(form.opening.removeprefix(form.mark), form.closing, structure.compiled(gbnf))
    return StrictCalls(form.mark, call)


@functools.lru_cache(maxsize=32)
def _gbnf(form: _Form, field: str, functions: str, several: bool = False) -> str:
    """field: of the request, for errors. several: a list may have more than one call."""
    rules = Rules()
    calls = []
    for one in json.loads(functions):
        try:
            arguments = expression_of(rules, one.get("parameters") or {"type": "object", "additionalProperties": False})
        except MedusaError as error:
            raise MedusaError(f"{field}: the tool {one['name'][:60]!r}: {error}") from error
        named = literal('{"name": ') + " " + of_json(one["name"]) + " " + literal(f', "{form.arguments}": ')
        calls.append(rules.of(f"{named} {arguments} {literal('}')}"))
    call = rules.of(any_of(calls))
    more = f"({literal(', ')} {call})*" if several else ""
    return rules.text(f"{literal(form.before)} {call} {more} {literal(form.after)}")
