"""Every published layout of draft heads comes out as ours: names, shapes, values, and the same logits."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from head_modules import HydraHeads, VllmHeads, medusa_heads, prefix_layer
from head_numpy import NumpyHeads
from hypothesis import given, settings
from hypothesis import strategies as st
from make_head_fixtures import FOLDER, HEADS, HIDDEN, VOCAB, build
from medusa_cli.converters.checkpoints.checkpoint import Checkpoint, open_checkpoint
from medusa_cli.converters.heads.formats import SourceHeads, base_tensor_filter, read_heads
from medusa_cli.converters.heads.write import prefix_keys
from safetensors.torch import load_file, load_model, save_file

from medusa_cli.support.errors import MedusaError

GOLDEN = json.loads((FOLDER / "golden.json").read_text())
Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors, dict[str, Any]], Any]
PREFIX: dict[str, Any] = {"head_count": 4, "head_count_kv": 2, "rope_freq_base": 10000.0, "norm_eps": 1e-5}


def read(name: str) -> SourceHeads:
    return read_heads(open_checkpoint(FOLDER / name))


def stored(name: str) -> Tensors:
    """All tensors of a fixture, read by the libraries that define the formats; FP8 as it lies there."""
    found: Tensors = {}
    for path in sorted((FOLDER / name).iterdir()):
        if path.suffix == ".safetensors":
            found.update(load_file(path))
        if path.suffix == ".pt":
            found.update(torch.load(path, weights_only=True))
    return found


def changed(folder: Path, name: str, change: Change, torch_file: bool = False) -> Checkpoint:
    """A copy of a fixture, as one file, after change(tensors, config)."""
    tensors = {key: value.clone() for key, value in stored(name).items()}
    config = json.loads((FOLDER / name / "config.json").read_text())
    change(tensors, config)
    if torch_file:
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        save_file({key: value.contiguous() for key, value in tensors.items()}, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config))
    return open_checkpoint(folder)


def drop(*names: str) -> Change:
    return lambda tensors, config: [tensors.pop(name) for name in names]


def configure(**values: Any) -> Change:
    return lambda tensors, config: config.update(values)


def put(**values: torch.Tensor) -> Change:
    return lambda tensors, config: tensors.update({key.replace("__", "."): value for key, value in values.items()})


@pytest.mark.parametrize("name", GOLDEN)
def test_names_shapes_and_values_are_golden(name: str) -> None:
    heads, golden = read(name), GOLDEN[name]
    for key in ("family", "kind", "lm_head", "block_count", "base_reference", "is_full_model"):
        assert getattr(heads, key) == golden[key]
    assert (heads.head_count, heads.hidden) == (HEADS, HIDDEN)
    found = {}
    for tensor in heads.tensors:
        values = tensor.load()
        assert values.shape == tensor.shape
        assert values.dtype == (np.int32 if tensor.role == "map" else np.float32)
        found[tensor.name] = {"shape": list(values.shape), "sha256": hashlib.sha256(values.tobytes()).hexdigest()}
    assert len(found) == len(heads.tensors)
    assert found == golden["tensors"]
    rows = [tensor.shape[0] for tensor in heads.tensors if tensor.role in ("output", "output_bias", "map")]
    assert set(rows) == ({heads.rows} if heads.rows else set())


def test_roles() -> None:
    roles = {tensor.name: tensor.role for tensor in read("hydra-prefix-mlp").tensors + read("vllm").tensors}
    assert roles["medusa.1.block.0.weight"] == roles["medusa.1.block.0.residual.weight"] == "block"
    assert roles["medusa.1.block.0.bias"] == roles["medusa.1.block.0.residual.bias"] == "bias"
    assert (roles["medusa.1.output.weight"], roles["medusa.1.output.bias"]) == ("output", "output_bias")
    assert (roles["medusa.d2t"], roles["medusa.prefix.attn_q.weight"]) == ("map", "prefix")


def test_the_script_makes_the_committed_fixtures(tmp_path: Path) -> None:
    assert build(tmp_path) == GOLDEN
    for name in GOLDEN:
        old, new = open_checkpoint(FOLDER / name), open_checkpoint(tmp_path / name)
        assert (old.tensors, old.config) == (new.tensors, new.config)
        for key in old.tensors:
            np.testing.assert_array_equal(old.load(key), new.load(key))
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 600_000


def hidden_states(n: int = 5) -> tuple[np.ndarray, torch.Tensor]:
    values = np.random.default_rng(99).standard_normal((n, HIDDEN))
    return values, torch.from_numpy(values)


def compare(expected: Any, found: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "prefix", "layers"),
    [("medusa-v1", "", 2), ("medusa-v1-once", "", 3), ("medusa-full", "medusa_head.", 1), ("medusa-v2", "", 1)],
)
def test_medusa_logits(name: str, prefix: str, layers: int) -> None:
    module = medusa_heads(HIDDEN, VOCAB, HEADS, layers, output=name != "medusa-v2")
    if name == "medusa-v1-once":
        load_model(module, str(FOLDER / name / "medusa_lm_head.safetensors"))
    else:
        tensors = {key.removeprefix(prefix): value for key, value in stored(name).items() if key.startswith(prefix)}
        module.load_state_dict({key: value for key, value in tensors.items() if key[0].isdigit()})
    heads, (x, x_torch) = NumpyHeads(read(name)), hidden_states()
    base = np.random.default_rng(1).standard_normal((VOCAB, HIDDEN))
    for i, head in enumerate(module.double()):
        expected = head(x_torch)
        if name == "medusa-v2":
            expected = expected @ torch.from_numpy(base).T
        compare(expected, heads.logits(i, x, VOCAB, base))


def test_modelopt_logits() -> None:
    tensors = stored("modelopt")
    own = {}
    for key, value in tensors.items():
        if key.startswith("medusa_heads.") and not key.endswith("_scale"):
            own[key.removeprefix("medusa_heads.")] = value.float() * tensors.get(key + "_scale", torch.tensor(1.0))
    module = medusa_heads(HIDDEN, VOCAB, HEADS, 1)
    module.load_state_dict(own)
    heads, (x, x_torch) = NumpyHeads(read("modelopt")), hidden_states()
    for i, head in enumerate(module.double()):
        compare(head(x_torch), heads.logits(i, x, VOCAB))


@pytest.mark.parametrize(("name", "rows", "layers"), [("vllm", 20, 2), ("vllm-original", VOCAB, 1)])
def test_vllm_logits(name: str, rows: int, layers: int) -> None:
    shared = name == "vllm-original"
    module = VllmHeads(HIDDEN, rows, HEADS, layers, bias=shared, shared_output=shared)
    tensors = {key.removeprefix("medusa_heads."): value for key, value in stored(name).items()}
    token_map = tensors.pop("token_map")
    module.load_state_dict(tensors)
    heads, (x, x_torch) = NumpyHeads(read(name)), hidden_states()
    for i, logits in enumerate(module.double()(x_torch)):
        expected = torch.full((len(x), VOCAB), -torch.inf, dtype=torch.float64)
        expected[:, token_map] = logits[:, token_map] if shared else logits
        compare(expected, heads.logits(i, x, VOCAB))


@pytest.mark.parametrize(("name", "layers"), [("hydra-mlp", 3), ("hydra-prefix-mlp", 4)])
def test_hydra_logits(name: str, layers: int) -> None:
    has_prefix = name == "hydra-prefix-mlp"
    module = HydraHeads(HIDDEN, VOCAB, HEADS, layers, prefix_layer(HIDDEN, VOCAB, 4, 2) if has_prefix else None)
    tensors = {key: value for key, value in stored(name).items() if "inv_freq" not in key}
    module.load_state_dict(tensors)
    source, (x, x_torch) = read(name), hidden_states()
    heads = NumpyHeads(source)
    tokens = np.random.default_rng(7).integers(0, VOCAB, len(x) + HEADS)
    embeddings = tensors["input_embed_fn.weight"].double().numpy()
    parts = [heads.prefix(x, prefix_keys(source, **PREFIX)) if has_prefix else x]
    tolerance = 2e-6 if has_prefix else 1e-9  # transformers computes the rotary angles in single precision
    for i, logits in enumerate(module.double().eval()(x_torch, torch.from_numpy(tokens))):
        parts.append(embeddings[tokens[i + 1 : i + 1 + len(x)]])
        found = heads.logits(i, np.concatenate(parts, -1), VOCAB)
        np.testing.assert_allclose(found, logits.detach().numpy(), rtol=tolerance, atol=tolerance)


def same(heads: SourceHeads) -> dict[str, str]:
    return {tensor.name: tensor.same_as for tensor in heads.tensors if tensor.same_as}


def test_shared_blocks_are_known_as_such() -> None:
    for name, first, last in [("medusa-v1", 0, 1), ("medusa-v1-once", 0, 2), ("hydra-mlp", 1, 2)]:
        heads = read(name)
        assert same(heads) == {
            f"medusa.{i}.block.{j}.{part}": f"medusa.{i}.block.{first}.{part}"
            for i in range(HEADS)
            for j in range(first + 1, last + 1)
            for part in ("weight", "bias")
        }
        assert any("shared module" in remark for remark in heads.remarks)
    for name in ("vllm", "medusa-v2", "modelopt", "medusa-full"):
        assert same(read(name)) == {}


def test_blocks_that_differ_are_kept_apart(tmp_path: Path) -> None:
    heads = read_heads(changed(tmp_path, "medusa-v1", lambda t, c: t["0.1.linear.weight"].add_(1)))
    assert "medusa.0.block.1.weight" not in same(heads)
    values = {tensor.name: tensor.load() for tensor in heads.tensors}
    assert (values["medusa.0.block.1.weight"] != values["medusa.0.block.0.weight"]).all()
    assert same(heads)["medusa.0.block.1.bias"] == "medusa.0.block.0.bias"


def test_v2_and_hydra_copies_that_safetensors_omits(tmp_path: Path) -> None:
    for folder in ("v2", "v2 torch", "hydra"):
        (tmp_path / folder).mkdir()
    heads = read_heads(changed(tmp_path / "v2", "medusa-v2", configure(medusa_num_layers=2)))
    assert heads.block_count == 2
    assert same(heads)["medusa.2.block.1.weight"] == "medusa.2.block.0.weight"
    heads = read_heads(changed(tmp_path / "v2 torch", "medusa-v2", configure(medusa_num_layers=2), torch_file=True))
    assert heads.block_count == 1
    assert heads.remarks == ["config.json says 2 blocks in each head, the tensors hold 1: using 1"]
    omitted = drop(*[name for name in stored("hydra-mlp") if name.startswith("hydra_mlp.") and ".2." in name[10:]])
    heads = read_heads(changed(tmp_path / "hydra", "hydra-mlp", omitted))
    assert heads.block_count == 3
    found = {tensor.name: hashlib.sha256(tensor.load().tobytes()).hexdigest() for tensor in heads.tensors}
    assert found == {name: value["sha256"] for name, value in GOLDEN["hydra-mlp"]["tensors"].items()}


def test_a_configuration_that_lies_is_corrected(tmp_path: Path) -> None:
    assert read("medusa-v1").remarks[0] == "config.json says 2 heads, the tensors hold 3: using 3"
    assert read("medusa-v1-once").remarks == ["residual blocks of a head are one shared module, applied several times"]
    for name, key in [("vllm", "num_heads"), ("hydra-mlp", "hydra_num_heads")]:
        heads = read_heads(changed(tmp_path, name, configure(**{key: 7})))
        assert heads.head_count == HEADS
        assert heads.remarks[0] == "config.json says 7 heads, the tensors hold 3: using 3"
    nonsense = configure(medusa_num_heads="many", medusa_num_layers=[2], base_model_name_or_path=5, medusa=[1])
    heads = read_heads(changed(tmp_path, "medusa-v1", nonsense))
    assert (heads.head_count, heads.base_reference) == (HEADS, None)
    heads = read_heads(changed(tmp_path, "hydra-mlp", configure(grounded_heads=False)))
    assert heads.kind == "hydra"
    assert "config.json says grounded_heads = False, the tensors say otherwise" in heads.remarks
    heads = read_heads(changed(tmp_path, "modelopt", configure(medusa={"num_medusa_heads": 1})))
    assert heads.remarks == ["config.json says 1 heads, the tensors hold 3: using 3"]


def test_metadata() -> None:
    assert read("hydra-mlp").metadata == read("hydra-prefix-mlp").metadata == {"medusa.embedding_scale": 1.0}
    assert read("medusa-v1").metadata == read("vllm").metadata == {}
    source = read("hydra-prefix-mlp")
    assert prefix_keys(source, **PREFIX) == {f"medusa.prefix.{key}": value for key, value in PREFIX.items()}
    for counts in ({"head_count": 3}, {"head_count_kv": 4}, {"head_count": 0}):
        with pytest.raises(MedusaError, match="do not fit a base"):
            prefix_keys(source, **{**PREFIX, **counts})


@pytest.mark.parametrize("name", ["medusa-full", "modelopt"])
def test_the_base_of_a_full_model(name: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(FOLDER / name)
    rename = base_tensor_filter(checkpoint, read_heads(checkpoint))
    names = {key: rename(key) for key in checkpoint.tensors}
    assert {key for key, plain in names.items() if plain is None} == {key for key in names if "medusa" in key}
    assert all(plain in (None, key) for key, plain in names.items())
    assert rename("lm_head.weight") == "lm_head.weight"

    def wrap(tensors: Tensors, config: dict[str, Any]) -> None:
        for key in list(tensors):
            if not key.startswith("medusa"):
                tensors["base_model." + key] = tensors.pop(key)

    wrapped = changed(tmp_path, name, wrap)
    rename = base_tensor_filter(wrapped, read_heads(wrapped))
    assert rename("base_model.model.norm.weight") == "model.norm.weight"
    assert rename("medusa_head.0.0.linear.weight") is None


def test_heads_alone_have_no_base() -> None:
    checkpoint = open_checkpoint(FOLDER / "medusa-v1")
    with pytest.raises(MedusaError, match=r"holds heads only, give the base model they belong to$"):
        base_tensor_filter(checkpoint, read_heads(checkpoint))


def test_fp8_weights_come_scaled_and_the_scales_are_gone() -> None:
    tensors, checkpoint = stored("modelopt"), open_checkpoint(FOLDER / "modelopt")
    name = "model.layers.0.mlp.up_proj.weight"
    assert tensors[name].dtype == torch.float8_e4m3fn
    expected = tensors[name].float() * tensors[name + "_scale"]
    np.testing.assert_array_equal(checkpoint.load(name), expected.numpy())
    assert {key for key in tensors if "scale" in key} == set(tensors) - set(checkpoint.tensors)


def test_vllm_variants(tmp_path: Path) -> None:
    def read_changed(name: str, *changes: Change) -> SourceHeads:
        def all_changes(tensors: Tensors, config: dict[str, Any]) -> None:
            for change in changes:
                change(tensors, config)

        return read_heads(changed(tmp_path, name, all_changes))

    plain = read_changed("vllm", drop("token_map"), configure(truncated_vocab_size=VOCAB))
    assert (plain.lm_head, plain.rows) == ("own", 20)
    whole = read_changed("vllm-original", drop("token_map"))
    values = {tensor.name: tensor.load() for tensor in whole.tensors}
    assert whole.lm_head == "draft_vocab"
    assert values["medusa.d2t"].tolist() == list(range(VOCAB))
    assert values["medusa.output.weight"].shape == (VOCAB, HIDDEN)
    unused = read_changed("vllm-original", configure(truncated_vocab_size=VOCAB))
    assert unused.rows == VOCAB
    assert any("token_map is not used" in remark for remark in unused.remarks)
    scaled = read_changed("vllm", configure(logit_scale=0.25))
    weights = {tensor.name: tensor for tensor in scaled.tensors}
    original = stored("vllm")["lm_heads.1.weight"].numpy()
    np.testing.assert_array_equal(weights["medusa.1.output.weight"].load(), original * np.float32(0.25))

    def rename(tensors: Tensors, config: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors.pop("medusa_heads.lm_heads.0.weight")

    named = read_changed("vllm-original", rename)
    assert {t.name: t.shape for t in named.tensors} == {t.name: t.shape for t in read("vllm-original").tensors}


def test_hydra_heads_without_grounding_are_medusa_heads(tmp_path: Path) -> None:
    def unground(tensors: Tensors, config: dict[str, Any]) -> None:
        config["grounded_heads"] = False
        for key in list(tensors):
            if "res_connection" in key:
                del tensors[key]
            elif key.startswith("hydra_mlp") and ".0.linear.weight" in key:
                tensors[key] = tensors[key][:, :HIDDEN].clone()

    checkpoint = changed(tmp_path, "hydra-mlp", unground)
    heads = read_heads(checkpoint)
    assert (heads.kind, heads.block_count, heads.lm_head) == ("medusa", 3, "own")
    x, x_torch = hidden_states()
    tensors = {key: torch.from_numpy(checkpoint.load(key)).double() for key in checkpoint.tensors}
    for i in range(HEADS):
        y = x_torch
        for j in range(3):
            linear = f"hydra_mlp.{i}.{j}.linear"
            y = y + torch.nn.functional.silu(y @ tensors[f"{linear}.weight"].T + tensors[f"{linear}.bias"])
        expected = y @ tensors[f"hydra_lm_head.{i}.weight"].T + tensors[f"hydra_lm_head.{i}.bias"]
        compare(expected, NumpyHeads(heads).logits(i, x, VOCAB))


ONE = torch.ones(1)
SQUARE = torch.ones(HIDDEN, HIDDEN)

REFUSED: list[tuple[str, Change, str]] = [
    ("medusa-v1", put(other=ONE), "tensor 'other' belongs to no known"),
    ("medusa-v1", put(**{"0__0__linear__scale": ONE}), "'0.0.linear.scale' belongs to no known"),
    ("medusa-v1", put(**{"00__0__linear__weight": ONE}), "'00.0.linear.weight' belongs to no known"),
    ("medusa-v1", put(**{"model__norm__weight": ONE}), "'model.norm.weight' belongs to a base model that is not"),
    ("medusa-v1", put(**{"medusa_head__0__0__linear__weight": SQUARE}), "two sets of heads"),
    ("medusa-v1", put(**{"blocks__0__layers__0__weight": SQUARE}), "two sets of heads"),
    ("medusa-v1", put(**{"5__2__weight": torch.ones(VOCAB, HIDDEN)}), "head 3 is missing"),
    ("medusa-v1", drop("1.2.weight"), "'1.2.weight' is missing"),
    ("medusa-v1", drop("1.1.linear.bias", "1.0.linear.bias"), "'1.0.linear.bias' is missing"),
    ("medusa-v1", put(**{"1__3__linear__weight": SQUARE}), "behind the output matrix"),
    ("medusa-v1", put(**{"1__3__weight": torch.ones(VOCAB, HIDDEN)}), "heads must be alike"),
    ("medusa-v1", put(**{"1__0__linear__weight": torch.ones(HIDDEN, 8)}), "has shape [16, 8]"),
    ("medusa-v1", put(**{"1__2__weight": torch.ones(50, HIDDEN)}), "has shape [50, 16]"),
    ("medusa-v1", put(**{"1__0__linear__bias": torch.ones(HIDDEN, 1)}), "has shape [16, 1]"),
    ("medusa-v2", put(**{"0__0__linear__weight": torch.ones(0, 0)}), "a matrix was expected"),
    ("medusa-v1", put(**{"0__2__weight": ONE}), "a matrix was expected"),
    ("medusa-v1", put(**{"1__0__linear__weight": SQUARE.int()}), "dtype I32"),
    ("medusa-v1", configure(hidden_state_offset=1), "hidden_state_offset is 1"),
    ("medusa-v2", configure(medusa_num_layers=10**6), "at most 64"),
    ("medusa-v2", drop(*[name for name in stored("medusa-v2") if "weight" in name]), "'0.0.linear.weight' is missing"),
    ("medusa-full", drop("model.embed_tokens.weight"), "base model that is not complete"),
    ("medusa-full", drop(*[name for name in stored("medusa-full") if "medusa" in name]), "no Medusa or Hydra heads"),
    ("medusa-full", put(**{"base_model__lm_head__weight": ONE}), "stored twice"),
    ("medusa-full", put(**{"vision__x": ONE}), "'vision.x' belongs to no known"),
    ("vllm", drop("lm_heads.1.weight"), "'lm_heads.1.weight' is missing"),
    ("vllm", drop(*[f"lm_heads.{i}.weight" for i in range(HEADS)]), "blocks and an output matrix"),
    ("vllm", put(**{"lm_heads__7__weight": torch.ones(20, HIDDEN)}), "has no head of its own"),
    ("vllm", put(lm_head__weight=torch.ones(20, HIDDEN)), "stands beside"),
    (
        "vllm",
        lambda tensors, config: tensors.update({"lm_head.weight": tensors.pop("lm_heads.0.weight")}),
        "'lm_head.weight' stands beside 'lm_heads.2.weight'",
    ),
    ("vllm", drop("blocks.1.layers.1.weight"), "'blocks.1.layers.1.weight' is missing"),
    ("vllm", put(**{"blocks__1__layers__1__bias": torch.ones(HIDDEN)}), "'blocks.0.layers.0.bias' is missing"),
    ("vllm", put(**{"medusa_heads__blocks__1__layers__1__weight": SQUARE}), "are the same part"),
    ("vllm", put(token_map=torch.arange(20) - 1), "twice or outside the vocabulary"),
    ("vllm", put(token_map=torch.arange(20) + VOCAB), "twice or outside the vocabulary"),
    ("vllm", put(token_map=torch.zeros(20, dtype=torch.int64)), "twice or outside the vocabulary"),
    ("vllm", put(token_map=torch.arange(21)), "does not name a token"),
    ("vllm", put(token_map=torch.ones(20)), "does not name a token"),
    ("vllm", put(token_map=torch.ones(0, dtype=torch.int64)), "does not name a token"),
    ("hydra-mlp", configure(hidden_state_offset=2), "hidden_state_offset is 2"),
    ("hydra-mlp", configure(hidden_state_offset="x"), "hidden_state_offset is no number"),
    ("hydra-mlp", drop("hydra_lm_head.1.bias"), "'hydra_lm_head.1.bias' is missing"),
    ("hydra-mlp", drop("hydra_mlp.1.0.res_connection.weight"), "res_connection.weight' is missing"),
    ("hydra-mlp", put(**{"hydra_mlp__1__1__res_connection__weight": SQUARE}), "is unknown"),
    ("hydra-mlp", put(**{"hydra_mlp__0__7__linear__weight": SQUARE}), "unexpected place"),
    ("hydra-mlp", put(**{"hydra_lm_head__4__weight": SQUARE}), "has no blocks of its own"),
    ("hydra-mlp", put(**{"hydra_mlp__1__0__linear__weight": SQUARE}), "has shape [16, 16]"),
    ("hydra-mlp", drop(*[name for name in stored("hydra-mlp") if "hydra_mlp" in name]), "without 'hydra_mlp' tensors"),
    ("hydra-prefix-mlp", put(**{"prefix_embeding_layer__layers__1__x": ONE}), "belongs to no known"),
    ("hydra-prefix-mlp", put(**{"prefix_embeding_layer__layers__0__x": ONE}), "is unknown in a prefix layer"),
    ("hydra-prefix-mlp", drop("prefix_embeding_layer.norm.weight"), "'prefix_embeding_layer.norm.weight' is missing"),
    (
        "hydra-prefix-mlp",
        drop(*[name for name in stored("hydra-prefix-mlp") if "res_connection" in name]),
        "has shape [16, 32], [16, 16] would fit",
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSED, ids=[f"{n}: {m}" for n, _, m in REFUSED])
def test_heads_that_do_not_fit_are_refused_by_name(tmp_path: Path, name: str, change: Change, message: str) -> None:
    checkpoint = changed(tmp_path, name, change)
    with pytest.raises(MedusaError) as error:
        read_heads(checkpoint)
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


NONSENSE: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 1, 2**31, 2**64, 1.5, "x", [], {}, [-1], [0, 0], [2**62, 4], "F8_E4M3", "U8", "BF16", "I64"]
)
SINGLE_FILES = [name for name in GOLDEN if len(list((FOLDER / name).glob("*.safetensors"))) == 1]
NAMES = [
    "lm_head.weight",
    "model.embed_tokens.weight",
    "token_map",
    "lm_heads.0.weight",
    "1.0.linear.weight",
    "0.3.weight",
]
KEYS = [
    *("medusa_num_heads", "medusa_num_layers", "num_heads", "num_hidden_layers", "hydra_num_layers", "vocab_size"),
    *("truncated_vocab_size", "hidden_state_offset", "logit_scale", "medusa", "original_lm_head", "grounded_heads"),
]


@given(
    name=st.sampled_from(SINGLE_FILES),
    mutations=st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from(["shape", "dtype", "all", "rename", "drop"]), NONSENSE),
        max_size=3,
    ),
    config=st.dictionaries(st.sampled_from(KEYS), NONSENSE, max_size=3),
)
@settings(max_examples=150)
def test_lies_in_header_and_configuration_are_refused_or_harmless(
    tmp_path: Path, name: str, mutations: list[tuple[int, str, Any]], config: dict[str, Any]
) -> None:
    """Whatever they say: a MedusaError of one line, or tensors as announced."""
    (path,) = (FOLDER / name).glob("*.safetensors")
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    for at, field, drawn in mutations:
        key, value = sorted(header)[at % len(header)], copy.deepcopy(drawn)  # the same value may be drawn twice
        if field == "rename":
            header[NAMES[at % len(NAMES)]] = header.pop(key)
        elif field == "drop" and len(header) > 1:
            del header[key]
        elif field in ("shape", "dtype") and isinstance(header[key], dict):
            header[key][field] = value
        else:
            header[key] = value
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[end:])
    (tmp_path / "config.json").write_text(json.dumps(config))
    try:
        heads = read_heads(open_checkpoint(tmp_path))
        loaded = [tensor.load().shape for tensor in heads.tensors]
    except MedusaError as error:
        if "\n" in str(error):
            raise AssertionError("more than one line") from error
        return
    assert loaded == [tensor.shape for tensor in heads.tensors]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused_when_they_are_loaded(tmp_path: Path, value: float) -> None:
    def spoil(tensors: Tensors, config: dict[str, Any]) -> None:
        tensors["medusa_head.1.1.weight"][3, 4] = value

    heads = read_heads(changed(tmp_path, "medusa-full", spoil))
    broken = [tensor for tensor in heads.tensors if tensor.name == "medusa.1.output.weight"]
    with pytest.raises(MedusaError, match=r"'medusa_head\.1\.1\.weight' holds NaN or infinite"):
        broken[0].load()


def test_biased_outputs_and_no_blocks_at_all(tmp_path: Path) -> None:
    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        tensors.clear()
        for i in range(2):
            tensors[f"{i}.0.weight"] = torch.full((VOCAB, HIDDEN), 0.5)
            tensors[f"{i}.0.bias"] = torch.full((VOCAB,), float(i))

    heads = read_heads(changed(tmp_path, "medusa-v1", change))
    assert (heads.block_count, heads.head_count, heads.hidden, heads.rows) == (0, 2, HIDDEN, VOCAB)
    found = NumpyHeads(heads).logits(1, np.ones((1, HIDDEN)), VOCAB)
    np.testing.assert_allclose(found, np.full((1, VOCAB), 0.5 * HIDDEN + 1))
