"""Recipes in a file: what they may say, what it does to the heads, and the authors' layouts of what comes out."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from command_line import invoke
from fixtures import BASE_HIDDEN
from hypothesis import given
from hypothesis import strategies as st
from killed_training import options, tiny_model
from rich.console import Console

from medusa_cli import cli, native
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import train
from medusa_cli.training.heads.layers import HeadInputs, Heads, HeadShape, PrefixLayer, PrefixShape
from medusa_cli.training.heads.loss import Everything, Likeliest, heads_loss
from medusa_cli.training.heads.rows import noisy
from medusa_cli.training.options import KEYS, RecipeFile, TrainOptions, check_together, read_recipe
from medusa_cli.training.recipes import DEPTH_WEIGHT, RECIPES, WHOLE, Recipe, TextRecipe

DOCS = Path(__file__).parents[2] / "docs"
RECIPE_ALONE = {entry.name for made in (Recipe, TextRecipe) for entry in fields(made)}
"""Keys that never were options."""
PUBLISHED = sorted((DOCS / "recipes").glob("*.toml"))


# --- the file --------------------------------------------------------------------------------------


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    said = {"kind": "medusa", "heads": 5, "lm_head": "own", "teacher_top": "all", "noise": 75, "turns": 4}
    (tmp_path / "a.json").write_text(json.dumps(said))
    (tmp_path / "a.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in said.items()))
    one, other = (read_recipe(tmp_path / name) for name in ("a.json", "a.toml"))
    assert one.values == other.values == said
    assert one.heads("medusa") == Recipe(1, 1e-3, 75, 0.01, 512, lm_head="own", teacher_top=WHOLE)
    assert one.text() == TextRecipe(turns=4)
    assert RecipeFile().heads("hydra++") == RECIPES["hydra++"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nois = 1", "unknown key 'nois', choose from kind, heads"),
        ('heads = "five"', 'heads is "five", it must be a whole number, 1 to 16'),
        ("heads = true", "heads is true"),
        ("heads = 17", "heads is 17"),
        ("rate = 0", "rate is 0, it must be a number above 0 to 1"),
        ("noise = nan", "noise is NaN"),
        ("noise = -1", "noise is -1, it must be a number from 0"),
        ('draft_vocab = "some"', 'a whole number, 100 to 16777216, or "all"'),
        ('lm_head = "shared"', 'it must be one of "base", "own"'),
        ("turns = [2]", r"turns is \[2\]"),
        ("objective = 0", "objective is 0, it must be one of"),
        ("draft_vocab = 99", "draft_vocab is 99"),
        ("tokens = 5", "tokens is 5, it must be a whole number, 1000 to"),
        ("parallel = 500", "parallel is 500"),
        ("joint_rounds = 0", "joint_rounds is 0"),
        ('work_dir = ""', 'work_dir is "", it must be a name'),
        ("kind", "not TOML"),
        ("kind = 'medusa'\nkind = 'hydra'", "not TOML"),
        ("[heads]\nkind = 1", "heads is"),
        ("x = " + "[" * 9999, "not TOML|unknown key"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(MedusaError, match=message) as error:
        read_recipe(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    cases = {"list.json": (b"[1]", "holds no keys"), "binary.toml": (b"\xff\xfe", "not UTF-8")}
    cases |= {"cut.json": (b'{"kind": ', "not JSON"), "long.toml": (b"#" * 70000, "are too many for a recipe")}
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MedusaError, match=message):
            read_recipe(tmp_path / name)
    with pytest.raises(MedusaError, match="cannot be read"):
        read_recipe(tmp_path / "none.toml")


@given(st.dictionaries(st.sampled_from(sorted(KEYS)), st.none() | st.booleans() | st.floats() | st.text(max_size=9)))
def test_any_values_are_taken_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, said: Any) -> None:
    path = tmp_path_factory.mktemp("recipe") / "r.json"
    path.write_text(json.dumps(said))
    wrong = [key for key, value in said.items() if not KEYS[key].fits(value)]
    if not wrong:
        assert read_recipe(path).values == said
        return
    with pytest.raises(MedusaError) as error:
        read_recipe(path)
    assert f": {wrong[0]} is " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "objective", "changes", "message"),
    [
        ("hydra", "truth", {"prefix": "context"}, 'are kind "hydra\\+\\+"'),
        ("hydra++", "truth", {"prefix": "none"}, "has a prefix layer"),
        ("medusa", "truth", {"embedding_noise": 1.0}, "read no embeddings"),
        ("medusa", "truth", {"teacher_top": 64}, "goes with objective"),
        ("recurrent", "truth", {"blocks": 2}, "blocks: a recurrent head has one cell"),
        ("recurrent", "truth", {"lm_head": "own"}, "lm_head: a recurrent head has one cell"),
    ],
)
def test_values_that_do_not_go_together(kind: str, objective: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MedusaError, match=message):
        check_together(kind, objective, RecipeFile(values=changes).heads(kind), "r.toml")


def test_an_option_and_the_file_do_not_say_the_same_thing(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('kind = "medusa"\n')
    recipe, output = str(tmp_path / "r.toml"), str(tmp_path / "o.gguf")
    code, _, said = invoke("train", "none.gguf", "-o", output, "--recipe", recipe, "--kind", "hydra")
    assert code == 1
    assert "--kind: " in said
    assert "leave one of them out" in said


def test_every_key_reaches_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[TrainOptions] = []
    monkeypatch.setattr(train, "run", seen.append)
    said: dict[str, Any] = {
        "objective": "truth", "seed": 4, "tokens": 5000, "parallel": 8, "draft_vocab": "all", "streams_layers": 2,
        "joint_layers": "all", "joint_strategy": "truth", "joint_warmup": "sine", "joint_rate": 0.1,
        "joint_heads_rate": 2, "joint_weight": 0.5, "joint_rounds": 1.5, "joint_batch": 700,
        "adapter": "a.gguf", "export_hf": "hf", "work_dir": "w", "heads": 3, "kind": "medusa",
        "answers": "given", "start": "s.gguf",
    }  # fmt: skip
    (tmp_path / "r.json").write_text(json.dumps({**said, "noise": 7, "turns": 4}))
    base, output = tiny_model(tmp_path / "base.gguf"), str(tmp_path / "o.gguf")
    assert invoke("train", str(base), "-o", output, "--joint", "--recipe", str(tmp_path / "r.json"))[0] == 0
    (given,) = seen
    assert (given.draft_vocab, given.whole_vocabulary, given.joint_layers) == (None, True, None)
    for key in said.keys() - {"draft_vocab", "joint_layers"}:
        value = getattr(given, key)
        assert (str(value) if isinstance(value, Path) else value) == said[key], key
    assert (given.recipe.noise, given.text.turns) == (7, 4)
    assert said.keys() | {entry.name for made in (Recipe, TextRecipe) for entry in fields(made)} == KEYS.keys()


@pytest.mark.parametrize("option", ["-s", *(f"--{key.replace('_', '-')}" for key in KEYS)])
def test_an_option_that_became_a_key_says_so(option: str) -> None:
    parser: Any = typer.main.get_command(cli.app)
    key = "seed" if option == "-s" else option[2:].replace("-", "_")
    if any(option in one.opts for one in parser.commands["train"].params) or key in RECIPE_ALONE:
        return
    code, out, said = invoke("train", "model.gguf", option, "1")
    assert (code, out, said.count("\n")) == (2, "", 1)
    assert f"{option} " in said
    assert f"key `{key}` " in said


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_the_published_recipes_can_be_used(path: Path) -> None:
    file = read_recipe(path)
    kind, objective = file.values["kind"], file.values["objective"]
    check_together(kind, objective, file.heads(kind), path.name)


def test_the_commands_in_the_pages_are_understood() -> None:
    """Their recipes, too, where the page names one that there is."""
    parser: Any = typer.main.get_command(cli.app)
    lines = [
        line.partition("medusa train ")[2].replace("KIND", "hydra")
        for page in sorted(DOCS.rglob("*.md"))
        for line in re.findall(r"^    .*medusa train .*$", page.read_text("utf-8").replace("\\\n", " "), re.MULTILINE)
        if "[" not in line
    ]
    assert len(lines) > 10
    for line in lines:
        with parser.commands["train"].make_context("train", shlex.split(line, comments=True)) as context:
            recipe = context.params["recipe"]
        if recipe is not None and recipe.parts[0] == "docs":
            read_recipe(DOCS.parent / recipe)


def test_every_key_is_documented() -> None:
    page = (DOCS / "recipes.md").read_text("utf-8")
    assert re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE) == list(KEYS)
    assert all(f"({path.parent.name}/{path.name})" in page for path in PUBLISHED)


# --- what it does ----------------------------------------------------------------------------------


def test_the_whole_teacher_and_own_matrices_have_the_gradients_of_autograd() -> None:
    torch.manual_seed(0)
    z, output = torch.randn(3, 11, 8), torch.randn(3, 20, 8)
    states, rows = torch.randn(11, 3, 8), torch.randn(20, 8)
    target = torch.randint(-1, 20, (11, 3))
    ours = [value.clone().requires_grad_() for value in (z, output)]
    theirs = [value.clone().requires_grad_() for value in (z, output)]
    loss = heads_loss(ours[0], target, ours[1], 4, Everything(states, rows))
    expected = torch.zeros(())
    for k in range(3):
        known = target[:, k] >= 0
        wanted = torch.softmax(states[known, k] @ rows.T, dim=1)
        logits = theirs[0][k][known] @ theirs[1][k].T
        expected = expected + DEPTH_WEIGHT ** (k + 1) * torch.nn.functional.cross_entropy(logits, wanted)
    torch.testing.assert_close(loss, expected)
    (3 * loss).backward()
    (3 * expected).backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_frozen_matrix_gets_no_gradient_and_few_tokens_are_a_teacher_too() -> None:
    torch.manual_seed(0)
    z, output = torch.randn(2, 5, 8, requires_grad=True), torch.randn(9, 8)
    p = torch.softmax(torch.randn(5, 2, 9), dim=-1)
    ids = torch.arange(9).expand(5, 2, 9)
    target = torch.zeros(5, 2, dtype=torch.int64)
    few = heads_loss(z, target, output, 3, Likeliest(ids, p))
    entropies = [torch.nn.functional.cross_entropy(z[k] @ output.T, p[:, k]) for k in (0, 1)]
    expected = sum(DEPTH_WEIGHT ** (k + 1) * entropy for k, entropy in enumerate(entropies))
    torch.testing.assert_close(few, expected)
    few.backward()
    assert output.grad is None


def test_the_prefix_layer_sees_the_context_as_if_it_were_text() -> None:
    torch.manual_seed(0)
    layer = PrefixLayer(PrefixShape.of(BASE_HIDDEN))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, BASE_HIDDEN**-0.5)
    texts = [torch.randn(rows, BASE_HIDDEN) for rows in (9, 4, 6)]
    before = [3, 0, 5]
    alone = torch.cat([layer(text, (len(text),), torch.float32)[at:] for text, at in zip(texts, before, strict=True)])
    answers = [text[at:] for text, at in zip(texts, before, strict=True)]
    context = [text[:at] for text, at in zip(texts, before, strict=True)]
    seen = layer(torch.cat(answers), [len(rows) for rows in answers], torch.float32, context)
    torch.testing.assert_close(seen, alone)
    blind = layer(torch.cat(answers), [len(rows) for rows in answers], torch.float32)
    assert not torch.allclose(blind, alone, atol=1e-3)


def test_noise_has_the_published_scale() -> None:
    inputs = HeadInputs(torch.zeros(2, 64), torch.zeros(2, 3, 64))
    sequences = torch.tensor([100, 400])
    found = noisy(inputs, sequences, Recipe(1, 1e-3, 75.0, 0, 1, embedding_noise=5.0), seed=3, embedding_scale=3.0)
    assert found.embedded is not None
    for row, length in enumerate(sequences.tolist()):
        for values, alpha in ((found.states[row], 75), (found.embedded[row], 15)):
            most = alpha / math.sqrt(length * 64)
            assert 0.8 * most < float(values.abs().max()) <= most
    assert noisy(inputs, sequences, Recipe(1, 1e-3, 0, 0, 1), seed=3) is inputs
    again = noisy(inputs, sequences, Recipe(1, 1e-3, 75.0, 0, 1), seed=3)
    torch.testing.assert_close(again.states, found.states)
    assert again.embedded is inputs.embedded


def test_own_matrices_belong_to_the_heads() -> None:
    shared = torch.randn(7, 16)
    assert Heads(HeadShape("medusa", 2, 16, 1)).output(shared) is shared
    own = Heads(HeadShape("medusa", 2, 16, 1, own_rows=7))
    assert own.output(shared).shape == (2, 7, 16)
    assert own.output(shared.bfloat16()).dtype == torch.bfloat16


# --- whole runs ------------------------------------------------------------------------------------

RUNS: dict[str, dict[str, Any]] = {
    "medusa-1": {"kind": "medusa", "heads": 5, "lm_head": "own", "draft_vocab": "all", "objective": "truth"},
    "medusa on the base's": {"kind": "medusa", "draft_vocab": "all", "teacher_top": "all"},
    "medusa, own and draft": {"kind": "medusa", "lm_head": "own", "draft_vocab": 100},
    "medusa behind a prefix layer": {"kind": "medusa", "prefix": "context", "blocks": 2},
    "hydra of one block": {"kind": "hydra", "blocks": 1, "lm_head": "own", "draft_vocab": "all", "noise": 75},
    "hydra, own and draft": {"kind": "hydra", "lm_head": "own", "embedding_noise": 75},
    "prefix-mlp": {"kind": "hydra++", "blocks": 1, "objective": "truth"},
    "hydra++, answers alone": {"kind": "hydra++", "prefix": "answer", "teacher_top": "all"},
}


def run_of(said: dict[str, Any], folder: Path, **changes: Any) -> TrainOptions:
    file = RecipeFile(folder / "r.json", said)
    vocabulary = said.get("draft_vocab")
    given: dict[str, Any] = {
        **{key: said[key] for key in ("kind", "objective", "heads") if key in said},
        "draft_vocab": None if vocabulary == "all" else vocabulary,
        "whole_vocabulary": vocabulary == "all",
        "file": file,
        "console": Console(file=io.StringIO()),
    }
    return options(tiny_model(folder / "base.gguf"), folder, **{**given, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_each_kind_runs_and_comes_back_from_the_authors_layout(tmp_path: Path, name: str) -> None:
    said = RUNS[name]
    asked = run_of(said, tmp_path, export_hf=tmp_path / "hf")
    train.run(asked)
    model = native.Model(str(asked.model))
    before = native.Heads(model, str(asked.output))
    assert (before.kind, before.head_count) == (said["kind"], said.get("heads", 2))
    assert before.block_count == said.get("blocks", RECIPES[said["kind"]].blocks)
    assert before.has_prefix == (asked.recipe.prefix != "none")
    whole = said.get("draft_vocab") == "all"
    assert before.lm_head == (said.get("lm_head", "base") if whole else "draft_vocab")
    metadata = native.read_gguf(str(asked.output)).metadata
    if before.has_prefix:
        assert metadata["medusa.prefix.from_answer"] is (asked.recipe.prefix == "answer")

    again = tmp_path / "again.gguf"
    arguments = ["convert", tmp_path / "hf", "--base", asked.model, "-o", again, "--sidecar", "--heads-quant", "F16"]
    code, _, text = invoke(*map(str, arguments))
    assert code == 0, text
    after = native.Heads(model, str(again))
    assert (after.kind, after.has_prefix, after.block_count) == (before.kind, before.has_prefix, before.block_count)
    states = np.random.default_rng(0).standard_normal((9, BASE_HIDDEN)).astype(np.float32)
    path = [20, 30, 40, 50, 60][: before.head_count]
    drafted = before.draft_tokens(states, 1, path)
    ours, theirs = before.probabilities(states, path), after.probabilities(states, path)
    tokens = np.array([row[0] for row in drafted])
    assert [row[0] for row in after.draft_tokens(states, 1, path)] == tokens.tolist()
    np.testing.assert_allclose(theirs.max(axis=1), ours.max(axis=1), rtol=0.05)

    prompt = list(range(5, 90))
    plain = native.Session(model).generate(prompt, max_tokens=40, ignore_eos=True)
    at_once, by_token = (native.Session(model, before, tree=native.Tree([[0], [1], [0, 0]])) for _ in range(2))
    for length in range(1, len(prompt)):  # each token the last of its prompt: its state comes with its logits
        by_token.generate(prompt[:length], max_tokens=1)
    found = [session.generate(prompt, max_tokens=40, ignore_eos=True) for session in (at_once, by_token)]
    assert all(one.tokens == plain.tokens for one in found)
    assert found[0].stats["steps"] == found[1].stats["steps"]
    assert found[0].stats["acceptance_per_depth"] == found[1].stats["acceptance_per_depth"]


def test_longer_answers_are_other_text(tmp_path: Path) -> None:
    asked = run_of({"kind": "medusa", "longest_answer": 500, "draft_vocab": 100}, tmp_path)
    train.run(asked)
    usual = run_of({"kind": "medusa", "draft_vocab": 100}, tmp_path, output=tmp_path / "usual.gguf")
    train.run(usual)
    assert len(list((tmp_path / "work").iterdir())) == 2
    record = json.loads((tmp_path / "out.train.json").read_text())
    assert record["options"]["text"]["longest_answer"] == 500
    assert record["recipe"]["prefix"] == "none"
