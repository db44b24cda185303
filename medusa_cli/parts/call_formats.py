"""How families of models write calls of tools, and what such a text calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medusa_cli.parts.json_text import Unfinished
from medusa_cli.parts.python_calls import PythonCalls, as_python

Found = list[dict[str, Any]]
"""Calls: `name`, and `arguments` as an object or as JSON text."""
Schemas = Mapping[str, Mapping[str, Any]]
"""The tools that may be called, by name: the JSON schemas of their arguments."""
Read = Callable[[str, Schemas], tuple[Found, str]]
"""From a text with calls to these, and the text after them. ValueError, KeyError and the like for other texts."""

LENIENT = json.JSONDecoder(strict=False)
"""Small models write line breaks into strings."""
_FENCES = re.compile(r"^(\s|```(json)?)+")


def _json(text: str) -> tuple[Any, str]:
    """The JSON that a text begins with, and the text after it."""
    text = text.lstrip()
    try:
        found, end = LENIENT.raw_decode(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text) or error.msg.startswith("Unterminated string"):
            raise Unfinished from error
        raise
    return found, text[end:].lstrip()


@dataclass(frozen=True)
class Notation:
    """Arguments that are written one after the other, without quotes.

    head: of a call, up to its first argument; its group is the name. pair: an argument, key and value; closes: what is
    there when one is whole. end: of the call. value: from a text, the schema of the tool and a key.
    """

    head: re.Pattern[str]
    pair: re.Pattern[str]
    closes: str
    end: str
    value: Callable[[str, Mapping[str, Any], str], Any]


@dataclass(frozen=True)
class Format:
    """opens: what calls begin with, and what ends each such text ("": the end of the answer). starts: what calls
    without such marks begin with, if they begin the answer; white space apart. others: further marks within calls.

    hints: what else templates show of it, besides `opens`. head: of a call, up to arguments in JSON; its groups are
    the name. It is looked for where the text begins, and where the arguments of the call before end. None: such calls
    come whole. one_each: each mark opens only one call. notations: in which arguments are told one by one.
    """

    read: Read
    opens: Mapping[str, str] = field(default_factory=dict)
    starts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    head: re.Pattern[str] | None = None
    one_each: bool = False
    notations: tuple[Notation, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All that may be tokens without a text of their own."""
        return tuple(filter(None, (*self.opens, *self.opens.values(), *self.others)))


def typed(text: str, schema: Mapping[str, Any], name: str) -> Any:
    """The value of an argument that is written without quotes: text, if the schema does not say otherwise."""
    wanted = schema.get("properties", {}).get(name, {})
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "string" or (isinstance(kind, list) and "string" in kind and text != "null"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text) if kind != "string" else text


_BETWEEN = r'(?:,\s*"id"\s*:\s*"[^"]*")?(?:\s|[\[\]},;]|```(?:json)?)*'
"""What may be before the first bracket of a call: what ends the call before, the beginning of a list or fence."""
_OBJECT = (
    r'\{+\s*(?:"(?:id|type|tool_call_id)"\s*:\s*"[^"]*"\s*,\s*)*"(?:tool_)?name"\s*:\s*"([^"\\]+)"'
    r'\s*,\s*"(?:arguments|parameters)"\s*:\s*'
)
_BRACKET = r"(?=\{)"


def _head(*marks: str, or_: str = "") -> re.Pattern[str]:
    """That of calls as JSON objects after one of these marks, or of calls with another head."""
    objects = rf"\s*(?:{'|'.join(map(re.escape, marks))})?{_BETWEEN}{_OBJECT}"
    return re.compile(f"(?:{objects}{or_ and '|' + or_}){_BRACKET}", re.DOTALL)


# --- <tool_call>: Hermes, Qwen, GLM, Granite 4 -----------------------------------------------------

TAGS = {"<tool_call>": "</tool_call>", "<function=": "</function>"}
_ONE_PARAMETER = r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)"
_PARAMETER = re.compile(_ONE_PARAMETER + r"|\Z)", re.DOTALL)
_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def tagged(text: str, schemas: Schemas) -> tuple[Found, str]:
    """JSON, a function with parameters in angle brackets, or a name with keys and values."""
    text = text.lstrip()
    if not text.startswith(tuple(TAGS)):
        return _bare(text)
    text = text.removeprefix("<tool_call>").lstrip()
    if text.startswith("{"):
        call, rest = _json(text[1:] if text.startswith("{{") else text)
        return [call], rest.removeprefix("}").lstrip().removeprefix("</tool_call>")
    if text.startswith("<function="):
        body, ends, rest = text.removeprefix("<function=").partition("</function>")
        if not ends:
            raise Unfinished
        return [_function(body, schemas)], rest.lstrip().removeprefix("</tool_call>")
    body, ends, rest = text.partition("</tool_call>")
    if not ends:
        raise Unfinished
    name = body.partition("<arg_key>")[0].strip()
    schema = schemas[name]
    return [{"name": name, "arguments": {key: typed(value, schema, key) for key, value in _PAIR.findall(body)}}], rest


