"""Streams in torch against NumPy, and whole runs of `medusa train --kind streams`."""

from __future__ import annotations

import io
import itertools
import json
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
import torch
from fixtures import tiny_base, tiny_recurrent
from killed_training import STREAMS_PHASES, tiny_model
from medusa_cli.converters.heads.stream_heads import StreamHeads
from random_bases import HIDDEN, random_base
from random_heads import RootInput, random_streams
from rich.console import Console
from stream_numpy import Base, NumpyStreams
from stream_reading import read_stream_heads

from medusa_cli import native
from medusa_cli.models.base_file import output_rows, read_base
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import train
from medusa_cli.training.backbone.layers import TopLayers
from medusa_cli.training.backbone.shape import BaseTensors, read_shape
from medusa_cli.training.options import RecipeFile, TrainOptions
from medusa_cli.training.phases.planning import EPOCHS
from medusa_cli.training.recipes import STREAMS_RECIPE as RECIPE
from medusa_cli.training.streams.fit import StreamsFit, StreamsPlan, measure_rate
from medusa_cli.training.streams.layers import Piece, Streams, read_context
from medusa_cli.training.text.corpus import Corpus

CPU = torch.device("cpu")
GAMMA, TOP = 3, 2
CLOSE = 2e-3
"""Relative error: keys and values are F16 in NumPy, as in the engine's cache."""


def layers_of(path: Path, top: int = TOP) -> TopLayers:
    tensors = BaseTensors(path)
    shape = read_shape(tensors.header)
    return TopLayers(tensors, shape, len(shape.layers) - top, CPU)


@torch.no_grad()
def in_torch(made: StreamHeads, top: TopLayers) -> Streams:
    """The same streams, scales being 1."""
    recipe = replace(RECIPE, rank=made.rank, alpha=made.alpha, root_rank=0 if made.root is None else len(made.root[0]))
    streams = Streams(top, len(made.embedding), recipe)
    streams.embedding.copy_(torch.from_numpy(np.array(made.embedding)))
    for mine, matrix in zip((streams.root_a, streams.root_b), made.root or (), strict=False):
        mine.copy_(torch.from_numpy(matrix.astype(np.float32)))
    for layer, adapters in zip(top.layers, made.adapters, strict=True):
        for name, stored in adapters.items():
            assert streams.adapters is not None
            pair = zip(streams.adapters.matrices(f"blk.{layer.number}.{name}"), stored, strict=True)
            for parameter, values in pair:
                parameter.copy_(torch.from_numpy(values.astype(np.float32)))
    return streams


