"""Hydra++'s prefix layer: its cache against a computation from nothing, and sessions that carry it along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import _native_testing as testing
import gguf
import numpy as np
import pytest
from fixtures import BASE_HIDDEN, BASE_VOCAB, tiny_base
from head_numpy import NumpyHeads
from hypothesis import given, settings
from hypothesis import strategies as st
from medusa_cli.converters.heads import schema
from medusa_cli.converters.heads.formats import SourceHeads
from random_heads import random_heads, write

from medusa_cli import native

TREE = native.Tree([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> native.Model:
    return native.Model(str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf")))


@pytest.fixture(scope="module")
def source() -> SourceHeads:
    return random_heads("hydra++", "draft_vocab", heads=3, blocks=2)


@pytest.fixture(scope="module")
def heads(base: native.Model, source: SourceHeads, tmp_path_factory: pytest.TempPathFactory) -> native.Heads:
    return native.Heads(base, str(write(tmp_path_factory.mktemp("heads") / "heads.gguf", source)))


def states(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, BASE_HIDDEN)).astype(np.float32)


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    """Within what weights, activations and a cache of halves allow."""
    assert np.linalg.norm(actual - expected) < 5e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("length", [1, 2, 9, 64, 65, 200, 300])
def test_the_newest_output_equals_numpy(heads: native.Heads, source: SourceHeads, length: int) -> None:
    layer, rows = testing.PrefixLayer(heads), states(length)
    for position, state in enumerate(rows):
        layer.append(position, state)
    expected = NumpyHeads(source).prefix(rows.astype(np.float64), source.metadata)
    assert_close(layer.newest()[0], expected[-1])


def test_graphs_do_not_pile_up_with_the_text(heads: native.Heads) -> None:
    layer, rows = testing.PrefixLayer(heads), states(4 * 256)
    counts = []
    for position, state in enumerate(rows):
        layer.append(position, state)
        if position % 64 > 60:
            layer.newest()
            counts.append(layer.graph_count)
    assert max(counts) <= 8
    assert counts[-1] <= counts[0] + 2


@settings(max_examples=40)
@given(data=st.data())
def test_the_cache_after_rollback_equals_a_fresh_computation(
    heads: native.Heads, source: SourceHeads, data: st.DataObject
) -> None:
    layer, numpy = testing.PrefixLayer(heads), NumpyHeads(source)
    pool = states(64, data.draw(st.integers(0, 99)))
    start = data.draw(st.integers(0, 20))
    kept: list[np.ndarray] = []
    for _ in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(1, 12))):
            state = pool[data.draw(st.integers(0, 63))]
            layer.append(start + len(kept), state)
            kept.append(state)
        if data.draw(st.booleans()):
            assert_close(layer.newest()[0], numpy.prefix(np.stack(kept).astype(np.float64), source.metadata)[-1])
        drop = data.draw(st.integers(0, len(kept)))
        layer.roll_back(start + drop)
        kept = kept[:drop]
    layer.append(start + len(kept), pool[0])
    kept.append(pool[0])
    assert_close(layer.newest()[0], numpy.prefix(np.stack(kept).astype(np.float64), source.metadata)[-1])


def test_a_gap_starts_the_layer_anew(heads: native.Heads, source: SourceHeads) -> None:
    layer, rows = testing.PrefixLayer(heads), states(12)
    for position in range(5):
        layer.append(position, rows[position])
    layer.newest()
    for position in range(7, 12):
        layer.append(position, rows[position])
    alone = NumpyHeads(source).prefix(rows[7:].astype(np.float64), source.metadata)
    assert_close(layer.newest()[0], alone[-1])


def test_an_earlier_token_again_replaces_what_followed(heads: native.Heads, source: SourceHeads) -> None:
    layer, rows = testing.PrefixLayer(heads), states(6)
    for position in (0, 1, 2, 3):
        layer.append(position, rows[position])
    layer.newest()
    layer.append(2, rows[5])
    expected = NumpyHeads(source).prefix(rows[[0, 1, 5]].astype(np.float64), source.metadata)
    assert_close(layer.newest()[0], expected[-1])
    layer.roll_back(0)
    with pytest.raises(native.NativeError, match="no state of the last token"):
        layer.newest()


def test_heads_read_the_layer_in_place_of_the_state(
    base: native.Model, heads: native.Heads, source: SourceHeads
) -> None:
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(base.path).tensors}
    embeddings, output = (
        np.array(tensors[f"{name}.weight"].data, np.float64).reshape(BASE_VOCAB, BASE_HIDDEN)
        for name in ("token_embd", "output")
    )
    numpy, rows, path = NumpyHeads(source), states(20), [5, 6, 7]
    d2t = numpy.values["medusa.d2t"].astype(int)
    prefix = numpy.prefix(rows.astype(np.float64), source.metadata)[-1]
    actual = heads.probabilities(rows, path)
    for depth in (1, 2, 3):
        x = np.concatenate([prefix, embeddings[path[:depth]].reshape(-1)])[None]
        wanted = numpy.logits(depth - 1, x, BASE_VOCAB, output[d2t])[0][d2t]
        ours = np.log(actual[depth - 1].astype(np.float64))
        assert_close(ours - ours.mean(), wanted - wanted.mean())
    assert not np.allclose(actual, heads.probabilities(rows[-1], path), atol=1e-3)


def test_medusa_heads_read_the_layer_in_place_of_the_state(base: native.Model, tmp_path: Path) -> None:
    source = random_heads("medusa", heads=2, blocks=2, prefix=True)
    heads, numpy, rows = native.Heads(base, str(write(tmp_path / "heads.gguf", source))), NumpyHeads(source), states(20)
    assert (heads.kind, heads.has_prefix) == ("medusa", True)
    read = numpy.prefix(rows.astype(np.float64), source.metadata)[-1:]
    actual = np.log(heads.probabilities(rows).astype(np.float64))
    for k in range(2):
        wanted = numpy.logits(k, read, BASE_VOCAB)[0]
        assert_close(actual[k] - actual[k].mean(), wanted - wanted.mean())
    assert not np.allclose(np.exp(actual), heads.probabilities(rows[-1]), atol=1e-3)


def test_a_prefix_layer_of_hydra_heads_is_refused(base: native.Model, tmp_path: Path) -> None:
    path = write(tmp_path / "heads.gguf", random_heads("hydra", prefix=True))
    with pytest.raises(native.NativeError, match=r"medusa\.prefix\.attn_q\.weight is unknown for 3 hydra heads"):
        native.Heads(base, str(path))


@pytest.mark.parametrize("from_answer", [False, True])
@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize("kind", ["medusa", "hydra++"])
def test_drafts_do_not_change_the_text_of_a_conversation(
    base: native.Model, tmp_path: Path, kind: schema.Kind, from_answer: bool, lookup: bool
) -> None:
    source = random_heads(kind, "own", heads=3, blocks=2, prefix=True)
    source.metadata["medusa.prefix.from_answer"] = from_answer
    heads = native.Heads(base, str(write(tmp_path / "heads.gguf", source)))
    drafting, plain = native.Session(base, heads, tree=TREE, lookup=lookup), native.Session(base)
    prompt = list(range(3, 90))
    for extra in ([9, 8, 7], [1], list(range(100, 140))):
        expected = plain.generate(prompt, max_tokens=20, ignore_eos=True)
        actual = drafting.generate(prompt, max_tokens=20, ignore_eos=True)
        assert actual.tokens == expected.tokens
        prompt = prompt + expected.tokens + extra
    shorter = [*prompt[:40], 77]
    expected = plain.generate(shorter, max_tokens=20, ignore_eos=True)
    assert drafting.generate(shorter, max_tokens=20, ignore_eos=True).tokens == expected.tokens


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no head count": ({"medusa.prefix.head_count": 0}, "medusa.prefix.head_count is 0"),
    "more heads for keys": ({"medusa.prefix.head_count_kv": 8}, "head_count_kv"),
    "heads that do not divide": ({"medusa.prefix.head_count_kv": 3}, "does not divide"),
    "rows that do not divide": ({"medusa.prefix.head_count": 3, "medusa.prefix.head_count_kv": 1}, "attention heads"),
    "heads of an odd size": ({"medusa.prefix.head_count": 64, "medusa.prefix.head_count_kv": 32}, "even size"),
    "keys of another width": ({"medusa.prefix.head_count_kv": 1}, "has shape"),
    "a base of zero": ({"medusa.prefix.rope_freq_base": 0.0}, "rope_freq_base"),
    "an infinite base": ({"medusa.prefix.rope_freq_base": float("inf")}, "rope_freq_base"),
    "a norm of NaN": ({"medusa.prefix.norm_eps": float("nan")}, "norm_eps"),
    "a text for a switch": ({"medusa.prefix.from_answer": "yes"}, "from_answer"),
}


@pytest.mark.parametrize("case", BAD)
def test_unfit_prefix_layers_are_refused_in_one_line(base: native.Model, tmp_path: Path, case: str) -> None:
    changes, message = BAD[case]
    source = random_heads("hydra++", "base", heads=1, blocks=1)
    source.metadata.update(changes)
    with pytest.raises(native.NativeError, match=message) as caught:
        native.Heads(base, str(write(tmp_path / "heads.gguf", source)))
    assert "\n" not in str(caught.value)


def test_a_missing_part_is_named(base: native.Model, tmp_path: Path) -> None:
    source = random_heads("hydra++", "base", heads=1, blocks=1)
    for name, wanted in (("ffn_gate", "is missing"), ("attn_q", "is missing"), ("output_norm", "is missing")):
        part = next(tensor for tensor in source.tensors if tensor.name == f"medusa.prefix.{name}.weight")
        source.tensors.remove(part)
        with pytest.raises(native.NativeError, match=f"medusa.prefix.{name}.weight.*{wanted}"):
            native.Heads(base, str(write(tmp_path / "heads.gguf", source)))
        source.tensors.append(part)
