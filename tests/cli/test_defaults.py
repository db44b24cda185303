"""Default values: the engine's own, wherever a help text, a setting or a context size names them."""

from __future__ import annotations

import dataclasses
import re

import pytest
from command_line import invoke

from medusa_cli import native
from medusa_cli.decoding import settings, trees
from medusa_cli.decoding.fields import fields
from medusa_cli.decoding.options import AcceptKind, DraftOptions, EngineOptions, SamplingOptions
from medusa_cli.decoding.settings import Settings, engine_default, from_options
from medusa_cli.support.errors import flag

STATED = re.compile(r"\bDefault (\d[\d.]*\d|\d)\.$")
OFF = "1 (default): off."
"""How the help text of --repeat-penalty ends."""
NAMES = [name for name in native.defaults() if name != "n_ctx"]


GROUPS = (SamplingOptions, DraftOptions, EngineOptions)


def help_text(name: str) -> str:
    for group in (SamplingOptions, DraftOptions):
        if name in fields(group):
            return fields(group)[name].option.help
    raise AssertionError(f"no option for {name}")


def test_the_engine_s_defaults_are_those_of_the_options_that_leave_them_to_it() -> None:
    assert sorted(name for group in GROUPS for name, one in fields(group).items() if one.option.engine) == sorted(NAMES)


def test_messages_call_options_what_the_command_line_knows() -> None:
    known = {one.long for group in GROUPS for one in fields(group).values()}
    known |= {one.option.short for group in GROUPS for one in fields(group).values()}
    assert {flag(name) for group in GROUPS for name in fields(group)} <= known


@pytest.mark.parametrize("name", NAMES)
def test_help_texts_name_the_engines_defaults(name: str) -> None:
    text = help_text(name)
    stated = STATED.search(text)
    assert stated is not None or text.endswith(OFF)
    assert float(stated[1] if stated else 1) == engine_default(name)


def test_no_option_brings_a_default_of_its_own_for_what_the_engine_decides() -> None:
    values = {**dataclasses.asdict(SamplingOptions()), **dataclasses.asdict(DraftOptions())}
    assert {name: values[name] for name in NAMES} == dict.fromkeys(NAMES)


def test_settings_hold_the_numbers_in_force() -> None:
    chosen = from_options(SamplingOptions(top_k=7), DraftOptions(accept=AcceptKind.typical, delta=0.5), 0.7)
    expected = {**{name: engine_default(name) for name in NAMES}, "top_k": 7, "delta": 0.5}
    assert {name: getattr(chosen, name) for name in NAMES} == expected
    assert settings.show(chosen, "epsilon") == f"{engine_default('epsilon'):g}"
    assert {name: type(getattr(Settings(0.7), name)) for name in ("top_k", "top_p")} == {"top_k": int, "top_p": float}


def test_help_names_the_engines_context_and_cache_types() -> None:
    _, out, _ = invoke("chat", "--help")
    assert f"({engine_default('n_ctx')} on GPUs)" in out
    signature: str = native.Session.__new__.__doc__ or ""
    options = EngineOptions()
    for name, kind in (("type_k", options.cache_type_k), ("type_v", options.cache_type_v)):
        assert f"{name}: str = '{kind.value}'" in signature


def test_the_largest_tree_is_the_engines() -> None:
    assert f"max_nodes: int = {trees.MAX_NODES})" in (native.Tree.clipped.__doc__ or "")


def test_messages_call_options_as_the_command_line_does() -> None:
    for group in (EngineOptions, DraftOptions, SamplingOptions):
        for field in fields(group).values():
            assert flag(field.name) in (field.option.short, field.long)
