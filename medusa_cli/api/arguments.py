"""Keyword arguments of the Python API: the options of the commands, by their long names.

`--top-k 20` is `top_k=20`; names, defaults, ranges and contradictions are those of decoding/options.py. The exceptions:
`temperature` for `--temp`, `logit_bias` is a mapping, and `logprobs` is no option of a command.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypedDict, TypeVar

from medusa_cli.decoding import settings
from medusa_cli.decoding.model_sampling import ModelSampling
from medusa_cli.decoding.options import GENERATE_TEMPERATURE, DraftOptions, EngineOptions, SamplingOptions
from medusa_cli.decoding.settings import Settings
from medusa_cli.support.errors import MedusaError, is_reportable


class EngineArguments(TypedDict, total=False):
    """How a model is loaded, and what drafts for it. `medusa generate --help` describes each."""

    ctx_size: int
    threads: int
    n_gpu_layers: int
    device: str | None
    cache_type_k: str
    cache_type_v: str
    heads: str | None
    tree: str | None
    no_heads: bool
    lookup: bool | None
    recycling: bool | None
    history: bool
    draft_model: str | None
    draft_max: int
    lookahead: str | None
    repeat_steps: bool
    no_spec: bool


class AnswerArguments(TypedDict, total=False):
    """What is generated, when it ends, and how drafts are accepted. `medusa generate --help` describes each."""

    max_tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repeat_last_n: int | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    stop: str | Sequence[str] | None
    ignore_eos: bool
    stop_loops: bool | None
    logprobs: int | None
    accept: str | None
    epsilon: float | None
    delta: float | None
    greedy_root: bool
    as_published: bool


Group = TypeVar("Group")
RENAMED = {"temperature": "temp"}
MOST_LOGPROBS = 100
ANSWER_NAMES = frozenset(AnswerArguments.__annotations__)
ENGINE_NAMES = frozenset(EngineArguments.__annotations__)


def engine_options(given: Mapping[str, Any]) -> tuple[EngineOptions, DraftOptions]:
    """EngineArguments as the commands' options. MedusaError, one line, for names and values that are none."""
    _check_names(given, ENGINE_NAMES)
    return _group(EngineOptions, given), _group(DraftOptions, given)


def answer_options(given: Mapping[str, Any]) -> tuple[SamplingOptions, DraftOptions]:
    """AnswerArguments as the commands' options. MedusaError, one line, for names and values that are none."""
    _check_names(given, ANSWER_NAMES)
    options = {RENAMED.get(name, name): value for name, value in given.items()}
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    if options.get("logit_bias") is not None:
        options["logit_bias"] = _bias_entries(options["logit_bias"])
    return _group(SamplingOptions, options), _group(DraftOptions, options)


def answer_settings(given: Mapping[str, Any], model: ModelSampling = settings.NO_SAMPLING) -> Settings:
    """AnswerArguments as the engine takes them. MedusaError, one line, as from answer_options(), or for contradictions.

    What is not given is the model's own default, else that of `medusa generate`: the most likely text.
    """
    logprobs = given.get("logprobs")
    if logprobs is not None:
        _number("logprobs", logprobs, int, 0, MOST_LOGPROBS)
    sampling, draft = answer_options(given)
    for text in sampling.stop or []:
        check_text("a stop text", text)
    with in_python_names():
        chosen = settings.from_options(sampling, draft, GENERATE_TEMPERATURE, model)
    return dataclasses.replace(chosen, logprobs=logprobs)


def named(options: Mapping[str, float]) -> dict[str, float]:
    """Values by the names of arguments, from those by the names of options."""
    arguments = {option: name for name, option in RENAMED.items()}
    return {arguments.get(option, option): value for option, value in options.items()}


@contextlib.contextmanager
def in_python_names() -> Iterator[None]:
    """Errors of the commands' own functions and of the engine as MedusaError, with the names of arguments."""
    import typer

    try:
        yield
    except typer.BadParameter as error:
        raise MedusaError(_renamed(f"{error.param_hint}: {error.message}")) from error
    except (MedusaError, RuntimeError) as error:
        if not is_reportable(error):
            raise
        raise MedusaError(_renamed(str(error))) from error


