"""EAGLE-3 drafters from published layouts: the files of llama.cpp's converter, and one line for anything damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from eagle_checkpoints import (
    HF,
    LAYOUTS,
    TARGET_LAYERS,
    config_of,
    vocabulary_of,
    weights_of,
    write_checkpoint,
    write_target,
)
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import quantize
from hf_files import convert as convert_base
from hypothesis import given
from hypothesis import strategies as st
from local_hub import local_hub
from make_eagle_fixtures import REFERENCE, TYPES, compared
from medusa_cli.converters.checkpoints.checkpoint import open_checkpoint, open_side_files
from medusa_cli.converters.drafters import Eagle3, Target, is_eagle3, read_checkpoint_target, read_gguf_target
from medusa_cli.converters.gguf.header import read_header
from typer.testing import CliRunner

from medusa_cli import cli
from medusa_cli.support.errors import MedusaError

EXPECTED = json.loads(REFERENCE.read_text(encoding="utf-8"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target", "llama-spm")


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["convert", *map(str, arguments)])


def refused(result: Any, *parts: str) -> None:
    assert result.exit_code == 1, result.output
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note:")]
    assert len(lines) == 1, lines
    for part in parts:
        assert part in lines[0]


def test_every_layout_has_a_reference() -> None:
    assert set(EXPECTED) == {f"{name} {file_type}" for name in LAYOUTS for file_type in TYPES}


@pytest.mark.parametrize("file_type", TYPES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_equal_to_llama_cpps(name: str, file_type: str, tmp_path: Path) -> None:
    """Names, order, shapes, types and bytes of all tensors, and all keys of drafter and tokenizer."""
    folder = write_target(tmp_path / "target", LAYOUTS[name].target)
    checkpoint = write_checkpoint(tmp_path / "drafter", LAYOUTS[name])
    result = invoke(checkpoint, "--base", folder, "-o", tmp_path / "out.gguf", "--quant", file_type)
    assert result.exit_code == 0, result.output
    found, expected = json.loads(json.dumps(compared(tmp_path / "out.gguf"))), EXPECTED[f"{name} {file_type}"]
    assert found["metadata"] == expected["metadata"]
    assert list(found["tensors"].items()) == list(expected["tensors"].items())


# --- the target --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-spm", "llama-bpe", "qwen2"])
def test_tokenizer_of_a_gguf_is_copied(name: str, tmp_path: Path) -> None:
    """The entries are those of the target's file, byte for byte."""
    base = convert_base(HF / name, tmp_path / "base.gguf")
    layout = next(layout for layout in LAYOUTS.values() if layout.target == name)
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    checkpoint = write_checkpoint(tmp_path / "drafter", layout, config={**config_of(layout), **layers})
    result = invoke(checkpoint, "--base", base, "-o", tmp_path / "out.gguf", "--json")
    assert result.exit_code == 0, result.output
    source, written = (
        [e.raw for e in read_header(p)[0].kv if e.key.startswith("tokenizer.")] for p in (base, tmp_path / "out.gguf")
    )
    assert len(source) > 5
    assert written == source
    assert json.loads(result.stdout)["base"]["kind"] == "gguf"


def test_layers_of_a_gguf_do_not_count_those_for_further_tokens(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "t.gguf", "some")
    writer.add_block_count(9)
    writer.add_embedding_length(32)
    writer.add_uint32("some.nextn_predict_layers", 1)
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = read_gguf_target(tmp_path / "t.gguf")
    assert (found.layers, found.hidden, found.vocabulary) == (8, 32, 2)


def test_sizes_in_the_section_of_the_language_model(target: Path) -> None:
    config = json.loads((target / "config.json").read_text())
    sizes = {key: config.pop(key) for key in ("vocab_size", "num_hidden_layers", "hidden_size")}
    (target / "config.json").write_text(json.dumps({**config, "text_config": sizes}))
    found = read_checkpoint_target(open_side_files(target))
    assert (found.layers, found.hidden, found.vocabulary) == (TARGET_LAYERS, 32, vocabulary_of("llama-spm"))


