"""Jinja's sandbox keeps templates away from files and objects; this one also bounds their time and the texts they make.

It bounds loops, calls, filters, everything that joins, repeats or pads texts, and how large lists and dictionaries are
when printed: `[a, a]` of `[b, b]` of `[c, c]` takes little memory, but forever to print or compare.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from typing import Any, cast

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

SECONDS = 10.0
"""Time for one rendering. Ordinary templates need milliseconds, even for thousands of messages."""
MOST_CHARACTERS = 32 << 20
"""Characters of a text, or elements of a list."""
MOST_ELEMENTS = 1 << 22
"""Elements of a list or dictionary, including those inside it, as often as they occur."""
CHARACTERS_PER_ELEMENT = MOST_CHARACTERS // MOST_ELEMENTS
MOST_REMEMBERED = 1 << 20
"""Elements of lists whose weight is remembered."""
MOST_WIDTH = 100_000
"""Width to which a text can be padded, or cut, at once."""
MOST_BITS = 4096
"""Bits of a number."""

PADDING = frozenset(
    ("batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice", "tojson", "wordwrap", "zfill")
)
"""Filters and methods that take a width or a number of parts."""
WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\*|\d{6})|\{[^{}]*:[^{}]*(\d{6}|\{)")

SIZED = (str, list, tuple)
CONTAINERS = (list, tuple, dict, MappingView)

_clock = threading.local()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """One rendering, on this thread: `with within(seconds): ...`."""
    _clock.end, _clock.weights = time.monotonic() + seconds, _Weights()
    try:
        yield
    finally:
        del _clock.end, _clock.weights


def tick() -> None:
    """SecurityError when this rendering's time is up."""
    if time.monotonic() > getattr(_clock, "end", float("inf")):
        raise SecurityError("it takes too long")


def check_size(size: int) -> None:
    """SecurityError for more than any prompt needs."""
    if size > MOST_CHARACTERS:
        raise SecurityError("it makes too large a text")


class _Weights:
    """How large lists, tuples and dictionaries are when printed. In the sandbox, nothing changes one afterwards.

    Weights are remembered by identity, which also keeps the object alive: only for a limited number of elements in all.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._kept = 0

    def of(self, part: Any) -> int:
        if isinstance(part, str):
            return 1 + len(part) // CHARACTERS_PER_ELEMENT
        if not isinstance(part, CONTAINERS):
            return 1
        if (found := self._known.get(id(part))) is not None:
            return found[1]
        inside = [*part.keys(), *part.values()] if isinstance(part, dict) else list(cast(Iterable[Any], part))
        return self.remember(part, 1 + sum(map(self.of, inside)), len(inside))

    def remember(self, part: Any, weight: int, elements: int) -> int:
        self._kept += elements
        if self._kept > MOST_REMEMBERED:
            self._known.clear()
            self._kept = elements
        self._known[id(part)] = part, weight
        return weight


def made(one: Any, parts: Sequence[Any] = ()) -> Any:
    """Returns anything as it is. SecurityError for a list, tuple or dictionary that would be too large when printed.

    parts: what a list or tuple was added up from.
    """
    if not isinstance(one, CONTAINERS):
        return one
    weights: _Weights = getattr(_clock, "weights", None) or _Weights()
    if parts and isinstance(one, (list, tuple)):
        weights.remember(one, sum(map(weights.of, parts)), len(one))
    if weights.of(one) > MOST_ELEMENTS:
        raise SecurityError("it makes too large a list")
    return one


class _Namespace(Namespace):
    """Jinja's namespace would print its contents, which can change after they were weighed."""

    def __repr__(self) -> str:
        return "<Namespace>"


class GenerationTag(Extension):
    """`{% generation %}`, which marks what a model says for those who train it: its contents are rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The contents."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Generator(CodeGenerator):
    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._made(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._made(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._made(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _made(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.made(")
        visit(node, frame)
        self.write(")")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        node.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("tick()"), lineno=node.lineno))
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat([str(part) for part in (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")])")


def _join(parts: Iterable[str]) -> str:
    return "".join(_counted(parts, 0))


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """filters: replace Jinja's own."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "*", "**", "%"))
    tick = staticmethod(tick)
    made = staticmethod(made)
    concat = staticmethod(_join)

    def __init__(self, filters: Mapping[str, Callable[..., Any]], **options: Any) -> None:
        super().__init__(**options)
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace
        self.filters = {name: _bounded(name, found) for name, found in {**self.filters, **filters}.items()}

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:
        """Calls what a template calls, within the bounds."""
        tick()
        subject = getattr(__obj, "__self__", None)
        checked = _checked(__obj.__name__, (subject, *args), named)[1:] if isinstance(subject, str) else args
        return _bounded_result(super().call(__context, __obj, *checked, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Joins what a template joins by an operator, within the bounds."""
        if operator == "%":
            _check_format(left)
        elif operator == "+":
            if isinstance(left, SIZED) and isinstance(right, SIZED):
                check_size(len(left) + len(right))
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MOST_BITS:
                raise SecurityError("it makes too large a number")
        elif operator == "*":
            for one, times in ((left, right), (right, left)):
                if isinstance(one, SIZED) and isinstance(times, int):
                    check_size(len(one) * times)
        return made(super().call_binop(context, operator, left, right), (left, right) if operator == "+" else ())


def _bounded(name: str, found: Callable[..., Any]) -> Callable[..., Any]:
    passed = 1 if hasattr(found, "jinja_pass_arg") else 0  # the context, the environment or its state

    @functools.wraps(found)
    def bounded(*args: Any, **named: Any) -> Any:
        tick()
        return _bounded_result(found(*args[:passed], *_checked(name, args[passed:], named), **named))

    return bounded


def _bounded_result(result: Any) -> Any:
    if isinstance(result, str):
        check_size(len(result))
    return made(result)


def _checked(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
    """Arguments of a filter or a text's method, with the text (or whatever else is filtered) first."""
    others = [*args[1:], *named.values()]
    if name in PADDING:
        if any(isinstance(one, int) and abs(one) > MOST_WIDTH for one in others):
            raise SecurityError("it makes too large a text")
    elif name in ("format", "format_map"):
        _check_format(args[0])
    elif name == "replace":
        text, old, new, *_ = [one for one in (args[0], *others) if isinstance(one, str)] + ["", "", ""]
        check_size(text.count(old) * len(new))
    elif name == "join":
        return _check_join(name, args, named)
    return args


def _check_join(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
    """The filter gets the parts, then what goes between them; the method gets them the other way round."""
    if isinstance(args[0], str) and len(args) == 2 and not isinstance(args[1], str):
        return args[0], _counted(args[1], len(args[0]))
    between = args[1] if len(args) > 1 else named.get("d", "")
    return _counted(args[0], len(str(between))), *args[1:]


def _counted(parts: Iterable[Any], between: int) -> Iterator[Any]:
    size = 0
    for part in parts:
        size += between + (len(part) if isinstance(part, str) else 1)
        check_size(size)
        yield part


def _check_format(text: Any) -> None:
    if isinstance(text, str) and WIDE_FORMAT.search(text):
        raise SecurityError("it makes too large a text")
