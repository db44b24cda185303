"""Rules of the house that no other tool checks: sizes of files and functions, includes, circles of imports.

Who may import whom is in pyproject.toml (lint-imports); which room sees whose headers, in native/rooms.cmake.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("medusa_cli", "converters", "benchmarks", "packaging", "native")
TABLES = ("medusa_cli/_native.pyi",)
SUFFIXES = (".py", ".pyi", ".cpp", ".h", ".inl")
MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 60
"""Without its signature in Python, where that of a command is a table of its options."""

COMPILED = "medusa_cli._native"


def sources(*suffixes: str) -> Iterator[tuple[str, str]]:
    """(path, text) of the files that are measured."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            inside_link = any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(ROOT))
            if path.suffix in suffixes and not name.startswith(TABLES) and not inside_link:
                yield name, path.read_text(encoding="utf-8")


# --- sizes -----------------------------------------------------------------------------------------


def test_files_are_short() -> None:
    long = [(name, len(text.splitlines())) for name, text in sources(*SUFFIXES)]
    assert [entry for entry in long if entry[1] > MOST_LINES_OF_A_FILE] == []


def test_python_functions_are_short() -> None:
    long = [
        (name, node.name, lines)
        for name, text in sources(".py")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (lines := (node.end_lineno or 0) - node.body[0].lineno + 1) > MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []


DOCUMENTED = ("medusa_cli/api/", "medusa_cli/decoding/")


def test_public_names_have_docstrings() -> None:
    bare = [
        f"{name}: {where or 'the module'}"
        for name, text in sources(".py")
        if name.startswith(DOCUMENTED)
        for where, node in public_names(ast.parse(text))
        if ast.get_docstring(node) is None
    ]
    assert bare == []


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public_names(node: Documented, where: str = "") -> Iterator[tuple[str, Documented]]:
    """(dotted name, node) of what can have a docstring, without names that begin with an underscore."""
    yield where, node
    for inner in node.body if isinstance(node, (ast.Module, ast.ClassDef)) else []:
        if isinstance(inner, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not inner.name.startswith("_"):
            yield from public_names(inner, f"{where}.{inner.name}".lstrip("."))


def test_cpp_functions_are_short() -> None:
    long = [
        (name, first, lines)
        for name, text in sources(".cpp", ".h", ".inl")
        for first, lines in cpp_functions(text)
        if lines > MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []


def cpp_functions(text: str) -> Iterator[tuple[str, int]]:
    """(first line, lines) of the functions of a formatted file: from a line without indentation to a lone brace."""
    begin: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines()):
        if line == "}" and begin is not None:
            yield begin[1], number - begin[0] + 1
        if re.match(r"[A-Za-z]", line):
            begin = number, line


def test_the_measure_of_cpp_functions() -> None:
    text = "namespace a {\n\nint f(int a,\n      int b) {\n    return a;\n}\n\nstruct S {\n};\n}  // end\n"
    assert list(cpp_functions(text)) == [("int f(int a,", 4)]


# --- includes --------------------------------------------------------------------------------------


def test_includes_name_headers_of_a_room() -> None:
    headers = {path.name for path in (ROOT / "native").rglob("*.h")}
    wrong = [
        (name, included)
        for name, text in sources(".cpp", ".h", ".inl")
        for included in re.findall(r'^\s*#\s*include "([^"]+)"', text, re.MULTILINE)
        # Those without a folder are of the libraries.
        if (included in headers if "/" not in included else not (ROOT / "native" / included).is_file())
        or included.startswith("../")
    ]
    assert wrong == []


# --- imports ---------------------------------------------------------------------------------------


def imports() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports anywhere, also inside functions and for types alone."""
    trees: dict[str, tuple[ast.Module, bool]] = {}
    for name, text in sources(".py"):
        if name.startswith(("medusa_cli/", "converters/")):
            dotted = re.sub(r"(/__init__)?\.py$", "", name).replace("/", ".")
            full = re.sub(r"^converters\b", "medusa_cli.converters", dotted)
            trees[full] = ast.parse(text), name.endswith("__init__.py")
    known = {*trees, COMPILED}
    found: dict[str, set[str]] = {}
    for module, (tree, is_package) in trees.items():
        named = {name for node in ast.walk(tree) for name in imported(node, module, is_package)}
        found[module] = {name if name in known else name.rpartition(".")[0] for name in named} & known - {module}
    return found


def imported(node: ast.AST, module: str, is_package: bool) -> list[str]:
    """The dotted names that an import statement of `module` may mean: of modules, or of things in them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    start = node.module or ""
    if node.level:
        parents = module.split(".")
        above = ".".join(parents[: len(parents) - node.level + is_package])
        start = f"{above}.{start}" if start else above
    return [f"{start}.{alias.name}" for alias in node.names]


def test_imports_make_no_circle() -> None:
    graph = imports()
    assert "medusa_cli.support.errors" in graph["medusa_cli.cli"]
    graphlib.TopologicalSorter(graph).prepare()  # CycleError shows the circle


def test_the_command_line_alone_imports_its_parser() -> None:
    imported = re.compile(r"^\s*(import|from) typer\b", re.MULTILINE)
    parts = [(name, text) for name, text in sources(".py") if name.startswith(("medusa_cli/", "converters/"))]
    importing = [name for name, text in parts if imported.search(text)]
    assert [name for name in importing if not name.startswith(("medusa_cli/cli.py", "medusa_cli/commands/"))] == []


def test_only_one_module_imports_the_compiled_one() -> None:
    # A trial is a process of its own, which ends before anything else could load llama_cpp.
    importing = sorted(module for module, named in imports().items() if COMPILED in named)
    assert importing == ["medusa_cli.decoding.trial", "medusa_cli.native"]
