"""Errors that name options: raised with values, worded by each front end with names of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from command_line import invoke

from medusa_cli.api.arguments import in_python_names
from medusa_cli.support.errors import MedusaError, OptionError, WrongOption, describe, worded


class NativeError(RuntimeError):
    """Recognised by its name, as the engine's own is. values: as OptionError has them."""

    def __init__(self, text: str, values: dict[str, object]) -> None:
        super().__init__(text)
        self.values = values


TEXT = "the context of {path} holds {tokens} tokens: raise {ctx_size}, or use {no_spec}"
VALUES = {"path": "{top_k}.gguf", "tokens": 5}


@pytest.mark.parametrize(
    "error", [OptionError(TEXT, **VALUES), NativeError(TEXT, VALUES)], ids=["ours", "the engine's"]
)
def test_each_front_end_has_its_own_names(error: Exception) -> None:
    assert describe(error) == "the context of {top_k}.gguf holds 5 tokens: raise -c, or use --no-spec"
    with pytest.raises(MedusaError) as caught, in_python_names():
        raise error
    assert str(caught.value) == "the context of {top_k}.gguf holds 5 tokens: raise ctx_size, or use no_spec"


def test_an_error_about_one_option_names_it_first_in_python() -> None:
    with pytest.raises(MedusaError) as caught, in_python_names():
        raise WrongOption("accept", "greedy needs {temperature} 0")
    assert str(caught.value) == "accept: greedy needs temperature 0"


@pytest.mark.parametrize(
    ("option", "value"),
    [("--temp", "nan"), ("--frequency-penalty", "nan"), ("--top-k", "99999999999")],
)
def test_numbers_that_no_engine_takes_are_usage_errors(option: str, value: str) -> None:
    code, out, err = invoke("generate", "m.gguf", "-p", "x", option, value)
    assert (code, out) == (2, "")
    assert f"Invalid value for {option}" in err.replace("'", "")


@pytest.mark.parametrize("name_of", [str, str.upper])
def test_other_errors_are_worded_as_they_are(name_of: Callable[[str], str]) -> None:
    assert worded(MedusaError("no {such} file"), name_of) == "no {such} file"
