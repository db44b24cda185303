"""What `medusa train` was asked to do, by its options and by a recipe file.

`--recipe FILE` sets things about a training that few people set, in TOML or JSON. docs/recipes.md says what each key
means and in which section of the papers to find it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from medusa_cli.decoding.options import MAX_SEED
from medusa_cli.decoding.settings import given
from medusa_cli.models.assets import sha256
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import expanded

from .backbone.export import check_folder
from .recipes import (
    ALL,
    ANSWERS,
    DEFAULT_ANSWERS,
    DEFAULT_KIND,
    DEFAULT_OBJECTIVE,
    DEFAULT_STRATEGY,
    DRAFT_KINDS,
    JOINT_LAYERS,
    LATER_TURNS,
    MTP,
    OBJECTIVES,
    OUTPUTS,
    PREFIX_SIGHTS,
    RECIPES,
    RECURRENT,
    SHARED_RECIPES,
    SHARED_RESULT_SHARE,
    START_RATE,
    STRATEGIES,
    STREAMS,
    STREAMS_LAYERS,
    STREAMS_RECIPE,
    TEACHER_TOP,
    TEXT_SHARE,
    WARMUPS,
    WHOLE,
    Answers,
    JointRecipe,
    Recipe,
    Strategy,
    StreamsRecipe,
    TextRecipe,
    Warmup,
    joint_recipe_of,
)

DEFAULT_MINUTES = 60.0
"""Used if neither minutes nor tokens are given."""
TREE_NODES = 16
"""Size of the default tree that is written with the heads, root included."""
MOST_BYTES = 1 << 16
OPTIONS = ("kind", "heads", "answers", "start")
"""Keys that are also options of the command."""


class Rule(NamedTuple):
    """right: what a value must be."""

    right: str
    fits: Callable[[Any], bool]


def _one_of(values: Collection[str]) -> Rule:
    return Rule("one of " + ", ".join(f'"{known}"' for known in values), lambda value: value in values)


def _whole(least: int, most: int, has_all: bool = False) -> Rule:
    """has_all: "all" is allowed, too."""
    return Rule(
        f"a whole number, {least} to {most}" + (f', or "{ALL}"' if has_all else ""),
        lambda value: (type(value) is int and least <= value <= most) or (has_all and value == ALL),
    )


def _number(least: float, most: float, above: bool = False) -> Rule:
    """above: `least` itself is not allowed."""
    return Rule(
        f"a number {'above' if above else 'from'} {least:g} to {most:g}",
        lambda value: type(value) in (int, float) and least <= value <= most and not (above and value == least),
    )


NAME = Rule("a name", lambda value: isinstance(value, str) and value != "" and "\0" not in value)
"""Name of a file or folder."""
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
    "depth_weight": _number(0, 1, above=True),
    "rate": _number(0, 1, above=True),
    "decay": _number(0, 1000),
    "epochs": _number(0, 1e4, above=True),
    "patience": _whole(1, 1000),
    "batch": _whole(1, 1 << 20),
    "answers": _one_of(ANSWERS),
    "longest_answer": _whole(16, 1 << 20),
    "later_turns": _one_of(LATER_TURNS),
    "turns": _whole(2, 64),
    "greedy": _number(0, 1),
    "tokens": _whole(1000, 1 << 40),
    "parallel": _whole(1, 256),
    "start": NAME,
    "seed": _whole(0, MAX_SEED),
    "streams_layers": _whole(1, 1024),
    "joint_layers": _whole(1, 1024, has_all=True),
    "joint_strategy": _one_of(STRATEGIES),
    "joint_warmup": _one_of(WARMUPS),
    "joint_rate": _number(0, 1, above=True),
    "joint_heads_rate": _number(0, 1e4, above=True),
    "joint_weight": _number(0, 1e4, above=True),
    "joint_batch": _whole(1, 1 << 20),
    "joint_rounds": _number(0, 1e4, above=True),
    "adapter": NAME,
    "export_hf": NAME,
    "work_dir": NAME,
}


@dataclass(frozen=True)
class RecipeFile:
    """What a file says, checked; what it does not say keeps its default."""

    path: Path | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """The fields of TrainOptions that the file sets."""
        taken = {*self.of(Recipe), *self.of(TextRecipe)}
        said = {key: value for key, value in self.values.items() if key not in taken}
        for key in ("joint_layers", "draft_vocab"):
            if said.get(key) == ALL:
                said |= {key: None, "whole_vocabulary": True} if key == "draft_vocab" else {key: None}
        return said | {key: expanded(said[key]) for key, rule in KEYS.items() if rule is NAME and key in said}

    def heads(self, kind: str) -> Recipe:
        """How heads of `kind` are trained."""
        changes: dict[str, Any] = {key: WHOLE if value == ALL else value for key, value in self.of(Recipe).items()}
        return replace(RECIPES[kind], **changes)

    def text(self) -> TextRecipe:
        return replace(TextRecipe(), **self.of(TextRecipe))

    def of(self, recipe: type[Recipe] | type[TextRecipe]) -> dict[str, Any]:
        """The keys that are fields of a recipe."""
        known = {entry.name for entry in fields(recipe)}
        return {key: value for key, value in self.values.items() if key in known}


def read_recipe(path: Path) -> RecipeFile:
    """MedusaError, in one line, for a damaged file, unknown keys and wrong values."""
    values = _load(path)
    if not isinstance(values, dict):
        raise MedusaError(f"{path}: holds no keys with values, see docs/recipes.md")
    for key, value in values.items():
        if key not in KEYS:
            raise MedusaError(f"{path}: unknown key {key!r}, choose from {', '.join(KEYS)}")
        if not KEYS[key].fits(value):
            said = json.dumps(value, default=str, ensure_ascii=False)
            said = said if len(said) <= 40 else said[:37] + "..."
            raise MedusaError(f"{path}: {key} is {said}, it must be {KEYS[key].right}")
    return RecipeFile(path, values)


def check_together(kind: str, objective: str, recipe: Recipe, where: str) -> None:
    """MedusaError for values that are right by themselves but wrong together; `where`: where they were set."""
    if kind == "hydra" and recipe.prefix != "none":
        raise MedusaError(f'{where}: Hydra heads with a prefix layer are kind "hydra++"')
    if kind == "hydra++" and recipe.prefix == "none":
        raise MedusaError(f'{where}: hydra++ has a prefix layer, choose prefix "context" or "answer", or kind "hydra"')
    if kind == MTP:
        of_heads = ("blocks", "prefix", "lm_head", "noise", "embedding_noise")
        if wrong := next((key for key in of_heads if getattr(recipe, key) != getattr(RECIPES[kind], key)), None):
            raise MedusaError(f"{where}: {wrong} applies to heads, not to an MTP layer: leave it out")
    if kind == RECURRENT:
        fixed = ("blocks", "prefix", "lm_head")
        if wrong := next((key for key in fixed if getattr(recipe, key) != getattr(RECIPES[kind], key)), None):
            raise MedusaError(f"{where}: {wrong}: a recurrent head has one cell and the base's rows, leave it out")
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


@dataclass
class TrainOptions:
    """One training run. What decides the result: model, heads, data, seed, tokens (or minutes).

    kind, objective: from recipes.DRAFT_KINDS and recipes.OBJECTIVES; the MTP layer is the model's own, and all that is
    said about heads is about the tokens that it drafts in a row. answers: whose are learned, the model's own to the
    prompts in `data`, or those given there. start: a file of heads that the training begins with. file: what a recipe
    says about heads and text. whole_vocabulary: heads choose from all tokens, and draft_vocab is None. sidecar: write
    the heads alone instead of base + heads in one file. minutes: time for everything, split between generation and
    training from measured rates. tokens: how much text, instead of a share of the minutes; training gets the minutes
    that are left, or as long as a fixed number of rounds takes if none are given. n_gpu_layers, threads, parallel: as
    for the engine (negative or 0: its own choice).
    draft_vocab: tokens that the heads choose from; None: the best number on this machine. export_hf: a folder that gets
    the heads as a Hugging Face checkpoint, too.
    joint: train the top `joint_layers` layers (None: all) together with the heads, by `joint_strategy`, into a new
    model, in `joint_rounds` rounds over the text (None: as time allows, or a fixed number if no time is given); the
    other joint_ fields replace that strategy's numbers (recipes.JOINT_RECIPES). With streams: the layers that they run
    through, by recipes.SHARED_RECIPES.
    streams_layers: how many of the top layers streams run through.
    adapter: a file for what the layers learned, as a LoRA for llama.cpp.
    work_dir: for generated text and hidden states; None: a folder in the user's cache named after the model.
    """

    model: Path
    output: Path
    sidecar: bool
    kind: str = DEFAULT_KIND
    objective: str = DEFAULT_OBJECTIVE
    heads: int = 4
    minutes: float | None = None
    data: Path | None = None
    answers: Answers = DEFAULT_ANSWERS
    start: Path | None = None
    seed: int = 0
    tokens: int | None = None
    threads: int = 0
    n_gpu_layers: int = -1
    parallel: int = 32
    draft_vocab: int | None = None
    whole_vocabulary: bool = False
    file: RecipeFile = field(default_factory=RecipeFile)
    export_hf: Path | None = None
    joint: bool = False
    joint_layers: int | None = JOINT_LAYERS
    joint_strategy: Strategy = DEFAULT_STRATEGY
    joint_warmup: Warmup | None = None
    joint_rate: float | None = None
    joint_heads_rate: float | None = None
    joint_weight: float | None = None
    joint_batch: int | None = None
    joint_rounds: float | None = None
    adapter: Path | None = None
    streams_layers: int = STREAMS_LAYERS
    work_dir: Path | None = None
    console: Console = field(default_factory=lambda: Console(stderr=True))

    def __post_init__(self) -> None:
        if self.minutes is None and self.tokens is None:
            self.minutes = DEFAULT_MINUTES

    @property
    def recipe(self) -> Recipe:
        """How heads are trained; streams have streams_recipe."""
        recipe = self.file.heads(self.kind)
        if self.start is None or "rate" in self.file.values:
            return recipe
        return replace(recipe, rate=START_RATE * recipe.rate)

    @property
    def streams_recipe(self) -> StreamsRecipe:
        """How streams are trained: alone, or with their base."""
        if not self.joint:
            return replace(STREAMS_RECIPE, **self.file.of(Recipe))
        recipe = SHARED_RECIPES[self.joint_strategy]
        assert recipe.shared is not None
        shared = replace(recipe.shared, **given(weight=self.joint_weight))
        return replace(recipe, shared=shared, **given(rate=self.joint_rate, batch=self.joint_batch))

    @property
    def text(self) -> TextRecipe:
        return self.file.text()

    @property
    def name(self) -> str:
        """Name of these heads' files in the work folder: other recipes leave them alone."""
        if self.kind == STREAMS and self.joint:
            return f"{STREAMS}.shared"
        if self.kind == STREAMS:
            usual, differs = self.streams_recipe == STREAMS_RECIPE, str(self.streams_recipe)
        else:
            usual = self.recipe == RECIPES[self.kind] and not self.whole_vocabulary and self.start is None
            differs = f"{self.recipe} {self.whole_vocabulary} {self.objective}{self.start_content}"
        return self.kind if usual else f"{self.kind}-{hashlib.sha256(differs.encode()).hexdigest()[:8]}"

    @cached_property
    def start_content(self) -> str:
        """A digest of the heads that the training begins with; "": it begins with fresh ones."""
        return "" if self.start is None else sha256(self.start)

    @property
    def keeps_teacher(self) -> bool:
        """Whether the teacher's distributions are kept on disk."""
        return self.objective == "teacher" and self.teacher_top != WHOLE

    @property
    def teacher_top(self) -> int:
        """Like Recipe.teacher_top."""
        return TEACHER_TOP if self.kind == STREAMS else self.recipe.teacher_top

    @property
    def drafts_minutes(self) -> float | None:
        """Time for text and drafts, without what a new model takes; None if no clock decides."""
        share = 1.0
        if self.joint:
            share = 1 - SHARED_RESULT_SHARE if self.kind == STREAMS else TEXT_SHARE
        return None if self.minutes is None else self.minutes * share

    @property
    def joint_recipe(self) -> JointRecipe:
        return joint_recipe_of(
            self.joint_strategy,
            warmup=self.joint_warmup,
            rate=self.joint_rate,
            heads_rate=self.joint_heads_rate,
            heads_weight=self.joint_weight,
            batch=self.joint_batch,
        )

    @property
    def heads_first(self) -> bool:
        """Whether the heads are first trained alone."""
        return not self.joint or self.joint_recipe.heads_first

    def asked_amount(self) -> dict[str, float | None]:
        """What decides how much text is written: tokens, else minutes."""
        return {"tokens": self.tokens, "minutes": None if self.tokens else self.drafts_minutes}

    def as_json(self) -> dict[str, Any]:
        """What a report says about the options; files only by name."""
        said = ("kind", "objective", "heads", "minutes", "tokens", "data", "answers", "seed", "threads", "parallel")
        return {name: getattr(self, name) for name in said} | {
            "data": self.data.name if self.data else None,
            "start": self.start.name if self.start else None,
            "draft_vocab": ALL if self.whole_vocabulary else self.draft_vocab,
            "text": asdict(self.text),
            "streams": {"layers": self.streams_layers} if self.kind == STREAMS else None,
            "joint": {"layers": self.top_layers or ALL, "strategy": self.joint_strategy} if self.joint else None,
        }

    @property
    def top_layers(self) -> int | None:
        """How many layers, from the top, are rebuilt in torch; None: all."""
        return self.streams_layers if self.kind == STREAMS else self.joint_layers

    def check(self) -> None:
        """MedusaError for values that no run can use. Costs nothing: called before anything long starts."""
        for key, value in vars(self).items():
            rule = KEYS.get(key, NAME)
            if value is not None and rule is not NAME and not rule.fits(value):
                raise MedusaError(f"{'--' if key in OPTIONS else ''}{key} {value}: it must be {rule.right}")
        if self.minutes is not None and not self.minutes > 0:
            raise MedusaError(f"--minutes {self.minutes:g}: must be positive")
        if self.answers == "given":
            if self.data is None:
                raise MedusaError("--answers given: give a file with conversations, --data FILE")
            for key in ("later_turns", "greedy"):
                if getattr(self.text, key) != getattr(TextRecipe(), key):
                    raise MedusaError(f"{key}: with --answers given, all turns come from the file: leave it out")
        if self.kind == STREAMS:
            self._check_streams()
        else:
            if self.kind == MTP:
                self._check_mtp()
            check_together(self.kind, self.objective, self.recipe, str(self.file.path))
        if self.joint and self.sidecar:
            raise MedusaError("--joint changes the model itself: it cannot be written as a --sidecar")
        if self.adapter is not None:
            if not self.joint:
                raise MedusaError("adapter saves what --joint trains: give both")
            _check_place(self.adapter, "adapter")
            if self.adapter.absolute() in (self.output.absolute(), self.model.absolute()):
                raise MedusaError(f"{self.adapter}: would overwrite the model or the output, choose another adapter")
        if self.export_hf is not None:
            if self.kind == RECURRENT:
                raise MedusaError("export_hf: there is no layout for a recurrent head: leave it out")
            check_folder(self.export_hf)
        for path, what in ((self.model, "model"), (self.data, "prompts"), (self.start, "heads")):
            if path is not None and not path.is_file():
                raise MedusaError(f"{path}: no such {what} file")
        _check_place(self.output, "output")
        if self.output.exists() and self.output.samefile(self.model):
            raise MedusaError(f"{self.output}: would overwrite the model itself, choose another output")

    def _check_streams(self) -> None:
        jointly = {"rate": "joint_rate", "batch": "joint_batch", "epochs": "joint_rounds"}
        for key in self.file.of(Recipe):
            if key not in jointly:
                raise MedusaError(f"{self.file.path}: {key} applies to heads, not to streams: leave it out")
            if self.joint:
                raise MedusaError(f"{self.file.path}: {key}: with --joint, streams have {jointly[key]} instead")
        if self.whole_vocabulary:
            raise MedusaError('draft_vocab "all": streams need a draft vocabulary, give a number of tokens')
        if self.joint and self.joint_strategy not in SHARED_RECIPES:
            known = " or ".join(SHARED_RECIPES)
            raise MedusaError(f"joint_strategy {self.joint_strategy}: streams learn with {known}")
        if self.joint and "joint_layers" in self.file.values:
            raise MedusaError("joint_layers: streams train the layers they run through, use streams_layers")
        for name in ("joint_warmup", "joint_heads_rate"):
            if self.joint and getattr(self, name) is not None:
                raise MedusaError(f"{name} applies to heads, not to streams: leave it out")
        if self.start is not None:
            raise MedusaError("start applies to heads, not to streams: leave it out or choose another --kind")
        if self.export_hf is not None:
            raise MedusaError("export_hf: there is no layout for streams: leave it out or choose another --kind")

    def _check_mtp(self) -> None:
        if self.joint:
            raise MedusaError("--joint trains heads or streams, not an MTP layer: leave it out")
        if self.whole_vocabulary or self.draft_vocab is not None:
            raise MedusaError("draft_vocab: the engine decides what an MTP layer chooses from: leave it out")
        for name in ("start", "export_hf"):
            if getattr(self, name) is not None:
                raise MedusaError(
                    f"{name} applies to heads, not to an MTP layer: leave it out or choose another --kind"
                )


def _check_place(path: Path, what: str) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise MedusaError(f"{path}: not a file name in an existing folder, choose another {what}")
