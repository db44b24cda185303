"""Who drafts, as a table: what is asked for, the model, its heads and what was tuned -> the plan, or the message."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from medusa_cli.decoding import drafting, tree_shapes, trees
from medusa_cli.decoding.devices import DeviceKind
from medusa_cli.decoding.drafting import DraftPlan, FixedTree, HeadsFacts, ModelFacts, Tuned
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
TUNED_ONLY_DYNAMIC = Tuned([], True, LEARNED)

CHAIN = trees.named("chain_4")
WRITTEN = NamedTree("my.json", [[0], [2]], strict=True)


def asked(
    tree: str | None = None,
    *,
    heads: str | None = None,
    lookup: bool | None = None,
    no_heads: bool = False,
    no_spec: bool = False,
    recycling: bool = False,
) -> DraftOptions:
    return DraftOptions(heads=heads, tree=tree, lookup=lookup, no_heads=no_heads, no_spec=no_spec, recycling=recycling)


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


def plain(*, lookup: bool = True, recycling: bool = False) -> DraftPlan:
    """Heads are loaded, and draft nothing."""
    return DraftPlan(BASE, lookup=lookup, recycling=recycling)


NOTHING, LOOKUP = DraftPlan(), DraftPlan(lookup=True)
DEFAULT_CPU, DEFAULT_GPU = trees.named("cpu_4").choices, trees.named("mc_sim_7b_63").choices


@pytest.mark.parametrize(
    ("options", "seeded", "model", "expected"),
    [
        # Which file, and whether lookup drafts.
        (asked(), False, BARE, LOOKUP),
        (asked(), True, BARE, NOTHING),
        (asked("static"), False, BARE, LOOKUP),
        (asked(lookup=True), True, BARE, LOOKUP),
        (asked(lookup=False), False, BARE, NOTHING),
        (asked(no_heads=True), False, CPU, LOOKUP),
        (asked(no_heads=True), True, CPU, NOTHING),
        (asked(no_heads=True, lookup=True), True, CPU, LOOKUP),
        (asked(no_heads=True, lookup=False), False, CPU, NOTHING),
        (asked(no_heads=True, heads="given.gguf"), False, CPU, LOOKUP),
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
def test_without_heads(options: DraftOptions, seeded: bool, model: ModelFacts, expected: DraftPlan) -> None:
    assert drafting.plan(options, model, seeded=seeded) == expected
    assert drafting.named_tree(options) is None
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
    ("tree", "seeded", "model", "heads", "tuned", "expected"),
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
        (None, False, GPU, HEADS, TUNED_PLAIN, plain()),
        # A fixed tree is asked for, or a seed, which leaves lookup out too.
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
        (None, True, CPU, HEADS, None, fixed("heads", STORED, 4, lookup=False)),
        (None, True, CPU, NO_TREE, None, fixed("cpu_4", DEFAULT_CPU, lookup=False)),
        (None, True, GPU, HEADS, None, fixed("heads", STORED, lookup=False)),
        (None, True, GPU, NO_TREE, None, fixed("mc_sim_7b_63", DEFAULT_GPU, lookup=False)),
        (None, True, METAL, HEADS, None, fixed("heads", STORED, 4, lookup=False)),
        (None, True, CPU, HEADS, TUNED, fixed("tuned", FIXED, lookup=False)),
        (None, True, CPU, HEADS, TUNED_DYNAMIC, fixed("tuned", FIXED, lookup=False)),
        (None, True, CPU, HEADS, TUNED_ONLY_DYNAMIC, plain(lookup=False)),
        ("static", True, CPU, HEADS, None, fixed("heads", STORED, 4, lookup=False)),
        # A dynamic tree is asked for: also on a GPU, also with a seed, with what was learned where it is known.
        ("dynamic", False, CPU, HEADS, None, dynamic(lookup=False)),
        ("dynamic", False, GPU, HEADS, None, dynamic(lookup=False)),
        ("dynamic", True, CPU, HEADS, None, dynamic(lookup=False)),
        ("dynamic", False, CPU, HEADS, TUNED, dynamic(LEARNED, lookup=False)),
        ("dynamic", False, GPU, HEADS, TUNED_PLAIN, dynamic(LEARNED, lookup=False)),
        ("dynamic", True, CPU, HEADS, TUNED_DYNAMIC, dynamic(LEARNED, lookup=False)),
    ],
)
def test_the_tree_of_heads(
    tree: str | None, seeded: bool, model: ModelFacts, heads: HeadsFacts, tuned: Tuned | None, expected: DraftPlan
) -> None:
    options = asked(tree)
    assert drafting.uses_profile(options)
    assert drafting.named_tree(options) is None
    found = drafting.plan(options, model, heads, tuned, seeded=seeded)
    assert found == expected
    assert found.dynamic == (expected.tree_name == "dynamic")


RECYCLING, BOTH = DraftPlan(recycling=True), DraftPlan(lookup=True, recycling=True)


@pytest.mark.parametrize(
    ("options", "seeded", "model", "tuned", "expected"),
    [
        # Without heads: as asked for, whatever lookup does, also with a seed.
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
        (asked(recycling=True), False, CPU, TUNED_PLAIN, plain(recycling=True)),
        (asked(recycling=True), False, CPU, TUNED, fixed("tuned", FIXED)),
        (asked(recycling=True), True, CPU, None, fixed("heads", STORED, 4, lookup=False)),
        (asked(recycling=True), False, GPU, None, dynamic(recycling=True)),
        (asked(recycling=True), True, GPU, None, fixed("heads", STORED, lookup=False)),
    ],
)
def test_recycling_is_asked_for_and_needs_a_dynamic_tree_beside_heads(
    options: DraftOptions, seeded: bool, model: ModelFacts, tuned: Tuned | None, expected: DraftPlan
) -> None:
    assert drafting.plan(options, model, HEADS, tuned, seeded=seeded) == expected


@pytest.mark.parametrize("seeded", [False, True])
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
    tree: NamedTree, name: str, choices: trees.Choices | None, model: ModelFacts, seeded: bool
) -> None:
    chosen = None if choices is None else FixedTree(choices)
    for lookup in (None, True, False):
        options = asked(tree.name, lookup=lookup)
        assert drafting.named_tree(options) == tree.name
        assert not drafting.uses_profile(options)
        expected = DraftPlan(BASE, chosen, name, bool(lookup))
        assert drafting.plan(options, model, HEADS, tree=tree, seeded=seeded) == expected


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
            "m.gguf is a recurrent model (mamba), which follows a chain of drafts, no tree: "
            "leave out --tree, or give one path ([0], [0, 0], ...)",
        ),
        (
            asked("chain_4", recycling=True),
            CPU,
            HEADS,
            CHAIN,
            "--recycling drafts beside dynamic trees, not beside --tree chain_4: leave one out",
        ),
        (
            asked("static", recycling=True),
            GPU,
            HEADS,
            None,
            "--recycling drafts beside dynamic trees, not beside --tree static: leave one out",
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
    assert found.tree == FixedTree(tree_shapes.cartesian(widths))
    assert found.tree_name == tree_shapes.cartesian_name(widths)
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
    options = asked("dynamic", heads="given.gguf")
    for name, expected in (
        ("stock", NOTHING),
        ("plain", NOTHING),
        ("llama-lookup", NOTHING),
        ("draft-model", NOTHING),
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
