"""Errors that name options: raised with values, worded once by each front end, which has its own names for options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from medusa_cli.support.errors import MedusaError

SPELLED = {
    "ctx_size": "-c",
    "n_gpu_layers": "-ngl",
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
    "temperature": "--temp",
}
"""What messages of the command line call options that do not go by the name of their field."""


class OptionError(MedusaError):
    """One that names options, which each front end calls by names of its own.

    text: its words, with a slot {name} for each of `values` and, by the name of its field, each option. str(): as on
    the command line.
    """

    def __init__(self, text: str, /, **values: object) -> None:
        super().__init__(text)
        self.values = values

    def __str__(self) -> str:
        return worded(self)


class WrongOption(OptionError):
    """A value of `option` that is none, or contradicts another option: told from the options alone."""

    def __init__(self, option: str, text: str, /, **values: object) -> None:
        super().__init__(text, **values)
        self.option = option


def flag(option: str) -> str:
    """What messages of the command line call an option: "--top-k" for top_k, "-c" for ctx_size."""
    return SPELLED.get(option, "--" + option.replace("_", "-"))


class _Slots(dict[str, Any]):
    def __init__(self, values: Mapping[str, Any], name_of: Callable[[str], str]) -> None:
        super().__init__(values)
        self._name_of = name_of

    def __missing__(self, option: str) -> str:
        return self._name_of(option)


def worded(error: BaseException, name_of: Callable[[str], str] = flag) -> str:
    """The words of a reportable error, where options go by name_of. The engine's may have slots and values, too."""
    values = getattr(error, "values", None)
    if values is None:
        return str(error)
    return str(error.args[0]).format_map(_Slots(values, name_of))
