"""The ways to decode that a benchmark compares. One entry in METHODS adds one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medusa_cli.decoding import trees
from medusa_cli.decoding.options import DraftOptions
from medusa_cli.support.errors import MedusaError

STOCK, PLAIN, MEDUSA, LOOKUP, DRAFT_MODEL = "stock", "plain", "medusa", "lookup", "draft-model"
RECYCLING, LOOKAHEAD = "recycling", "lookahead"
BASELINES = (STOCK, PLAIN)
"""What speedups are relative to, if they are among a run's methods."""

ENGINE, LLAMA_CPP = "engine", "llama_cpp"
LOOKAHEAD_NUMBERS = "4,3,4"
"""Window, n-gram and guesses by default."""


NO_DRAFTS = {"no_spec": True, "heads": None, "tree": None, "accept": None}
NO_HEADS = {"no_heads": True, "no_drafter": True, "heads": None, "tree": None}


@dataclass(frozen=True)
class Method:
    """One way to decode.

    changes: to the draft options of the command line; drafting.plan() then says who drafts, except that LOOKAHEAD
    (Fu et al. 2024) drafts in a session of its own. driver: what runs in its worker process, our engine or
    llama-cpp-python's Llama class. stock_kernels: runs on llama.cpp's. same_sampler: with the same seed it draws the
    same random numbers as plain decoding, so that sampled texts can be compared.
    """

    name: str
    summary: str
    changes: Mapping[str, Any]
    driver: str = ENGINE
    needs_heads: bool = False
    needs_draft_model: bool = False

    @property
    def stock_kernels(self) -> bool:
        return self.name == STOCK or self.driver == LLAMA_CPP

    @property
    def same_sampler(self) -> bool:
        return self.driver == ENGINE

    def draft(self, options: DraftOptions) -> DraftOptions:
        """The draft options of the command line, with its changes."""
        found = dataclasses.replace(options, **self.changes)
        # Only dynamic trees hold recycled tokens.
        tree = found.tree or (trees.DYNAMIC if self.needs_heads and found.recycling else None)
        return dataclasses.replace(
            found, tree=tree, draft_model=options.draft_model if self.needs_draft_model else None
        )


_ALL = (
    Method(STOCK, "plain decoding with llama.cpp's own kernels", NO_DRAFTS),
    Method(PLAIN, "plain decoding with medusa's kernels (--no-spec)", NO_DRAFTS),
    Method(
        MEDUSA,
        "drafts from the model's heads, or its drafter",
        {"lookup": False, "recycling": False},
        needs_heads=True,
    ),
    Method(LOOKUP, "drafts from prompt lookup, without heads", {**NO_HEADS, "lookup": True, "recycling": False}),
    Method(f"{MEDUSA}+{LOOKUP}", "drafts from both", {"lookup": True, "recycling": False}, needs_heads=True),
    Method(
        f"{LOOKUP}+{RECYCLING}",
        "drafts from prompt lookup and recycled tokens, without heads",
        {**NO_HEADS, "lookup": True, "recycling": True},
    ),
    Method(
        f"{MEDUSA}+{LOOKUP}+{RECYCLING}",
        "drafts from all three, in dynamic trees",
        {"lookup": True, "recycling": True},
        needs_heads=True,
    ),
    Method(
        DRAFT_MODEL,
        "drafts from a smaller model, in a chain",
        {**NO_HEADS, "lookup": False, "recycling": False},
        needs_draft_model=True,
    ),
    Method(
        f"{DRAFT_MODEL}-tree",
        "drafts from a smaller model, in dynamic trees",
        {**NO_HEADS, "lookup": False, "recycling": False, "tree": trees.DYNAMIC},
        needs_draft_model=True,
    ),
    Method(LOOKAHEAD, "lookahead decoding, without heads", NO_DRAFTS),
    Method("llama-lookup", "llama-cpp-python's prompt lookup (its loop is Python)", NO_DRAFTS, driver=LLAMA_CPP),
    Method(
        f"llama-{DRAFT_MODEL}",
        "drafts from a smaller model, in llama-cpp-python (its loop is Python)",
        NO_DRAFTS,
        driver=LLAMA_CPP,
        needs_draft_model=True,
    ),
)
METHODS = {method.name: method for method in _ALL}


def default_names(has_heads: bool, has_draft_model: bool) -> list[str]:
    """What is compared by default."""
    return [STOCK, PLAIN] + [MEDUSA] * has_heads + [DRAFT_MODEL] * has_draft_model


def parse(text: str) -> list[Method]:
    """ "stock,plain" -> methods, each once, in that order. MedusaError for an unknown name, or none at all."""
    names = [name for name in (part.strip().lower() for part in text.split(",")) if name]
    for name in names:
        if name not in METHODS:
            raise MedusaError(f"no method {name!r}: there are {', '.join(METHODS)}")
    if not names:
        raise MedusaError(f"--methods names none: there are {', '.join(METHODS)}")
    return [METHODS[name] for name in dict.fromkeys(names)]


def parse_lookahead(text: str) -> tuple[int, int, int]:
    """ "4,3,4": width of the window, tokens of an n-gram, n-grams verified in a step. MedusaError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise MedusaError(f"--lookahead {text}: give three numbers such as {LOOKAHEAD_NUMBERS}")
    window, ngram, guesses = map(int, parts)
    return window, ngram, guesses


def check(methods: list[Method], model: str, has_heads: bool, has_draft_model: bool, synthetic: bool = False) -> None:
    """MedusaError when a method lacks what it needs, or --draft-model has no use.

    synthetic: acceptance is made up, which only our engine can do.
    """
    for method in methods:
        if method.needs_heads and not has_heads:
            raise MedusaError(f"{method.name} needs draft heads, and {model} has none: give --heads FILE")
        if method.needs_draft_model and not has_draft_model:
            raise MedusaError(f"{method.name} needs a second model: give --draft-model FILE")
        if synthetic and method.driver != ENGINE:
            raise MedusaError(f"--synth-accept cannot simulate acceptance for {method.name}: leave that method out")
    if has_draft_model and not any(method.needs_draft_model for method in methods):
        raise MedusaError(f"--draft-model is for the methods named {DRAFT_MODEL}: add one to --methods")