def test_the_base_that_speculators_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_target(tmp_path / "org" / "target", "llama-spm")
    checkpoint = write_checkpoint(tmp_path / "drafter", LAYOUTS["speculators"])
    result = invoke(checkpoint, "-o", tmp_path / "out.gguf", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "org/target, states before layers 1, 4, 6" in result.stdout
    assert not (tmp_path / "out.gguf").exists()


def test_of_a_base_on_the_hub_only_configuration_and_tokenizer_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_target(tmp_path / "target", "llama-spm")
    files = {path.name: path.read_bytes() for path in target.iterdir()}
    checkpoint = write_checkpoint(tmp_path / "drafter", LAYOUTS["speculators"])
    with local_hub(tmp_path, monkeypatch) as hub:
        hub.add("org/target", {**files, "model.safetensors": b"weights"})
        hub.add("org/ggufs", {"a-Q8_0.gguf": b"GGUF"})
        hub.add("org/drafter", {path.name: path.read_bytes() for path in checkpoint.iterdir()})
        result = invoke("org/drafter", "-o", tmp_path / "out.gguf", "--json")
        assert result.exit_code == 0, result.output
        assert len(hub.blobs("org/target")) == len(files)
        refused(invoke(checkpoint, "--base", "org/ggufs", "-o", tmp_path / "b.gguf"), "--base org/ggufs:QUANT")
    assert json.loads(result.stdout)["base"]["provenance"]["repo"] == "org/target"
    keys = read_header(tmp_path / "out.gguf")[0].metadata()
    assert (keys["general.name"], keys["general.source.repo"]) == ("org/drafter", "org/drafter")


def test_other_bases_are_refused(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    checkpoint = write_checkpoint(tmp_path / "drafter", LAYOUTS["specforge"])
    refused(invoke(checkpoint, "-o", out), "names no base model", "--base")
    refused(invoke(checkpoint, "--base", write_target(tmp_path / "b", "llama-bpe"), "-o", out), "vocabulary of 443")
    refused(invoke(checkpoint, "--base", write_target(tmp_path / "t", "llama-spm", 2), "-o", out), "has 2 layers")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(invoke(checkpoint, "--base", empty, "-o", out), "vocab_size is None")
    refused(invoke(checkpoint, "--base", checkpoint / "config.json", "-o", out), "not a GGUF")
    edited = config_of(LAYOUTS["specforge"]) | {"target_hidden_size": 64}
    wide = write_checkpoint(tmp_path / "wide", LAYOUTS["specforge"], config=edited)
    refused(invoke(wide, "--base", target, "-o", out), "hidden states of size 64", "has 32")
    assert not out.exists()


# --- what is written ---------------------------------------------------------------------------------------------


def test_nested_layers_count_outputs(target: Path, tmp_path: Path) -> None:
    """The output of layer i is the state before layer i + 1."""
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 7]}}
    layout = LAYOUTS["specforge"]
    checkpoint = write_checkpoint(tmp_path / "drafter", layout, config={**config_of(layout), **ids})
    drafter = Eagle3(open_checkpoint(checkpoint), read_checkpoint_target(open_side_files(target)))
    assert drafter.target_layers == [1, 4, 8]


@pytest.mark.parametrize("quant", [None, "Q4_K_M"])
def test_quantized(quant: str | None, target: Path, tmp_path: Path) -> None:
    """Q8_0 unless another type is asked for; norms stay F32, the map stays whole."""
    checkpoint, out = write_checkpoint(tmp_path / "drafter", LAYOUTS["specforge"]), tmp_path / "out.gguf"
    result = invoke(checkpoint, "--base", target, "-o", out, "--json", *(("--quant", quant) if quant else ()))
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["drafter"]["quant"] == (quant or "Q8_0")
    assert 0 < report["check"]["deviation"] <= report["check"]["bound"]
    tensors = {tensor.name: tensor for tensor in GGUFReader(out).tensors}
    assert {tensor.tensor_type.name for name, tensor in tensors.items() if "norm" in name} == {"F32"}
    assert tensors["d2t"].tensor_type.name == "I64"
    if quant is None:
        assert tensors["fc.weight"].tensor_type.name == "Q8_0"
    stored = weights_of(LAYOUTS["specforge"])["d2t"]
    assert np.array_equal(tensors["d2t"].data, stored + np.arange(len(stored)))