def _function(text: str, schemas: Schemas) -> dict[str, Any]:
    name, _, body = text.partition(">")
    if body.lstrip().startswith("{"):  # Llama 3.1 and Functionary
        return {"name": name.strip(), "arguments": _json(body)[0]}
    schema = schemas[name.strip()]
    pairs = _PARAMETER.findall(body)
    return {"name": name.strip(), "arguments": {key: _typed_lines(value, schema, key) for key, value in pairs}}


def _typed_lines(text: str, schema: Mapping[str, Any], name: str) -> Any:
    return typed(text.removeprefix("\n").removesuffix("\n"), schema, name)


def _bare(text: str) -> tuple[Found, str]:
    calls = []
    while (text := _FENCES.sub("", text)).startswith("{"):
        call, text = _json(text)
        calls.append(call)
    return calls, text


# --- other families --------------------------------------------------------------------------------


def llama(text: str, _: Schemas) -> tuple[Found, str]:
    """`{"name", "parameters"}; ...`"""
    text = text.strip().removeprefix("<|python_tag|>").strip()
    calls = []
    while text:
        call, text = _json(text)
        calls.append(call)
        text = text.removeprefix(";").lstrip()
    return calls, ""


def mistral(text: str, _: Schemas) -> tuple[Found, str]:
    """`[TOOL_CALLS][{"name", "arguments"}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each."""
    text = text.strip()
    if "[ARGS]" not in text:
        return listed(text.removeprefix("[TOOL_CALLS]").lstrip(), _)
    calls = []
    for part in text.split("[TOOL_CALLS]"):
        name, found, arguments = part.partition("[ARGS]")
        if found:
            name = name.partition("[CALL_ID]")[0].strip()
            calls.append({"name": name, "arguments": _json(arguments)[0]})
    return calls, ""


LISTS = {
    "<|tool_call|>": "",
    "<TOOLCALL>": "</TOOLCALL>",
    "<tool_calls>": "</tool_calls>",
    "<|START_ACTION|>": "<|END_ACTION|>",
}


def listed(text: str, _: Schemas) -> tuple[Found, str]:
    """A JSON list of calls between marks, or calls one after the other."""
    opens = next((mark for mark in LISTS if text.startswith(mark)), "")
    text = text.removeprefix(opens).lstrip()
    calls: Found = []
    while text.startswith(("[", "{")):
        found, text = _json(text)
        calls += found if isinstance(found, list) else [found]
    return [{"name": call["tool_name"], **call} if "tool_name" in call else call for call in calls], (
        text.removeprefix(LISTS.get(opens, ""))
    )


DEEPSEEK = {"<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>"}
_DEEPSEEK_CALL = re.compile(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)


def deepseek(text: str, _: Schemas) -> tuple[Found, str]:
    """`name<sep>{...}`, or `function<sep>name` and the arguments in a fence."""
    body, _end, rest = text.partition("<｜tool▁calls▁end｜>")
    calls = []
    for first, second in _DEEPSEEK_CALL.findall(body):
        name, fence, arguments = second.partition("```json")
        name, arguments = (name, arguments) if fence else (first, second)
        calls.append({"name": name.strip(), "arguments": _json(arguments)[0]})
    return calls, rest


KIMI = {"<|tool_calls_section_begin|>": "<|tool_calls_section_end|>"}
_KIMI_CALL = re.compile(
    r"\s*(?:<\|tool_call_end\|>)?\s*<\|tool_call_begin\|>\s*(?:functions\.)?([^\s<]+?)(?::\d+)?\s*"
    r"<\|tool_call_argument_begin\|>"
)


def kimi(text: str, _: Schemas) -> tuple[Found, str]:
    """`functions.name:0<|tool_call_argument_begin|>{...}`, each call with a beginning and an end."""
    text = text.removeprefix("<|tool_calls_section_begin|>")
    calls = []
    while (found := _KIMI_CALL.match(text)) is not None:
        arguments, text = _json(text[found.end() :])
        calls.append({"name": found[1], "arguments": arguments})
    return calls, text.removeprefix("<|tool_call_end|>").lstrip().removeprefix("<|tool_calls_section_end|>")


