"""Files of streams: what is written is read back, and what does not fit together is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from medusa_cli.converters.gguf.header import read_header
from medusa_cli.converters.heads import draft_heads, schema
from medusa_cli.converters.heads.stream_heads import StreamHeads
from stream_reading import read_stream_heads

from medusa_cli.support.errors import MedusaError

HIDDEN, INNER, RANK = 32, 96, 4


def made(gamma: int = 3, layers: int = 2, rank: int = RANK, root: bool = True, seed: int = 0) -> StreamHeads:
    """Values that F16 holds exactly."""
    rng = np.random.default_rng(seed)
    shapes = schema.prefix_shapes(HIDDEN, HIDDEN, HIDDEN // 2, INNER)

    def values(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float16).astype(np.float32)

    def adapters() -> dict[str, tuple[np.ndarray, np.ndarray]]:
        sizes = {name: shapes[name] for name in schema.STREAM_MATRICES}
        return {name: (values(rank, columns), values(rows, rank)) for name, (rows, columns) in sizes.items()}

    return StreamHeads(
        embedding=values(gamma, HIDDEN) + np.float32(1e-6),
        first_layer=5,
        layers=layers,
        d2t=rng.permutation(50)[:7].astype(np.int32),
        base_name="tiny",
        base_fingerprint="print",
        root=(values(4, HIDDEN), values(HIDDEN, 4)) if root else None,
        adapters=[adapters() for _ in range(layers if rank else 0)],
        alpha=8.0 if rank else 0.0,
        mode="lossless" if rank else "shared",
        accuracy=[[0.5, 0.25]] * gamma,
        tree=[[0], [1], [0, 0]],
    )


@given(gamma=st.integers(1, 6), layers=st.integers(1, 3), rank=st.integers(0, 5), root=st.booleans())
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, gamma: int, layers: int, rank: int, root: bool
) -> None:
    heads = made(gamma, layers, rank, root)
    path = tmp_path_factory.mktemp("streams") / "heads.gguf"
    draft_heads.write_heads(path, heads)
    again = read_stream_heads(path)
    np.testing.assert_equal(vars(again), vars(heads))
    metadata = read_header(path)[0].metadata()
    assert metadata[schema.HEAD_COUNT_KEY] == gamma
    assert (metadata[schema.INPUT_KEY], metadata[schema.INPUT_LAYER_OFFSET_KEY]) == ("layer", layers)


def test_the_file_has_the_shapes_of_ggml(tmp_path: Path) -> None:
    draft_heads.write_heads(tmp_path / "heads.gguf", made())
    shapes = {tensor.name: tensor.shape for tensor in read_header(tmp_path / "heads.gguf")[0].tensors}
    assert shapes["medusa.stream.embedding"] == (HIDDEN, 3)
    assert shapes["medusa.stream.root.lora_a"] == (HIDDEN, 4)
    assert shapes["medusa.stream.root.lora_b"] == (4, HIDDEN)
    assert shapes["medusa.stream.1.ffn_down.lora_a"] == (INNER, RANK)
    assert shapes["medusa.stream.1.ffn_down.lora_b"] == (RANK, HIDDEN)
    assert len(shapes) == 4 + 2 * 7 * 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"embedding": np.zeros(HIDDEN, np.float32)}, "not [streams, hidden size]"),
        ({"mode": "else"}, "unknown mode 'else'"),
        ({"mode": "shared"}, "shared mode has none"),
        ({"layers": 3}, "adapters for each layer"),
        ({"first_layer": 0}, "at least 1 each"),
        ({"root": None, "root_scale": np.zeros(3, np.float32)}, "root_scale has shape (3,)"),
        ({"root_scale": np.zeros(HIDDEN, np.float32)}, "the matrices of the root"),
        ({"root": (np.zeros((4, HIDDEN)), np.zeros((4, HIDDEN)))}, "the matrices of the root"),
        ({"accuracy": [[0.5]]}, "streams x ranks"),
        ({"embedding": np.full((3, HIDDEN), np.nan, np.float32)}, "holds NaN"),
        ({"adapters": [{}, {}]}, "a layer needs adapters of attn_q"),
        ({"adapters": [made().adapters[0], made(rank=RANK + 1).adapters[0]]}, "layer 1, has shapes"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    heads = replace(made(), **changes)
    with pytest.raises(MedusaError) as error:
        draft_heads.write_heads(tmp_path / "heads.gguf", heads)
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_no_streams(tmp_path: Path) -> None:
    path = tmp_path / "heads.gguf"
    draft_heads.write_heads(path, made())
    data = path.read_bytes()
    path.write_bytes(data.replace(b"medusa.stream.1.ffn_up.lora_a", b"medusa.stream.1.ffn_no.lora_a"))
    with pytest.raises(MedusaError, match=r"medusa.stream.1.ffn_up.lora_a is missing"):
        read_stream_heads(path)
    path.write_bytes(data.replace(b"streams", b"strands"))
    with pytest.raises(MedusaError, match="holds no streams"):
        read_stream_heads(path)
