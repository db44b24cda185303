"""What is known about one option, and the one check of its values: for the command line, Python, `/set`, files."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from medusa_cli.support.errors import MedusaError, flag

MOST_INT = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Option:
    """What a field of an option group says about itself; its type and default stand beside it.

    short: "-c". low, high: its range, both included; None: open. common: `--help` shows it, not only `--help-all`.
    engine: the default is the engine's own. switch: there is a "--no-" form, too. only_python: no command has it.
    chat: what `/set` says about it; "": `/set` does not change it. file: its key below general.sampling. request:
    what the server's schema says about it, None if requests have no such field or one with rules of its own;
    request_high: OpenAI's own limit.
    """

    help: str
    _: dataclasses.KW_ONLY
    short: str = ""
    metavar: str | None = None
    low: float | None = None
    high: float | None = None
    common: bool = False
    engine: bool = False
    switch: bool = False
    only_python: bool = False
    chat: str = ""
    file: str = ""
    request: str | None = None
    request_high: float | None = None


@dataclasses.dataclass(frozen=True)
class Field:
    """An option and its name. kind: its type without None, which it also takes if it is optional."""

    name: str
    kind: Any
    optional: bool
    default: Any
    option: Option

    @property
    def long(self) -> str:
        """The long name on the command line: "--top-k"."""
        said = flag(self.name)
        return said if said.startswith("--") else "--" + self.name.replace("_", "-")

    @property
    def is_number(self) -> bool:
        """Whether it has a range."""
        return self.kind in (int, float)

    @property
    def high(self) -> float | None:
        """Its largest value; the engine's limit for whole numbers."""
        return MOST_INT if self.option.high is None and self.kind is int else self.option.high

    @property
    def what(self) -> str:
        """What kind of number it takes."""
        return "a whole number" if self.kind is int else "a number"

    @property
    def wanted(self) -> str:
        """What it takes: "a number from 0 to 1"."""
        bounds = "" if self.option.low is None else f" from {self.option.low:g}"
        return self.what + bounds + ("" if self.high is None else f" to {self.high:.10g}")

    def holds(self, value: float) -> bool:
        """Whether a number is finite and in range."""
        low, high = self.option.low, self.high
        inside = (low is None or value >= low) and (high is None or value <= high)
        return inside and value == value and abs(value) != math.inf

    def checked(self, value: Any) -> Any:
        """`value` as the option takes it. MedusaError, one line, for another type or a value out of range."""
        if value is None and self.optional:
            return None
        if self.is_number:
            if not _is_number(value, self.kind):
                raise self._refused(self.what, value)
            if not self.holds(value):
                raise self._refused(self.wanted, value)
            return self.kind(value)
        if typing.get_origin(self.kind) is Sequence:
            return self._texts(value)
        if typing.get_origin(self.kind) is Mapping:
            return self._biases(value)
        if issubclass(self.kind, Enum):
            names = [one.value for one in self.kind]
            if value not in names:
                raise self._refused(", ".join(names), value)
            return self.kind(value)
        if not isinstance(value, self.kind) or (self.kind is str and "\0" in value):
            raise self._refused("True or False" if self.kind is bool else "text", value)
        return value

    def _texts(self, value: Any) -> list[str]:
        """One text, or several."""
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, Sequence) or not all(isinstance(one, str) for one in texts):
            raise self._refused("texts", value)
        for text in texts:
            check_text(f"a {self.name} text", text)
        return list(texts)

    def _biases(self, value: Any) -> dict[int, float]:
        """What to add to the logits of tokens, by token id."""
        if not isinstance(value, Mapping):
            raise self._refused("token ids and what to add, such as {15043: -1.5}", value)
        for token, bias in value.items():
            is_bias = _is_number(bias, float) and (abs(bias) < MOST_INT or abs(bias) == math.inf)
            if not _is_number(token, int) or token < 0 or not is_bias:
                raise MedusaError(f"{self.name}: {token!r:.40}: {bias!r:.40} is not a token id with a number to add")
        return {int(token): float(bias) for token, bias in value.items()}

    def _refused(self, wanted: str, value: Any) -> MedusaError:
        return MedusaError(f"{self.name} takes {wanted}, not {value!r:.60}")


@functools.cache
def fields(group: type[Any]) -> Mapping[str, Field]:
    """The options of a group, by name."""
    hints = typing.get_type_hints(group, include_extras=True)
    found = {}
    for field in dataclasses.fields(group):
        hint, *told = typing.get_args(hints[field.name])[:2] or (None,)
        if not told or not isinstance(option := told[0], Option):
            continue
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)] if is_union else [hint]
        found[field.name] = Field(field.name, kinds[0], is_union, field.default, option)
    return found


def check_text(what: str, text: str) -> None:
    """MedusaError if it is not text that can be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MedusaError(f"{what} is not valid text: character {error.start} is half of a pair") from error


def _is_number(value: Any, kind: type) -> bool:
    """NumPy's numbers count, too; a bool does not."""
    if isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, int) or (hasattr(value, "__index__") and not hasattr(value, "__len__"))
    return isinstance(value, (int, float)) or (hasattr(value, "__float__") and not hasattr(value, "__len__"))
