"""`medusa train --recipe FILE`: everything about a training that few people set, in TOML or JSON.

docs/recipes.md says what each key means and in which section of the papers it stands.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from medusa_cli.decoding.options import MAX_SEED
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import expanded

from .recipes import (
    ALL,
    DRAFT_KINDS,
    LATER_TURNS,
    OBJECTIVES,
    OUTPUTS,
    PREFIX_SIGHTS,
    RECIPES,
    STRATEGIES,
    WARMUPS,
    WHOLE,
    Recipe,
    TextRecipe,
)

MOST_BYTES = 1 << 16
OPTIONS = ("kind", "heads")
"""Keys that are options of the command, too."""


@dataclass(frozen=True)
class Rule:
    """right: what a value must be."""

    right: str
    fits: Callable[[Any], bool]

    def wrong(self, value: object) -> str | None:
        """What would be right, where `value` is not."""
        return None if self.fits(value) else self.right


def _one_of(values: Collection[str]) -> Rule:
    return Rule("one of " + ", ".join(f'"{known}"' for known in values), lambda value: value in values)


def _whole(least: int, most: int, has_all: bool = False) -> Rule:
    """has_all: "all" is a value, too."""
    return Rule(
        f"a whole number, {least} to {most}" + (f', or "{ALL}"' if has_all else ""),
        lambda value: (type(value) is int and least <= value <= most) or (has_all and value == ALL),
    )


def _number(least: float, most: float, above: bool = False) -> Rule:
    """above: the least one is none."""
    return Rule(
        f"a number {'above' if above else 'from'} {least:g} to {most:g}",
        lambda value: type(value) in (int, float) and least <= value <= most and not (above and value == least),
    )


NAME = Rule("a name", lambda value: isinstance(value, str) and value != "" and "\0" not in value)
"""Of a file or folder."""
KEYS = {
    "kind": _one_of(DRAFT_KINDS),
    "heads": _whole(1, 16),
    "blocks": _whole(1, 16),
    "prefix": _one_of(PREFIX_SIGHTS),
    "lm_head": _one_of(OUTPUTS),
    "draft_vocab": _whole(100, 1 << 24, has_all=True),
    "objective": _one_of(OBJECTIVES),
    "teacher_top": _whole(1, 1024, has_all=True),
    "noise": _number(0, 1e4),
    "embedding_noise": _number(0, 1e4),
    "rate": _number(0, 1, above=True),
    "decay": _number(0, 1000),
    "batch": _whole(1, 1 << 20),
    "longest_answer": _whole(16, 1 << 20),
    "later_turns": _one_of(LATER_TURNS),
    "turns": _whole(2, 64),
    "tokens": _whole(1000, 1 << 40),
    "parallel": _whole(1, 256),
    "seed": _whole(0, MAX_SEED),
    "streams_layers": _whole(1, 1024),
    "joint_layers": _whole(1, 1024, has_all=True),
    "joint_strategy": _one_of(STRATEGIES),
    "joint_warmup": _one_of(WARMUPS),
    "joint_rate": _number(0, 1, above=True),
    "joint_heads_rate": _number(0, 1e4, above=True),
    "joint_weight": _number(0, 1e4, above=True),
    "joint_rounds": _number(0, 1e4, above=True),
    "adapter": NAME,
    "export_hf": NAME,
    "work_dir": NAME,
}


@dataclass(frozen=True)
class RecipeFile:
    """What a file says, checked; what it does not say stays as it is without one."""

    path: Path | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def refuse_twice(self, options: Collection[str]) -> None:
        """MedusaError when one of the `options` that were given says what the file says."""
        for key in (key for key in OPTIONS if key in self.values and key in options):
            raise MedusaError(f"--{key}: {self.path} also sets {key}: leave one of them out")

    def options(self) -> dict[str, Any]:
        """The fields of options.TrainOptions that the file says."""
        taken = {*self._of(Recipe), *self._of(TextRecipe)}
        said = {key: value for key, value in self.values.items() if key not in taken}
        for key in ("joint_layers", "draft_vocab"):
            if said.get(key) == ALL:
                said |= {key: None, "whole_vocabulary": True} if key == "draft_vocab" else {key: None}
        return said | {key: expanded(said[key]) for key, rule in KEYS.items() if rule is NAME and key in said}

    def heads(self, kind: str) -> Recipe:
        """How heads of `kind` are trained."""
        changes: dict[str, Any] = {key: WHOLE if value == ALL else value for key, value in self._of(Recipe).items()}
        return replace(RECIPES[kind], **changes)

    def of_heads(self) -> list[str]:
        """The keys that say how heads are made."""
        return list(self._of(Recipe))

    def text(self) -> TextRecipe:
        return replace(TextRecipe(), **self._of(TextRecipe))

    def _of(self, recipe: type[Recipe] | type[TextRecipe]) -> dict[str, Any]:
        known = {entry.name for entry in fields(recipe)}
        return {key: value for key, value in self.values.items() if key in known}


def read_recipe(path: Path) -> RecipeFile:
    """MedusaError, in one line, for a file that is damaged, for unknown keys, and for values that are wrong."""
    values = _load(path)
    if not isinstance(values, dict):
        raise MedusaError(f"{path}: holds no keys with values, see docs/recipes.md")
    for key, value in values.items():
        if key not in KEYS:
            raise MedusaError(f"{path}: unknown key {key!r}, choose from {', '.join(KEYS)}")
        if (right := KEYS[key].wrong(value)) is not None:
            said = json.dumps(value, default=str, ensure_ascii=False)
            said = said if len(said) <= 40 else said[:37] + "..."
            raise MedusaError(f"{path}: {key} is {said}, it must be {right}")
    return RecipeFile(path, values)


def check_together(kind: str, objective: str, recipe: Recipe, where: str) -> None:
    """MedusaError for values that are right alone and wrong together; `where`: who said them."""
    if kind == "hydra" and recipe.prefix != "none":
        raise MedusaError(f'{where}: Hydra heads with a prefix layer are kind "hydra++"')
    if kind == "hydra++" and recipe.prefix == "none":
        raise MedusaError(f'{where}: hydra++ has a prefix layer, choose prefix "context" or "answer", or kind "hydra"')
    if kind == "medusa" and recipe.embedding_noise > 0:
        raise MedusaError(f"{where}: Medusa heads read no embeddings, leave out embedding_noise")
    if objective == "truth" and recipe.teacher_top != RECIPES[kind].teacher_top:
        raise MedusaError(f'{where}: teacher_top goes with objective "teacher", not "truth"')


def _load(path: Path) -> Any:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise MedusaError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(raw) > MOST_BYTES:
        raise MedusaError(f"{path}: {len(raw)} bytes are too many for a recipe")
    try:
        text = raw.decode("utf-8-sig")
        return json.loads(text) if path.suffix == ".json" else importlib.import_module("tomllib").loads(text)
    except ImportError:  # Python 3.10
        raise MedusaError(f"{path}: Python 3.10 cannot read TOML, write the recipe as a .json file") from None
    except UnicodeDecodeError:
        raise MedusaError(f"{path}: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise MedusaError(f"{path}: not {kind} ({str(error).splitlines()[0]})") from None
