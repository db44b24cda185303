"""`medusa train --recipe FILE`: everything about a training that few people set, in TOML or JSON.

docs/recipes.md says what each key means and in which section of the papers it stands.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection
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
class OneOf:
    values: Collection[str]

    def wrong(self, value: object) -> str | None:
        """What would be right, where `value` is not."""
        return None if value in self.values else "one of " + ", ".join(f'"{known}"' for known in self.values)


@dataclass(frozen=True)
class Whole:
    """has_all: "all" is a value, too."""

    least: int
    most: int
    has_all: bool = False

    def wrong(self, value: object) -> str | None:
        if (type(value) is int and self.least <= value <= self.most) or (self.has_all and value == ALL):
            return None
        return f"a whole number, {self.least} to {self.most}" + (f', or "{ALL}"' if self.has_all else "")


@dataclass(frozen=True)
class Number:
    """above: the least one is none."""

    least: float
    most: float
    above: bool = False

    def wrong(self, value: object) -> str | None:
        number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else -1.0
        if self.least <= number <= self.most and not (self.above and number == self.least):
            return None
        return f"a number {'above' if self.above else 'from'} {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Name:
    """Of a file or folder."""

    def wrong(self, value: object) -> str | None:
        return None if isinstance(value, str) and value and "\0" not in value else "a name"


KEYS: dict[str, OneOf | Whole | Number | Name] = {
    "kind": OneOf(DRAFT_KINDS),
    "heads": Whole(1, 16),
    "blocks": Whole(1, 16),
    "prefix": OneOf(PREFIX_SIGHTS),
    "lm_head": OneOf(OUTPUTS),
    "draft_vocab": Whole(100, 1 << 24, has_all=True),
    "objective": OneOf(OBJECTIVES),
    "teacher_top": Whole(1, 1024, has_all=True),
    "noise": Number(0, 1e4),
    "embedding_noise": Number(0, 1e4),
    "rate": Number(0, 1, above=True),
    "decay": Number(0, 1000),
    "batch": Whole(1, 1 << 20),
    "longest_answer": Whole(16, 1 << 20),
    "later_turns": OneOf(LATER_TURNS),
    "turns": Whole(2, 64),
    "tokens": Whole(1000, 1 << 40),
    "parallel": Whole(1, 256),
    "seed": Whole(0, MAX_SEED),
    "streams_layers": Whole(1, 1024),
    "joint_layers": Whole(1, 1024, has_all=True),
    "joint_strategy": OneOf(STRATEGIES),
    "joint_warmup": OneOf(WARMUPS),
    "joint_rate": Number(0, 1, above=True),
    "joint_heads_rate": Number(0, 1e4, above=True),
    "joint_weight": Number(0, 1e4, above=True),
    "joint_rounds": Number(0, 1e4, above=True),
    "adapter": Name(),
    "export_hf": Name(),
    "work_dir": Name(),
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
        return said | {key: expanded(said[key]) for key, rule in KEYS.items() if isinstance(rule, Name) and key in said}

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
            raise MedusaError(f"{path}: {key} is {_shown(value)}, it must be {right}")
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
        return json.loads(text) if path.suffix == ".json" else _toml(text, path)
    except UnicodeDecodeError:
        raise MedusaError(f"{path}: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise MedusaError(f"{path}: not {kind} ({str(error).splitlines()[0]})") from None


def _toml(text: str, path: Path) -> Any:
    try:
        tomllib = importlib.import_module("tomllib")
    except ImportError:  # Python 3.10
        raise MedusaError(f"{path}: Python 3.10 cannot read TOML, write the recipe as a .json file") from None
    return tomllib.loads(text)


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
