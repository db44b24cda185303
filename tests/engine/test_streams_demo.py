"""Streams through the top layers of the demo model, and what the commands say of such files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import _native_testing as testing
import lossless
import numpy as np
import pytest
from medusa_cli.converters.heads.draft_heads import write_heads
from random_bases import random_base
from random_heads import random_streams
from stream_numpy import Base, NumpyStreams
from typer.testing import CliRunner

from medusa_cli import cli, native
from medusa_cli.decoding import tree_search
from medusa_cli.tuning import texts

TREE = native.Tree([[0], [1], [0, 0], [0, 1], [0, 0, 0], [1, 0], [0, 0, 0, 0]])
PACKED = 0.05
"""Relative error of the logits where all products round activations to 8 bits, which trained layers make large."""


@pytest.mark.slow
def test_the_demo_model_drafts_as_numpy_does_and_says_the_same(demo_model_path: Path, tmp_path: Path) -> None:
    base = Base(demo_model_path)
    model = native.Model(str(demo_model_path))
    prompt = model.tokenize("The sky is blue because light", add_special=True, parse_special=False)
    session = native.Session(model)
    plain = session.generate(prompt, max_tokens=120, ignore_eos=True)
    text = [*prompt, *plain.tokens]
    streams = random_streams(base, layers=2, rank=32, rows=2048, strength=0.05)
    streams = replace(streams, d2t=np.unique([*streams.d2t, *plain.tokens]).astype(np.int32))
    write_heads(tmp_path / "heads.gguf", streams)
    heads = native.Heads(model, str(tmp_path / "heads.gguf"))

    states = native.StatesReader(model, len(text), tap_layers=[base.layers - 3]).read(text[:-1]).after_layers
    assert states is not None
    numpy = NumpyStreams(base, streams)
    wanted = numpy.logits(states[-1], text[-1], numpy.caches(states))
    ours = np.log(testing.stream_probabilities(native.StreamReader(model, heads, len(text)), text).astype(np.float64))
    ours, wanted = (x - x.mean(1, keepdims=True) for x in (ours, wanted))
    assert (np.linalg.norm(ours - wanted, axis=1) / np.linalg.norm(wanted, axis=1)).max() < PACKED

    for drafting in (
        native.Session(model, heads, tree=TREE),
        native.Session(model, heads, dynamic=native.DynamicTree(), lookup=True),
    ):
        drafted = drafting.generate(prompt, max_tokens=120, ignore_eos=True)
        assert lossless.compare(model, prompt, plain, drafted).explained
        assert drafted.stats["timings_ms"]["draft"] > 0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("streams")
    base = random_base(folder / "base.gguf", "llama")
    write_heads(folder / "heads.gguf", random_streams(Base(base), gamma=3))
    return base, folder / "heads.gguf"


def test_inspect_tells_the_layers(files: tuple[Path, Path]) -> None:
    shown = CliRunner().invoke(cli.app, ["inspect", str(files[1])], env={"NO_COLOR": "1", "TERM": "dumb"})
    assert shown.exit_code == 0
    assert "3 of kind streams" in shown.stdout
    assert "lossless: the top 2 layers, from layer 5 on; adapters of rank 8; the root is read" in shown.stdout
    found = json.loads(CliRunner().invoke(cli.app, ["inspect", str(files[1]), "--json"]).stdout)["heads"]
    assert (found["kind"], found["head_count"], found["bytes"] > 0) == ("streams", 3, True)
    assert found["streams"] == {"mode": "lossless", "layers": 2, "first_layer": 5, "rank": 8, "root": True}


def test_tuning_ranks_the_tokens_that_came(files: tuple[Path, Path], tmp_path: Path) -> None:
    """As one look behind each prefix does."""
    model = native.Model(str(files[0]))
    said = native.Session(model).generate([1, 2, 3], max_tokens=30, ignore_eos=True).tokens
    streams = random_streams(Base(files[0]), gamma=3)
    write_heads(tmp_path / "heads.gguf", replace(streams, d2t=np.array(sorted(set(said)), np.int32)))
    heads = native.Heads(model, str(tmp_path / "heads.gguf"))
    reader = native.StreamReader(model, heads, 60, n_threads=1)
    found = texts.ranks_of_streams(heads, reader, [1, 2, 3], said)
    assert found.shape == (27, 3)
    assert found.min() < tree_search.RANKS
    ranks = min(tree_search.RANKS, heads.output_rows)
    for row in (0, 11, 26):
        ranked = reader.draft_tokens([1, 2, 3, *said[: row + 1]], ranks, first=2 + row)[0]
        for head in range(3):
            came = said[row + head + 1]
            expected = ranked[head].index(came) if came in ranked[head] else tree_search.RANKS
            assert found[row, head] == expected