@pytest.mark.parametrize("name", LAYOUTS)
def test_libllama_loads_it(name: str, tmp_path: Path) -> None:
    folder = write_target(tmp_path / "target", LAYOUTS[name].target)
    checkpoint = write_checkpoint(tmp_path / "drafter", LAYOUTS[name])
    assert invoke(checkpoint, "--base", folder, "-o", tmp_path / "out.gguf").exit_code == 0
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(tmp_path / "out.gguf").encode(), parameters)
    assert model
    assert llama_cpp.llama_model_n_embd(model) == LAYOUTS[name].hidden
    llama_cpp.llama_model_free(model)


def test_f32_weights_are_quantized_from_f32(target: Path, tmp_path: Path) -> None:
    checkpoint, out = write_checkpoint(tmp_path / "drafter", LAYOUTS["speculators-full"]), tmp_path / "out.gguf"
    assert invoke(checkpoint, "--base", target, "-o", out).exit_code == 0
    found = next(tensor for tensor in GGUFReader(out).tensors if tensor.name == "fc.weight")
    expected = quantize(weights_of(LAYOUTS["speculators-full"])["fc.weight"], GGMLQuantizationType.Q8_0)
    assert np.array_equal(found.data, expected)


def test_recognized_without_a_name_of_its_own(tmp_path: Path) -> None:
    layout = LAYOUTS["authors"]
    config = config_of(layout)
    assert config["architectures"] == ["LlamaForCausalLM"]
    del config["draft_vocab_size"]
    assert is_eagle3(open_checkpoint(write_checkpoint(tmp_path / "drafter", layout, config=config)))


def test_the_report(target: Path, tmp_path: Path) -> None:
    checkpoint, out = write_checkpoint(tmp_path / "drafter", LAYOUTS["specforge"]), tmp_path / "out.gguf"
    result = invoke(checkpoint, "--base", target, "-o", out, "--sidecar")
    assert result.exit_code == 0, result.output
    assert "EAGLE-3, hidden size 32, 96 tokens, the base's embedding, Q8_0" in result.stdout
    assert f"medusa chat BASE --draft-model {out}" in result.stdout
    refused(invoke(checkpoint, "--base", target, "-o", out), "exists", "--force")
    assert invoke(checkpoint, "--base", target, "-o", out, "--force").exit_code == 0


def test_options_that_are_for_heads(target: Path, tmp_path: Path) -> None:
    checkpoint, text = write_checkpoint(tmp_path / "drafter", LAYOUTS["specforge"]), tmp_path / "text.txt"
    text.write_text("abc")
    refused(invoke(checkpoint, "--base", target, "--install"), "not installed", "-o")
    options = ("--draft-vocab", 2, "--calibration", text)
    refused(invoke(checkpoint, "--base", target, "-o", tmp_path / "out.gguf", *options), "--draft-vocab")


# --- hostile checkpoints -----------------------------------------------------------------------------------------

CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
    ({"num_hidden_layers": None}, "num_hidden_layers is None"),
    ({"vocab_size": "x"}, "vocab_size is 'x'"),
    ({"hidden_size": 64, "head_dim": 8}, "has another size|have another size"),
    ({"intermediate_size": 64}, "config.json asks for"),
    ({"num_attention_heads": 3}, "num_key_value_heads is 2"),
    ({"head_dim": 16}, "config.json asks for"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ({"rope_scaling": {"type": "ntk"}}, "rope scaling 'ntk' is not supported"),
    ({"draft_vocab_size": 95}, "draft_vocab_size is 95, expected 96"),
    ({"draft_vocab_size": "many"}, "draft_vocab_size is 'many'"),
    ({"target_hidden_size": "x"}, "target_hidden_size is 'x'"),
    ({"norm_before_residual": 1}, "norm_before_residual is 1"),
    ({"norm_before_fc": True}, "lacks the tensor for enc.output_norm.weight"),
    ({"transformer_layer_config": 7}, "transformer_layer_config is 7"),
    ({"eagle_config": [1]}, "eagle_config is"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "expected 3 layers of the base's 8"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "expected 3 layers"),
    ({"eagle_aux_hidden_state_layer_ids": [-1, 2, 5]}, "expected 3 layers"),
    ({"eagle_aux_hidden_state_layer_ids": [2, 2, 5]}, "expected 3 layers"),
    ({"eagle_aux_hidden_state_layer_ids": [5, 3, 1]}, "expected 3 layers"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, True]}, "expected 3 layers"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3.0]}, "expected 3 layers"),
    ({"eagle_aux_hidden_state_layer_ids": "123"}, "expected 3 layers"),
    ({"eagle_aux_hidden_state_layer_ids": {"a": 1}}, "expected 3 layers"),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 8]}}, "eagle_config: eagle_aux_hidden_state_layer"),
]

