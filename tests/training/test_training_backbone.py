"""The base's layers in torch: what the engine computes, for each architecture; and adapters merged into its file."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest
import torch
from fixtures import BASE_VOCAB, tiny_base, tiny_recurrent
from medusa_cli.converters.gguf.header import read_header
from random_bases import HIDDEN, KINDS, random_base

from medusa_cli import native
from medusa_cli.models.base_file import output_rows, read_base
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import loop
from medusa_cli.training.backbone import merge, parity, quality
from medusa_cli.training.backbone.fit import heads_weight
from medusa_cli.training.backbone.layers import Adapters, TopLayers
from medusa_cli.training.backbone.shape import BaseTensors, DecoderShape, read_shape
from medusa_cli.training.heads.loss import compare, frozen_cross_entropy, kl_loss
from medusa_cli.training.recipes import JOINT_RECIPES

CPU = torch.device("cpu")
LAYERS, FIRST = 7, 3
RNG = np.random.default_rng(5)
TEXTS = [RNG.integers(3, BASE_VOCAB, length).tolist() for length in (60, 5, 90)]


def opened(path: Path, first: int = FIRST) -> TopLayers:
    tensors = BaseTensors(path)
    return TopLayers(tensors, read_shape(tensors.header), first, CPU)


def output_of(path: Path) -> torch.Tensor:
    base = read_base(path)
    return torch.from_numpy(output_rows(base, np.arange(base.n_vocab)))


def with_ropes(shape: DecoderShape, factor: float) -> DecoderShape:
    ropes = [dataclasses.replace(layer.rope, base=layer.rope.base * factor) for layer in shape.layers]
    layers = [dataclasses.replace(layer, rope=rope) for layer, rope in zip(shape.layers, ropes, strict=True)]
    return dataclasses.replace(shape, layers=tuple(layers))


@pytest.mark.parametrize(
    ("architecture", "options"),
    [*((name, {}) for name in KINDS), ("llama", {"rope_factors": True}), ("llama", {"tied": False})],
)
def test_states_are_those_of_the_engine(tmp_path: Path, architecture: str, options: dict[str, Any]) -> None:
    """Several texts at once, as rows side by side; weights are F32, so that nothing but the order of sums differs."""
    path = random_base(tmp_path / "base.gguf", architecture, **options)
    model, layers = native.Model(str(path), n_gpu_layers=0), opened(path)
    reader = native.StatesReader(model, 90, tap_layers=[FIRST - 1], outputs=True, n_threads=1)
    read = [reader.read(text) for text in TEXTS]
    entered = torch.cat([torch.from_numpy(np.asarray(states.after_layers)) for states in read])
    normed = torch.cat([torch.from_numpy(np.asarray(states.post_norm)) for states in read])
    with torch.no_grad():
        made = layers(entered, [len(text) for text in TEXTS])
    assert float((made - normed).norm() / normed.norm()) < 5e-3  # the engine's keys and values are F16
    found = parity.check(model, layers, output_of(path), TEXTS, 1, parity.EXACT)
    assert (found.tokens, found.agreement) == (155, pytest.approx(1.0, abs=0.01))


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize("layer", [FIRST + 1, LAYERS - 1])
def test_a_layer_that_differs_is_named(tmp_path: Path, architecture: str, layer: int) -> None:
    path = random_base(tmp_path / "base.gguf", architecture)
    layers = opened(path)
    weight = layers.layers[layer - FIRST].weights["ffn_down.weight"]
    weight += 0.5 * weight.flip(0)
    with pytest.raises(MedusaError, match=f"layer {layer} gives different results in torch"):
        parity.check(native.Model(str(path)), layers, output_of(path), TEXTS, 1, parity.EXACT)


@pytest.mark.parametrize("factor", [0.01, 0.5])
def test_lost_rotations_are_found(tmp_path: Path, factor: float) -> None:
    path = random_base(tmp_path / "base.gguf", "qwen3")
    tensors = BaseTensors(path)
    layers = TopLayers(tensors, with_ropes(read_shape(tensors.header), factor), FIRST, CPU)
    with pytest.raises(MedusaError, match=f"layer {FIRST} gives different results in torch"):
        parity.check(native.Model(str(path)), layers, output_of(path), TEXTS, 1, parity.EXACT)


def test_what_is_allowed_for_follows_from_the_types(tmp_path: Path) -> None:
    """8-bit rounding of activations comes with quantized matrices alone."""
    plain = random_base(tmp_path / "base.gguf", "llama")
    for name, number in (("f16", 1), ("q8_0", 7)):
        native.quantize_model(str(plain), str(tmp_path / f"{name}.gguf"), file_type=number)
    found = [parity.tolerance(BaseTensors(tmp_path / f"{name}.gguf")) for name in ("base", "f16", "q8_0")]
    assert found == [parity.EXACT, parity.EXACT, parity.ROUNDED]


def test_a_wrong_output_matrix_is_found(tmp_path: Path) -> None:
    path = random_base(tmp_path / "base.gguf", "llama")
    with pytest.raises(MedusaError, match="although no layer alone differs"):
        parity.check(native.Model(str(path)), opened(path), output_of(path).roll(1, 0), TEXTS, 1, parity.EXACT)


@pytest.mark.parametrize("architecture", KINDS)
def test_bfloat16_is_the_same_but_for_rounding(tmp_path: Path, architecture: str) -> None:
    layers = opened(random_base(tmp_path / "base.gguf", architecture))
    x = torch.randn(20, HIDDEN, requires_grad=True)
    exact = layers(x, [12, 8])
    with torch.autocast("cpu", torch.bfloat16):
        rounded = layers(x, [12, 8])
    (wanted,), (found,) = (torch.autograd.grad(made.float().square().sum(), x) for made in (exact, rounded))
    assert 0 < float(((rounded - exact).norm() / exact.norm()).detach()) < 0.05
    assert float((found - wanted).norm() / wanted.norm()) < 0.2


@pytest.mark.model
def test_the_demo_model_passes(demo_model_path: Path) -> None:
    model = native.Model(str(demo_model_path))
    layers = opened(demo_model_path, 28)
    text = model.tokenize("The harbour of the old town was built for sailing ships, and its stone walls still stand.")
    assert parity.check(model, layers, output_of(demo_model_path), [text], 1, parity.ROUNDED).agreement > 0.99


def refused(path: Path) -> str:
    with pytest.raises(MedusaError) as error:
        read_shape(BaseTensors(path).header)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_models_that_cannot_be_trained(tmp_path: Path) -> None:
    assert "layers can be trained for llama, qwen2, qwen3, gemma3, not for mamba" in refused(
        tiny_recurrent(tmp_path / "mamba.gguf")
    )
    assert "llama.expert_count is 4: such layers cannot be trained" in refused(
        tiny_base(tmp_path / "experts.gguf", experts=4)
    )


def test_a_tensor_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    path = random_base(tmp_path / "base.gguf", "llama")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"blk.4.attn_norm.weight", b"blk.4.attn_gate.weight"))
    assert "has no blk.4.attn_norm.weight" in refused(path)
    random_base(path, "qwen2")
    path.write_bytes(path.read_bytes().replace(b"blk.4.attn_q.bias", b"blk.4.attn_x.bias"))
    assert "unknown tensor blk.4.attn_x.bias" in refused(path)


def test_fresh_adapters_change_nothing_and_merged_ones_what_they_learned(tmp_path: Path) -> None:
    path = random_base(tmp_path / "base.gguf", "qwen2")
    layers = opened(path)
    adapters = Adapters(layers, 4, 16.0, 0.1)
    x = torch.randn(20, HIDDEN)
    with torch.no_grad():
        assert torch.equal(layers(x, [12, 8], adapters.project), layers(x, [12, 8]))  # so KL begins at 0
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(layers(x, [12, 8], adapters.project), layers(x, [12, 8]))
        adapters.eval()
        for b in adapters.b.values():
            b.normal_(0, 0.05)
        expected = layers(x, [12, 8], adapters.project)
        assert float((expected - layers(x, [12, 8])).norm() / expected.norm()) > 0.01
        moved = merge.merge(
            layers_tensors := BaseTensors(path), adapters, "base", tmp_path / "new.gguf", lambda *_: None
        )
        assert moved.learned > 0.01
        assert moved.rounded < 1e-3
        torch.testing.assert_close(opened(tmp_path / "new.gguf")(x, [12, 8]), expected, rtol=1e-3, atol=1e-3)
    assert layers_tensors.header.metadata()["general.name"] == "random qwen2"


@pytest.mark.parametrize("quantized", [False, True])
def test_untouched_tensors_stay_byte_for_byte(tmp_path: Path, quantized: bool) -> None:
    from medusa_cli.conversion.quantize import quantize

    path = random_base(tmp_path / "base.gguf", "llama")
    if quantized:
        quantize(path, tmp_path / "q4.gguf", "Q4_0")
        path = tmp_path / "q4.gguf"
    adapters = Adapters(opened(path), 4, 16.0, 0.0)
    with torch.no_grad():
        for b in adapters.b.values():
            b.normal_(0, 0.05)
    merge.merge(BaseTensors(path), adapters, "base", tmp_path / "new.gguf", lambda *_: None)
    old, new = ({t.name: t for t in gguf.GGUFReader(p).tensors} for p in (path, tmp_path / "new.gguf"))
    assert list(old) == list(new)
    changed = {f"{name}.weight" for name in adapters.names()}
    assert len(changed) == 7 * (LAYERS - FIRST)
    for name, tensor in new.items():
        same = tensor.tensor_type == old[name].tensor_type and np.array_equal(tensor.data, old[name].data)
        assert same == (name not in changed)
        if name in changed:
            assert tensor.tensor_type.name == ("Q8_0" if quantized else "F32")
    before, after = (read_header(p)[0].metadata() for p in (path, tmp_path / "new.gguf"))
    assert before.pop("general.name") == "random llama"
    assert after.pop("general.name") == "base (Medusa-2)"
    assert before == after
    model = native.Model(str(tmp_path / "new.gguf"))
    reader = native.StatesReader(model, 60, tap_layers=[FIRST - 1], outputs=True)
    states = reader.read(TEXTS[0])
    with torch.no_grad():
        made = opened(tmp_path / "new.gguf")(torch.from_numpy(np.asarray(states.after_layers)), [60])
    assert float((made - torch.from_numpy(np.asarray(states.post_norm))).norm() / made.norm()) < 0.05


def test_the_divergence_and_its_gradient() -> None:
    torch.manual_seed(0)
    student = torch.randn(300, 8, dtype=torch.float64, requires_grad=True)
    teacher, output = torch.randn(300, 8, dtype=torch.float64), torch.randn(40, 8, dtype=torch.float64)
    p, q = (torch.log_softmax(states @ output.T, dim=1) for states in (teacher, student))
    expected = (p.exp() * (p - q)).sum(dim=1).mean()
    (wanted,) = torch.autograd.grad(expected, student)
    loss = kl_loss(student, teacher, output)
    (found,) = torch.autograd.grad(3 * loss, student)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(found, 3 * wanted, rtol=1e-4, atol=1e-7)
    assert float(kl_loss(teacher, teacher, output)) == pytest.approx(0.0, abs=1e-6)


def test_a_small_divergence_is_not_lost_in_bfloat16() -> None:
    """Logits of 10 are rounded by up to 0.03 there, what moves them here is 0.02."""
    torch.manual_seed(0)
    teacher, output = 10 * torch.randn(300, 64), (torch.randn(500, 64) / 16).bfloat16()
    student = (teacher + 0.05 * torch.randn(300, 64)).requires_grad_()
    exact = kl_loss(student, teacher, output.double())
    rounded = kl_loss(student, teacher, output)
    (wanted,), (found,) = (torch.autograd.grad(loss, student) for loss in (exact, rounded))
    assert float(exact.detach()) < 1e-3
    assert float(rounded.detach()) == pytest.approx(float(exact.detach()), rel=0.05)
    assert float((found - wanted).norm() / wanted.norm()) < 0.1


def test_cross_entropy_and_its_gradient() -> None:
    torch.manual_seed(0)
    states, output = torch.randn(30, 8, requires_grad=True), torch.randn(40, 8)
    tokens = torch.randint(0, 40, (30,))
    expected = torch.nn.functional.cross_entropy(states @ output.T, tokens)
    (wanted,) = torch.autograd.grad(expected, states)
    loss = frozen_cross_entropy(states, tokens, output, 16)
    (found,) = torch.autograd.grad(loss, states)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_distances() -> None:
    torch.manual_seed(0)
    ours, output, tokens = torch.randn(300, 8), torch.randn(40, 8), torch.randint(0, 40, (300,))
    same = quality.Distance.of(compare(ours, ours, output, tokens))
    assert (same.tokens, same.kl, same.top1) == (300, pytest.approx(0, abs=1e-6), 1.0)
    assert same.perplexity == pytest.approx(same.base_perplexity, rel=1e-6)
    entropy = torch.nn.functional.cross_entropy(ours @ output.T, tokens)
    assert same.perplexity == pytest.approx(float(entropy.exp()), rel=1e-4)
    other = quality.Distance.of(compare(ours, ours + 0.5 * torch.randn(300, 8), output, tokens))
    assert other.kl > 0.05
    assert 0.2 < other.top1 < 1.0


def test_schedules() -> None:
    weights = [heads_weight(step, 10, JOINT_RECIPES["distill"]) for step in range(10)]
    assert weights == sorted(weights)
    assert weights[0] == pytest.approx(0.01 * np.sin(np.pi / 20))
    assert weights[-1] == 0.01
    rates = [loop.learning_rate(step, 100, 1.0, loop.rising_steps(100, 20, 4)) for step in range(100)]
    assert rates[:20] == [(step + 1) / 20 for step in range(20)]
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert [loop.learning_rate(step, 1, 1.0, loop.rising_steps(1, 20, 4)) for step in range(1)] == [1.0]


def said_with_adapter(base: Path, adapter: Path, tokens: list[int]) -> np.ndarray:
    """Logits behind `tokens`, by llama.cpp itself."""
    settings = llama_cpp.llama_model_default_params()
    settings.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(base).encode(), settings)
    loaded = llama_cpp.llama_adapter_lora_init(model, str(adapter).encode())
    assert loaded
    context = llama_cpp.llama_init_from_model(model, llama_cpp.llama_context_default_params())
    pointer: Any = llama_cpp.llama_adapter_lora_p_ctypes
    adapters, scales = (pointer * 1)(ctypes.cast(loaded, pointer)), (ctypes.c_float * 1)(1.0)
    assert llama_cpp.llama_set_adapters_lora(context, adapters, 1, scales) == 0
    part = (llama_cpp.llama_token * len(tokens))(*tokens)
    assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(part, len(tokens))) == 0
    logits = np.array(llama_cpp.llama_get_logits_ith(context, -1)[:BASE_VOCAB])
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return logits


def test_size_of_the_adapters_is_that_of_what_they_add(tmp_path: Path) -> None:
    adapters = Adapters(opened(random_base(tmp_path / "base.gguf", "llama")), 4, 16.0, 0.0)
    assert adapters.size() == 0
    with torch.no_grad():
        for b in adapters.b.values():
            b.normal_(0, 0.05)
    added = torch.cat([adapters.change(name).flatten() for name in adapters.names()])
    assert adapters.size() == pytest.approx(float(added.norm()), rel=1e-5)


@pytest.mark.parametrize("architecture", KINDS)
def test_an_adapter_is_to_llama_cpp_what_the_merged_model_is(tmp_path: Path, architecture: str) -> None:
    path = random_base(tmp_path / "base.gguf", architecture)
    adapters = Adapters(opened(path), 4, 16.0, 0.0)
    with torch.no_grad():
        for b in adapters.b.values():
            b.normal_(0, 0.05)
    with merge.adapter_file(adapters, "base", tmp_path / "adapter.gguf"):
        pass
    merge.merge(BaseTensors(path), adapters, "base", tmp_path / "new.gguf", lambda *_: None)
    said = said_with_adapter(path, tmp_path / "adapter.gguf", TEXTS[0])
    merged, base = (
        np.array(native.StatesReader(native.Model(str(file)), 60, outputs=True).read(TEXTS[0]).last_logits)
        for file in (tmp_path / "new.gguf", path)
    )
    assert np.linalg.norm(said - merged) < 0.02 * np.linalg.norm(merged)
    assert np.linalg.norm(said - base) > 0.1 * np.linalg.norm(merged)
