"""Whole runs of `medusa train --joint` behind the text: a new model with heads in one file, or nothing lost."""

from __future__ import annotations

import io
import json
import math
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import _native_testing as testing
import killed_training
import numpy as np
import pytest
from fixtures import BASE_VOCAB, tiny_recurrent
from killed_training import JOINT, JOINT_PHASES, tiny_model
from medusa_cli.converters.gguf.header import read_header
from medusa_cli.converters.heads.single_file import split
from random_bases import HIDDEN, KINDS, random_base
from rich.console import Console
from typer.testing import CliRunner

from medusa_cli import cli, native
from medusa_cli.models.base_file import read_base
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import loop, recipes, train
from medusa_cli.training.backbone import parity
from medusa_cli.training.backbone.fit import JointFit, heads_weight
from medusa_cli.training.backbone.shape import BaseTensors
from medusa_cli.training.options import TrainOptions
from medusa_cli.training.recipes import JointRecipe
from medusa_cli.training.resuming import NEW_MODEL
from medusa_cli.training.text.corpus import Corpus, NewText, Text

TOKENS, TOP = 1000, 3


def options(folder: Path, base: Path, **changes: Any) -> TrainOptions:
    fields: dict[str, Any] = {
        "kind": "medusa",
        "joint": True,
        "joint_layers": TOP,
        "tokens": TOKENS,
        "draft_vocab": 200,
        "threads": 1,
        "n_gpu_layers": 0,
        "work_dir": folder / "work",
        "console": Console(file=io.StringIO()),
    }
    return TrainOptions(base, folder / "out.gguf", sidecar=False, **(fields | changes))


def write_text(given: TrainOptions, prompts: bool = True) -> None:
    """A finished corpus, in place of one that the model writes: 40 answers, each a walk with few choices."""
    base = read_base(given.model)
    model = native.Model(str(given.model), n_gpu_layers=0)
    reader = native.StatesReader(model, 100, outputs=True, n_threads=1)
    corpus = Corpus(train.work_folder(given, base) / "text", HIDDEN)
    rng = np.random.default_rng(0)
    for job in range(40):
        at, length = int(rng.integers(3, BASE_VOCAB)), int(rng.integers(25, 35))
        prompt = rng.integers(3, BASE_VOCAB, 12).astype(np.int32)
        steps = np.cumsum(rng.choice([1, 2, 5], length)) + at
        tokens = (3 + steps % (BASE_VOCAB - 3)).astype(np.int32)
        states = reader.read([*prompt.tolist(), *tokens[:-1].tolist()]).post_norm
        assert states is not None
        known = prompt if prompts else prompt[:0]
        text = Text(job, f"g{job}", length, True, prompt=len(known))
        corpus.add(NewText(text, tokens, states[len(prompt) - 1 :].astype(np.float16), known))
    corpus.state.update(complete=given.asked_amount(), seconds=1.0)
    corpus.flush()


