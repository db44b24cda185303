"""Heads that read the path: native evaluation against NumPy along every kind of path and tree."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
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
from medusa_cli.converters.heads.schema import LM_HEADS, LmHead
from random_heads import random_heads, write

from medusa_cli import native

KINDS = [*product(["hydra"], LM_HEADS), ("recurrent", "base"), ("recurrent", "draft_vocab")]
"""Those that read the path; a recurrent head has no output matrix of its own."""
EXACT, PACKED = 1e-3, 2.5e-2
"""Relative error of the logits: with weights of floats, and where products round activations to 8 bits."""


@pytest.fixture(scope="module")
def base_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base") / "base.gguf")


@pytest.fixture(scope="module", params=["stock", "kernels"])
def base(base_path: Path, request: pytest.FixtureRequest) -> native.Model:
    """Products of 8-bit weights run on the kernels where weights are repacked."""
    return native.Model(str(base_path), repack=request.param == "kernels")


@pytest.fixture(scope="module")
def matrices(base_path: Path) -> dict[str, np.ndarray]:
    """The base's embedding and output matrices."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(base_path).tensors}
    return {
        name: np.array(tensors[f"{name}.weight"].data, np.float64).reshape(BASE_VOCAB, BASE_HIDDEN)
        for name in ("token_embd", "output")
    }


class Reference:
    """NumPy's probabilities of the next token below a path."""

    def __init__(self, source: Any, matrices: dict[str, np.ndarray]) -> None:
        self.numpy, self.source = NumpyHeads(source), source
        self.scale = source.metadata.get("medusa.embedding_scale", 1.0)
        self.embeddings = matrices["token_embd"]
        self.output = matrices["output"]
        if source.lm_head == "draft_vocab":
            self.tokens = self.numpy.values["medusa.d2t"].astype(int)
            self.output = self.output[self.tokens]
        else:
            self.tokens = np.arange(BASE_VOCAB)

    def logits(self, hidden: np.ndarray, path: list[int]) -> np.ndarray:
        """[rows] of head len(path) - 1. path: the root first."""
        embedded = (self.scale * self.embeddings[path]).reshape(-1)
        x = hidden if self.source.kind == "medusa" else np.concatenate([hidden, embedded])
        head = len(path) - 1
        logits = self.numpy.logits(head, x[None].astype(np.float64), BASE_VOCAB, self.output)[0]
        return np.asarray(logits[self.tokens])


def deviation(probabilities: np.ndarray, logits: np.ndarray) -> float:
    """Of the logits behind `probabilities`, relative to the norm of the wanted ones; both without their means."""
    ours = np.log(probabilities.astype(np.float64))
    ours, wanted = ours - ours.mean(), logits - logits.mean()
    return float(np.linalg.norm(ours - wanted) / np.linalg.norm(wanted))


def states(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, BASE_HIDDEN)).astype(np.float32)


@pytest.mark.parametrize("type_", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "lm_head"), [*product(["medusa"], LM_HEADS), *KINDS])
def test_probabilities_along_a_path_equal_numpy(
    base: native.Model,
    matrices: dict[str, np.ndarray],
    tmp_path: Path,
    kind: Any,
    lm_head: LmHead,
    bias: bool,
    type_: str,
) -> None:
    source = random_heads(kind, lm_head, heads=4, blocks=3, bias=bias, type_=type_, embedding_scale=0.5)
    heads = native.Heads(base, str(write(tmp_path / "heads.gguf", source, type_)))
    blocks = 1 if kind == "recurrent" else 3
    assert (heads.kind, heads.head_count, heads.block_count, heads.lm_head) == (kind, 4, blocks, lm_head)
    reference = Reference(source, matrices)
    bound = PACKED if type_ == "q8_0" else EXACT
    path = [7, 300, 0, BASE_VOCAB - 1]
    for hidden in states(3):
        actual = heads.probabilities(hidden, path)
        assert actual.shape == (4, source.rows if lm_head == "draft_vocab" else BASE_VOCAB)
        np.testing.assert_allclose(actual.sum(1), 1, rtol=1e-4)
        for depth in range(1, 5):
            assert deviation(actual[depth - 1], reference.logits(hidden, path[:depth])) < bound
        for depth, drafts in enumerate(heads.draft_tokens(hidden, 7, path), 1):
            order = np.argsort(-actual[depth - 1], kind="stable")[:7]
            assert drafts == reference.tokens[order].tolist()


