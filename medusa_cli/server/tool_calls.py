"""Tool calls in what a model writes, in the format that its chat template teaches.

Three formats are read: Hermes and Qwen (`<tool_call>{"name", "arguments"}</tool_call>`; small models write a Markdown
fence instead of the marks, or nothing), Llama 3 (the whole answer is `{"name", "parameters"}`) and Mistral
(`[TOOL_CALLS][{"name", "arguments"}, ...]`, or `name[ARGS]{...}`).
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"
MISTRAL_OPEN, MISTRAL_ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
LLAMA_OPEN = "<|python_tag|>"
BARE_OPENINGS = ('{"name":', '```json{"name":', '```{"name":')
"""How an answer that calls without Hermes's marks begins, without spaces."""
ID_LENGTH = 9
"""Mistral's templates refuse any other length."""

_DECODER = json.JSONDecoder()
_FENCES = re.compile(r"^(\s|```(json)?)+")


class Format(Enum):
    hermes = "hermes"
    llama = "llama"
    mistral = "mistral"


@dataclass(frozen=True)
class Call:
    """arguments: JSON text."""

    id: str
    name: str
    arguments: str


def knows_tools(template: str | None) -> bool:
    """Whether a chat template does anything with tools."""
    return bool(template) and re.search(r"\btools\b", template or "") is not None


def format_of(template: str) -> Format:
    """The format a chat template teaches; Hermes's if that does not show."""
    if HERMES_OPEN in template:
        return Format.hermes
    if MISTRAL_OPEN in template:
        return Format.mistral
    if LLAMA_OPEN in template or '"parameters"' in template:
        return Format.llama
    return Format.hermes


class ToolReader:
    """Splits an answer, as it comes, into text to show and calls. Only names in `offered` count as calls."""

    def __init__(self, form: Format, offered: Collection[str]) -> None:
        self._form = form
        self._offered = frozenset(offered)
        self._held = ""
        self._calling = False
        self._plain = False
        self._at_start = True

    def feed(self, text: str) -> str:
        """The part of the answer so far that is certainly not a call and has not been returned yet."""
        if self._plain:
            return text
        self._held += text
        if self._calling:
            return ""
        return self._feed_hermes() if self._form is Format.hermes else self._feed_whole()

    def _feed_hermes(self) -> str:
        if self._at_start:
            begin = "".join(self._held.split())
            if any(opening.startswith(begin) for opening in BARE_OPENINGS):
                return ""
            self._at_start = False
            if begin.startswith(BARE_OPENINGS):
                self._calling = True
                return ""
        at = self._held.find(HERMES_OPEN)
        if at >= 0:
            self._calling = True
        else:
            at = len(self._held) - _begun(self._held, HERMES_OPEN)
        shown, self._held = self._held[:at], self._held[at:]
        return shown

    def _feed_whole(self) -> str:
        """A call is the whole answer, so its first characters decide."""
        begin = self._held.lstrip()
        if not begin:
            return ""
        openings = ("{", LLAMA_OPEN) if self._form is Format.llama else ("[{", "[ {", "[\n", MISTRAL_OPEN)
        if any(begin.startswith(opening) for opening in openings):
            self._calling = True
        elif not any(opening.startswith(begin) for opening in openings):
            self._plain = True
            shown, self._held = self._held, ""
            return shown
        return ""

    def finish(self) -> tuple[str, list[Call]]:
        """What is left to show, and the calls."""
        held, self._held = self._held, ""
        if not self._calling:
            return held, []
        parse = {Format.hermes: _hermes, Format.llama: _llama, Format.mistral: _mistral}[self._form]
        try:
            rest, found = parse(held)
            calls = [self._call(one) for one in found]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return held, []
        return (rest, calls) if calls else (held, [])

    def _call(self, found: dict[str, Any]) -> Call:
        """KeyError, TypeError or ValueError if `found` does not call a tool that was offered."""
        name = found["name"]
        if name not in self._offered:
            raise ValueError("no such tool")
        arguments = found["arguments"] if "arguments" in found else found.get("parameters", {})
        return Call(new_id(), name, written(json.loads(arguments) if isinstance(arguments, str) else arguments))


def written(value: Any) -> str:
    """As JSON. ValueError for what JSON lacks (NaN), and for half of a surrogate pair, which is not text."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode("utf-8")
    return text


def new_id() -> str:
    """The id of a call: letters and digits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_LENGTH))


def _begun(text: str, marker: str) -> int:
    """How many characters at the end of `text` may become `marker`."""
    return next((size for size in range(min(len(text), len(marker) - 1), 0, -1) if marker.startswith(text[-size:])), 0)


def _hermes(text: str) -> tuple[str, list[dict[str, Any]]]:
    if HERMES_OPEN not in text:
        return _bare(text)
    calls, rest = [], ""
    while (at := text.find(HERMES_OPEN)) >= 0:
        rest += text[:at]
        text = text[at + len(HERMES_OPEN) :].lstrip()
        call, end = _DECODER.raw_decode(text)
        calls.append(call)
        text = text[end:].lstrip().removeprefix(HERMES_CLOSE)
    return (rest + text).strip(), calls


def _bare(text: str) -> tuple[str, list[dict[str, Any]]]:
    calls = []
    while (text := _FENCES.sub("", text)).startswith("{"):
        call, end = _DECODER.raw_decode(text)
        calls.append(call)
        text = text[end:]
    return text.strip(), calls


def _llama(text: str) -> tuple[str, list[dict[str, Any]]]:
    text = text.strip().removeprefix(LLAMA_OPEN).strip()
    calls = []
    while text:
        call, end = _DECODER.raw_decode(text)
        calls.append(call)
        text = text[end:].lstrip().removeprefix(";").lstrip()
    return "", calls


def _mistral(text: str) -> tuple[str, list[dict[str, Any]]]:
    text = text.strip()
    if MISTRAL_ARGUMENTS in text:
        calls = []
        for part in text.split(MISTRAL_OPEN):
            name, found, arguments = part.partition(MISTRAL_ARGUMENTS)
            if found:
                calls.append({"name": name.strip(), "arguments": _DECODER.raw_decode(arguments.lstrip())[0]})
        return "", calls
    found, _ = _DECODER.raw_decode(text.removeprefix(MISTRAL_OPEN).lstrip())
    return "", found if isinstance(found, list) else [found]