def said(given: TrainOptions) -> str:
    assert isinstance(given.console.file, io.StringIO)
    return given.console.file.getvalue()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are some twenty steps, of which each changes something."""
    quick = {name: replace(made, batch=96, rate=20 * made.rate) for name, made in recipes.JOINT_RECIPES.items()}
    monkeypatch.setattr(recipes, "JOINT_RECIPES", quick)


@pytest.fixture
def base(tmp_path: Path, small_batches: None) -> Path:
    return random_base(tmp_path / "base.gguf", "qwen2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "strategy"), [("medusa", "distill"), ("hydra", "truth"), ("hydra++", "distill"), ("recurrent", "distill")]
)
def test_a_new_model_with_heads_in_one_file(tmp_path: Path, base: Path, kind: Any, strategy: str) -> None:
    export_hf = None if kind == "recurrent" else tmp_path / "hf"
    given = options(tmp_path, base, kind=kind, joint_strategy=strategy, export_hf=export_hf)
    given.adapter = tmp_path / "adapter.gguf"
    write_text(given)
    train.run(given)
    assert export_hf is None or (export_hf / "config.json").exists()
    assert read_header(given.adapter)[0].metadata()["general.type"] == "adapter"
    split(given.output, tmp_path / "new.gguf", tmp_path / "heads.gguf")
    old, new = BaseTensors(base), BaseTensors(tmp_path / "new.gguf")
    trained = {name for name in old.tensors if name.startswith(tuple(f"blk.{layer}." for layer in range(7 - TOP, 7)))}
    for name in old.tensors:
        is_adapted = name in trained and name.endswith(".weight") and "norm" not in name
        assert np.array_equal(old.load(name), new.load(name)) != is_adapted
    model = native.Model(str(given.output), n_gpu_layers=0)
    heads = native.Heads(model, str(given.output))
    tree = native.Tree([[0], [0, 0], [1]])
    session = native.Session(model, heads, tree=tree, n_ctx=256, n_threads=1)
    session.generate([5, 6, 7], max_tokens=20, ignore_eos=True)
    assert session.last is not None
    assert len(session.last.tokens) == 20
    record = json.loads((tmp_path / "out.train.json").read_text())["joint"]
    assert record["plan"]["strategy"] == strategy
    assert record["parity"]["agreement"] > 0.98
    for distance in record["distance"].values():
        assert 0 < distance["kl"] < 5
        assert distance["top1"] > 0.2 or strategy == "truth"
    steps = record["plan"]["steps"]
    assert [point["step"] for point in record["curve"]] == list(range(1, steps + 1))
    begun, ended = record["held_out"]
    assert (begun["step"], ended["step"]) == (0, steps)
    assert abs(begun["kl"]) < 1e-6 < ended["kl"]
    # compare() normalizes ln p again for the new model: on some processors its last bit moves.
    assert begun["perplexity"] == pytest.approx(begun["base_perplexity"], rel=1e-6)
    assert "The model was changed" in said(given)
    assert set(record["heads_alone"]) == {"4", "8", "16"}
    assert f"and {record['heads_alone']['8']:.2f} for the heads alone on the unchanged model" in said(given)
    assert "Medusa-2" in str(read_header(tmp_path / "new.gguf")[0].metadata()["general.name"])
    assert not list((tmp_path / "work").rglob("*.gguf"))


def test_the_backbone_learns_what_the_strategy_says(tmp_path: Path, base: Path) -> None:
    """The text's tokens: their perplexity falls. The base's distribution: the new model stays near it."""
    found = {}
    for strategy in ("distill", "truth"):
        given = options(tmp_path, base, joint_strategy=strategy)
        write_text(given)
        train.run(given)
        found[strategy] = json.loads((tmp_path / "out.train.json").read_text())["joint"]["distance"]["own"]
    assert found["truth"]["perplexity"] < 0.9 * found["truth"]["base_perplexity"]
    assert found["distill"]["kl"] < 0.1 * found["truth"]["kl"]


def stopping_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C within the joint training's step of that number."""
    update = JointFit._update

    def stop(self: JointFit) -> None:
        update(self)
        if self.step == step and self.plan.steps < 1000:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(JointFit, "_update", stop)