@st.composite
def trees(draw: st.DrawFn, depth: int, ranks: int) -> native.Tree:
    """Any shape: siblings in any number, up to 60 expanded nodes in a level."""
    choices: list[list[int]] = []
    level: list[list[int]] = [[]]
    for _ in range(draw(st.integers(1, depth))):
        children = []
        for parent in level:
            wanted = draw(st.sets(st.integers(0, ranks - 1), max_size=4))
            children += [[*parent, rank] for rank in sorted(wanted)]
        choices += children[:60]
        level = children[:60]
    return native.Tree(choices)


@pytest.fixture(scope="module", params=["hydra", "recurrent"])
def hydra(
    base: native.Model, matrices: dict[str, np.ndarray], tmp_path_factory: Any, request: pytest.FixtureRequest
) -> tuple[native.Heads, Reference]:
    source = random_heads(request.param, "draft_vocab", heads=4, blocks=1, type_="q8_0", seed=5)
    path = write(tmp_path_factory.mktemp("heads") / "heads.gguf", source, "q8_0")
    return native.Heads(base, str(path)), Reference(source, matrices)


@settings(max_examples=30)
@given(data=st.data())
def test_trees_of_any_shape_hold_the_heads_candidates(
    hydra: tuple[native.Heads, Reference], data: st.DataObject
) -> None:
    heads, reference = hydra
    tree = data.draw(trees(4, 12))
    root = data.draw(st.integers(0, BASE_VOCAB - 1))
    hidden = states(1, data.draw(st.integers(0, 1000)))[0]
    tokens, q = testing.draft(heads, hidden, root, tree)
    assert (len(tokens), tokens[0], q[0]) == (tree.size, root, 1.0)
    paths = {0: [root]}
    for node in range(1, tree.size):
        parent, rank = tree.parents[node], tree.choices[node - 1][-1]
        logits = reference.logits(hidden, paths[parent])
        p = np.exp(logits - logits.max())
        p /= p.sum()
        of_token = p[np.flatnonzero(reference.tokens == tokens[node])[0]]
        # 8-bit activations blur the order of near ties.
        assert of_token == pytest.approx(np.sort(p)[::-1][rank], rel=0.25)
        assert q[node] == pytest.approx(of_token, rel=0.25)
        paths[node] = [*paths[parent], tokens[node]]
    for parent in set(tree.parents[1:]):
        siblings = [tokens[node] for node in range(1, tree.size) if tree.parents[node] == parent]
        assert len(set(siblings)) == len(siblings)


@pytest.mark.parametrize(("kind", "lm_head"), KINDS)
@pytest.mark.parametrize("grown", [False, True])
def test_drafts_do_not_change_the_text(
    base: native.Model, tmp_path: Path, kind: Any, lm_head: LmHead, grown: bool
) -> None:
    source = random_heads(kind, lm_head, heads=3, blocks=2)
    heads = native.Heads(base, str(write(tmp_path / "heads.gguf", source)))
    tree = native.Tree([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0]])
    way: dict[str, Any] = {"dynamic": native.DynamicTree(), "recycling": True} if grown else {"tree": tree}
    drafted = native.Session(base, heads, **way).generate([1, 2, 3], max_tokens=48, ignore_eos=True)
    plain = native.Session(base).generate([1, 2, 3], max_tokens=48, ignore_eos=True)
    assert drafted.tokens == plain.tokens
    assert grown or drafted.stats["tree_nodes"] == tree.size


