"""What is measured: one row for each way to decode, and the tables that show it. No engine, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from medusa_cli.decoding import tree_search, trees
from medusa_cli.decoding.drafting import DraftPlan, FixedTree, Tuned
from medusa_cli.decoding.options import CHAT_TEMPERATURE, AcceptKind
from medusa_cli.decoding.trees import Choices, DynamicStart

TREES, SIZES, RULES, HEADS, KINDS, METHODS = "trees", "sizes", "rules", "heads", "kinds", "methods"
TABLES = (TREES, SIZES, RULES, HEADS, KINDS, METHODS)

NODES = 16
"""Nodes of the trees that are compared with one another, root included."""
CARTESIAN = (3, 2, 1)
"""A tree with that many nodes."""
SIZE_STEPS = (2, 4, 8, 16, 32, 64)
RANDOM_SIZES = (8, 16, 32, 64)
RANDOM_SEED = 1
LABEL_WIDTH = 22
SPARSE = "sparse"
"""What the names of the likeliest trees begin with."""
PUBLISHED = "mc_sim_7b_63"
"""Its first nodes are the sparse tree for heads whose accuracies nobody has measured."""


@dataclass(frozen=True)
class HeadsFile:
    """Heads as far as rows depend on them. accuracy: [head][rank], empty if not known."""

    label: str
    path: Path
    kind: str
    head_count: int
    output_rows: int
    accuracy: Sequence[Sequence[float]] = ()
    tuned: Tuned | None = None

    def sparse(self, nodes: int, heads: int) -> Choices:
        """The likeliest tree of at most `nodes` nodes for the first `heads` heads."""
        if self.accuracy:
            known = [shares[: self.output_rows] for shares in self.accuracy[:heads]]
            return [list(choice) for choice in tree_search.greedy_tree(known, nodes)]
        published = trees.named(PUBLISHED).choices
        fitting = [c for c in published if len(c) <= heads and max(c) < self.output_rows]
        return sorted(fitting[: nodes - 1], key=lambda choice: (len(choice), choice))


@dataclass
class Row:
    """One way to decode. heads_file: label of its heads. plan: who drafts; equal plans for a file share a session.

    labels: what it is called in each of the tables that show it. heads: how many heads draft.
    """

    name: str
    heads_file: str
    plan: DraftPlan
    labels: dict[str, str]
    heads: int
    rule: str = AcceptKind.greedy.value
    temperature: float = 0.0

    @property
    def tree(self) -> Choices | None:
        """Choices of a fixed tree."""
        return self.plan.tree.choices if isinstance(self.plan.tree, FixedTree) else None

    def drafts_like(self, other: Row) -> bool:
        """Whether one session is enough for both."""
        # A plan's name, and where its heads were read from, change nothing; no row has a watchdog.
        mine, its = (replace(plan, tree_name="", heads=None, watchdog=False) for plan in (self.plan, other.plan))
        return mine == its and self.heads_file == other.heads_file

    def decodes_like(self, other: Row) -> bool:
        """Whether one row is enough for both."""
        return self.drafts_like(other) and (self.rule, self.temperature) == (other.rule, other.temperature)


def plan_rows(
    files: Sequence[HeadsFile],
    costs: Mapping[int, float],
    methods: Mapping[str, DraftPlan],
    rules: Iterable[str],
) -> list[Row]:
    """All rows, each way to decode once. files: the first is ablated, the others appear beside it in KINDS.

    costs: cost of a pass by its number of tokens, in passes over one. methods: plans of bench methods, by name. rules:
    acceptance rules.
    """
    main = files[0]
    rows = [*_trees(main, costs), *_sizes(main), *_rules(main, rules), *_head_counts(main)]
    if len(files) > 1:
        rows += [row for one in files for row in _kinds(one)]
    rows += [Row(name, main.label, plan, {METHODS: name}, main.head_count) for name, plan in methods.items()]
    return _merged(rows)


def _merged(rows: Iterable[Row]) -> list[Row]:
    """Rows that decode alike become one, under the first name, in all their tables."""
    found: list[Row] = []
    for row in rows:
        same = next((one for one in found if one.decodes_like(row)), None)
        if same is None:
            found.append(row)
        else:
            same.labels = {**row.labels, **same.labels}
    return found


def _fixed(file: HeadsFile, name: str, choices: Choices, *tables: str) -> Row:
    """A greedy row with a fixed tree, called the same in all tables."""
    depth = max(map(len, choices), default=0)
    return Row(name, file.label, DraftPlan(None, FixedTree(choices), name), dict.fromkeys(tables, name), depth)


def _chain(file: HeadsFile, *tables: str) -> Row:
    return _fixed(file, "chain", [[0] * depth for depth in range(1, file.head_count + 1)], *tables)


def _sparse(file: HeadsFile, *tables: str) -> Row:
    return _fixed(file, f"{SPARSE} {NODES}", file.sparse(NODES, file.head_count), *tables)


def _grown(file: HeadsFile, *tables: str) -> Row:
    """A row with dynamic trees."""
    start = file.tuned.start if file.tuned else DynamicStart()
    labels = dict.fromkeys(tables, "grown")
    return Row("grown", file.label, DraftPlan(None, start, trees.DYNAMIC), labels, file.head_count)


def _random(file: HeadsFile, nodes: int, *tables: str) -> list[Row]:
    """A random dense tree; none if the heads cannot fill one."""
    tree = trees.RandomTree(f"random {nodes}", nodes, RANDOM_SEED)
    if not any(True for _ in trees.dense_shapes(nodes, file.head_count, file.output_rows)):
        return []
    widths = tree.widths(file.head_count, file.output_rows)
    return [_fixed(file, tree.name, trees.cartesian(widths), *tables)]


def _trees(file: HeadsFile, costs: Mapping[int, float]) -> list[Row]:
    """Heads without a tree, Cartesian, random dense, sparse, tuned, grown (Medusa table 3)."""
    widths = [min(width, file.output_rows) for width in CARTESIAN[: file.head_count]]
    rows = [
        _chain(file, TREES, SIZES),
        _fixed(file, trees.cartesian_name(widths), trees.cartesian(widths), TREES, SIZES),
        *_random(file, NODES, TREES, SIZES),
        _sparse(file, TREES, SIZES),
    ]
    tuned = file.tuned.choices if file.tuned and file.tuned.choices else best_by_cost(file, costs)
    if tuned:
        rows.append(_fixed(file, "tuned", tuned, TREES))
    return [*rows, _grown(file, TREES)]


def _sizes(file: HeadsFile) -> list[Row]:
    """Sparse and random dense trees by size (Medusa fig. 4)."""
    rows = []
    for nodes in SIZE_STEPS:
        choices = file.sparse(nodes, file.head_count)
        if len(choices) + 1 == nodes:
            rows.append(_fixed(file, f"{SPARSE} {nodes}", choices, SIZES))
    return [*rows, *(row for nodes in RANDOM_SIZES for row in _random(file, nodes, SIZES))]


def _rules(file: HeadsFile, rules: Iterable[str]) -> list[Row]:
    """One tree, all rules: greedy at temperature 0, the others as in a chat."""
    sparse = _sparse(file)
    rows = []
    for rule in rules:
        heat = 0.0 if rule == AcceptKind.greedy.value else CHAT_TEMPERATURE
        labels = {RULES: f"{rule}, temp. {heat:g}"}
        rows.append(replace(sparse, name=f"{sparse.name}, {rule}", labels=labels, rule=rule, temperature=heat))
    return rows


def _head_counts(file: HeadsFile) -> list[Row]:
    """Trees of only the first heads, with the same number of nodes."""
    rows = []
    for count in range(1, file.head_count + 1):
        heads = f"{count} head{'s' * (count > 1)}"
        row = _fixed(file, f"{SPARSE} {NODES}, {heads}", file.sparse(NODES, count))
        rows.append(replace(row, labels={HEADS: heads}))
    return rows


def _kinds(file: HeadsFile) -> list[Row]:
    """What is compared for each heads file (Hydra fig. 2)."""
    rows = []
    for row in (_chain(file), _sparse(file), _grown(file)):
        label = f"{file.label[: LABEL_WIDTH - len(row.name) - 2]}: {row.name}"
        rows.append(replace(row, name=f"{file.label}: {row.name}", labels={KINDS: label}))
    return rows


def best_by_cost(file: HeadsFile, costs: Mapping[int, float]) -> Choices:
    """The sparse tree with the most expected tokens per cost; empty without accuracies or costs."""
    if not file.accuracy or len(costs) < 2:
        return []

    def value(nodes: int) -> float:
        tree = file.sparse(nodes, file.head_count)
        return tree_search.predicted_tokens_per_step(file.accuracy, tree) / interpolated(costs, nodes)

    best = max(range(2, max(costs) + 1), key=value)
    return file.sparse(best, file.head_count)


def interpolated(costs: Mapping[int, float], nodes: int) -> float:
    """The cost at `nodes`, on the line between the sizes around it; beyond the largest size, the cost of that."""
    sizes = sorted(costs)
    return float(np.interp(nodes, sizes, [costs[size] for size in sizes]))
