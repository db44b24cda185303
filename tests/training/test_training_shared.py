"""Streams and base learned together: what torch computes, whole runs of `medusa train --kind streams --joint`."""

from __future__ import annotations

import io
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
import lossless
import numpy as np
import pytest
import torch
from killed_training import SHARED_PHASES, tiny_model
from medusa_cli.converters.gguf.header import read_header
from medusa_cli.converters.heads import schema
from medusa_cli.converters.heads.single_file import split
from numpy.typing import NDArray
from random_bases import HIDDEN, random_base
from rich.console import Console
from stream_reading import read_stream_heads
from typer.testing import CliRunner

from medusa_cli import cli, native
from medusa_cli.models.base_file import output_rows, read_base
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import recipes, train
from medusa_cli.training.backbone import merge
from medusa_cli.training.backbone.layers import TopLayers
from medusa_cli.training.backbone.shape import BaseTensors, read_shape
from medusa_cli.training.backbone.states import BaseRows, Embeddings, TextData, whole_texts
from medusa_cli.training.heads.rows import FileRows, TextRows, TokenEmbeddings
from medusa_cli.training.loop import text_batches
from medusa_cli.training.options import TrainOptions
from medusa_cli.training.resuming import NEW_MODEL
from medusa_cli.training.streams.fit import StreamsFit, StreamsPlan, drafted, measure_rate
from medusa_cli.training.streams.layers import Piece, Streams
from medusa_cli.training.text.dataset import Span, examples_of

CPU = torch.device("cpu")
SHARED = recipes.SHARED_RECIPES["distill"]


def layers_of(path: Path, top: int) -> TopLayers:
    tensors = BaseTensors(path)
    shape = read_shape(tensors.header)
    return TopLayers(tensors, shape, len(shape.layers) - top, CPU)


@torch.no_grad()
def random_streams(top: TopLayers, count: int = 3) -> Streams:
    """Whose adapters change something."""
    streams = Streams(top, count, SHARED)
    generator = torch.Generator().manual_seed(3)
    for parameter in streams.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return streams


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_merged_layers_say_and_draft_what_the_adapted_ones_do(tmp_path: Path, architecture: str) -> None:
    """The matrices of a random base are F32, which merging keeps."""
    path = random_base(tmp_path / "base.gguf", architecture)
    top, pieces = layers_of(path, 2), [Piece(9, 4, 5), Piece(6, 0, 2)]
    streams = random_streams(top)
    assert streams.adapters is not None
    merge.merge(top.tensors, streams.adapters, "base", tmp_path / "new.gguf", lambda *_: None)
    merged = layers_of(tmp_path / "new.gguf", 2)
    bare = Streams(merged, 3, SHARED.bare)
    bare.load_state_dict({key: value for key, value in streams.state_dict().items() if "adapters" not in key})
    generator = torch.Generator().manual_seed(0)
    entered, roots = torch.randn(15, HIDDEN, generator=generator), torch.randn(7, HIDDEN, generator=generator)
    with torch.no_grad():
        context = streams.read(top, entered, pieces)
        said = top(entered, [9, 6], streams.adapters.project)
        assert context.said is not None
        torch.testing.assert_close(context.said, torch.cat((said[4:9], said[9:15])))
        drafted = streams(top, context, roots)
        after = bare(merged, bare.read(merged, entered, pieces), roots)
        torch.testing.assert_close(after, drafted, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(merged(entered, [9, 6]), said, rtol=1e-3, atol=1e-3)
        assert (top(entered, [9, 6]) - said).abs().max() > 0.1


def test_the_streams_teach_the_base(tmp_path: Path) -> None:
    """Their loss reaches the adapters through the keys and values of the main stream, too."""
    top = layers_of(random_base(tmp_path / "base.gguf", "llama"), 2)
    streams = random_streams(top)
    assert streams.adapters is not None
    entered = torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(0))
    roots, piece = torch.ones(1, HIDDEN), [Piece(9, 8, 1)]
    context = streams.read(top, entered, piece)
    assert all(
        keys.requires_grad and values.requires_grad for keys, values in zip(context.keys, context.values, strict=True)
    )
    streams(top, context, roots).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in streams.factors())


def test_the_base_learns_each_token_of_an_answer(tmp_path: Path) -> None:
    """Also the one that ends it, behind which nothing is drafted."""
    top, tokens, prompt = layers_of(random_base(tmp_path / "base.gguf", "llama"), 2), np.arange(8, 16), np.arange(3)
    spans = [Span(0, 5, ""), Span(5, 3, "")]
    recipe = replace(recipes.SHARED_RECIPES["truth"], root_rank=0)
    fit = StreamsFit(StreamsPlan("", "truth", 3, top.first, 0, 9, 128, "cpu", recipe), top, CPU)
    output = torch.randn(40, HIDDEN, generator=torch.Generator().manual_seed(0))
    texts = whole_texts(spans, dict.fromkeys((0, 5), prompt.astype(np.int32)), tokens.astype(np.int32))
    states, source = Embeddings(texts, output.numpy()), TextRows(FileRows([np.zeros((8, HIDDEN), np.float16)], CPU))
    examples = examples_of(tokens, spans, np.arange(40, dtype=np.int32), 3)

    def loss(said: NDArray[np.int64]) -> float:
        data = TextData(states, source, examples, output, BaseRows(said.astype(np.int32), output))
        return float(fit._loss(data, next(text_batches(examples, 100))).detach())

    for row in range(len(tokens)):
        changed = tokens.copy()
        changed[row] = 30
        assert loss(changed) != pytest.approx(loss(tokens), abs=1e-4), row