def test_drafts_are_the_same_every_time(hydra: tuple[native.Heads, Reference]) -> None:
    tree = native.Tree([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
    drafts = [testing.draft(hydra[0], states(1)[0], 3, tree) for _ in range(3)]
    assert drafts[0] == drafts[1] == drafts[2]


def test_heads_full_of_nan_are_harmless(base: native.Model, tmp_path: Path) -> None:
    path = write(tmp_path / "heads.gguf", random_heads("hydra", "own", heads=2, blocks=1, type_="f32"), "f32")
    heads_file = native.read_gguf(str(path))
    broken = next(tensor for tensor in heads_file.tensors if tensor.name == "medusa.0.block.0.weight")
    with path.open("r+b") as file:
        file.seek(broken.offset)
        file.write(np.full(broken.nbytes // 4, np.nan, np.float32).tobytes())
    heads = native.Heads(base, str(path))
    tree = native.Tree([[0], [1], [0, 0]])
    drafted = native.Session(base, heads, tree=tree).generate([1, 2, 3], max_tokens=16, ignore_eos=True)
    plain = native.Session(base).generate([1, 2, 3], max_tokens=16, ignore_eos=True)
    assert drafted.tokens == plain.tokens


def test_a_path_is_asked_for_and_checked(hydra: tuple[native.Heads, Reference]) -> None:
    heads, hidden = hydra[0], states(1)[0]
    with pytest.raises(native.NativeError, match="give the tokens from the root on"):
        heads.probabilities(hidden)
    with pytest.raises(native.NativeError, match="not in the vocabulary"):
        heads.probabilities(hidden, [BASE_VOCAB])
    with pytest.raises(native.NativeError, match="64"):
        heads.probabilities(hidden[1:], [1])
    with pytest.raises(native.NativeError, match="deeper or wider"):
        testing.draft(heads, hidden, 1, native.Tree([[0], [0, 0], [0] * 3, [0] * 4, [0] * 5]))
    assert heads.probabilities(hidden, [1, 2]).shape[0] == 2
    assert heads.probabilities(hidden, [1] * 9).shape[0] == heads.head_count


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no residual": ({"without": "medusa.1.block.0.residual.weight"}, "residual.weight is missing"),
    "a residual without bias": ({"without": "medusa.1.block.0.residual.bias"}, "residual.bias is missing"),
    "a residual in Medusa heads": ({"kind": "medusa"}, "shape|is unknown"),
    "heads of another width": ({"swap": ("medusa.0.block.0.weight", "medusa.1.block.0.weight")}, "has shape"),
    "no blocks": ({"blocks": 0}, "medusa.block_count"),
    "a scale of zero": ({"scale": 0.0}, "embedding_scale"),
    "a scale that is none": ({"scale": float("nan")}, "embedding_scale"),
    "an infinite scale": ({"scale": float("inf")}, "embedding_scale"),
}


@pytest.mark.parametrize("case", BAD)
def test_unfit_hydra_heads_are_refused_in_one_line(base: native.Model, tmp_path: Path, case: str) -> None:
    change, message = BAD[case]
    source = random_heads("hydra", "base", heads=2, blocks=1)
    tensors = [tensor for tensor in source.tensors if tensor.name != change.get("without")]
    if "swap" in change:
        first, second = change["swap"]
        names = {first: second, second: first}
        tensors = [replace(tensor, name=names.get(tensor.name, tensor.name)) for tensor in tensors]
    source = replace(
        source,
        tensors=tensors,
        kind=change.get("kind", "hydra"),
        block_count=change.get("blocks", 1),
        metadata={"medusa.embedding_scale": change.get("scale", 1.0)},
    )
    with pytest.raises(native.NativeError, match=message) as caught:
        native.Heads(base, str(write(tmp_path / "heads.gguf", source)))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)