Weights = dict[str, np.ndarray]
Q, FC = "midlayer.self_attn.q_proj.weight", "fc.weight"


def with_entry(name: str, at: int, value: int) -> Callable[[Weights], None]:
    return lambda weights: weights[name].__setitem__(at, value)


WEIGHTS: list[tuple[Callable[[Weights], Any], str]] = [
    (lambda weights: weights.pop(FC), "lacks the tensor for fc.weight"),
    (lambda weights: weights.pop("norm.weight"), "lacks the tensor for output_norm.weight"),
    (lambda weights: weights.pop("midlayer.hidden_norm.weight"), "lacks the tensor for blk.0.attn_norm_2.weight"),
    (lambda weights: weights.pop("d2t"), "lacks 'd2t'"),
    (lambda weights: weights.pop("lm_head.weight"), "draft_vocab_size is 96, expected 443"),
    (lambda weights: weights.update({FC: weights[FC].T.copy()}), "'fc.weight' has shape 96x32"),
    (lambda weights: weights.update({FC: weights[FC][:, :64].copy()}), "config.json asks for 32x96"),
    (lambda weights: weights.update({Q: weights[Q][:, :32].copy()}), "config.json asks for 32x64"),
    (lambda weights: weights.update({Q: weights[Q].astype(np.int8)}), "dtype I8"),
    (lambda weights: weights.update({"lm_head.weight": np.ones((500, 32), np.float32)}), "at most 443 tokens"),
    (lambda weights: weights.update({"lm_head.weight": np.ones(96, np.float32)}), "at most 443 tokens"),
    (lambda weights: weights.update({"lm_head.weight": np.ones((0, 32), np.float32)}), "at most 443 tokens"),
    (lambda weights: weights.update({"embed_tokens.weight": np.ones((96, 32), np.float32)}), "asks for 443x32"),
    (
        lambda weights: weights.update({"input_norm.weight": np.ones(96, np.float32)}),
        "norm_before_fc is None, expected",
    ),
    (lambda weights: weights.update({"midlayer.self_attn.q_proj.bias": np.ones(32, np.float32)}), "has no place"),
    (lambda weights: weights.update({"midlayer.self_attn.q_norm.weight": np.ones(8, np.float32)}), "has no place"),
    (lambda weights: weights.update({"layers.1.mlp.up_proj.weight": np.ones((48, 32), np.float32)}), "has no place"),
    (lambda weights: weights.update({"layers.0.mlp.up_proj.weight": np.ones((48, 32), np.float32)}), "are both"),
    (lambda weights: weights.update({"model.norm.weight": np.ones(32, np.float32)}), "are both output_norm.weight"),
    (lambda weights: weights["norm.weight"].fill(np.nan), "'norm.weight' holds values that are not finite"),
    (lambda weights: weights[FC].__setitem__((3, 5), np.inf), "'fc.weight' holds values that are not finite"),
    (lambda weights: weights.update(d2t=weights["d2t"][:-1].copy()), "'d2t' has shape"),
    (lambda weights: weights.update(d2t=weights["d2t"].reshape(-1, 1)), "'d2t' has shape"),
    (lambda weights: weights.update(d2t=weights["d2t"].astype(np.float32)), "not a whole number for each"),
    (lambda weights: weights.update(d2t=weights["d2t"] > 0), "not a whole number for each"),
    (lambda weights: weights.update(d2t=weights["d2t"] + np.arange(96)), "does not name ascending tokens"),
    (with_entry("d2t", 0, -1), "does not name ascending tokens"),
    (with_entry("d2t", -1, 443), "does not name ascending tokens"),
    (with_entry("d2t", -1, 2**63 - 1), "does not name ascending tokens"),
    (with_entry("d2t", 5, -1), "does not name ascending tokens"),
    (lambda weights: weights["d2t"].fill(-5), "does not name ascending tokens"),
]