def _renamed(text: str) -> str:
    """ "--top-k" is top_k here, and "-c" is ctx_size."""
    python = {option: name for name, option in RENAMED.items()}

    def name(match: re.Match[str]) -> str:
        word = match[1].replace("-", "_")
        return python.get(word, word) if word in ENGINE_NAMES | ANSWER_NAMES | set(python) else match[0]

    return re.sub(r"(?<![\w-])-c\b", "ctx_size", re.sub(r"(?<![\w-])--([a-z][a-z-]*)", name, text))


def check_text(what: str, text: str) -> None:
    """MedusaError where it is no text that could be written down as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MedusaError(f"{what} is not valid text: character {error.start} is half of a pair") from error


def _check_names(given: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in given:
        if name not in known:
            other = ENGINE_NAMES | ANSWER_NAMES
            where = "" if name not in other else (" of an answer" if name in ANSWER_NAMES else " of Model()")
            hint = f": it is an argument{where}" if where else f": choose from {', '.join(sorted(known))}"
            raise MedusaError(f"unknown argument {name!r}{hint}")


def _bias_entries(bias: Any) -> list[str]:
    """{15043: 1.5} as `--logit-bias` takes it."""
    if not isinstance(bias, Mapping):
        raise MedusaError(f"logit_bias takes token ids and what to add, such as {{15043: -1.5}}, not {bias!r:.60}")
    entries = []
    for token, value in bias.items():
        if not _is_number(token, int) or token < 0 or not _is_number(value, float) or math.isnan(value):
            raise MedusaError(f"logit_bias: {token!r:.40}: {value!r:.40} is not a token id with a number to add")
        entries.append(f"{token}={float(value):f}")
    return entries


@functools.cache
def _fields(group: Any) -> dict[str, tuple[Any, Any]]:
    """Of each field: its type, and the range that its option declares."""
    hints = typing.get_type_hints(group, include_extras=True)
    return {field.name: typing.get_args(hints[field.name])[:2] for field in dataclasses.fields(group)}


def _group(group: Callable[..., Group], given: Mapping[str, Any]) -> Group:
    """An option group of those values that belong to it."""
    fields = _fields(group)
    return group(**{name: _value(name, value, *fields[name]) for name, value in given.items() if name in fields})


def _value(name: str, value: Any, hint: Any, option: Any) -> Any:
    """`value` as the option takes it. MedusaError for another type, or outside the option's range."""
    shown = {new: old for old, new in RENAMED.items()}.get(name, name)
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)] or [hint]
    if value is None and type(None) in typing.get_args(hint):
        return None
    kind = kinds[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        names = [one.value for one in kind]
        if value not in names:
            raise MedusaError(f"{shown} takes {', '.join(names)}, not {value!r:.60}")
        return kind(value)
    if kind in (int, float):
        return _number(shown, value, kind, option.min, option.max)
    if kind is bool:
        if not isinstance(value, bool):
            raise MedusaError(f"{shown} takes True or False, not {value!r:.60}")
        return value
    if kind is str:
        if not isinstance(value, str) or "\0" in value:
            raise MedusaError(f"{shown} takes text, not {value!r:.60}")
        return value
    if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise MedusaError(f"{shown} takes texts, not {value!r:.60}")
    return list(value)


def _number(name: str, value: Any, kind: type, low: float | None, high: float | None) -> Any:
    what = "a whole number" if kind is int else "a number"
    if not _is_number(value, kind):
        raise MedusaError(f"{name} takes {what}, not {value!r:.60}")
    if high is None and kind is int:
        high = 2**31 - 1
    if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
        bounds = f"from {low:g}" if high is None else f"from {low:g} to {high:.10g}"
        raise MedusaError(f"{name} takes {what} {bounds}, not {value!r:.60}")
    return kind(value)


def _is_number(value: Any, kind: type) -> bool:
    """Also NumPy's numbers; a bool is none."""
    if isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, int) or (hasattr(value, "__index__") and not hasattr(value, "__len__"))
    return isinstance(value, (int, float)) or (hasattr(value, "__float__") and not hasattr(value, "__len__"))
