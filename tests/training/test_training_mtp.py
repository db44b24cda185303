"""MTP layers in torch against the engine's drafts, and whole runs of `medusa train --kind mtp`."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import killed_training
import numpy as np
import pytest
import torch
from command_line import invoke
from draft_comparison import chain
from gguf_edits import edited
from killed_training import MTP_PHASES
from mtp_models import write_mtp_model
from random_bases import random_base
from random_models import Tensors
from rich.console import Console

from medusa_cli import native
from medusa_cli.models.base_file import embedding_rows, output_rows, read_base
from medusa_cli.models.tensors import Tensors as GgufTensors
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import train
from medusa_cli.training.backbone import rewriting
from medusa_cli.training.backbone.parity import EXACT, Parity
from medusa_cli.training.backbone.shape import Rope
from medusa_cli.training.heads.layers import HeadInputs, array_of
from medusa_cli.training.mtp import parity
from medusa_cli.training.mtp.fit import MtpFit, drafted_tokens
from medusa_cli.training.mtp.layer import MtpLayer, read_layer
from medusa_cli.training.options import RecipeFile, TrainOptions, read_recipe

CPU = torch.device("cpu")
COUNT = 4
PROMPTS = [[(31 * token + start) % 256 for token in range(40)] for start in (7, 90, 200)]
SHAPES: dict[str, dict[str, Any]] = {
    "whole heads": {},
    "some pairs stand still": {"rope.dimension_sections": [2, 11, 11, 8]},
    "half of a head turns": {"rope.dimension_count": 32, "rope.dimension_sections": [6, 5, 5, 0]},
    "wide heads": {
        "attention.key_length": 128,
        "attention.value_length": 128,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
        "rope.freq_base": 1e6,
    },
}


def sharpened(tensors: Tensors) -> None:
    """Attention of the layer that looks at few places, so that positions matter."""
    for part in ("attn_q_norm", "attn_k_norm"):
        tensors[f"blk.4.{part}.weight"] *= np.float32(6)


def reduced(tensors: Tensors) -> None:
    """The layer as it may also be: without biases, with the model's own norm."""
    sharpened(tensors)
    for name in ("attn_q.bias", "attn_k.bias", "attn_v.bias", "nextn.shared_head_norm.weight"):
        del tensors[f"blk.4.{name}"]


def weakened(tensors: Tensors) -> None:
    """The layer lets half of what makes drafts right through; so states, its own ones above all, mislead it."""
    tensors["blk.4.nextn.eh_proj.weight"][:, :256] *= np.float32(0.5)


def compared(path: Path, layer: MtpLayer) -> Parity:
    """MedusaError if torch and the engine draft differently."""
    base, model = read_base(path), native.Model(str(path), n_gpu_layers=0, next_layers=True)
    output = torch.from_numpy(output_rows(base, np.arange(base.n_vocab)))

    def embedded(tokens: Sequence[int]) -> torch.Tensor:
        return torch.from_numpy(embedding_rows(base, np.asarray(tokens)))

    return parity.check(model, layer, embedded, output, PROMPTS, 1, EXACT.tie)


# --- the layer in torch -----------------------------------------------------------------------------


@pytest.mark.parametrize("agree", [0, 0.67])
@pytest.mark.parametrize("shape", SHAPES)
def test_torch_drafts_as_the_engine_does(tmp_path: Path, shape: str, agree: float) -> None:
    path = write_mtp_model(tmp_path / "m.gguf", "qwen35", agree=agree, keys=SHAPES[shape], edit=sharpened)
    found = compared(path, read_layer(path, COUNT, CPU))
    assert found.tokens > 150
    assert found.agreement == 1


