"""Who drafts, as a table: what is asked for, the model, its heads and what was tuned -> the plan, or the message."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from medusa_cli.decoding import drafting, trees
from medusa_cli.decoding.devices import DeviceKind
from medusa_cli.decoding.drafting import (
    DraftModel,
    DraftPlan,
    FixedTree,
    HeadsFacts,
    ModelFacts,
    Tuned,
)
from medusa_cli.decoding.options import DraftOptions
from medusa_cli.decoding.trees import DynamicStart, NamedTree
from medusa_cli.models.references import HeadsRef, ModelRef, Origin
from medusa_cli.support.errors import MedusaError

BASE, GIVEN, BUNDLED = Path("m.gguf"), Path("given.gguf"), Path("bundled.gguf")
REF = ModelRef("m.gguf", BASE)
CPU = ModelFacts(REF, "llama", holds_heads=True)
GPU = dataclasses.replace(CPU, device=DeviceKind.gpu)
METAL = dataclasses.replace(CPU, device=DeviceKind.metal)
BARE = dataclasses.replace(CPU, holds_heads=False)
DEMO = dataclasses.replace(BARE, ref=ModelRef("demo", BASE, HeadsRef(BUNDLED, Origin.shipped)))
MAMBA = dataclasses.replace(BARE, architecture="mamba", is_recurrent=True)
MAMBA_HEADS = dataclasses.replace(MAMBA, holds_heads=True)

STORED = [[0], [1], [0, 0]]
HEADS = HeadsFacts(head_count=2, output_rows=3, tree=STORED)
NO_TREE = HeadsFacts(head_count=2, output_rows=3, tree=[])

UNKNOWN = DynamicStart()
LEARNED = DynamicStart([[0.5] * 24], [(1, 1.0), (4, 1.5)])
FIXED = [[0], [0, 0]]
TUNED = Tuned(FIXED, False, LEARNED)
TUNED_DYNAMIC = Tuned(FIXED, True, LEARNED)
TUNED_PLAIN = Tuned([], False, LEARNED)
TUNED_RECYCLING = Tuned(FIXED, True, LEARNED, recycling=True)
TUNED_ONLY_DYNAMIC = Tuned([], True, LEARNED)

CHAIN = trees.named("chain_4")
SMALL = DraftModel(Path("small.gguf"))
CHAIN_OF_4 = FixedTree([[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]])
WRITTEN = NamedTree("my.json", [[0], [2]], strict=True)


def asked(
    tree: str | None = None,
    *,
    heads: str | None = None,
    lookup: bool | None = None,
    no_heads: bool = False,
    no_spec: bool = False,
    recycling: bool | None = None,
    draft_model: str | None = None,
    draft_max: int = 0,
) -> DraftOptions:
    return DraftOptions(
        heads=heads, tree=tree, lookup=lookup, no_heads=no_heads, no_spec=no_spec, recycling=recycling,
        draft_model=draft_model, draft_max=draft_max,
    )  # fmt: skip


def given(model: ModelFacts, options: DraftOptions) -> ModelFacts:
    """The model with the heads that the options name."""
    if options.heads is None:
        return model
    heads = HeadsRef(Path(options.heads), Origin.given, asked=True)
    return dataclasses.replace(model, ref=dataclasses.replace(model.ref, heads=heads))


def fixed(
    name: str, choices: trees.Choices, nodes: int = 256, *, lookup: bool = True, watchdog: bool = True
) -> DraftPlan:
    return DraftPlan(BASE, FixedTree(choices, nodes), name, lookup, watchdog)


def dynamic(start: DynamicStart = UNKNOWN, *, lookup: bool = True, recycling: bool = False) -> DraftPlan:
    return DraftPlan(BASE, start, "dynamic", lookup, recycling=recycling)


def plain(*, others: bool = True) -> DraftPlan:
    """Heads are loaded, and draft nothing. others: what needs no heads does."""
    return DraftPlan(BASE, lookup=others, recycling=others)


NOTHING, LOOKUP = DraftPlan(), DraftPlan(lookup=True)
RECYCLING, BOTH = DraftPlan(recycling=True), DraftPlan(lookup=True, recycling=True)
DEFAULT_CPU, DEFAULT_GPU = trees.named("cpu_4").choices, trees.named("mc_sim_7b_63").choices


@pytest.mark.parametrize(
    ("options", "repeats", "expected"),
    [
        (asked(), False, DraftPlan(None, CHAIN_OF_4, "chain", lookup=True)),
        (asked(), True, DraftPlan(None, CHAIN_OF_4, "chain")),
        (asked("static", lookup=False), False, DraftPlan(None, CHAIN_OF_4, "chain")),
        (asked(draft_max=2), True, DraftPlan(None, FixedTree([[0], [0, 0]]), "chain")),
        (asked("dynamic", draft_max=7), False, DraftPlan(None, UNKNOWN, "dynamic")),
        (asked("dynamic", recycling=True), False, DraftPlan(None, UNKNOWN, "dynamic", recycling=True)),
        (asked("chain_4"), False, DraftPlan(None, FixedTree(CHAIN.choices), "chain_4")),
    ],
)
def test_a_draft_model_fills_trees(options: DraftOptions, repeats: bool, expected: DraftPlan) -> None:
    options = dataclasses.replace(options, draft_model=str(SMALL.file))
    expected = dataclasses.replace(expected, draft_model=DraftModel(SMALL.file, options.draft_max or 4))
    tree = CHAIN if drafting.named_tree(options) else None
    # The model's own heads are left alone.
    assert drafting.plan(options, CPU, tree=tree, repeats=repeats) == expected
    assert drafting.heads_to_load(options, CPU) is None
    assert not drafting.uses_profile(options)
    assert drafting.plan(dataclasses.replace(options, no_spec=True), CPU) == NOTHING


@pytest.mark.parametrize(
    ("options", "model", "message"),
    [
        (asked(heads="given.gguf", draft_model=str(BASE)), CPU,
         "--draft-model cannot be combined with --heads: leave one out"),
        (asked(recycling=True, draft_model=str(BASE)), CPU,
         "--recycling works only with dynamic trees, not with a chain: add --tree dynamic"),
        (asked(draft_model=str(BASE)), MAMBA,
         "m.gguf is a recurrent model (mamba): leave out --draft-model"),
    ],
)  # fmt: skip
def test_drafters_that_do_not_fit_together(options: DraftOptions, model: ModelFacts, message: str) -> None:
    with pytest.raises(MedusaError) as caught:
        drafting.plan(options, model)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "repeats", "model", "expected"),
    [
        # Which file, and whether lookup and recycling draft.
        (asked(), False, BARE, BOTH),
        (asked(), True, BARE, NOTHING),
        (asked("static"), False, BARE, BOTH),
        (asked(lookup=True), True, BARE, LOOKUP),
        (asked(lookup=False), False, BARE, RECYCLING),
        (asked(no_heads=True), False, CPU, BOTH),
        (asked(no_heads=True), True, CPU, NOTHING),
        (asked(no_heads=True, lookup=True), True, CPU, LOOKUP),
        (asked(no_heads=True, lookup=False), False, CPU, RECYCLING),
        (asked(no_heads=True, heads="given.gguf"), False, CPU, BOTH),
        (asked(recycling=False), False, BARE, LOOKUP),
        (asked(recycling=False, lookup=False), False, BARE, NOTHING),
        # A tree, though nothing fills it, says that drafts are to be those of the tree.
        (asked("chain_4", no_heads=True), False, CPU, NOTHING),
        (asked("dynamic", no_heads=True), False, BARE, NOTHING),
        (asked("dynamic", no_heads=True, lookup=True), False, CPU, LOOKUP),
        (asked(no_spec=True), False, CPU, NOTHING),
        (asked(no_spec=True, lookup=True, heads="given.gguf"), False, CPU, NOTHING),
        (asked("chain_4", no_spec=True), False, BARE, NOTHING),
        (asked("dynamic", no_spec=True), True, BARE, NOTHING),
        # A recurrent model follows chains.
        (asked(), False, MAMBA, LOOKUP),
        (asked("static"), False, MAMBA, LOOKUP),
        (asked(lookup=False), False, MAMBA, NOTHING),
        (asked(no_heads=True), False, MAMBA_HEADS, LOOKUP),
        (asked(no_spec=True, lookup=True), False, MAMBA_HEADS, NOTHING),
    ],
)
def test_without_heads(options: DraftOptions, repeats: bool, model: ModelFacts, expected: DraftPlan) -> None:
    assert drafting.plan(options, model, repeats=repeats) == expected
    layers = dataclasses.replace(options, no_drafter=True)  # else MTP layers might fill it
    assert drafting.named_tree(layers) is None
    assert drafting.uses_profile(options) == (not options.no_heads and not options.no_spec)


@pytest.mark.parametrize(
    ("options", "model", "file"),
    [
        (asked(), BARE, None),
        (asked(), CPU, BASE),
        (asked(), DEMO, BUNDLED),
        (asked(), dataclasses.replace(DEMO, holds_heads=True), BASE),
        (asked(heads="given.gguf"), BARE, GIVEN),
        (asked(heads="given.gguf"), CPU, GIVEN),
        (asked(heads="given.gguf"), DEMO, GIVEN),
        (asked(heads="given.gguf", no_heads=True), DEMO, None),
        (asked(heads="given.gguf", no_spec=True), CPU, None),
    ],
)
def test_the_heads_that_are_given_come_before_the_model_s_own(
    options: DraftOptions, model: ModelFacts, file: Path | None
) -> None:
    model = given(model, options)
    assert drafting.heads_file(options, model.ref, model.holds_heads) == file
    assert drafting.heads_to_load(options, model) == file
    assert drafting.plan(options, model, HEADS).heads == file


@pytest.mark.parametrize(
    ("tree", "repeats", "model", "heads", "tuned", "expected"),
    [
        # Nothing asked for, nothing tuned: dynamic on any device.
        (None, False, CPU, HEADS, None, dynamic()),
        (None, False, CPU, NO_TREE, None, dynamic()),
        (None, False, GPU, HEADS, None, dynamic()),
        (None, False, GPU, NO_TREE, None, dynamic()),
        (None, False, METAL, HEADS, None, dynamic()),
        # What was tuned.
        (None, False, CPU, HEADS, TUNED, fixed("tuned", FIXED)),
        (None, False, GPU, HEADS, TUNED, fixed("tuned", FIXED)),
        (None, False, CPU, HEADS, TUNED_DYNAMIC, dynamic(LEARNED)),
        (None, False, GPU, HEADS, TUNED_DYNAMIC, dynamic(LEARNED)),
        (None, False, CPU, HEADS, TUNED_ONLY_DYNAMIC, dynamic(LEARNED)),
        (None, False, CPU, HEADS, TUNED_PLAIN, plain()),
        (None, False, CPU, HEADS, TUNED_RECYCLING, dynamic(LEARNED, recycling=True)),
        (None, True, CPU, HEADS, TUNED_RECYCLING, fixed("tuned", FIXED, lookup=False, watchdog=False)),
        ("static", False, CPU, HEADS, TUNED_RECYCLING, fixed("tuned", FIXED)),
        ("dynamic", False, CPU, HEADS, TUNED_RECYCLING, dynamic(LEARNED, lookup=False)),
        (None, False, GPU, HEADS, TUNED_PLAIN, plain()),
        # A fixed tree is asked for, or steps that repeat, which leaves lookup and the watchdog out, too.
        ("static", False, CPU, HEADS, None, fixed("heads", STORED, 4)),
        ("static", False, CPU, NO_TREE, None, fixed("cpu_4", DEFAULT_CPU)),
        ("static", False, GPU, HEADS, None, fixed("heads", STORED)),
        ("static", False, GPU, NO_TREE, None, fixed("mc_sim_7b_63", DEFAULT_GPU)),
        ("static", False, METAL, HEADS, None, fixed("heads", STORED, 4)),
        ("static", False, METAL, NO_TREE, None, fixed("cpu_4", DEFAULT_CPU)),
        ("static", False, CPU, HEADS, TUNED, fixed("tuned", FIXED)),
        ("static", False, CPU, HEADS, TUNED_DYNAMIC, fixed("tuned", FIXED)),
        ("static", False, CPU, HEADS, TUNED_PLAIN, plain()),
        ("static", False, CPU, HEADS, TUNED_ONLY_DYNAMIC, plain()),
        (None, True, CPU, HEADS, None, fixed("heads", STORED, 4, lookup=False, watchdog=False)),
        (None, True, CPU, NO_TREE, None, fixed("cpu_4", DEFAULT_CPU, lookup=False, watchdog=False)),
        (None, True, GPU, HEADS, None, fixed("heads", STORED, lookup=False, watchdog=False)),
        (None, True, GPU, NO_TREE, None, fixed("mc_sim_7b_63", DEFAULT_GPU, lookup=False, watchdog=False)),
        (None, True, METAL, HEADS, None, fixed("heads", STORED, 4, lookup=False, watchdog=False)),
        (None, True, CPU, HEADS, TUNED, fixed("tuned", FIXED, lookup=False, watchdog=False)),
        (None, True, CPU, HEADS, TUNED_DYNAMIC, fixed("tuned", FIXED, lookup=False, watchdog=False)),
        (None, True, CPU, HEADS, TUNED_ONLY_DYNAMIC, plain(others=False)),
        ("static", True, CPU, HEADS, None, fixed("heads", STORED, 4, lookup=False, watchdog=False)),
        # A dynamic tree is asked for: also on a GPU, also where steps repeat, with what was learned where it is known.
        ("dynamic", False, CPU, HEADS, None, dynamic(lookup=False)),
        ("dynamic", False, GPU, HEADS, None, dynamic(lookup=False)),
        ("dynamic", True, CPU, HEADS, None, dynamic(lookup=False)),
        ("dynamic", False, CPU, HEADS, TUNED, dynamic(LEARNED, lookup=False)),
        ("dynamic", False, GPU, HEADS, TUNED_PLAIN, dynamic(LEARNED, lookup=False)),
        ("dynamic", True, CPU, HEADS, TUNED_DYNAMIC, dynamic(LEARNED, lookup=False)),
    ],
)
def test_the_tree_of_heads(
    tree: str | None, repeats: bool, model: ModelFacts, heads: HeadsFacts, tuned: Tuned | None, expected: DraftPlan
) -> None:
    options = asked(tree)
    assert drafting.uses_profile(options)
    assert drafting.named_tree(options) is None
    found = drafting.plan(options, model, heads, tuned, repeats=repeats)
    assert found == expected
    assert found.dynamic == (expected.tree_name == "dynamic")


@pytest.mark.parametrize(
    ("options", "repeats", "model", "tuned", "expected"),
    [
        # Without heads: as asked for, whatever lookup does, also where steps repeat.
        (asked(recycling=True), False, BARE, None, BOTH),
        (asked(recycling=True), True, BARE, None, RECYCLING),
        (asked(recycling=True, lookup=False), False, BARE, None, RECYCLING),
        (asked("static", recycling=True), False, BARE, None, BOTH),
        (asked(recycling=True, no_heads=True), False, CPU, None, BOTH),
        (asked("chain_4", recycling=True, no_heads=True), False, CPU, None, RECYCLING),
        (asked(recycling=True, no_spec=True), False, CPU, None, NOTHING),
        (asked(recycling=True, no_spec=True), False, MAMBA, None, NOTHING),
        # Beside heads: in a dynamic tree, alone where the heads draft nothing, not beside a fixed tree.
        (asked(recycling=True), False, CPU, None, dynamic(recycling=True)),
        (asked(recycling=True), False, CPU, TUNED_DYNAMIC, dynamic(LEARNED, recycling=True)),
        (asked("dynamic", recycling=True), False, GPU, None, dynamic(lookup=False, recycling=True)),
        (asked("dynamic", recycling=True), True, CPU, TUNED, dynamic(LEARNED, lookup=False, recycling=True)),
        (asked(recycling=True), False, CPU, TUNED_PLAIN, plain()),
        (asked(recycling=False), False, CPU, TUNED_RECYCLING, dynamic(LEARNED)),
        (asked(recycling=True), False, CPU, TUNED, fixed("tuned", FIXED)),
        (asked(recycling=True), True, CPU, None, fixed("heads", STORED, 4, lookup=False, watchdog=False)),
        (asked(recycling=True), False, GPU, None, dynamic(recycling=True)),
        (asked(recycling=True), True, GPU, None, fixed("heads", STORED, lookup=False, watchdog=False)),
    ],
)
def test_recycling_beside_heads_is_asked_for_and_needs_a_dynamic_tree(
    options: DraftOptions, repeats: bool, model: ModelFacts, tuned: Tuned | None, expected: DraftPlan
) -> None:
    assert drafting.plan(options, model, HEADS, tuned, repeats=repeats) == expected


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("model", [CPU, GPU])
@pytest.mark.parametrize(
    ("tree", "name", "choices"),
    [
        (CHAIN, "chain_4", CHAIN.choices),
        (NamedTree("wide", [[3], [3, 0]]), "", None),
        (WRITTEN, "my.json", WRITTEN.choices),
        # Kept under its name, although it is plain decoding: the person wrote it.
        (NamedTree("my.json", [], strict=True), "my.json", None),
    ],
)
def test_a_tree_that_is_named_is_kept_to(
    tree: NamedTree, name: str, choices: trees.Choices | None, model: ModelFacts, repeats: bool
) -> None:
    chosen = None if choices is None else FixedTree(choices)
    for lookup in (None, True, False):
        options = asked(tree.name, lookup=lookup)
        assert drafting.named_tree(options) == tree.name
        assert not drafting.uses_profile(options)
        expected = DraftPlan(BASE, chosen, name, bool(lookup))
        assert drafting.plan(options, model, HEADS, tree=tree, repeats=repeats) == expected


@pytest.mark.parametrize(
    ("tuned", "tree", "expected"),
    [
        (None, None, fixed(drafting.STORED_TREE, [[0], [0, 0]], 4)),
        (Tuned([[0], [1], [0, 1]], False, LEARNED), None, fixed(drafting.TUNED_TREE, [[0]])),
        (None, CHAIN, fixed("chain_4", [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]], lookup=False, watchdog=False)),
        (None, NamedTree("my.json", [[0], [0, 0]], strict=True), fixed("my.json", FIXED, lookup=False, watchdog=False)),
    ],
)
def test_a_recurrent_model_follows_the_likeliest_path_of_a_tree(
    tuned: Tuned | None, tree: NamedTree | None, expected: DraftPlan
) -> None:
    options = asked(tree.name if tree else "static")
    assert drafting.plan(options, MAMBA_HEADS, HEADS, tuned, tree=tree) == expected
    assert drafting.plan(asked(), MAMBA_HEADS, HEADS).dynamic


@pytest.mark.parametrize("choices", [[[3], [3, 0]], [[5]]])
def test_a_tree_of_ranks_that_the_heads_do_not_have_drafts_nothing(choices: trees.Choices) -> None:
    assert drafting.plan(asked(), CPU, HEADS, Tuned(choices, False, LEARNED)) == plain()
    assert drafting.plan(asked("static"), GPU, HeadsFacts(2, 3, choices)) == plain()


@pytest.mark.parametrize(
    ("options", "model", "heads", "tree", "message"),
    [
        (asked("chain_4"), BARE, None, CHAIN, "--tree needs draft heads, and m.gguf has none: give --heads FILE"),
        (asked("dynamic"), BARE, None, None, "--tree needs draft heads, and m.gguf has none: give --heads FILE"),
        (asked("dynamic"), MAMBA, None, None, "--tree needs draft heads, and m.gguf has none: give --heads FILE"),
        (
            asked("my.json"),
            MAMBA_HEADS,
            HEADS,
            WRITTEN,
            "m.gguf is a recurrent model (mamba), which can check a chain of drafts, not a tree: "
            "leave out --tree, or give one path ([0], [0, 0], ...)",
        ),
        (
            asked("chain_4", recycling=True),
            CPU,
            HEADS,
            CHAIN,
            "--recycling works only with dynamic trees, not with --tree chain_4: leave one out",
        ),
        (
            asked("static", recycling=True),
            GPU,
            HEADS,
            None,
            "--recycling works only with dynamic trees, not with --tree static: leave one out",
        ),
        (
            asked("my.json"),
            CPU,
            HEADS,
            NamedTree("my.json", [[0], [0, 0], [0, 0, 0]], strict=True),
            "my.json: the tree is 3 deep, the heads draft 2 tokens: leave out what is deeper than 2",
        ),
        (
            asked("my.json"),
            CPU,
            HEADS,
            NamedTree("my.json", [[0], [3]], strict=True),
            "my.json: rank 3 is past the heads' 3 tokens",
        ),
    ],
)
def test_what_does_not_fit_together_is_said(
    options: DraftOptions, model: ModelFacts, heads: HeadsFacts | None, tree: NamedTree | None, message: str
) -> None:
    with pytest.raises(MedusaError) as caught:
        drafting.plan(options, given(model, options), heads, tree=tree)
    assert str(caught.value) == message


def test_a_random_tree_is_drawn_for_the_heads_that_there_are() -> None:
    tree = trees.resolve("random:8:1")
    assert isinstance(tree, trees.RandomTree)
    widths = tree.widths(HEADS.head_count, HEADS.output_rows)
    found = drafting.plan(asked("random:8:1"), CPU, HEADS, tree=tree)
    assert found.tree == FixedTree(trees.cartesian(widths))
    assert found.tree_name == trees.cartesian_name(widths)
    assert len(widths) <= 2
    assert max(widths) <= 3


def test_a_tree_larger_than_the_context_is_told() -> None:
    plan = drafting.plan(asked("cartesian:3,1"), CPU, HEADS, tree=trees.resolve("cartesian:3,1"))
    for context in (0, 7, 8):
        drafting.check_context(plan, context)
    with pytest.raises(MedusaError) as caught:
        drafting.check_context(plan, 6)
    assert str(caught.value) == (
        "cartesian:3,1 has 7 nodes, the context holds 6 tokens: give a smaller tree or a larger -c"
    )
    drafting.check_context(dynamic(), 1)


def test_methods_of_a_benchmark_are_options_of_the_same_plan() -> None:
    from medusa_cli.bench.methods import METHODS

    # Whatever tree and heads medusa is measured with, the other methods draft as they do without them.
    options = asked("dynamic", heads="given.gguf", draft_model=str(SMALL.file))
    for name, expected in (
        ("stock", NOTHING),
        ("plain", NOTHING),
        ("llama-lookup", NOTHING),
        ("llama-draft-model", NOTHING),
        ("draft-model", DraftPlan(tree=CHAIN_OF_4, tree_name="chain", draft_model=SMALL)),
        ("draft-model-tree", DraftPlan(tree=UNKNOWN, tree_name="dynamic", draft_model=SMALL)),
        ("lookahead", NOTHING),  # it drafts in a session of its own
        ("lookup", LOOKUP),
        ("medusa", DraftPlan(GIVEN, UNKNOWN, "dynamic")),
        ("medusa+lookup", DraftPlan(GIVEN, UNKNOWN, "dynamic", lookup=True)),
        ("lookup+recycling", BOTH),
        ("medusa+lookup+recycling", DraftPlan(GIVEN, UNKNOWN, "dynamic", lookup=True, recycling=True)),
    ):
        assert drafting.plan(METHODS[name].draft(options), given(CPU, options), HEADS) == expected, name
    # Where a fixed tree would be chosen, recycling is still measured.
    found = drafting.plan(METHODS["medusa+lookup+recycling"].draft(asked()), GPU, HEADS, TUNED)
    assert found == dynamic(LEARNED, recycling=True)
