"""Errors a person can cause, and the one place where an exception becomes a line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
import unicodedata
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from medusa_cli.support import wrapping

if TYPE_CHECKING:  # the type checker finds the package here that is installed as medusa_cli.converters
    from converters.errors import MedusaError as MedusaError
else:
    from medusa_cli.converters.errors import MedusaError as MedusaError

_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_JOINERS = frozenset("\u200c\u200d")

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPT = 130
EXIT_BROKEN_PIPE = 141

SPELLED = {
    "ctx_size": "-c",
    "n_gpu_layers": "-ngl",
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
    "temperature": "--temp",
}
"""What messages on the command line call options that are not named after their field."""


class OptionError(MedusaError):
    """An error that names options, which each front end calls by its own names.

    text: its words, with a slot {name} for each of `values` and for each option, by the name of its field. str(): as on
    the command line.
    """

    def __init__(self, text: str, /, **values: object) -> None:
        super().__init__(text)
        self.values = values

    def __str__(self) -> str:
        return worded(self)


class WrongOption(OptionError):
    """A value of `option` that is invalid, or contradicts another option: known from the options alone."""

    def __init__(self, option: str, text: str, /, **values: object) -> None:
        super().__init__(text, **values)
        self.option = option


def does_not_load(what: str, error: Exception, remedy: str) -> MedusaError:
    """The error for a library. what: went wrong with it; remedy: what to do, unless memory is short."""
    if any(words in str(error).lower() for words in ("failed to map segment", "cannot allocate memory")):
        remedy = "no memory is left, close other programs"
    return MedusaError(f"{what} ({error}): {remedy}")


def flag(option: str) -> str:
    """What messages on the command line call an option: "--top-k" for top_k, "-c" for ctx_size."""
    return SPELLED.get(option, "--" + option.replace("_", "-"))


class _Slots(dict[str, Any]):
    def __init__(self, values: Mapping[str, Any], name_of: Callable[[str], str]) -> None:
        super().__init__(values)
        self._name_of = name_of

    def __missing__(self, option: str) -> str:
        return self._name_of(option)


def worded(error: BaseException, name_of: Callable[[str], str] = flag) -> str:
    """The words of a reportable error, with options named by name_of. The engine's may have slots and values, too."""
    text, values = str(error.args[0]) if error.args else "", getattr(error, "values", None)
    return text if values is None else text.format_map(_Slots(values, name_of))


def is_reportable(error: BaseException) -> bool:
    """True for errors whose own message is meant for people: MedusaError, and the engine's NativeError.

    The engine is not imported for that.
    """
    return isinstance(error, MedusaError) or any(cls.__name__ == "NativeError" for cls in type(error).__mro__)


def describe(error: BaseException) -> str:
    """One line for `error`: its own message when it was written for people, else what went wrong and where."""
    if is_reportable(error):
        text = worded(error)
    elif isinstance(error, OSError):
        text = _describe_os_error(error)
    elif isinstance(error, MemoryError):
        text = "out of memory: try a smaller context (-c), a smaller model, or close other programs"
    else:
        text = f"internal error: {type(error).__name__}: {error} (MEDUSA_DEBUG=1 shows where)"
    return " ".join(text.split())


def _describe_os_error(error: OSError) -> str:
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
    if error.errno == errno.ENOSPC:
        return f"{where}no space left on the disk: free some and try again"
    return f"{where}{(error.strerror or str(error)).lower()}"


def report(error: BaseException) -> int:
    """Writes the stderr line for `error` and returns the exit code.

    KeyboardInterrupt gives 130 and a closed pipe 141, both without a message. With MEDUSA_DEBUG=1 the traceback of
    everything else comes first.
    """
    if isinstance(error, BrokenPipeError):
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPT
    if os.environ.get("MEDUSA_DEBUG") == "1":
        traceback.print_exception(type(error), error, error.__traceback__)
    print_error(describe(error))
    return EXIT_ERROR


def visible(text: str, keep: str = "\t\n") -> str:
    """`text` with "?" for characters that could steer a terminal or hide: escapes, other controls, turned directions.

    keep: characters to keep. Joiners, which scripts and emoji need, and spaces of all widths stay, too.
    """
    if text.isprintable():
        return text
    shown = {*keep, *_JOINERS}
    return "".join(one if one in shown or unicodedata.category(one) not in _UNSEEN else "?" for one in text)


def print_error(message: str) -> None:
    """Prints `error: message` on stderr, without characters that a terminal would not show as they are.

    One line, which breaks between words on a terminal.
    """
    text = wrapping.fill(f"error: {visible(message, keep='')}", wrapping.columns(sys.stderr))
    text = text.replace("error:", "\x1b[1;31merror:\x1b[0m", 1) if wrapping.styled(sys.stderr) else text
    print(text, file=sys.stderr, flush=True)


def _silence_stdout() -> None:
    """Points stdout at the null device, so that the interpreter's last flush cannot fail on the closed pipe."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        return