def check_refused(checkpoint: Path, target: Path, tmp_path: Path, message: str) -> None:
    result = invoke(checkpoint, "--base", target, "-o", tmp_path / "out.gguf")
    refused(result)
    assert re.search(message, result.stderr), result.stderr
    assert "drafter" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drafter", "target"]


@pytest.mark.parametrize(("changes", "message"), CONFIGS)
def test_configs_that_cannot_be_right(changes: dict[str, Any], message: str, target: Path, tmp_path: Path) -> None:
    layout = LAYOUTS["specforge"]
    checkpoint = write_checkpoint(tmp_path / "drafter", layout, config={**config_of(layout), **changes})
    check_refused(checkpoint, target, tmp_path, message)


@pytest.mark.parametrize(("change", "message"), WEIGHTS)
def test_weights_that_cannot_be_right(change: Any, message: str, target: Path, tmp_path: Path) -> None:
    weights = weights_of(LAYOUTS["specforge"])
    change(weights)
    check_refused(
        write_checkpoint(tmp_path / "drafter", LAYOUTS["specforge"], weights=weights), target, tmp_path, message
    )


def test_states_of_another_size_need_own_matrices(target: Path, tmp_path: Path) -> None:
    """The target's embedding and output matrix have the target's width."""
    layout = LAYOUTS["nvidia"]
    folder = write_target(tmp_path / "bpe", layout.target)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        weights = weights_of(layout)
        del weights[name]
        config = config_of(layout)
        if name == "lm_head.weight":
            del weights["d2t"], config["draft_vocab_size"]
        checkpoint = write_checkpoint(tmp_path / name, layout, weights=weights, config=config)
        refused(invoke(checkpoint, "--base", folder, "-o", tmp_path / "out.gguf"), f"lacks {name!r}", "another size")


def test_an_output_over_all_tokens_needs_no_map(target: Path, tmp_path: Path) -> None:
    layout = LAYOUTS["specforge"]
    weights, vocabulary = weights_of(layout), vocabulary_of(layout.target)
    del weights["d2t"], weights["t2d"]
    weights["lm_head.weight"] = np.ones((vocabulary, 32), np.float32)
    config = config_of(layout) | {"draft_vocab_size": vocabulary}
    checkpoint = write_checkpoint(tmp_path / "drafter", layout, weights=weights, config=config)
    assert invoke(checkpoint, "--base", target, "-o", tmp_path / "out.gguf").exit_code == 0
    assert "d2t" not in {tensor.name for tensor in read_header(tmp_path / "out.gguf")[0].tensors}


def test_no_space(target: Path, tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    checkpoint = write_checkpoint(tmp_path / "drafter", LAYOUTS["specforge"])
    drafter = Eagle3(open_checkpoint(checkpoint), read_checkpoint_target(open_side_files(target)))
    with pytest.raises(MedusaError, match="no space left"):
        drafter.write(full, "F16", {})


junk = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5),
    st.lists(st.integers(-2, 12), max_size=4), st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
)  # fmt: skip
NESTED = config_of(LAYOUTS["nvidia"])
KEYS = sorted({*config_of(LAYOUTS["speculators"]), *NESTED, "eagle_aux_hidden_state_layer_ids", "rope_parameters"})


@pytest.mark.hypothesis
@given(changes=st.dictionaries(st.sampled_from(KEYS), junk, min_size=1, max_size=3))
def test_any_value_of_the_configuration_may_be_junk(
    changes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A drafter or one line, never another exception."""
    folder = tmp_path_factory.mktemp("junk")
    layout = LAYOUTS["nvidia"]
    checkpoint = write_checkpoint(folder / "drafter", layout, config={**NESTED, **changes})
    found = Target("base", vocabulary_of(layout.target), TARGET_LAYERS, 32, ())
    assert "\n" not in refusal(checkpoint, found, folder / "out.gguf")


def refusal(checkpoint: Path, target: Target, out: Path) -> str:
    """The message that a conversion ends with, empty when it succeeds."""
    try:
        Eagle3(open_checkpoint(checkpoint), target).write(out, "F16", {})
    except MedusaError as error:
        return str(error)
    return ""
