"""Embeddings beside llama.cpp's own, batches beside single texts, and what is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from architectures import CONTEXT, TOKENS
from embedding_models import EMBEDDERS, RANK, WIDTH, write_embedder
from gguf_edits import edited
from random_models import random_tensors, write_model

from medusa_cli import native

RANDOM = np.random.default_rng(0)
TEXTS: list[list[int]] = [RANDOM.integers(1, TOKENS, n).tolist() for n in (1, 5, 40, 300, 7, 512, 3, 200, 200, 200)]
NEAR = 1e-3


def llama_cpp_rows(path: Path, texts: Sequence[Sequence[int]]) -> Any:
    """What llama.cpp makes of each text in a context of its own, with its own pooling and kernels."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts = 0, False
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model
    rows = []
    for text in texts:
        wanted = llama_cpp.llama_context_default_params()
        wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = CONTEXT
        wanted.embeddings, wanted.n_threads, wanted.n_threads_batch = True, 2, 2
        context = llama_cpp.llama_init_from_model(model, wanted)
        tokens = (ctypes.c_int32 * len(text))(*text)
        assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(text))) == 0
        found = llama_cpp.llama_get_embeddings_seq(context, 0)
        row = np.array(found[: llama_cpp.llama_model_n_embd_out(model)])
        rows.append(row / np.linalg.norm(row))
        llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.array(rows)


def opened(path: Path, **options: Any) -> native.Embedder:
    return native.Embedder(native.Model(str(path), n_gpu_layers=0, embeds=True), n_threads=2, **options)


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embeddings_are_those_of_llama_cpp(tmp_path: Path, name: str) -> None:
    path = write_embedder(tmp_path / "model.gguf", name)
    assert native.read_gguf(str(path)).embeds
    embedder = opened(path)
    assert (embedder.n_ctx, embedder.width) == (CONTEXT, WIDTH)
    rows = embedder.embed(TEXTS)
    assert rows.dtype == np.float32
    assert np.abs(np.linalg.norm(rows, axis=1) - 1).max() < 1e-5
    assert np.abs(rows - llama_cpp_rows(path, TEXTS)).max() < NEAR
    single = np.vstack([embedder.embed([text]) for text in TEXTS])
    assert np.abs(rows - single).max() < NEAR


def test_quantized_weights(tmp_path: Path) -> None:
    path = write_embedder(tmp_path / "full.gguf", "nomic-bert")
    small = tmp_path / "model.gguf"
    native.quantize_model(str(path), str(small), file_type=7)
    rows, expected = opened(small).embed(TEXTS), llama_cpp_rows(small, TEXTS)
    assert (rows * expected).sum(axis=1).min() > 0.999


def test_texts_longer_than_a_pass(tmp_path: Path) -> None:
    texts = [RANDOM.integers(1, TOKENS, n).tolist() for n in (1500, 4, 700)]
    for name in ("nomic-bert", "qwen3, mean", "qwen2, both ways"):
        path = write_embedder(tmp_path / "model.gguf", name, context_length=2048)
        embedder = opened(path)
        assert embedder.n_ctx == 2048
        rows = embedder.embed(texts)
        for text, row in zip(texts, rows, strict=True):
            # A context that was made for this text alone.
            assert np.abs(opened(path).embed([text])[0] - row).max() < NEAR
        assert len(embedder.embed([])) == 0


def test_what_texts_are_refused(tmp_path: Path) -> None:
    embedder = opened(write_embedder(tmp_path / "model.gguf"), n_ctx=8)
    for text, reason in (([], "it is empty"), ([1] * 9, "9 tokens, the model takes 8"), ([TOKENS], "vocabulary")):
        with pytest.raises(native.NativeError, match=f"input 1: .*{reason}"):
            embedder.embed([[1], text])
    with pytest.raises(native.NativeError, match="vocabulary"):
        embedder.embed([[-1]])
    assert embedder.embed([[1] * 8]).shape == (1, WIDTH)


def test_what_models_are_refused(tmp_path: Path) -> None:
    path = write_embedder(tmp_path / "model.gguf")
    with pytest.raises(native.NativeError, match="writes no text: `medusa serve` serves it"):
        native.Model(str(path))
    with pytest.raises(native.NativeError, match=r"trained on texts of 512 tokens, not 513: lower -c$"):
        opened(path, n_ctx=513)
    key = "bert.pooling_type"
    for value, reason in ((RANK, "is a reranker"), (0, "does not say how"), (7, "which llama.cpp does not know")):
        other = edited(path, tmp_path / "other.gguf", {key: value})
        with pytest.raises(native.NativeError, match=reason):
            opened(other)
    other = edited(path, tmp_path / "other.gguf", without=[key])
    with pytest.raises(native.NativeError, match="does not say how"):
        opened(other)
    with pytest.raises(native.NativeError, match=r"not a decoder-only language model \(bert\)"):
        native.Model(str(other))
    wrong = edited(path, tmp_path / "other.gguf", {key: "mean"})
    with pytest.raises(native.NativeError, match="pooling_type"):
        opened(wrong)


def test_weights_that_are_not_numbers(tmp_path: Path) -> None:
    path, made = tmp_path / "model.gguf", EMBEDDERS["bert"]
    tensors = random_tensors(tmp_path, made)
    tensors["token_embd_norm.weight"][0] = np.nan
    write_model(path, made, tensors)
    with pytest.raises(native.NativeError, match="not a number"):
        opened(path).embed([[1, 2, 3]])


def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    embedder = opened(write_embedder(tmp_path / "model.gguf", "qwen3", block_count=24, context_length=4096))
    calls: list[int] = []

    def on_progress() -> bool:
        calls.append(1)
        return False

    rows = embedder.embed([[1] * 4000] * 40, on_progress=on_progress)
    assert (len(rows), calls) == (0, [1])
    assert len(embedder.embed([[1, 2]])) == 1