LFM2 = {"<|tool_call_start|>": "<|tool_call_end|>"}
TOOL_CODE = {"```tool_code": "```"}


def python(text: str, schemas: Schemas) -> tuple[Found, str]:
    """`[name(key="value"), ...]`, or such calls on lines in a fence."""
    opens, closes = next((opens, closes) for opens, closes in {**LFM2, **TOOL_CODE}.items() if text.startswith(opens))
    reader = PythonCalls(text.removeprefix(opens), schemas)
    calls = reader.listed() if opens in LFM2 else reader.lines(closes)
    if reader.rest and not reader.rest.startswith(closes):
        raise ValueError("more than calls")
    return calls, reader.rest.removeprefix(closes)


INVOKES = {
    "<｜DSML｜function_calls>": "</｜DSML｜function_calls>",
    "<｜DSML｜tool_calls>": "</｜DSML｜tool_calls>",
    "<minimax:tool_call>": "</minimax:tool_call>",
}
_INVOKE = re.compile(r"<(?:｜DSML｜)?invoke name=\"([^\"]+)\">(.*?)</(?:｜DSML｜)?invoke>", re.DOTALL)
_INVOKED = re.compile(
    r"<(?:｜DSML｜)?parameter name=\"([^\"]+)\"(?: string=\"(\w+)\")?>(.*?)</(?:｜DSML｜)?parameter>", re.DOTALL
)


def invoked(text: str, schemas: Schemas) -> tuple[Found, str]:
    """`<invoke name="name"><parameter name="key">value</parameter></invoke>`."""
    closes = next(close for mark, close in INVOKES.items() if text.startswith(mark))
    body, _end, rest = text.partition(closes)
    calls = []
    for name, inner in _INVOKE.findall(body):
        schema = schemas[name]
        pairs = _INVOKED.findall(inner)
        values = {key: value if is_text == "true" else typed(value, schema, key) for key, is_text, value in pairs}
        calls.append({"name": name, "arguments": values})
    return calls, rest


GEMMA = {"<|tool_call>": "<tool_call|>"}
FUNCTION_GEMMA = {"<start_function_call>": "<end_function_call>"}
_GEMMA_CALL = re.compile(r"\s*call:([^{\s]+)\s*\{", re.DOTALL)


def gemma(text: str, _: Schemas) -> tuple[Found, str]:
    """`call:name{key:value, ...}`, texts between `<|"|>`."""
    open_, close = next(
        (open_, close) for open_, close in {**GEMMA, **FUNCTION_GEMMA}.items() if text.startswith(open_)
    )
    quote = '<|"|>' if open_ in GEMMA else "<escape>"
    body, _end, rest = text.removeprefix(open_).partition(close)
    found = _GEMMA_CALL.match(body)
    if found is None:
        raise ValueError("no call")
    return [{"name": found[1], "arguments": _Loose(body[found.end() - 1 :], quote).value()}], rest