@pytest.mark.parametrize("rows", [1, 2, 32])
def test_streams_say_the_same_about_pieces_and_whole_texts(tmp_path: Path, rows: int) -> None:
    top, tokens = layers_of(random_base(tmp_path / "base.gguf", "llama"), 2), np.arange(8, 20, dtype=np.int32)
    spans = [Span(0, 5, ""), Span(5, 7, "")]
    plan = StreamsPlan("", "truth", 3, top.first, 0, 9, 128, "cpu", recipes.StreamsRecipe(rank=4, root_rank=4))
    streams = StreamsFit(plan, top, CPU).streams
    with torch.no_grad():
        for parameter in streams.parameters():
            parameter.normal_(0.1, 0.1)
    output = torch.randn(40, HIDDEN, generator=torch.Generator().manual_seed(0))
    texts = whole_texts(spans, {0: np.arange(3, dtype=np.int32), 5: np.arange(1, dtype=np.int32)}, tokens)
    embeddings = TokenEmbeddings(output.half(), tokens)
    source = TextRows(FileRows([np.zeros((12, HIDDEN), np.float16)], CPU), embeddings)
    whole = examples_of(tokens, spans, np.arange(40, dtype=np.int32), 3)
    found = []
    for examples in (whole, whole.in_pieces(rows)):
        data = TextData(Embeddings(texts, output.numpy()), source, examples, output)
        found.append(torch.cat([drafted(data, top, streams, one)[0] for one in text_batches(examples, 4)], dim=1))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_the_rate_is_that_of_both(tmp_path: Path) -> None:
    top = layers_of(random_base(tmp_path / "base.gguf", "llama"), 2)
    plan = StreamsPlan("", "teacher", 3, top.first, 0, 1 << 30, 128, "cpu", SHARED)
    assert measure_rate(top, plan, 200, 250, CPU, seconds=0.1) > 0


