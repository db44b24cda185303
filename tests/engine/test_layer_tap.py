"""States after a layer out of libllama's graph: the bits that its own callback shows, and nothing else changed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from device_run import run
from fixtures import BASE_VOCAB, write_heads
from numpy.typing import NDArray
from random_bases import HIDDEN, KINDS, random_base

from medusa_cli import native

LAYERS = 7
TEXT = np.random.default_rng(3).integers(3, BASE_VOCAB, 90).tolist()


def observed(path: Path, tokens: Sequence[int], layer: int, width: int) -> NDArray[np.float32]:
    """[T, HIDDEN] as cb_eval sees the layer, in batches of `width` as StatesReader takes them."""
    rows: list[NDArray[np.float32]] = []
    library = llama_cpp.llama_cpp._lib
    library.ggml_get_name.restype = ctypes.c_char_p
    library.ggml_get_name.argtypes = [ctypes.c_void_p]
    library.ggml_nbytes.restype = ctypes.c_size_t
    library.ggml_nbytes.argtypes = [ctypes.c_void_p]
    library.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

    @llama_cpp.ggml_backend_sched_eval_callback
    def see(tensor: int, ask: bool, _: object) -> bool:
        if library.ggml_get_name(tensor) != f"l_out-{layer}".encode():
            return not ask
        if not ask:
            values = np.empty((library.ggml_nbytes(tensor) // (4 * HIDDEN), HIDDEN), np.float32)
            library.ggml_backend_tensor_get(tensor, values.ctypes.data, 0, values.nbytes)
            rows.append(values)
        return True

    settings = llama_cpp.llama_model_default_params()
    settings.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.kv_unified, params.swa_full = 256, 512, 512, True, True
    params.n_threads = params.n_threads_batch = 1
    params.cb_eval = see
    context = llama_cpp.llama_init_from_model(model, params)
    for begin in range(0, len(tokens), width):
        part = (llama_cpp.llama_token * width)(*tokens[begin : begin + width])
        count = len(tokens[begin : begin + width])
        assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(part, count)) == 0
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.concatenate(rows)


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize("layer", [0, LAYERS - 2])
def test_the_bits_are_those_of_the_callback(tmp_path: Path, architecture: str, layer: int) -> None:
    path = random_base(tmp_path / "base.gguf", architecture)
    model = native.Model(str(path), n_gpu_layers=0)
    reader = native.StatesReader(model, len(TEXT), tap_layers=[layer], n_threads=1)
    states = reader.read(TEXT).after_layers
    assert states is not None
    assert states.shape == (len(TEXT), HIDDEN)
    np.testing.assert_array_equal(states, observed(path, TEXT, layer, 512))


def test_a_tap_changes_no_bit_of_what_the_model_says(tmp_path: Path) -> None:
    model = native.Model(str(random_base(tmp_path / "base.gguf", "qwen2")))

    def said(tap_layers: list[int]) -> native.States:
        return native.StatesReader(model, len(TEXT), tap_layers=tap_layers, outputs=True, n_threads=1).read(TEXT)

    plain, tapped = said([]), said([3])
    assert plain.after_layers is None
    assert tapped.after_layers is not None
    np.testing.assert_array_equal(plain.post_norm, tapped.post_norm)
    assert (plain.best, plain.last_logits) == (tapped.best, tapped.last_logits)
    assert len(set(plain.best)) > 5


def test_texts_one_after_another_do_not_see_each_other(tmp_path: Path) -> None:
    model = native.Model(str(random_base(tmp_path / "base.gguf", "llama")))
    reader = native.StatesReader(model, 90, tap_layers=[2], n_threads=1)
    first = reader.read(TEXT).after_layers
    reader.read(TEXT[::-1][:40])
    np.testing.assert_array_equal(reader.read(TEXT).after_layers, first)


def test_outputs_from_a_token_on(tmp_path: Path) -> None:
    """The states of all tokens, and what outputs of all tokens have there but for the rounding of other widths."""
    model = native.Model(str(random_base(tmp_path / "base.gguf", "llama")), n_gpu_layers=0)
    reader = native.StatesReader(model, len(TEXT), tap_layers=[2], outputs=True, n_threads=1)
    whole, later = reader.read(TEXT), reader.read(TEXT, outputs_from=70)
    assert whole.post_norm is not None
    assert later.post_norm is not None
    assert len(later.best) == len(later.post_norm) == len(TEXT) - 70
    for mine, other in (
        (later.post_norm, whole.post_norm[70:]),
        (np.array(later.after_layers), np.array(whole.after_layers)),
        (np.array(later.last_logits), np.array(whole.last_logits)),
    ):
        assert np.linalg.norm(mine - other) < 0.01 * np.linalg.norm(other)
    for wrong in (-1, len(TEXT)):
        with pytest.raises(native.NativeError, match="no token has an output"):
            reader.read(TEXT, outputs_from=wrong)


@pytest.mark.parametrize("layer", [-1, LAYERS - 1, 99])
def test_layers_that_cannot_be_read(tmp_path: Path, layer: int) -> None:
    model = native.Model(str(random_base(tmp_path / "base.gguf", "llama")))
    with pytest.raises(native.NativeError, match="those after layers 0 to 5 can"):
        native.StatesReader(model, 10, tap_layers=[layer])


def base_with_a_layer_that_does_nothing(path: Path) -> Path:
    """Of seven layers, the last of which adds zero."""
    import gguf

    random_base(path, "llama")
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.name in ("blk.6.attn_output.weight", "blk.6.ffn_down.weight"):
            tensor.data[:] = 0
        if tensor.name == "output_norm.weight":
            tensor.data[:] = 1
    return path


def test_heads_that_read_a_layer_draft_with_its_states(tmp_path: Path) -> None:
    """Heads without blocks rank tokens alike by a state and by the same one normed: with a last layer that does
    nothing, heads below it and heads behind the norm draft the same trees."""
    model = native.Model(str(base_with_a_layer_that_does_nothing(tmp_path / "base.gguf")))
    tree = native.Tree([[0], [1], [2], [0, 0], [0, 1], [1, 0]])

    def answer(**input: Any) -> tuple[Any, ...]:
        write_heads(tmp_path / "heads.gguf", heads=2, blocks=0, lm_head="base", hidden=HIDDEN, **input)
        session = native.Session(
            model, heads=native.Heads(model, str(tmp_path / "heads.gguf")), tree=tree, n_ctx=256, n_threads=1
        )
        session.generate(TEXT[:20], max_tokens=60, ignore_eos=True)
        assert session.last is not None
        return session.last.tokens, session.last.paths

    normed, tapped, lower = answer(), answer(input="layer", layer_offset=1), answer(input="layer", layer_offset=4)
    assert normed == tapped
    assert lower != normed


@pytest.mark.skipif(sys.platform == "win32", reason="the device needs POSIX memory protection")
def test_on_a_device_the_same_drafts(tmp_path: Path) -> None:
    base = str(base_with_a_layer_that_does_nothing(tmp_path / "base.gguf"))
    heads = str(tmp_path / "heads.gguf")
    order = {"model": base, "heads": heads, "tree": [[0], [1], [2], [0, 0], [0, 1], [1, 0]], "prompt": "abc"}
    write_heads(tmp_path / "heads.gguf", heads=2, blocks=0, lm_head="base", hidden=HIDDEN)
    normed = run(**order)
    write_heads(
        tmp_path / "heads.gguf", heads=2, blocks=0, lm_head="base", hidden=HIDDEN, input="layer", layer_offset=1
    )
    tapped = run(**order)
    assert (tapped["gpu"], tapped["error"]) == (True, None)
    assert tapped["tokens"] == normed["tokens"]
    assert tapped["stats"]["steps"] == normed["stats"]["steps"]
