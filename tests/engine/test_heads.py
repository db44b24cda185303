"""Draft heads: native evaluation against NumPy, and refusal of files that do not fit the base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fixtures import BASE_HIDDEN, BASE_VOCAB, HeadsFile, tiny_base, write_heads

from medusa_cli import native


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> native.Model:
    return native.Model(str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf")))


def reference(heads: HeadsFile, base_output: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """Medusa 2.1: x + SiLU(Wx + b) for each block, the lm_head, softmax. [heads, rows]."""
    out = []
    for k in range(heads.head_count):
        x = hidden.astype(np.float64)
        for j in range(heads.block_count):
            y = heads.weight[k][j].astype(np.float64) @ x
            if heads.bias is not None:
                y = y + heads.bias[k][j]
            x = x + y / (1 + np.exp(-y))
        if heads.lm_head == "own":
            assert heads.output is not None
            logits = heads.output[k].astype(np.float64) @ x
        elif heads.lm_head == "draft_vocab":
            assert heads.d2t is not None
            logits = base_output[heads.d2t].astype(np.float64) @ x
        else:
            logits = base_output.astype(np.float64) @ x
        weights = np.exp(logits - logits.max())
        out.append(weights / weights.sum())
    return np.stack(out)


def output_matrix(path: str) -> np.ndarray:
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "output.weight")
    return np.array(tensor.data, dtype=np.float32).reshape(BASE_VOCAB, BASE_HIDDEN)


@pytest.mark.parametrize("lm_head", ["own", "base", "draft_vocab"])
@pytest.mark.parametrize("blocks", [0, 1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_probabilities_equal_numpy(base: native.Model, tmp_path: Path, lm_head: str, blocks: int, bias: bool) -> None:
    written = write_heads(tmp_path / "heads.gguf", heads=3, blocks=blocks, lm_head=lm_head, bias=bias)
    heads = native.Heads(base, str(tmp_path / "heads.gguf"))
    assert (heads.head_count, heads.block_count, heads.lm_head) == (3, blocks, lm_head)
    hidden = np.random.default_rng(1).standard_normal(BASE_HIDDEN).astype(np.float32)
    expected = reference(written, output_matrix(base.path), hidden)
    actual = heads.probabilities(hidden)
    assert actual.shape == expected.shape
    # F16 weights and activations: relative error of a product of this length.
    np.testing.assert_allclose(actual, expected, rtol=0.02, atol=1e-5)


def test_draft_tokens_are_the_most_probable_in_base_ids(base: native.Model, tmp_path: Path) -> None:
    written = write_heads(tmp_path / "heads.gguf", heads=2, blocks=1, lm_head="draft_vocab")
    heads = native.Heads(base, str(tmp_path / "heads.gguf"))
    hidden = np.random.default_rng(2).standard_normal(BASE_HIDDEN).astype(np.float32)
    probabilities = heads.probabilities(hidden)
    assert written.d2t is not None
    for k, tokens in enumerate(heads.draft_tokens(hidden, 5)):
        order = np.argsort(-probabilities[k], kind="stable")[:5]
        assert tokens == written.d2t[order].tolist()


def test_explicit_draft_output_is_used(base: native.Model, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((40, BASE_HIDDEN)).astype(np.float16)
    write_heads(tmp_path / "heads.gguf", heads=1, blocks=0, lm_head="draft_vocab", draft_output=rows)
    heads = native.Heads(base, str(tmp_path / "heads.gguf"))
    hidden = rng.standard_normal(BASE_HIDDEN).astype(np.float32)
    assert int(heads.probabilities(hidden)[0].argmax()) == int((rows.astype(np.float32) @ hidden).argmax())


BAD_HEADS: dict[str, tuple[dict[str, Any], str]] = {
    "hidden size": ({"hidden": BASE_HIDDEN * 2}, "another base"),
    "vocabulary of own heads": ({"lm_head": "own", "vocab": BASE_VOCAB + 8}, "another base"),
    "vocabulary of the draft map": ({"lm_head": "draft_vocab", "d2t": np.array([1, BASE_VOCAB])}, "another base"),
    "a token twice": ({"lm_head": "draft_vocab", "d2t": np.array([5, 5])}, "twice or outside"),
    "integer weights": ({"weight_type": np.int32}, "type i32"),
    "half-precision biases": ({"bias_type": np.float16}, "must be f32"),
    "a missing head": ({"skip": "medusa.1.block.0.weight"}, "is missing"),
    "a missing bias": ({"skip": "medusa.1.block.0.bias"}, "is missing"),
    "more blocks than said": ({"declared_blocks": 1, "blocks": 2}, "is unknown"),
    "an orphan in the tree": ({"tree": [[0, 0]]}, "orphan"),
    "a damaged tree": ({"flat_tree": [3, 0]}, "damaged"),
    "another version": ({"version": 2}, "version 2"),
    "another kind": ({"kind": "eagle"}, "kind 'eagle'"),
    "no heads at all": ({"declared_heads": 0}, "head_count"),
    "a thousand heads": ({"declared_heads": 1000}, "head_count"),
    "another input": ({"input": "pre_norm"}, "hidden state"),
    "short accuracies": ({"accuracy": [0.5]}, "accuracy"),
    "an unknown lm_head": ({"lm_head_name": "other"}, "lm_head"),
}


@pytest.mark.parametrize("case", BAD_HEADS)
def test_unfit_heads_are_refused_in_one_line(base: native.Model, tmp_path: Path, case: str) -> None:
    options, message = BAD_HEADS[case]
    path = tmp_path / "heads.gguf"
    arguments: dict[str, Any] = {"heads": 2, "blocks": 1, "lm_head": "base", **options}
    write_heads(path, **arguments)
    with pytest.raises(native.NativeError, match=message) as caught:
        native.Heads(base, str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_heads_of_a_plain_model_are_refused(base: native.Model) -> None:
    with pytest.raises(native.NativeError, match="contains no draft heads"):
        native.Heads(base, base.path)


def test_a_sidecar_is_no_model(tmp_path: Path) -> None:
    write_heads(tmp_path / "heads.gguf", heads=1, blocks=1, lm_head="base")
    with pytest.raises(native.NativeError, match="contains only draft heads"):
        native.Model(str(tmp_path / "heads.gguf"))


def test_nan_heads_cannot_change_the_text(base: native.Model, tmp_path: Path) -> None:
    write_heads(tmp_path / "heads.gguf", heads=2, blocks=1, lm_head="base", fill=np.nan)
    heads = native.Heads(base, str(tmp_path / "heads.gguf"))
    tree = native.Tree([[0], [1], [0, 0]])
    drafted = native.Session(base, heads, tree=tree).generate([1, 2, 3], max_tokens=16, ignore_eos=True)
    plain = native.Session(base).generate([1, 2, 3], max_tokens=16, ignore_eos=True)
    assert drafted.tokens == plain.tokens