class _Loose:
    """JSON with keys that have no quotes, and other quotes around texts."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote = text, quote

    def _take(self, pattern: str) -> str:
        found = re.match(pattern, self._text, re.DOTALL)
        if found is None:
            raise ValueError("not an argument")
        self._text = self._text[found.end() :].lstrip()
        return found[1]

    def value(self) -> Any:
        quote = re.escape(self._quote)
        if self._text.startswith(self._quote):
            return self._take(f"{quote}(.*?){quote}")
        if self._text.startswith('"'):
            value, self._text = _json(self._text)
            return value
        if self._text.startswith("{"):
            return dict(self._items("{", "}", lambda: (self._key(), self.value())))
        if self._text.startswith("["):
            return self._items("[", "]", self.value)
        return json.loads(self._take(r"([^,}\]\s]+)"))

    def _key(self) -> str:
        quote = re.escape(self._quote)
        key = self._take(rf"((?:{quote}.*?{quote}|[^:{{}},]+?))\s*:")
        return key.replace(self._quote, "").strip().strip('"')

    def _items(self, opens: str, closes: str, item: Callable[[], Any]) -> list[Any]:
        self._take(f"({re.escape(opens)})")
        found = []
        while not self._text.startswith(closes):
            found.append(item())
            if self._text.startswith(","):
                self._take("(,)")
            elif not self._text.startswith(closes):
                raise ValueError("no comma")
        self._take(f"({re.escape(closes)})")
        return found


# --- which template teaches which ------------------------------------------------------------------

HERMES = Format(
    tagged,
    TAGS,
    ('{"name":', '```json{"name":', '```{"name":'),
    head=_head("<tool_call>", or_=r"\s*(?:<tool_call>\s*)?<function=([^>\s]+)>\s*"),
    one_each=True,
    notations=(
        Notation(
            re.compile(r"\s*(?:<tool_call>\s*)?<function=([^>\s]+)>\s*(?=<parameter=)"),
            re.compile(_ONE_PARAMETER + ")", re.DOTALL),
            "</parameter>",
            "</function>",
            _typed_lines,
        ),
        Notation(
            re.compile(r"\s*<tool_call>\s*([^\s<{]+)\s*(?=<arg_key>)"), _PAIR, "</arg_value>", "</tool_call>", typed
        ),
    ),
)
LLAMA = Format(llama, {"<|python_tag|>": ""}, ("{",), head=_head("<|python_tag|>"))
MISTRAL = Format(
    mistral,
    {"[TOOL_CALLS]": ""},
    ("[{",),
    ("[ARGS]", "[CALL_ID]"),
    head=_head("[TOOL_CALLS]", or_=r"\s*\[TOOL_CALLS\]\s*([^\s\[{]+)\s*(?:\[CALL_ID\][^\[{]*)?\[ARGS\]\s*"),
)
LISTED = Format(listed, LISTS, ('[{"name":',), head=_head(*LISTS))
INVOKED = Format(invoked, INVOKES, (), ("｜DSML｜",), hints=("｜DSML｜",))
DEEPSEEK_CALLS = Format(
    deepseek,
    DEEPSEEK,
    (),
    ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
    head=re.compile(
        r"(?:<｜tool▁calls▁begin｜>)?(?:\s|```)*(?:<｜tool▁call▁end｜>)?\s*<｜tool▁call▁begin｜>"
        rf"(?:function<｜tool▁sep｜>([^\s`{{<]+)\s*```json\s*|([^\s<]+)\s*<｜tool▁sep｜>\s*){_BRACKET}"
    ),
)
KIMI_CALLS = Format(
    kimi,
    KIMI,
    (),
    ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    head=re.compile(rf"(?:<\|tool_calls_section_begin\|>)?{_KIMI_CALL.pattern}\s*{_BRACKET}"),
)
PYTHON = Format(python, LFM2, hints=("<|tool_list_start|>", "List of tools: ["))
FENCED_PYTHON = Format(python, TOOL_CODE)
NAMED = Format(tagged, one_each=True)
"""Where something else has named the tool."""
FORMATS = (
    Format(gemma, GEMMA, (), ('<|"|>',), one_each=True),
    Format(gemma, FUNCTION_GEMMA, (), ("<escape>",), one_each=True),
    INVOKED,
    DEEPSEEK_CALLS,
    KIMI_CALLS,
    PYTHON,
    FENCED_PYTHON,
    LISTED,
    MISTRAL,
    HERMES,
    LLAMA,
)
"""Those whose marks say more come first. Harmony's calls are sections of their own."""


def format_of(template: str) -> Format:
    """The format that a chat template teaches; Hermes's if that does not show."""
    found = (one for one in FORMATS if any(mark in template for mark in (*one.opens, *one.hints)))
    return next(found, LLAMA if '"parameters"' in template else HERMES)


def as_text(calls: Sequence[Mapping[str, Any]], template: str) -> str:
    """Calls as the model wrote them, for templates that leave out those of earlier turns; "": those that do not."""
    if is_silent(template):
        told = (json.dumps(dict(call["function"]), ensure_ascii=False) for call in calls)
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in told)
    form = None if "tool_calls" in template else format_of(template)
    functions = [dict(call["function"]) for call in calls] if form in (LISTED, PYTHON) else []
    if form is LISTED:
        return next(iter(LISTS)) + json.dumps(functions, ensure_ascii=False)
    return f"<|tool_call_start|>{as_python(functions)}<|tool_call_end|>" if form is PYTHON else ""


def is_silent(template: str) -> bool:
    """Whether a chat template says nothing of tools: its model can be told about them in words."""
    return "tool" not in template.lower()


def may_call(template: str | None) -> bool:
    """Whether a model can be told what it may call: by its chat template, or in words."""
    return bool(template) and (is_silent(template or "") or re.search(r"\btools\b", template or "") is not None)
