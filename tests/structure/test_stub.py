"""medusa_cli/_native.pyi against the compiled module: the same names, parameters and defaults, nothing else."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import Any

import pytest

import medusa_cli

STUB = Path(medusa_cli.__file__).with_name("_native.pyi")
ATTRIBUTE = "attribute"

Parameters = list[tuple[str, str, Any]]
"""Name, kind, default of each; self is left out."""


def parameters_of(function: ast.FunctionDef, defaults: list[Any]) -> Parameters:
    """defaults: those of the positional parameters that have one, then of the keyword ones (REQUIRED: none)."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    given = defaults[: len(arguments.defaults)]
    missing = [REQUIRED] * (len(positional) - len(given))
    rows = [(one.arg, "positional", default) for one, default in zip(positional, [*missing, *given], strict=True)]
    rows += [
        (one.arg, "keyword", default)
        for one, default in zip(arguments.kwonlyargs, defaults[len(arguments.defaults) :], strict=True)
    ]
    return rows[1:] if rows and rows[0][0] in ("self", "cls") else rows


class Required:
    """Stands for the default of a parameter without one."""

    def __repr__(self) -> str:
        return "required"


REQUIRED = Required()


# --- what the stub says ----------------------------------------------------------------------------


def stubbed(body: list[ast.stmt]) -> dict[str, Any]:
    """Name -> ATTRIBUTE, a function's Parameters, or the dict of a class."""
    found: dict[str, Any] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = stubbed(node.body)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = ATTRIBUTE
        elif isinstance(node, ast.FunctionDef):
            is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            values = [REQUIRED if one is None else ast.literal_eval(one) for one in defaults]
            found[node.name] = ATTRIBUTE if is_property else parameters_of(node, values)
    return found


# --- what the module holds -------------------------------------------------------------------------


def compiled(scope: Any) -> dict[str, Any]:
    """The same of a module or class that nanobind made."""
    found: dict[str, Any] = {}
    for name, value in vars(scope).items():
        if name == "__init__" and hasattr(value, "__nb_signature__"):
            found[name] = signature(value)
        elif name.startswith("_"):
            continue
        elif isinstance(value, type):
            found[name] = compiled(value)
        elif isinstance(value, staticmethod):
            found[name] = signature(value.__func__)
        else:
            found[name] = signature(value) if hasattr(value, "__nb_signature__") else ATTRIBUTE
    return found


def signature(function: Any) -> Parameters:
    """nanobind's own text of the signature, with \\0, \\1, ... for the default values that it lists beside it."""
    ((text, _, values),) = function.__nb_signature__
    text = re.sub(r"ndarray\[[^\]]*\]", "ndarray", text)  # whose arguments are not Python
    parsed = ast.parse(re.sub(r"\\(\d+)", r"\1", text) + ": ...").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    defaults = [*parsed.args.defaults, *parsed.args.kw_defaults]
    return parameters_of(parsed, [REQUIRED if one is None else values[ast.literal_eval(one)] for one in defaults])


# --- the comparison --------------------------------------------------------------------------------


def same(one: Any, other: Any) -> bool:
    """Equal defaults, where the module keeps some numbers in 32 bits, and the stub writes no lists."""
    if isinstance(one, float) or isinstance(other, float):
        return (
            isinstance(one, (int, float)) and isinstance(other, (int, float)) and math.isclose(one, other, rel_tol=1e-6)
        )
    return bool(one == other) or (not one and not other and isinstance(one, (list, tuple)))


def differences(path: str, stub: dict[str, Any], module: dict[str, Any]) -> list[str]:
    lines = [f"{path}{name}: only in the stub" for name in stub.keys() - module.keys()]
    lines += [f"{path}{name}: only in the module" for name in module.keys() - stub.keys()]
    for name in stub.keys() & module.keys():
        one, other = stub[name], module[name]
        if isinstance(one, dict) and isinstance(other, dict):
            lines += differences(f"{path}{name}.", one, other)
        elif isinstance(one, list) and isinstance(other, list):
            alike = [row[:2] for row in one] == [row[:2] for row in other]
            if not alike or not all(same(a[2], b[2]) for a, b in zip(one, other, strict=True)):
                lines.append(f"{path}{name}: {one} in the stub, {other} in the module")
        elif one != other:
            lines.append(f"{path}{name}: another kind in the stub than in the module")
    return sorted(lines)


def test_the_stub_names_what_the_module_holds() -> None:
    from medusa_cli import _native

    stub = stubbed(ast.parse(STUB.read_text(encoding="utf-8")).body)
    assert differences("", stub, compiled(_native)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(self, a: int, *, b: float = 0.1) -> None: ...", []),
        ("def f(self, a: int, *, b: float = 0.2) -> None: ...", ["f: "]),
        ("def f(self, a: int, b: float = 0.1) -> None: ...", ["f: "]),
        ("def f(self, c: int, *, b: float = 0.1) -> None: ...", ["f: "]),
        ("def f(self, a: int) -> None: ...", ["f: "]),
        ("f: int", ["f: "]),
        ("g: int", ["f: only in the module", "g: only in the stub"]),
    ],
)
def test_the_comparison_sees(text: str, said: list[str]) -> None:
    module = {"f": [("a", "positional", REQUIRED), ("b", "keyword", 0.1)]}
    found = differences("", stubbed(ast.parse(text).body), module)
    assert len(found) == len(said)
    assert all(line.startswith(begin) for line, begin in zip(found, said, strict=True))