def test_stopped_and_continued_is_the_same_file(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = options(tmp_path / "whole", base), options(tmp_path / "parts", base)
    for given in (whole, parts):
        given.output.parent.mkdir()
        write_text(given)
    train.run(whole)
    with monkeypatch.context() as patched:
        stopping_at(5, patched)
        with pytest.raises(KeyboardInterrupt):
            train.run(parts)
    assert not parts.output.exists()
    assert "Saved in" in said(parts)
    train.run(parts)
    assert parts.output.read_bytes() == whole.output.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed, with text that a tiny model wrote."""
    folder = tmp_path_factory.mktemp("whole")
    tiny_model(folder / "base.gguf")
    train.run(killed_training.options(folder / "base.gguf", folder, **JOINT, console=Console(file=io.StringIO())))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 needs POSIX")
@pytest.mark.parametrize("phase", JOINT_PHASES)
def test_killed_and_continued_is_the_same_file(tmp_path: Path, whole: Path, phase: str) -> None:
    given = killed_training.options(whole / "base.gguf", tmp_path, **JOINT, console=Console(file=io.StringIO()))
    for text in (whole / "work").glob("*/text"):
        shutil.copytree(text, tmp_path / "work" / text.parent.name / "text")
    program = [sys.executable, killed_training.__file__, str(given.model), str(tmp_path), phase, "joint"]
    done = subprocess.run(program, cwd=Path(__file__).parents[1] / "support", capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not given.output.exists()
    train.run(given)
    assert given.output.read_bytes() == (whole / "out.gguf").read_bytes()
    kept = {path.name for path in tmp_path.rglob("*") if path.name.endswith((".part", NEW_MODEL))}
    assert not kept


def test_a_full_disk_in_each_phase_loses_nothing(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from medusa_cli.converters.checkpoints import safetensors_file
    from medusa_cli.converters.heads import single_file

    from medusa_cli.training.backbone import merge, rewriting, states

    given = options(tmp_path, base, adapter=tmp_path / "adapter.gguf")
    write_text(given)
    phases = [
        (states, "atomic_file", ""),
        (loop, "save_checkpoint", ""),
        (merge, "atomic_file", "adapter.gguf"),
        (rewriting, "atomic_file", NEW_MODEL),
        (single_file, "atomic_file", ""),
    ]
    for module, name, ending in phases:
        real = getattr(module, name)

        def full(path: Path, *rest: object, ending: str = ending, real: Any = real) -> Any:
            if not str(path).endswith(ending):
                return real(path, *rest)
            raise MedusaError(f"{path}: no space left on the device, free some and run the command again")

        with monkeypatch.context() as patched:
            patched.setattr(module, name, full)
            with pytest.raises(MedusaError, match="no space left"):
                train.run(given)
        assert not given.output.exists()
        assert not list(given.output.parent.rglob("*.part"))
    train.run(given)
    assert given.output.exists()
    whole = given.output.read_bytes()
    given.output.unlink()
    given.export_hf = tmp_path / "hf"
    with monkeypatch.context() as patched:
        patched.setattr(safetensors_file, "atomic_file", full)
        with pytest.raises(MedusaError, match="no space left"):
            train.run(given)
    train.run(given)
    assert (tmp_path / "hf" / "model.safetensors").exists()
    assert given.output.read_bytes() == whole


@pytest.mark.parametrize(("owner", "name"), [("merge", "merge"), ("single_file", "join")])
def test_the_same_command_goes_on_where_an_adapter_is_written(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, owner: str, name: str
) -> None:
    """The adapter appears with the output, so that a stopped run left nothing that the next one would overwrite."""
    from medusa_cli.converters.heads import single_file

    from medusa_cli.training.backbone import merge

    adapter, output, recipe = tmp_path / "adapter.gguf", tmp_path / "out.gguf", tmp_path / "recipe.json"
    values = {"tokens": TOKENS, "draft_vocab": 200, "joint_layers": TOP}
    recipe.write_text(json.dumps(values | {"work_dir": str(tmp_path / "work"), "adapter": str(adapter)}))
    write_text(options(tmp_path, base))
    order = ["train", str(base), "-o", str(output), "--kind", "medusa", "--joint", "--recipe", str(recipe)]
    order += ["-t", "1", "-ngl", "0"]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr({"merge": merge, "single_file": single_file}[owner], name, stop)
        CliRunner().invoke(cli.app, order)
    assert not output.exists()
    assert not list(tmp_path.glob(".*.part"))
    found = CliRunner().invoke(cli.app, order)
    assert found.exit_code == 0, found.output
    assert output.exists()
    assert read_header(adapter)[0].metadata()["general.name"].startswith("Medusa-2 of ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter": Path("no/such/folder/a.gguf")}, "not a file name in an existing folder, choose another adapter"),
        ({"adapter": Path("a.gguf"), "joint": False}, "adapter saves what --joint trains"),
        ({"sidecar": True}, "--joint changes the model itself"),
        ({"joint_layers": 8}, "joint_layers 8: .* has 7"),
        ({"joint_layers": 0}, "joint_layers 0: it must be a whole number, 1 to .*, or .all"),
        ({"joint_strategy": "magic"}, "joint_strategy magic: it must be one of .distill., .truth., .direct."),
        ({"joint_warmup": "slow"}, "joint_warmup slow: it must be one of .both., .heads., .sine., .none."),
        ({"joint_rate": 0.0}, "joint_rate 0.0: it must be a number above 0"),
        ({"joint_heads_rate": math.inf}, "joint_heads_rate inf: it must be a number above 0"),
        ({"joint_weight": -1.0}, "joint_weight -1.0: it must be a number above 0"),
        ({"joint_rounds": 0.0}, "joint_rounds 0.0: it must be a number above 0"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, base: Path, changes: dict[str, Any], message: str) -> None:
    given = options(tmp_path, base)
    for name, value in changes.items():
        setattr(given, name, value)
    with pytest.raises(MedusaError, match=message):
        train.run(given)


def test_an_architecture_that_is_not_known_is_refused_before_any_work(tmp_path: Path) -> None:
    given = options(tmp_path, tiny_recurrent(tmp_path / "mamba.gguf"))
    with pytest.raises(MedusaError, match="not for mamba") as caught:
        train.run(given)
    assert "\n" not in str(caught.value)
    assert not [path for path in (tmp_path / "work").rglob("*") if path.is_file() and path.name != "lock"]


def test_layers_that_differ_from_the_engines_are_refused_before_any_work(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written yet, text included; what is found is kept, so that a second call does not ask again."""
    given = options(tmp_path, base)
    folder = train.work_folder(given, read_base(base))
    with monkeypatch.context() as patched:
        patched.setattr(parity, "LEAST_AGREEMENT", 1.01)
        with pytest.raises(MedusaError, match=r"agree on .* are needed") as caught:
            train.run(given)
    assert "\n" not in str(caught.value)
    assert not list(folder.rglob("*.npy"))
    write_text(given)
    train.run(given)
    assert json.loads((folder / "parity.json").read_text())["layers"] == TOP
    monkeypatch.setattr(parity, "check", None)
    given.output.unlink()
    train.run(given)
    assert given.output.exists()


def test_all_layers(tmp_path: Path, base: Path) -> None:
    """From the embeddings up: no state is stored, every layer's matrices change."""
    given = options(tmp_path, base, joint_layers=None, tokens=TOKENS)
    write_text(given)
    train.run(given)
    split(given.output, tmp_path / "new.gguf", tmp_path / "heads.gguf")
    old, new = BaseTensors(base), BaseTensors(tmp_path / "new.gguf")
    same = {name for name in old.tensors if np.array_equal(old.load(name), new.load(name))}
    assert not [name for name in same if name.startswith("blk.") and "norm" not in name and name.endswith(".weight")]
    assert "token_embd.weight" in same
    assert not list((tmp_path / "work").rglob("layer-*"))
    assert json.loads((tmp_path / "out.train.json").read_text())["options"]["joint"]["layers"] == "all"


@pytest.mark.parametrize("warmup", ["both", "heads", "sine", "none"])
def test_the_warm_ups_of_the_paper(tmp_path: Path, base: Path, warmup: Any) -> None:
    given = options(tmp_path, base, joint_warmup=warmup, joint_weight=0.1, joint_heads_rate=2.0, joint_rate=1e-3)
    write_text(given)
    train.run(given)
    record = json.loads((tmp_path / "out.train.json").read_text())
    assert (record["training"]["steps"] > 0) == (warmup in ("both", "heads"))
    made = record["joint"]["plan"]["recipe"]
    assert (made["warmup"], made["heads_weight"], made["heads_rate"], made["rate"]) == (warmup, 0.1, 2.0, 1e-3)
    weights = [heads_weight(step, 10, JointRecipe(True, 0.1, 1e-3, warmup)) for step in range(10)]
    assert (weights[0] < weights[-1]) == (warmup in ("both", "sine"))
    assert weights[-1] == pytest.approx(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", KINDS)
def test_exported_as_the_authors_publish_it_and_back(tmp_path: Path, small_batches: None, architecture: str) -> None:
    """Model and heads in one checkpoint, which converts into what was trained: weights in F16, tokens, drafts."""
    given = options(tmp_path, random_base(tmp_path / "base.gguf", architecture), export_hf=tmp_path / "hf")
    write_text(given)
    train.run(given)
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    order = ["convert", str(tmp_path / "hf"), "-o", str(tmp_path / "again.gguf"), "--quant", "F16"]
    found = CliRunner().invoke(cli.app, order)
    assert found.exit_code == 0, found.output
    for name in ("out", "again"):
        split(tmp_path / f"{name}.gguf", tmp_path / f"{name}-base.gguf", tmp_path / f"{name}-heads.gguf")
    old, new = BaseTensors(tmp_path / "out-base.gguf"), BaseTensors(tmp_path / "again-base.gguf")
    assert old.tensors.keys() == new.tensors.keys()
    for name in old.tensors:
        np.testing.assert_allclose(new.load(name), old.load(name), rtol=1e-3, atol=1e-6)
    before, after = (native.Model(str(tmp_path / f"{name}.gguf"), n_gpu_layers=0) for name in ("out", "again"))
    assert after.tokenize("a text, naïve") == before.tokenize("a text, naïve")
    ends = [testing.teacher_forced(model, [5, 9, 30, 7], prompt_length=3)[1] for model in (before, after)]
    np.testing.assert_allclose(ends[1], ends[0], atol=0.05)
    drafts = []
    for model, name in ((before, "out"), (after, "again")):
        heads = native.Heads(model, str(tmp_path / f"{name}.gguf"))
        state = np.random.default_rng(1).standard_normal(HIDDEN).astype(np.float32)
        drafts.append([row[0] for row in heads.draft_tokens(state, 1)])
    assert len(drafts[0]) == len(drafts[1])


def test_what_the_authors_layout_has_no_place_for_is_refused_before_any_work(tmp_path: Path) -> None:
    given = options(
        tmp_path, random_base(tmp_path / "base.gguf", "llama", rope_factors=True), export_hf=tmp_path / "hf"
    )
    with pytest.raises(MedusaError, match=r"rope_freqs.weight does not say .* leave out export_hf"):
        train.run(given)


def test_the_rates_differ_as_asked() -> None:
    direct, distill = recipes.joint_recipe_of("direct"), recipes.joint_recipe_of("distill", heads_rate=1.5)
    assert (direct.heads_rate, direct.warmup, direct.distils) == (1.0, "none", False)
    assert (distill.heads_rate, distill.warmup, distill.distils) == (1.5, "both", True)


def test_text_without_prompts_is_refused(tmp_path: Path, base: Path) -> None:
    given = options(tmp_path, base)
    write_text(given, prompts=False)
    with pytest.raises(MedusaError, match="answers without their prompts, use another work_dir"):
        train.run(given)


@pytest.mark.parametrize("number", ["some", -1, 3.5])
def test_layers_are_a_number_or_all(tmp_path: Path, base: Path, number: Any) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"joint_layers": number}))
    order = ["train", str(base), "--joint", "-o", str(tmp_path / "o.gguf"), "--recipe", str(tmp_path / "r.json")]
    found = CliRunner().invoke(cli.app, order)
    assert found.exit_code == 1
    assert f"joint_layers is {json.dumps(number)}, it must be a whole number" in found.output


def test_the_command_wants_a_name_for_the_new_model(base: Path) -> None:
    found = CliRunner().invoke(cli.app, ["train", str(base), "--joint"])
    assert found.exit_code == 1
    assert "--joint writes a new model: give it a file name with -o" in found.output
