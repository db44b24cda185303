"""Draft heads in torch against the NumPy spelling of the file layout, through the file itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from head_numpy import NumpyHeads
from medusa_cli.converters.heads import draft_heads as dh
from medusa_cli.converters.heads.formats import HeadTensor, SourceHeads
from numpy.typing import NDArray

from medusa_cli.support.errors import MedusaError
from medusa_cli.training.heads.layers import HeadInputs, Heads, HeadShape, PrefixShape, file_of, round_weights
from medusa_cli.training.recipes import KINDS

HIDDEN, VOCAB, COUNT = 64, 40, 3


def random_heads(kind: str, blocks: int, hidden: int = HIDDEN) -> Heads:
    torch.manual_seed(0)
    heads = Heads(HeadShape(kind, COUNT, hidden, blocks))
    with torch.no_grad():
        for name, parameter in heads.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.3 if parameter.ndim == 1 else hidden**-0.5)
    return heads


def draft_heads(heads: Heads, **changes: Any) -> Any:
    """What file_of() makes, a RecurrentHead or DraftHeads."""
    fields: dict[str, Any] = {
        "embedding_scale": 8.0,
        "weight_type": "q8_0",
        "lm_head": "base",
        "base_name": "tiny",
        "base_fingerprint": "f",
    }
    return replace(file_of(heads, **fields), **changes)


def read_back(path: Path) -> tuple[NumpyHeads, dict[str, Any]]:
    """The file's tensors, evaluated in double precision, and its keys."""
    reader = GGUFReader(path)
    keys = {key: field.contents() for key, field in reader.fields.items()}
    tensors = []
    for found in reader.tensors:
        values = dequantize(found.data, found.tensor_type)
        tensors.append(HeadTensor(found.name, values.shape, "block", partial(np.asarray, values)))
    kind, blocks = keys["medusa.kind"], keys["medusa.block_count"]
    heads = keys["medusa.head_count"]
    return NumpyHeads(SourceHeads("", kind, heads, blocks, "base", HIDDEN, 0, tensors)), keys


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_heads_pass_the_hidden_state_on(kind: str) -> None:
    heads = Heads(HeadShape(kind, 2, HIDDEN, 3))
    states = torch.randn(9, HIDDEN)
    states /= states.pow(2).mean(dim=1, keepdim=True).sqrt()
    if heads.prefix is not None:
        heads.prefix.keep_scale(7 * states)
        torch.testing.assert_close(heads.prefix.output_norm, torch.full((HIDDEN,), 7.0))
        states *= 7
    z = heads(HeadInputs(states, torch.randn(9, 2, HIDDEN), (4, 5)))
    torch.testing.assert_close(z, states.expand(2, -1, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weight_type", dh.WEIGHT_TYPES)
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_file_says_what_torch_computes(tmp_path: Path, kind: str, blocks: int, weight_type: str) -> None:
    heads = random_heads(kind, blocks)
    dh.write_heads(tmp_path / "heads.gguf", draft_heads(heads, weight_type=weight_type))
    round_weights(heads, weight_type)
    rng = np.random.default_rng(0)
    states, embedded = rng.normal(size=(7, HIDDEN)), rng.normal(size=(7, COUNT, HIDDEN))
    output = rng.normal(size=(VOCAB, HIDDEN))
    numpy_heads, keys = read_back(tmp_path / "heads.gguf")

    lengths = (3, 4)
    if kind == "hydra++":
        first = numpy_heads.prefix(states[:3], keys)
        expected_states: NDArray[Any] = np.concatenate([first, numpy_heads.prefix(states[3:], keys)])
    else:
        expected_states = states
    z = heads(HeadInputs(torch.from_numpy(states).float(), torch.from_numpy(embedded).float(), lengths))
    for k in range(COUNT):
        read = [expected_states] if kind == "medusa" else [expected_states, *embedded.transpose(1, 0, 2)[: k + 1]]
        expected = numpy_heads.logits(k, np.concatenate(read, axis=1), VOCAB, output)
        ours = z[k].detach().numpy() @ output.T
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    assert ("medusa.embedding_scale" in keys) == (kind != "medusa")


def test_the_prefix_layer_sees_no_later_row_and_no_other_text() -> None:
    prefix = random_heads("hydra++", 1).prefix
    assert prefix is not None
    states = torch.randn(9, HIDDEN)
    whole = prefix(states, (4, 5), torch.float32)
    changed = states.clone()
    changed[2] += 1
    after = prefix(changed, (4, 5), torch.float32)
    torch.testing.assert_close(after[:2], whole[:2])
    torch.testing.assert_close(after[4:], whole[4:])
    assert not torch.allclose(after[3], whole[3])
    torch.testing.assert_close(prefix(states[4:], (5,), torch.float32), whole[4:])


@pytest.mark.parametrize("hidden", [16, 64, 96, 576, 1536])
def test_the_prefix_layer_has_even_heads_and_whole_blocks(hidden: int) -> None:
    shape = PrefixShape.of(hidden)
    assert hidden % shape.heads == 0
    assert (hidden // shape.heads) % 2 == 0
    assert shape.inner % 32 == 0
    assert PrefixShape.of(576) == PrefixShape(576, 9, 1536)


def test_rows_that_do_not_fill_q8_0_blocks_stay_f16(tmp_path: Path) -> None:
    heads = random_heads("hydra", 1, hidden=24)
    dh.write_heads(tmp_path / "heads.gguf", draft_heads(heads))
    kinds = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "heads.gguf").tensors}
    assert kinds["medusa.0.block.0.weight"] == "F16"  # 48 wide
    assert kinds["medusa.2.block.0.weight"] == "Q8_0"  # 96 wide
    assert kinds["medusa.2.block.0.bias"] == "F32"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "medusa"}, "Medusa heads none"),
        ({"kind": "hydra"}, "prefix layer"),
        ({"kind": "other"}, "unknown kind"),
        ({"weight_type": "q1"}, "unknown weight_type"),
        ({"prefix": None}, "prefix layer"),
        ({"residuals": ()}, "linear residual"),
    ],
)
def test_hydra_heads_that_do_not_fit_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MedusaError, match=message):
        draft_heads(random_heads("hydra++", 2), **changes).check()


def test_prefix_tensors_of_other_shapes_are_refused() -> None:
    whole = draft_heads(random_heads("hydra++", 1))
    assert whole.prefix is not None
    for name, tensors in (
        ("attn_output", {**whole.prefix.tensors, "attn_output": np.zeros((HIDDEN, 3))}),
        ("needs", {"attn_q": np.zeros((HIDDEN, HIDDEN))}),
    ):
        prefix = dh.Prefix(tensors, 1, 1, 1e4, 1e-5, from_answer=True)
        with pytest.raises(MedusaError, match=name):
            draft_heads(random_heads("hydra++", 1), prefix=prefix).check()


def test_first_blocks_of_the_wrong_width_are_refused() -> None:
    whole = draft_heads(random_heads("hydra", 1))
    blocks = [[row[0]] for row in reversed(whole.blocks)]
    with pytest.raises(MedusaError, match="shape"):
        draft_heads(random_heads("hydra", 1), blocks=blocks).check()