def options(base: Path, folder: Path, **changes: Any) -> TrainOptions:
    fields = {**killed_training.SHARED, "console": Console(file=io.StringIO(), width=120), **changes}
    return killed_training.options(base, folder, **fields)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed, with text that a tiny model wrote."""
    folder = tmp_path_factory.mktemp("shared")
    tiny_model(folder / "base.gguf")
    given = options(folder / "base.gguf", folder, adapter=folder / "adapter.gguf")
    train.run(given)
    assert isinstance(given.console.file, io.StringIO)
    (folder / "said.txt").write_text(given.console.file.getvalue())
    split(given.output, folder / "new.gguf", folder / "heads.gguf")
    return folder


def with_its_text(whole: Path, folder: Path, **changes: Any) -> TrainOptions:
    for text in (whole / "work").glob("*/text"):
        shutil.copytree(text, folder / "work" / text.parent.name / "text")
    return options(whole / "base.gguf", folder, **changes)


def test_a_new_model_with_streams_that_are_a_few_numbers(whole: Path) -> None:
    made = read_stream_heads(whole / "heads.gguf")
    assert (made.mode, made.rank, len(made.adapters)) == ("shared", 0, 0)
    assert np.abs(made.embedding).max() > 0
    old, new = BaseTensors(whole / "base.gguf"), BaseTensors(whole / "new.gguf")
    for name in old.tensors:
        adapted = name.startswith("blk.1.") and name.endswith(".weight") and "norm" not in name
        assert np.array_equal(old.load(name), new.load(name)) != adapted
    stored = [tensor.name for tensor in read_header(whole / "heads.gguf")[0].tensors]
    assert stored == ["medusa.stream.embedding", *schema.STREAM_ROOT, "medusa.d2t"]
    assert read_header(whole / "adapter.gguf")[0].metadata()["general.type"] == "adapter"
    assert "Speculative Streaming" in str(new.header.metadata()["general.name"])
    record = json.loads((whole / "out.train.json").read_text())
    assert record["options"]["joint"] == {"layers": 1, "strategy": "distill"}
    assert all(0 <= distance["kl"] < 5 for distance in record["joint"]["distance"].values())
    said = (whole / "said.txt").read_text()
    assert "The model was changed" in said
    assert "other text" in said
    assert not list((whole / "work").rglob("*.gguf"))


def test_the_file_drafts_for_the_new_model_and_changes_nothing_of_it(whole: Path) -> None:
    model = native.Model(str(whole / "out.gguf"), n_gpu_layers=0)
    heads = native.Heads(model, str(whole / "out.gguf"))
    plain_model = native.Model(str(whole / "new.gguf"), n_gpu_layers=0)
    tree = native.Tree([[0], [0, 0], [1]])
    drafted = native.Session(model, heads, tree=tree, n_threads=1).generate([5, 6, 7], max_tokens=80, ignore_eos=True)
    plain = native.Session(plain_model, n_threads=1).generate([5, 6, 7], max_tokens=80, ignore_eos=True)
    assert lossless.compare(plain_model, [5, 6, 7], plain, drafted).explained
    text = np.random.default_rng(1).integers(3, 200, 30).tolist()
    ours = testing.stream_probabilities(native.StreamReader(model, heads, 30, n_threads=1), text)
    made = read_stream_heads(whole / "heads.gguf")
    states = native.StatesReader(model, 30, tap_layers=[made.first_layer - 1], n_threads=1).read(text[:-1]).after_layers
    assert states is not None
    top = layers_of(whole / "new.gguf", made.layers)
    streams = Streams(top, len(made.embedding), SHARED.bare)
    roots = torch.from_numpy(BaseTensors(whole / "new.gguf").load("token_embd.weight")[text[-1]])[None]
    with torch.no_grad():
        streams.embedding.copy_(torch.from_numpy(np.array(made.embedding)))
        for mine, stored in zip((streams.root_a, streams.root_b), made.root or (), strict=True):
            mine.copy_(torch.from_numpy(stored.astype(np.float32)))
        z = streams(top, streams.read(top, torch.from_numpy(np.asarray(states)), [Piece(29, 28, 1)]), roots)[:, 0]
        logits = z @ torch.from_numpy(output_rows(read_base(whole / "new.gguf"), made.d2t)).T
    np.testing.assert_allclose(ours, torch.softmax(logits, dim=1).numpy(), rtol=0.05, atol=1e-5)


def test_the_base_learns_what_the_strategy_says(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text's tokens: their perplexity falls. Its own distribution: it stays near it."""
    light = {
        name: replace(made, rate=1e-2, shared=replace(made.shared, weight=1e-3))
        for name, made in recipes.SHARED_RECIPES.items()
        if made.shared is not None
    }
    monkeypatch.setattr("medusa_cli.training.options.SHARED_RECIPES", light)
    found, steps = {}, json.loads((whole / "out.train.json").read_text())["training"]["planned_steps"]
    for strategy in ("distill", "truth"):
        train.run(with_its_text(whole, tmp_path / strategy, joint_strategy=strategy, joint_rounds=3.0))
        record = json.loads((tmp_path / strategy / "out.train.json").read_text())
        assert record["training"]["planned_steps"] == pytest.approx(
            0.75 * steps, rel=0.2
        )  # whole texts make batches uneven
        found[strategy] = record["joint"]["distance"]["own"]
    assert found["truth"]["perplexity"] < 0.99 * found["truth"]["base_perplexity"]
    assert found["distill"]["kl"] < 0.5 * found["truth"]["kl"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 needs POSIX")
@pytest.mark.parametrize("phase", SHARED_PHASES)
def test_killed_and_continued_is_the_same_file(tmp_path: Path, whole: Path, phase: str) -> None:
    given = with_its_text(whole, tmp_path)
    program = [sys.executable, killed_training.__file__, str(given.model), str(tmp_path), phase, "shared"]
    done = subprocess.run(program, cwd=Path(__file__).parents[1] / "support", capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not given.output.exists()
    train.run(given)
    assert given.output.read_bytes() == (whole / "out.gguf").read_bytes()
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".part", NEW_MODEL))]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sidecar": True}, "cannot be written as a --sidecar"),
        ({"joint_strategy": "direct"}, "joint_strategy direct: streams learn with distill or truth"),
        ({"joint_warmup": "sine"}, "joint_warmup applies to heads"),
        ({"joint_heads_rate": 2.0}, "joint_heads_rate applies to heads"),
        ({"joint_weight": -1.0}, "joint_weight -1.0: it must be a number above 0"),
    ],
)
def test_what_cannot_be_asked_for(whole: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MedusaError, match=message):
        train.run(options(whole / "base.gguf", tmp_path, **changes))
    assert not list(tmp_path.rglob("*.npy"))


def test_other_layers_cannot_be_named(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"kind": "streams", "joint_layers": 8}')
    command = ["train", str(whole / "base.gguf"), "--joint", "-o", str(tmp_path / "out.gguf")]
    command += ["--recipe", str(tmp_path / "r.json")]
    shown = CliRunner().invoke(cli.app, command, env={"NO_COLOR": "1", "TERM": "dumb"})
    assert shown.exit_code == 1
    assert "joint_layers: streams train the layers they run through, use streams_layers" in shown.output