def test_a_layer_without_biases_and_with_the_models_norm(tmp_path: Path) -> None:
    path = write_mtp_model(tmp_path / "m.gguf", "qwen35", edit=reduced)
    assert compared(path, read_layer(path, COUNT, CPU)).agreement == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"rope": Rope(100.0, factors=True)},
        {"turning": (True,) * 32},
        {"rotated": 32, "turning": (True,) * 16},
        {"query_scale": 1.0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_layer_that_is_only_nearly_the_same_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    keys = SHAPES["some pairs stand still"]
    path = write_mtp_model(tmp_path / "m.gguf", "qwen35", keys=keys, edit=sharpened)
    layer = read_layer(path, COUNT, CPU)
    different = MtpLayer(GgufTensors(path), replace(layer.shape, **wrong), CPU)
    with pytest.raises(MedusaError, match=r"torch and the engine agree on \d+ of \d+ drafts of the MTP layer, 97%"):
        compared(path, different)


def made_up(layer: MtpLayer, lengths: Sequence[int], prompts: Sequence[int], seed: int = 0) -> HeadInputs:
    generator, hidden, rows = torch.Generator().manual_seed(seed), layer.shape.hidden, sum(lengths)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    contexts = [numbers(length, 2 * hidden) for length in prompts]
    return HeadInputs(numbers(rows, hidden), numbers(rows, COUNT, hidden), lengths, contexts)


def test_texts_of_a_batch_do_not_see_each_other(tmp_path: Path) -> None:
    layer = read_layer(write_mtp_model(tmp_path / "m.gguf", "qwen35"), COUNT, CPU)
    both = made_up(layer, (5, 3), (4, 9))
    assert both.embedded is not None
    with torch.no_grad():
        together, alone = layer(both), []
        for rows, context in ((slice(0, 5), both.context[0]), (slice(5, 8), both.context[1])):
            own = HeadInputs(both.states[rows], both.embedded[rows], [rows.stop - rows.start], [context])
            alone.append(layer(own))
    torch.testing.assert_close(together, torch.cat(alone, dim=1))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_pieces_of_a_text_are_drafted_from_as_the_whole(tmp_path: Path, rows: int) -> None:
    layer = read_layer(write_mtp_model(tmp_path / "m.gguf", "qwen35"), COUNT, CPU)
    whole = made_up(layer, (6,), (4,))
    assert whole.embedded is not None
    pairs = torch.cat((whole.context[0], torch.cat((whole.embedded[:, 0], whole.states), dim=1)))
    parts = [min(rows, 6 - at) for at in range(0, 6, rows)]
    before = [pairs[: 4 + at] for at in range(0, 6, rows)]
    with torch.no_grad():
        pieces = layer(HeadInputs(whole.states, whole.embedded, parts, before))
        torch.testing.assert_close(pieces, layer(whole), rtol=1e-4, atol=1e-4)


def test_a_row_sees_no_later_one(tmp_path: Path) -> None:
    layer = read_layer(write_mtp_model(tmp_path / "m.gguf", "qwen35"), COUNT, CPU)
    whole = made_up(layer, (6,), (4,))
    assert whole.embedded is not None
    with torch.no_grad():
        begun = layer(HeadInputs(whole.states[:3], whole.embedded[:3], [3], whole.context))
        torch.testing.assert_close(layer(whole)[:, :3], begun)


def test_every_tensor_learns_from_the_last_depth(tmp_path: Path) -> None:
    layer = read_layer(write_mtp_model(tmp_path / "m.gguf", "qwen35"), COUNT, CPU)
    layer(made_up(layer, (4,), (3,)))[-1].cos().sum().backward()
    for part in layer.parts:
        weight = layer.weight(part)
        assert weight.grad is not None
        assert weight.grad.abs().max() > 0, part


# --- files ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose layer is partly right."""
    return write_mtp_model(tmp_path_factory.mktemp("model") / "m.gguf", "qwen35", agree=0.9, edit=weakened)


def same_layer(path: Path, written: Path, only: set[str] | None = None) -> None:
    layer, tensors = read_layer(path, COUNT, CPU), GgufTensors(path)
    changed = {layer.shape.tensor(part): (lambda part=part: array_of(layer.weight(part))) for part in layer.parts}
    rewriting.rewrite(tensors, changed, tensors.header.kv, written, lambda *_: None, only)


@dataclass(frozen=True)
class Decoded:
    """texts: of all prompts; drafts: of all steps."""

    texts: list[list[int]]
    drafts: list[list[int]]

    @property
    def tokens_per_step(self) -> float:
        return sum(map(len, self.texts)) / len(self.drafts)


def decoded(model: Path, drafter: Path | None = None) -> Decoded:
    """By the engine, with the layer of `drafter` (None: its own)."""
    opened = native.Model(str(model), n_gpu_layers=0, next_layers=True)
    layers = opened if drafter is None else native.Model(str(drafter), n_gpu_layers=0, next_layers=True)
    session = native.Session(opened, drafter=layers, tree=chain(COUNT), n_ctx=256, n_threads=1)
    answers = [session.generate(prompt, max_tokens=64, ignore_eos=True) for prompt in PROMPTS]
    return Decoded([answer.tokens for answer in answers], [list(step) for answer in answers for step in answer.drafts])


def plain(model: Path) -> list[list[int]]:
    session = native.Session(native.Model(str(model), n_gpu_layers=0), n_ctx=256, n_threads=1)
    return [session.generate(prompt, max_tokens=64, ignore_eos=True).tokens for prompt in PROMPTS]


def test_a_layer_written_again_is_the_same_file(model: Path, tmp_path: Path) -> None:
    same_layer(model, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == model.read_bytes()


def test_a_coarse_layer_is_stored_in_finer_blocks(model: Path, tmp_path: Path) -> None:
    """Other matrices keep their type, and the drafts are those of the coarse layer."""
    coarse, q4_k_m = tmp_path / "q4.gguf", 15
    native.quantize_model(str(model), str(coarse), file_type=q4_k_m)
    same_layer(coarse, tmp_path / "again.gguf")
    before, after = GgufTensors(coarse), GgufTensors(tmp_path / "again.gguf")
    q8_0, kept = 8, (0, 1)
    for name, tensor in after.tensors.items():
        was = before.tensors[name].type
        assert tensor.type == (q8_0 if name.startswith("blk.4.") and was not in kept else was), name
    assert any(tensor.type not in (*kept, q8_0) for tensor in before.tensors.values())
    ours, theirs = decoded(tmp_path / "again.gguf"), decoded(coarse)
    assert ours.texts == theirs.texts
    assert abs(ours.tokens_per_step - theirs.tokens_per_step) < 0.1 * theirs.tokens_per_step


# --- runs -------------------------------------------------------------------------------------------


def options(base: Path, folder: Path, **changes: Any) -> TrainOptions:
    fields = {**killed_training.MTP, "console": Console(file=io.StringIO(), width=120), **changes}
    return killed_training.options(base, folder, **fields)


def shown(given: TrainOptions) -> str:
    assert isinstance(given.console.file, io.StringIO)
    return given.console.file.getvalue()


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainOptions:
    """A run that nothing disturbed."""
    given = options(model, tmp_path_factory.mktemp("whole"))
    train.run(given)
    return given


def with_its_text(whole: TrainOptions, folder: Path, **changes: Any) -> TrainOptions:
    """Another run with the same text, for a layer that is known to be right."""
    assert whole.work_dir is not None
    for text in whole.work_dir.glob("*/text"):
        shutil.copytree(text, folder / "work" / text.parent.name / "text")
        shutil.copy(text.parent / "mtp.parity.json", folder / "work" / text.parent.name)
    return options(whole.model, folder, **changes)


def test_more_drafts_are_right_in_the_engine_and_the_text_is_the_same(whole: TrainOptions) -> None:
    record = json.loads(whole.output.with_suffix(".train.json").read_text())
    before, after = (one["acceptance_per_depth"] for one in (record["before"], record))
    assert len(after) == COUNT
    assert after[1] > before[1]
    assert record["tokens_per_step"]["5"] > record["before"]["tokens_per_step"]["5"]
    old, new = decoded(whole.model), decoded(whole.output)
    print(shown(whole))
    print(f"Tokens per step in the engine: {old.tokens_per_step:.2f} before, {new.tokens_per_step:.2f} after")
    assert new.tokens_per_step > 1.3 * old.tokens_per_step
    assert new.texts == old.texts == plain(whole.model)


def test_what_a_run_says(whole: TrainOptions) -> None:
    said = shown(whole)
    assert "4 tokens in a row from its MTP layer" in said
    assert "MTP layer in torch: as in the engine in 100.0% of" in said
    assert "tokens per step on held-out text with 5 nodes" in said
    assert "Held-out text, before tuning and after it" in said
    assert re.search(r"all right before +after +tokens per step before +after", said)


def test_only_the_layer_is_new(whole: TrainOptions) -> None:
    before, after = GgufTensors(whole.model), GgufTensors(whole.output)
    assert before.header.kv == after.header.kv
    assert list(before.tensors) == list(after.tensors)
    changed = {name for name in before.tensors if not np.array_equal(before.raw(name), after.raw(name))}
    assert changed == {name for name in before.tensors if name.startswith("blk.4.")}


def test_the_layer_alone_drafts_for_the_model(whole: TrainOptions, tmp_path: Path) -> None:
    given = with_its_text(whole, tmp_path, sidecar=True)
    train.run(given)
    assert not any(name.startswith("blk.0.") for name in GgufTensors(given.output).tensors)
    assert decoded(whole.model, given.output) == decoded(whole.output)


def test_stopped_and_continued_is_the_same_file(
    whole: TrainOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, update = with_its_text(whole, tmp_path), MtpFit._update

    def stop(self: MtpFit) -> None:
        update(self)
        if self.step == 5:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(MtpFit, "_update", stop)
        with pytest.raises(KeyboardInterrupt):
            train.run(given)
    assert not given.output.exists()
    train.run(given)
    assert given.output.read_bytes() == whole.output.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 needs POSIX")
@pytest.mark.parametrize("phase", MTP_PHASES)
def test_killed_and_continued_is_the_same_file(tmp_path: Path, whole: TrainOptions, phase: str) -> None:
    given = with_its_text(whole, tmp_path)
    program = [sys.executable, killed_training.__file__, str(given.model), str(tmp_path), phase, "mtp"]
    done = subprocess.run(program, cwd=Path(__file__).parents[1] / "support", capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not given.output.exists()
    train.run(given)
    assert given.output.read_bytes() == whole.output.read_bytes()
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part")]


def test_a_run_that_makes_nothing_better_keeps_the_layer(whole: TrainOptions, tmp_path: Path) -> None:
    """Its rate spoils the layer."""
    given = with_its_text(whole, tmp_path, file=RecipeFile(None, {**whole.file.values, "rate": 1.0}))
    train.run(given)
    assert given.output.read_bytes() == whole.model.read_bytes()
    assert f"Nothing was better than the layer as it was: {given.output} has it unchanged" in shown(given)


def test_large_vocabularies_are_cut_as_the_engine_cuts_them() -> None:
    frequent = np.array([5, 70_000, 40_000], np.int32)
    assert len(drafted_tokens(65_535, frequent)) == 65_535
    rows = drafted_tokens(65_536, frequent)
    assert rows[32_767:].tolist() == [32_767, 40_000, 70_000]


# --- what cannot be tuned ---------------------------------------------------------------------------


def torn(tensors: Tensors) -> None:
    tensors["blk.4.nextn.hnorm.weight"] = tensors["blk.4.nextn.hnorm.weight"][:64]


def other(tensors: Tensors) -> None:
    tensors["blk.4.ffn_scale.weight"] = tensors["blk.4.attn_norm.weight"]


def two_layers(path: Path) -> Path:
    one = write_mtp_model(path.with_name("one.gguf"), "qwen35")
    return edited(one, path, {"qwen35.nextn_predict_layers": 2})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: random_base(path, "qwen3"), "has no MTP layer that could be tuned, train heads instead"),
        (lambda path: write_mtp_model(path, "qwen35", part="trunk"), "has no MTP layer that could be tuned"),
        (lambda path: write_mtp_model(path, "glm4moe"), "MTP layers can be tuned for qwen35, not for glm4moe"),
        (lambda path: write_mtp_model(path, "step35"), "MTP layers can be tuned for qwen35, not for step35"),
        (lambda path: write_mtp_model(path, "qwen35", edit=torn), "blk.4.nextn.hnorm.weight is missing or has another"),
        (
            lambda path: write_mtp_model(path, "qwen35", edit=other),
            "blk.4.ffn_scale.weight: such an MTP layer cannot be",
        ),
        (two_layers, "qwen35.nextn_predict_layers is 2: such layers cannot be trained"),
    ],
    ids=["no layer", "only a trunk", "glm4moe", "step35", "shape", "unknown tensor", "two layers"],
)
def test_other_models_are_refused_before_any_work(tmp_path: Path, make: Any, message: str) -> None:
    path = make(tmp_path / "base.gguf")
    with pytest.raises(MedusaError, match=message) as raised:
        train.run(options(path, tmp_path))
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)
    assert not list(tmp_path.rglob("*.npy"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"joint": True}, "--joint trains heads or streams, not an MTP layer: leave it out"),
        ({"draft_vocab": 1000}, "draft_vocab: the engine decides what an MTP layer chooses from: leave it out"),
        ({"export_hf": Path("hf")}, "export_hf applies to heads, not to an MTP layer"),
        ({"start": Path("heads.gguf")}, "start applies to heads, not to an MTP layer"),
        ({"heads": 0}, "--heads 0: it must be a whole number, 1 to 16"),
    ],
)
def test_what_cannot_be_asked_for(model: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MedusaError, match=message):
        train.run(options(model, tmp_path, **changes))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--kind", "mtp"), "--kind mtp writes the model with its tuned layer: give it a file name with -o"),
        (("--kind", "mtp", "-o", "out.gguf"), "MTP layers can be tuned for qwen35, not for glm4moe"),
        (("--recipe", "mtp.toml"), "--kind mtp writes the model with its tuned layer: give it a file name with -o"),
        (
            ("--kind", "mtp", "-o", "out.gguf", "--recipe", "wrong.toml"),
            "depth_weight is 1.5, it must be a number above",
        ),
        (("--kind", "mtp", "-o", "out.gguf", "--joint"), "--joint trains heads or streams, not an MTP layer"),
    ],
    ids=" ".join,
)
def test_the_command_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_mtp_model(tmp_path / "m.gguf", "glm4moe")
    Path("mtp.toml").write_text('kind = "mtp"')
    Path("wrong.toml").write_text("depth_weight = 1.5")
    code, out, error = invoke("train", "m.gguf", *arguments)
    assert (code, out) == (1, "")
    assert said in error.splitlines()[-1]
    assert error.splitlines()[-1].startswith("error: ")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("line", ["blocks = 2", 'prefix = "none"', 'lm_head = "own"', "noise = 1.0"])
def test_recipes_of_heads_are_refused(model: Path, tmp_path: Path, line: str) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(line)
    with pytest.raises(MedusaError, match=rf"recipe.toml: {line.split()[0]} applies to heads, not to an MTP layer"):
        train.run(options(model, tmp_path, file=read_recipe(recipe)))
