"""Draft trees by name, rule or file. A tree is a list of choices, each a path of ranks."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medusa_cli.decoding import tree_shapes
from medusa_cli.decoding.tree_shapes import Choices, RandomTree
from medusa_cli.support.errors import MedusaError

BUILT_IN_FILE = Path(__file__).parent.parent / "data" / "trees.json"
DEFAULT_CPU = "cpu_4"
DEFAULT_GPU = "mc_sim_7b_63"
DYNAMIC = "dynamic"
"""Name of no tree, but of making one anew in each step: a dynamic tree."""
STATIC = "static"
"""Name of whatever tree is the default, as long as it is the same in each step."""
EXAMPLE = "[[0], [0, 0], [1]]"


@dataclass(frozen=True)
class DynamicStart:
    """What is known of dynamic trees before the first step; empty: learned while decoding.

    calibration: [head][bin], native.DynamicTree's. costs: (nodes, cost in plain steps).
    """

    calibration: list[list[float]] = field(default_factory=list)
    costs: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class NamedTree:
    """Choices and where they come from. strict: the person wrote them, so they are never clipped silently."""

    name: str
    choices: Choices
    strict: bool = False


AskedTree = NamedTree | RandomTree
"""What a --tree argument names."""


@functools.cache
def built_in() -> dict[str, Choices]:
    """The trees shipped with medusa, by name."""
    return dict(json.loads(BUILT_IN_FILE.read_text(encoding="utf-8")))


def named(name: str) -> NamedTree:
    """A built-in tree. MedusaError lists the names."""
    try:
        return NamedTree(name, built_in()[name])
    except KeyError:
        names = ", ".join(sorted([*built_in(), DYNAMIC, STATIC]))
        raise MedusaError(
            f"no tree named {name!r}: there are {names}, {tree_shapes.SPELLING}, or give a JSON file"
        ) from None


def resolve(argument: str) -> AskedTree:
    """A `--tree` argument but DYNAMIC and STATIC: a NAME, a rule, a FILE, or FILE:NAME. MedusaError for any other."""
    if argument in built_in():
        return named(argument)
    if argument.startswith(f"{tree_shapes.CARTESIAN}:"):
        return NamedTree(argument, tree_shapes.parse_cartesian(argument), strict=True)
    if argument.startswith(f"{tree_shapes.RANDOM}:"):
        return tree_shapes.parse_random(argument)
    path, name = Path(argument), ""
    if not path.exists() and ":" in argument:
        before, _, after = argument.rpartition(":")
        if Path(before).exists():
            path, name = Path(before), after
    if not path.exists():
        looks_like_file = path.suffix or len(path.parts) > 1
        if looks_like_file:
            raise MedusaError(f"no such tree file: {argument}")
        return named(argument)
    return _from_file(path, name)


def fixed(argument: str) -> AskedTree:
    """resolve() where DYNAMIC and STATIC are no answer. MedusaError for those, too."""
    if argument in (DYNAMIC, STATIC):
        raise MedusaError(
            f"{argument} is not a tree but a way to choose one: give a name, {tree_shapes.SPELLING}, a file"
        )
    return resolve(argument)


def _from_file(path: Path, name: str) -> NamedTree:
    if path.is_dir():
        raise MedusaError(f"{path} is a directory: give a JSON file of choices such as {EXAMPLE}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise MedusaError(f"{path}: not JSON: give a list of choices such as {EXAMPLE}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise MedusaError(f"{path}: not JSON ({error}): give a list of choices such as {EXAMPLE}") from error
    if isinstance(content, dict):
        content, name = _pick(path, content, name)
    elif name:
        raise MedusaError(f"{path} holds one unnamed tree: leave out ':{name}'")
    label = f"{path}:{name}" if name else str(path)
    return NamedTree(label, checked(content, label), strict=True)


def _pick(path: Path, content: dict[str, Any], name: str) -> tuple[Any, str]:
    if not name and len(content) == 1:
        name = next(iter(content))
    if name not in content:
        wanted = f"no tree {name!r}" if name else f"{len(content)} trees"
        raise MedusaError(f"{path} holds {wanted}: choose one with {path}:NAME ({', '.join(content) or 'it is empty'})")
    return content[name], name


def checked(content: Any, label: str) -> Choices:
    """`content` as choices that form a tree. MedusaError, starting with `label`, otherwise."""
    from medusa_cli import native

    def is_rank(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31

    if not isinstance(content, list):
        raise MedusaError(f"{label}: a tree is a list of choices such as {EXAMPLE}, not {type(content).__name__}")
    for choice in content:
        if not isinstance(choice, list) or not choice or not all(is_rank(rank) for rank in choice):
            raise MedusaError(f"{label}: {json.dumps(choice)} is not a choice: give ranks from 0, as in {EXAMPLE}")
    try:
        native.Tree(content)
    except native.NativeError as error:
        raise MedusaError(f"{label}: {error}") from error
    return [list(choice) for choice in content]


def probabilities(choices: Choices, accuracy: Sequence[Sequence[float]]) -> list[float | None]:
    """P(choice is accepted) for each choice: the product of accuracy[depth][rank] on its path; None when unknown."""
    result: list[float | None] = []
    for choice in choices:
        product: float | None = 1.0
        for depth, rank in enumerate(choice):
            known = depth < len(accuracy) and rank < len(accuracy[depth])
            product = product * accuracy[depth][rank] if known and product is not None else None
        result.append(product)
    return result


def expected_tokens(choices: Choices, accuracy: Sequence[Sequence[float]]) -> float | None:
    """Tokens per step that the accuracies promise: 1 + the chance of each. None where one is unknown, or none."""
    known = [chance for chance in probabilities(choices, accuracy) if chance is not None]
    return 1.0 + sum(known) if known and len(known) == len(choices) else None
