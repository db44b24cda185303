"""Who drafts: one plan from what is asked for, the model, its heads and what was tuned. No files, no engine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from medusa_cli.decoding import devices, trees
from medusa_cli.decoding.devices import DeviceKind
from medusa_cli.decoding.options import DRAFT_MAX, DraftOptions
from medusa_cli.decoding.trees import AskedTree, Choices, DynamicStart, RandomTree
from medusa_cli.models.references import DrafterRef, ModelRef
from medusa_cli.support.errors import MedusaError, OptionError

TUNED_TREE = "tuned"
"""Name of the tree from a profile."""
STORED_TREE = "heads"
"""Name of the tree that came with the heads."""
CHAIN = "chain"
"""Name of the tree that a draft model fills by default."""

DRAFT_MODEL_RANKS = 8
"""Most ranks of a random tree that a draft model fills."""


@dataclass(frozen=True)
class ModelFacts:
    """A loaded model, as far as drafting depends on it. holds_heads: the file has heads of its own."""

    ref: ModelRef
    architecture: str
    is_recurrent: bool = False
    device: DeviceKind = DeviceKind.cpu
    holds_heads: bool = False


@dataclass(frozen=True)
class HeadsFacts:
    """Loaded heads. output_rows: tokens they tell apart. tree: choices stored with them, empty if there are none."""

    head_count: int
    output_rows: int
    tree: Choices


@dataclass(frozen=True)
class Tuned:
    """A profile. choices: its fixed tree's, none if plain decoding is faster; dynamic: a dynamic tree was fastest.

    start: what was learned about dynamic trees. recycling: they were fastest with recycled tokens.
    """

    choices: Choices
    dynamic: bool
    start: DynamicStart
    recycling: bool = False


@dataclass(frozen=True)
class FixedTree:
    """A tree that is the same in each step: `choices`, without those that the heads cannot fill, cut to `max_nodes`."""

    choices: Choices
    max_nodes: int = trees.MAX_NODES


Tree = FixedTree | DynamicStart


@dataclass(frozen=True)
class DraftModel:
    """A second model that fills trees. most: tokens in a row, and the depth of dynamic trees."""

    file: Path
    most: int = DRAFT_MAX


@dataclass(frozen=True)
class Drafter:
    """Layers that fill trees. most: tokens in a row; 0: as many as pay."""

    ref: DrafterRef
    most: int


@dataclass(frozen=True)
class DraftPlan:
    """Who drafts.

    heads: the file of the heads that are loaded, if any. tree: what they, the draft model or the drafter fill;
    None: they draft nothing. tree_name: "" if none of them drafts.
    watchdog: steps may leave out drafts that do not pay.
    recycling: the model's own likeliest tokens draft, too: alone, or in a dynamic tree with the heads.
    """

    heads: Path | None = None
    tree: Tree | None = None
    tree_name: str = ""
    lookup: bool = False
    watchdog: bool = False
    recycling: bool = False
    draft_model: DraftModel | None = None
    drafter: Drafter | None = None

    @property
    def dynamic(self) -> bool:
        """Whether the tree is a dynamic one."""
        return isinstance(self.tree, DynamicStart)


def may_use_heads(options: DraftOptions) -> bool:
    """Whether to draft with heads, if there are any."""
    return not (options.no_spec or options.no_heads or options.draft_model is not None)


def may_use_drafter(options: DraftOptions) -> bool:
    """Whether layers for further tokens draft where no heads do."""
    return not (options.no_spec or options.no_drafter or options.draft_model is not None)


def drafter(options: DraftOptions, ref: ModelRef, holds_heads: bool) -> DrafterRef | None:
    """The layers for further tokens that draft, if any."""
    unused = not may_use_drafter(options) or heads_file(options, ref, holds_heads) is not None
    return None if unused else ref.drafter


def draft_file(options: DraftOptions) -> str | None:
    """The draft model in use, as the person wrote it."""
    return None if options.no_spec else options.draft_model


def named_tree(options: DraftOptions) -> str | None:
    """The --tree argument for trees.resolve(), if it names one fixed tree that is to be filled."""
    filled = may_use_heads(options) or may_use_drafter(options) or draft_file(options) is not None
    return options.tree if filled and options.tree not in (None, trees.DYNAMIC, trees.STATIC) else None


def uses_profile(options: DraftOptions) -> bool:
    """Whether the plan depends on what was tuned for the heads."""
    return may_use_heads(options) and named_tree(options) is None


def heads_file(options: DraftOptions, ref: ModelRef, holds_heads: bool) -> Path | None:
    """The file that heads are read from: the one asked for, else the model file itself, else one found for it."""
    if not may_use_heads(options):
        return None
    if holds_heads and not (ref.heads and ref.heads.asked):
        return ref.path
    return ref.heads.path if ref.heads else None


def heads_to_load(options: DraftOptions, model: ModelFacts) -> Path | None:
    """heads_file() of a loaded model. MedusaError when its heads could not draft, or a tree has no heads to fill it."""
    path = heads_file(options, model.ref, model.holds_heads)
    fills = path is not None or drafter(options, model.ref, model.holds_heads) is not None
    if not fills and may_use_heads(options) and (named_tree(options) or options.tree == trees.DYNAMIC):
        raise OptionError("{tree} needs draft heads, and {model} has none: give {heads} FILE", model=model.ref.name)
    return path


def recurrent(model: ModelFacts) -> str:
    """The beginning of a message about a recurrent model: what cannot be done comes next."""
    return (
        f"{model.ref.name} is a recurrent model ({model.architecture}), which can check a chain of drafts, not a tree"
    )


def plan(
    options: DraftOptions,
    model: ModelFacts,
    heads: HeadsFacts | None = None,
    tuned: Tuned | None = None,
    *,
    tree: AskedTree | None = None,
    repeats: bool = False,
) -> DraftPlan:
    """Who drafts. MedusaError, one line, for what does not fit together.

    heads: those of heads_to_load(). tuned: their profile, or that of a drafter, read if uses_profile(). tree:
    named_tree(), if any.
    repeats: all runs must draft alike: lookup and dynamic trees, which depend on the clock, have to be asked for.
    """
    path = heads_to_load(options, model)
    if draft_file(options):
        return _with_draft_model(options, model, tree, repeats)
    layers = drafter(options, model.ref, model.holds_heads)
    slower = tuned is not None and not tuned.dynamic and options.tree is None
    if layers is not None and not slower:
        return _with_drafter(options, model, layers, tuned, tree, repeats)
    lookup = _lookup(options, repeats)
    recycling = False if options.no_spec else options.recycling
    may_recycle = _is_default(options) and not repeats and not model.is_recurrent and not options.no_spec
    if path is None:
        return DraftPlan(lookup=lookup, recycling=may_recycle if recycling is None else recycling)
    if recycling and options.tree not in (None, trees.DYNAMIC):
        text = "{recycling} works only with dynamic trees, not with {tree} {asked}: leave one out"
        raise OptionError(text, asked=options.tree)
    assert heads is not None
    name, chosen = filled(tree, heads) if tree is not None else _by_rule(options.tree, model, heads, tuned, repeats)
    if model.is_recurrent and isinstance(chosen, FixedTree):
        chosen = _chain(chosen, model, asked=tree is not None)
    # A tree that was asked for is kept. A dynamic one looks after itself: a step in which no node pays is plain.
    watchdog = isinstance(chosen, FixedTree) and _is_default(options) and not repeats
    # A fixed tree that nobody asked for by name has no room for recycled tokens.
    pays = may_recycle and (chosen is None or (tuned is not None and tuned.dynamic and tuned.recycling))
    recycles = not isinstance(chosen, FixedTree) and (pays if recycling is None else recycling)
    return DraftPlan(path, chosen, name, lookup, watchdog, recycles)


def _with_draft_model(options: DraftOptions, model: ModelFacts, tree: AskedTree | None, repeats: bool) -> DraftPlan:
    """The plan when a draft model drafts."""
    if options.heads:
        raise OptionError("{draft_model} cannot be combined with {heads}: leave one out")
    if model.is_recurrent:
        text = "{model} is a recurrent model ({architecture}): leave out {draft_model}"
        raise OptionError(text, model=model.ref.name, architecture=model.architecture)
    assert options.draft_model is not None
    most = options.draft_max or DRAFT_MAX
    name, chosen = _tree_of_model(tree, most, dynamic=options.tree == trees.DYNAMIC)
    recycling, lookup = _recycles(options, name, chosen), _lookup(options, repeats)
    return DraftPlan(None, chosen, name, lookup, False, recycling, DraftModel(Path(options.draft_model), most))


def _with_drafter(
    options: DraftOptions,
    model: ModelFacts,
    layers: DrafterRef,
    tuned: Tuned | None,
    tree: AskedTree | None,
    repeats: bool,
) -> DraftPlan:
    """The plan when a drafter drafts: trees grown by prices, unless steps have to repeat."""
    most = min(options.draft_max or DRAFT_MAX, layers.most or DRAFT_MAX)
    grows = options.tree == trees.DYNAMIC or (options.tree is None and not repeats)
    name, chosen = _tree_of_model(tree, most, dynamic=grows)
    if isinstance(chosen, FixedTree) and model.is_recurrent:
        chosen = _chain(chosen, model, asked=tree is not None)
    watchdog = isinstance(chosen, FixedTree) and _is_default(options) and not repeats
    recycling, lookup = _recycles(options, name, chosen), _lookup(options, repeats)
    if tuned is not None and isinstance(chosen, DynamicStart):
        chosen, recycling = tuned.start, recycling or (options.recycling is None and tuned.recycling)
    return DraftPlan(None, chosen, name, lookup, watchdog, recycling, drafter=Drafter(layers, options.draft_max))


def _tree_of_model(tree: AskedTree | None, most: int, *, dynamic: bool) -> tuple[str, Tree]:
    """The tree that a model fills, by default a chain of `most` tokens."""
    if isinstance(tree, RandomTree):
        return _drawn(tree, most, DRAFT_MODEL_RANKS)
    if tree is not None:
        return tree.name, FixedTree(tree.choices)
    if dynamic:
        return trees.DYNAMIC, DynamicStart()
    return CHAIN, FixedTree([[0] * depth for depth in range(1, most + 1)])


def _recycles(options: DraftOptions, name: str, tree: Tree) -> bool:
    """Whether recycled tokens join the tree that a model fills: only if that is asked for."""
    if options.recycling and isinstance(tree, FixedTree):
        text = "{recycling} works only with dynamic trees, not with a {chosen}: add {tree} dynamic"
        raise OptionError(text, chosen=name)
    return bool(options.recycling)


def _is_default(options: DraftOptions) -> bool:
    """Whether the choice of a tree is left to us."""
    return options.tree in (None, trees.STATIC)


def _lookup(options: DraftOptions, repeats: bool) -> bool:
    """As asked for; by default, unless a tree is given or runs must repeat."""
    if options.no_spec:
        return False
    if options.lookup is not None:
        return options.lookup
    return _is_default(options) and not repeats


def _chain(tree: FixedTree, model: ModelFacts, *, asked: bool) -> FixedTree:
    """The likeliest path of the tree. MedusaError when the person asked for one that branches."""
    path = [choice for choice in tree.choices if not any(choice)]
    if asked and len(path) < len(tree.choices):
        text = "{recurrent}: leave out {tree}, or give one path ([0], [0, 0], ...)"
        raise OptionError(text, recurrent=recurrent(model))
    return dataclasses.replace(tree, choices=path)


def check_context(plan: DraftPlan, context: int) -> None:
    """MedusaError if the tree asked for has more nodes than a context of that size (0: its default) holds."""
    if isinstance(plan.tree, FixedTree) and 0 < context <= len(plan.tree.choices):
        text = "{name} has {nodes} nodes, the context holds {most} tokens: give a smaller tree or a larger {ctx_size}"
        raise OptionError(text, name=plan.tree_name, nodes=len(plan.tree.choices) + 1, most=context)


def filled(tree: AskedTree, heads: HeadsFacts) -> tuple[str, Tree | None]:
    """(name, tree) of the one asked for; None if it has no node that the heads can fill.

    What the person wrote is used as it stands: MedusaError when the heads cannot fill it.
    """
    if isinstance(tree, RandomTree):
        return _drawn(tree, heads.head_count, heads.output_rows)
    if not tree.strict:
        return _clipped(tree.name, FixedTree(tree.choices), heads)
    depth = max(map(len, tree.choices), default=0)
    max_rank = max((rank for choice in tree.choices for rank in choice), default=-1)
    if depth > heads.head_count:
        raise MedusaError(
            f"{tree.name}: the tree is {depth} deep, the heads draft {heads.head_count} tokens: "
            f"leave out what is deeper than {heads.head_count}"
        )
    if max_rank >= heads.output_rows:
        raise MedusaError(f"{tree.name}: rank {max_rank} is past the heads' {heads.output_rows} tokens")
    return tree.name, FixedTree(tree.choices) if tree.choices else None


def _drawn(tree: RandomTree, heads: int, ranks: int) -> tuple[str, FixedTree]:
    widths = tree.widths(heads, ranks)
    return trees.cartesian_name(widths), FixedTree(trees.cartesian(widths))


def _by_rule(
    asked: str | None, model: ModelFacts, heads: HeadsFacts, tuned: Tuned | None, repeats: bool
) -> tuple[str, Tree | None]:
    """The tuned tree, else a dynamic one; if it must be fixed, the heads' own or a built-in one.

    asked: trees.DYNAMIC; trees.STATIC for one that is the same in each step; None for any.
    """
    any_kind = asked is None and not repeats
    if asked == trees.DYNAMIC or (any_kind and (tuned is None or tuned.dynamic)):
        return trees.DYNAMIC, tuned.start if tuned else DynamicStart()
    if tuned:
        return _clipped(TUNED_TREE, FixedTree(tuned.choices), heads)
    rules = devices.RULES[model.device]
    if heads.tree:
        return _clipped(STORED_TREE, FixedTree(heads.tree, rules.stored_nodes), heads)
    built_in = trees.named(rules.built_in)
    return _clipped(built_in.name, FixedTree(built_in.choices), heads)


def _clipped(name: str, tree: FixedTree, heads: HeadsFacts) -> tuple[str, FixedTree | None]:
    """The tree, unless the heads can fill no node of it: then they draft nothing."""
    fits = any(len(choice) == 1 and choice[0] < heads.output_rows for choice in tree.choices)
    return (name, tree) if fits else ("", None)
