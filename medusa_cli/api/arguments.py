"""Keyword arguments of the Python API: the options of the commands, by the names of their fields.

`--top-k 20` is `top_k=20`; names, defaults, ranges and contradictions are those of decoding/options.py. `temperature`
stands for `--temp`, `logit_bias` is a mapping, and `logprobs` is no option of a command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from medusa_cli.decoding import settings
from medusa_cli.decoding.fields import fields
from medusa_cli.decoding.options import (
    GENERATE_TEMPERATURE,
    AnswerArguments,
    DraftOptions,
    EngineArguments,
    EngineOptions,
    SamplingOptions,
)
from medusa_cli.decoding.settings import ModelSampling, Settings
from medusa_cli.support.errors import MedusaError, WrongOption, is_reportable, worded

ANSWER_NAMES = frozenset(AnswerArguments.__annotations__)
"""Arguments of one answer."""
ENGINE_NAMES = frozenset(EngineArguments.__annotations__)
"""Arguments of a model."""


def engine_options(given: Mapping[str, Any]) -> tuple[EngineOptions, DraftOptions]:
    """EngineArguments as the commands' options. MedusaError, one line, for names and values that are none."""
    _check_names(given, ENGINE_NAMES)
    return _group(EngineOptions, given), _group(DraftOptions, given)


def answer_settings(given: Mapping[str, Any], model: ModelSampling = settings.NO_SAMPLING) -> Settings:
    """AnswerArguments as the engine takes them. MedusaError, one line, for what is none, or for contradictions.

    What is not given is the model's own default, else that of `medusa generate`: the most likely text.
    """
    _check_names(given, ANSWER_NAMES)
    sampling, draft = _group(SamplingOptions, given), _group(DraftOptions, given)
    with in_python_names():
        return settings.from_options(sampling, draft, GENERATE_TEMPERATURE, model)


@contextlib.contextmanager
def in_python_names() -> Iterator[None]:
    """Errors that people can put right as MedusaError, where options go by the names of arguments."""
    try:
        yield
    except (MedusaError, RuntimeError) as error:
        if not is_reportable(error):
            raise
        about = f"{error.option}: " if isinstance(error, WrongOption) else ""
        raise MedusaError(about + worded(error, name_of=str)) from error


def _check_names(given: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in given:
        if name not in known:
            other = ENGINE_NAMES | ANSWER_NAMES
            where = "" if name not in other else (" of an answer" if name in ANSWER_NAMES else " of Model()")
            hint = f": it is an argument{where}" if where else f": choose from {', '.join(sorted(known))}"
            raise MedusaError(f"unknown argument {name!r}{hint}")


def _group(group: Any, given: Mapping[str, Any]) -> Any:
    """An option group of those values that belong to it."""
    options = fields(group)
    return group(**{name: options[name].checked(value) for name, value in given.items() if name in options})