@pytest.mark.parametrize("root", ["matrix", "none"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_streams_equal_numpy(tmp_path: Path, architecture: str, root: RootInput) -> None:
    """Two texts in one batch, each with a part of its rows; NumPy takes one row at a time, with a dense mask."""
    path = random_base(tmp_path / "base.gguf", architecture, rope_factors=architecture == "llama")
    made, top = random_streams(Base(path), gamma=GAMMA, layers=TOP, root=root), layers_of(path)
    rng, base = np.random.default_rng(0), read_base(path)
    pieces = [Piece(9, 4, 5), Piece(6, 0, 2)]
    texts = [rng.standard_normal((piece.length, HIDDEN)).astype(np.float32) for piece in pieces]
    roots = rng.integers(0, base.n_vocab, 7)
    embedded = output_rows(base, roots)
    with torch.no_grad():
        context = read_context(top, torch.from_numpy(np.concatenate(texts)), pieces)
        assert context.positions.tolist() == [4, 5, 6, 7, 8, 0, 1]
        z = in_torch(made, top)(top, context, torch.from_numpy(embedded) if root else None)
    ours = z.numpy() @ output_rows(base, made.d2t).T
    numpy, row = NumpyStreams(Base(path), made), 0
    for text, piece in zip(texts, pieces, strict=True):
        for at in range(piece.first, piece.first + piece.rows):
            wanted = numpy.logits(text[at], int(roots[row]), numpy.caches(text[: at + 1]))
            assert np.linalg.norm(ours[:, row] - wanted) < CLOSE * np.linalg.norm(wanted)
            row += 1


def test_fresh_streams_repeat_the_model_at_later_positions(tmp_path: Path) -> None:
    """Adapters add nothing at first: a stream is the state itself, turned further."""
    path = random_base(tmp_path / "base.gguf", "qwen2")
    top = layers_of(path)
    streams = Streams(top, 1, replace(RECIPE, root_rank=0))
    states = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        doubled = torch.cat((states, states[-1:]))
        z = streams(top, read_context(top, states, [Piece(5, 4, 1)]), None)
        torch.testing.assert_close(z[0, 0], top(doubled, [6])[-1], rtol=1e-4, atol=1e-4)


def test_the_rate_is_measured_on_the_layers_themselves(tmp_path: Path) -> None:
    top = layers_of(random_base(tmp_path / "base.gguf", "llama"))
    plan = StreamsPlan("", "teacher", GAMMA, top.first, 0, 1 << 30, 128, "cpu", RECIPE)
    assert measure_rate(top, plan, 200, 250, CPU, seconds=0.1) > 0


def test_the_rate_is_by_the_clock_that_is_given(tmp_path: Path) -> None:
    """A second passes with each look at it: from 0 to 5, with steps at 1, 2 and 3."""
    top = layers_of(random_base(tmp_path / "base.gguf", "llama"))
    plan = StreamsPlan("", "teacher", GAMMA, top.first, 0, 1 << 30, 128, "cpu", RECIPE)
    looks = itertools.count()
    assert measure_rate(top, plan, 200, 250, CPU, seconds=3, clock=lambda: next(looks)) == 3 * 128 / 5


def options(base: Path, folder: Path, **changes: Any) -> TrainOptions:
    fields = {**killed_training.STREAMS, "console": Console(file=io.StringIO()), **changes}
    return killed_training.options(base, folder, **fields)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed, with text that a tiny model wrote."""
    folder = tmp_path_factory.mktemp("whole")
    tiny_model(folder / "base.gguf")
    train.run(options(folder / "base.gguf", folder))
    return folder


def with_its_text(whole: Path, folder: Path, **changes: Any) -> TrainOptions:
    for text in (whole / "work").glob("*/text"):
        shutil.copytree(text, folder / "work" / text.parent.name / "text")
    return options(whole / "base.gguf", folder, **changes)


def test_a_run_learns_and_writes_what_it_measured(whole: Path) -> None:
    record = json.loads((whole / "out.train.json").read_text())
    losses = [point["loss"] for point in record["training"]["curve"]]
    assert losses[-1] < 0.9 * losses[0]
    assert record["options"]["streams"] == {"layers": 1}
    made = read_stream_heads(whole / "out.gguf")
    np.testing.assert_allclose(made.accuracy, record["accuracy"], atol=1e-6)
    assert [list(choice) for choice in made.tree] == record["tree"]
    assert np.abs(made.embedding).max() > 0
    assert made.root is not None
    assert np.abs(made.root[0] @ made.root[1]).max() > 0


def test_a_recipe_says_how_streams_are_trained(whole: Path, tmp_path: Path) -> None:
    """Half as many positions per step and a quarter of the usual rounds: half as many steps."""
    said: dict[str, Any] = {"batch": 64, "rate": 1e-3, "epochs": EPOCHS / 4}
    given = with_its_text(whole, tmp_path, file=RecipeFile(Path("R.toml"), said))
    assert given.streams_recipe == replace(RECIPE, **said)
    assert given.name != options(whole / "base.gguf", tmp_path).name == "streams"
    train.run(given)
    mine, usual = (json.loads((folder / "out.train.json").read_text())["training"] for folder in (tmp_path, whole))
    assert (mine["batch"], usual["batch"]) == (64, 128)
    assert abs(mine["planned_steps"] - usual["planned_steps"] / 2) <= 1


def test_the_engine_drafts_with_the_file(whole: Path) -> None:
    model = native.Model(str(whole / "base.gguf"), n_gpu_layers=0)
    heads = native.Heads(model, str(whole / "out.gguf"))
    made = read_stream_heads(whole / "out.gguf")
    text = np.random.default_rng(1).integers(3, 200, 30).tolist()
    ours = testing.stream_probabilities(native.StreamReader(model, heads, 30, n_threads=1), text)
    states = native.StatesReader(model, 30, tap_layers=[made.first_layer - 1], n_threads=1).read(text[:-1]).after_layers
    assert states is not None
    top = layers_of(whole / "base.gguf", made.layers)
    embedding = BaseTensors(whole / "base.gguf").load("token_embd.weight")[text[-1]]
    roots = torch.from_numpy(embedding)[None]
    with torch.no_grad():
        context = read_context(top, torch.from_numpy(np.asarray(states)), [Piece(29, 28, 1)])
        z = in_torch(made, top)(top, context, roots)[:, 0]
        logits = z @ torch.from_numpy(output_rows(read_base(whole / "base.gguf"), made.d2t)).T
    np.testing.assert_allclose(ours, torch.softmax(logits, dim=1).numpy(), rtol=0.05, atol=1e-5)


def test_stopped_and_continued_is_the_same_file(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = with_its_text(whole, tmp_path)
    update = StreamsFit._update

    def stop(self: StreamsFit) -> None:
        update(self)
        if self.step == 5:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(StreamsFit, "_update", stop)
        with pytest.raises(KeyboardInterrupt):
            train.run(given)
    assert not given.output.exists()
    train.run(given)
    assert given.output.read_bytes() == (whole / "out.gguf").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 needs POSIX")
@pytest.mark.parametrize("phase", STREAMS_PHASES)
def test_killed_and_continued_is_the_same_file(tmp_path: Path, whole: Path, phase: str) -> None:
    given = with_its_text(whole, tmp_path)
    program = [sys.executable, killed_training.__file__, str(given.model), str(tmp_path), phase, "streams"]
    done = subprocess.run(program, cwd=Path(__file__).parents[1] / "support", capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not given.output.exists()
    train.run(given)
    assert given.output.read_bytes() == (whole / "out.gguf").read_bytes()
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"streams_layers": 0}, "streams_layers 0: it must be a whole number, 1 to"),
        ({"streams_layers": 2}, "streams_layers 2: .* allows 1 to 1"),
        ({"export_hf": Path("hf")}, "export_hf: there is no layout for streams"),
        ({"whole_vocabulary": True}, "streams need a draft vocabulary"),
        ({"file": RecipeFile(Path("R.toml"), {"decay": 0.1})}, "R.toml: decay applies to heads, not to streams"),
        ({"file": RecipeFile(Path("R.toml"), {"rate": 0.1}), "joint": True}, "rate: with --joint, .* joint_rate"),
        ({"kind": "stream"}, "--kind stream: it must be one of .medusa., .hydra., .hydra.*, .streams."),
    ],
)
def test_what_cannot_be_asked_for(whole: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MedusaError, match=message):
        train.run(options(whole / "base.gguf", tmp_path, **changes))
    assert not list(tmp_path.rglob("*.npy"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: random_base(path, "gemma3"), "streams cannot draft for models with sliding windows"),
        (lambda path: tiny_base(path, experts=4), "llama.expert_count is 4: such layers cannot be trained"),
        (tiny_recurrent, "not for mamba"),
    ],
)
def test_models_without_such_layers_are_refused_before_any_work(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(MedusaError, match=message):
        train.run(options(make(tmp_path / "base.gguf"), tmp_path))
    assert not list(tmp_path.rglob("*.npy"))


def test_text_without_prompts_is_refused(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Corpus, "prompts_by_row", lambda self: dict.fromkeys(range(10**6), np.zeros(0, np.int32)))
    with pytest.raises(MedusaError, match="answers without their prompts, use another work_dir"):
        train.run(with_its_text(whole, tmp_path))
