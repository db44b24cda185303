"""Files of layers for further tokens (MTP) that are wrong, or belong to another model: one line each, never a crash.

libllama ends the process over many of them. So each pair is opened in a process of its own: tests/support/mtp_trials.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import random_models
from architectures import ARCHITECTURES
from damaged_layers import run
from gguf_edits import edited, tensor_names
from mtp_models import MTP_MODELS, write_assistant, write_mtp_model
from mtp_trials import Outcome, outcome, outcomes
from random_models import write_random_model

FACTOR = int(os.environ.get("MEDUSA_FUZZ", "1"))
"""How many times as many damaged files as usual."""

WITH_LAYERS = [name for name, model in MTP_MODELS.items() if model.layers]
ASSISTANT = "gemma4-assistant."
OPTIONAL = (
    "attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_gate.weight", "attn_sinks.weight", "exp_probs_b.bias",
    "layer_output_norm.weight", "rope_freqs.weight", "nextn.embed_tokens.weight", "nextn.shared_head_head.weight",
    "nextn.shared_head_norm.weight", "output.weight",
)  # fmt: skip
"""Tensors that some architectures do without."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each model: NAME.gguf, NAME-trunk.gguf and mtp-NAME.gguf; gemma4-trunk.gguf and mtp-gemma4.gguf."""
    folder = tmp_path_factory.mktemp("mtp")
    for name in WITH_LAYERS:
        write_mtp_model(folder / f"{name}.gguf", name)
        write_mtp_model(folder / f"{name}-trunk.gguf", name, part="trunk")
        write_mtp_model(folder / f"mtp-{name}.gguf", name, part="layers")
    write_mtp_model(folder / "gemma4-trunk.gguf", "gemma4")
    write_assistant(folder / "mtp-gemma4.gguf")
    return folder


def check_refused(found: Outcome, *said: str) -> None:
    assert found.error, f"it was not refused: {found}"
    assert found.error.isprintable()
    assert [part for part in said if part not in found.error] == [], found.error


def works(found: Outcome) -> bool:
    """Whether all steps had drafts, and the text is that of plain decoding."""
    return found.same and found.drafted >= 13 and not found.ended


@pytest.mark.parametrize("name", MTP_MODELS)
def test_intact_files_work(folder: Path, name: str) -> None:
    whole, trunk, layers = (folder / f"{one}.gguf" for one in (name, f"{name}-trunk", f"mtp-{name}"))
    pairs = [(trunk, layers), *([(whole, whole), (whole, layers)] if whole.exists() else [])]
    assert [found for found in outcomes(pairs) if not works(found)] == []


# --- numbers of layers ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MTP_MODELS)
def test_wrong_numbers_of_layers(folder: Path, tmp_path: Path, name: str) -> None:
    sources = [folder / f"mtp-{name}.gguf", folder / f"{name}.gguf"]
    architecture = name if MTP_MODELS[name].layers else ASSISTANT.rstrip(".")
    pairs = []
    for source in filter(Path.exists, sources):
        for number in (0, 600, 2**31 - 1, 2**31, 2**32 - 1):
            path = edited(
                source, tmp_path / f"{number}-{source.name}", {f"{architecture}.nextn_predict_layers": number}
            )
            pairs.append((folder / f"{name}-trunk.gguf" if source is sources[0] else path, path))
    for (_, path), found in zip(pairs, outcomes(pairs), strict=True):
        check_refused(found, str(path), "its layers for further tokens (MTP) cannot be used", "use --no-drafter")


@pytest.mark.parametrize("name", ["qwen35", "glm4moe", "deepseek2"])
def test_more_layers_than_libllama_runs(folder: Path, tmp_path: Path, name: str) -> None:
    path = edited(folder / f"mtp-{name}.gguf", tmp_path / "mtp-two.gguf", {f"{name}.nextn_predict_layers": 2})
    check_refused(outcome(folder / f"{name}-trunk.gguf", path), str(path), f"runs one in {name} models, not 2")


@pytest.mark.parametrize("number", [3, 5, 2**31])
def test_an_assistant_has_all_the_layers_that_it_names(folder: Path, tmp_path: Path, number: int) -> None:
    values = {f"{ASSISTANT}{key}": number for key in ("block_count", "nextn_predict_layers")}
    path = edited(folder / "mtp-gemma4.gguf", tmp_path / "mtp.gguf", values)
    check_refused(outcome(folder / "gemma4-trunk.gguf", path), str(path))


def test_no_key_for_the_layers(folder: Path, tmp_path: Path) -> None:
    key = "glm4moe.nextn_predict_layers"
    path = edited(folder / "mtp-glm4moe.gguf", tmp_path / "mtp.gguf", without=[key])
    check_refused(outcome(folder / "glm4moe-trunk.gguf", path), str(path), "it has none")


def test_an_architecture_without_such_layers(folder: Path, tmp_path: Path) -> None:
    write_random_model(tmp_path / "llama.gguf", ARCHITECTURES["llama"])
    path = edited(tmp_path / "llama.gguf", tmp_path / "more.gguf", {"llama.nextn_predict_layers": 1})
    check_refused(outcome(path, path), str(path), "llama.cpp has no graph for those of llama models")


# --- tensors ----------------------------------------------------------------------------------------


def is_partial_expert(name: str, tensor: str) -> bool:
    return name == "step35" and tensor.endswith(("ffn_up_exps.weight", "ffn_down_exps.weight"))


def without_one(folder: Path, tmp_path: Path, name: str, *, own: bool) -> Iterator[tuple[str, tuple[Path, Path]]]:
    """Each tensor of the layers or of the whole sidecar, and the pair without it."""
    source = folder / (f"{name}.gguf" if own else f"mtp-{name}.gguf")
    first = MTP_MODELS[name].trunk
    for tensor in tensor_names(source):
        if own and not (tensor.startswith("blk.") and int(tensor.split(".")[1]) >= first):
            continue
        path = edited(source, tmp_path / f"mtp-{tensor}.gguf", without=[tensor])
        yield tensor, (path if own else folder / f"{name}-trunk.gguf", path)


@pytest.mark.parametrize("own", [True, False], ids=["own", "sidecar"])
@pytest.mark.parametrize("name", MTP_MODELS)
def test_each_tensor_is_there_or_not_needed(folder: Path, tmp_path: Path, name: str, own: bool) -> None:
    if own and not MTP_MODELS[name].layers:
        pytest.skip("its layers are in a file of their own")
    cases = dict(without_one(folder, tmp_path, name, own=own))
    for (tensor, (_, path)), found in zip(cases.items(), outcomes(list(cases.values())), strict=True):
        if is_partial_expert(name, tensor):
            continue  # below
        assert works(found) or (found.error and str(path) in found.error and found.error.isprintable()), (tensor, found)
        spare = any(part in tensor for part in ("norm", "exp", "inp"))
        spare |= name == "step35" and ".ffn_" in tensor  # its layers have experts, and need no others
        assert works(found) <= (tensor.endswith(OPTIONAL) or spare), tensor


@pytest.mark.parametrize("tensor", ["ffn_up_exps", "ffn_down_exps"])
def test_experts_are_complete(folder: Path, tmp_path: Path, tensor: str) -> None:
    path = edited(folder / "step35.gguf", tmp_path / "mtp.gguf", without=[f"blk.2.{tensor}.weight"])
    check_refused(outcome(path, path), str(path), tensor)


@pytest.mark.parametrize("name", ["qwen35", "deepseek2", "mimo2"])
def test_no_output_matrix(folder: Path, tmp_path: Path, name: str) -> None:
    path = edited(folder / f"mtp-{name}.gguf", tmp_path / "mtp.gguf", without=["output.weight"])
    check_refused(outcome(folder / f"{name}-trunk.gguf", path), str(path))


def heads_of(*layers: int) -> list[str]:
    return [f"blk.{layer}.nextn.shared_head_head.weight" for layer in layers]


@pytest.mark.parametrize(
    "missing",
    [[2], [3], [4], [3, 4], [2, 3, 4]],
    ids=str,
)
def test_each_of_several_layers_needs_an_output_matrix(folder: Path, tmp_path: Path, missing: list[int]) -> None:
    path = edited(folder / "mtp-step35.gguf", tmp_path / "mtp.gguf", without=["output.weight", *heads_of(*missing)])
    check_refused(outcome(folder / "step35-trunk.gguf", path), str(path), "it has no output matrix")


@pytest.mark.parametrize("name", MTP_MODELS)
def test_a_truncated_sidecar(folder: Path, tmp_path: Path, name: str) -> None:
    data = (folder / f"mtp-{name}.gguf").read_bytes()
    pairs = []
    for number, size in enumerate((5, 24, 100, 5000, len(data) // 2, len(data) - 100_000)):
        path = tmp_path / f"mtp-{number}.gguf"
        path.write_bytes(data[:size])
        pairs.append((folder / f"{name}-trunk.gguf", path))
    for (_, path), found in zip(pairs, outcomes(pairs), strict=True):
        check_refused(found, str(path), "download it again")


# --- latent attention, dense layers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("deepseek2", {"deepseek2.attention.key_length_mla": 0}, "only with latent attention"),
        ("deepseek2", {"deepseek2.attention.value_length_mla": 0}, "only with latent attention"),
        ("deepseek2", {"deepseek2.leading_dense_block_count": 3}, "leading_dense_block_count"),
        ("glm4moe", {"glm4moe.leading_dense_block_count": 3}, "leading_dense_block_count"),
        ("deepseek2", {"deepseek2.attention.q_lora_rank": 0}, ""),
    ],
)
def test_kinds_of_layers_that_libllama_does_not_run(
    folder: Path, tmp_path: Path, name: str, values: dict[str, Any], said: str
) -> None:
    own = edited(folder / f"{name}.gguf", tmp_path / "own.gguf", values)
    layers = edited(folder / f"mtp-{name}.gguf", tmp_path / "mtp.gguf", values)
    for model, path in ((own, own), (folder / f"{name}-trunk.gguf", layers)):
        check_refused(outcome(model, path), str(path), said)


# --- wrong pairs ------------------------------------------------------------------------------------


def test_layers_of_another_architecture(folder: Path) -> None:
    pairs = [
        (folder / f"{name}-trunk.gguf", folder / f"mtp-{other}.gguf")
        for name in MTP_MODELS
        for other in MTP_MODELS
        if name != other
    ]
    for (model, path), found in zip(pairs, outcomes(pairs), strict=True):
        check_refused(found, str(path), str(model), "it is made for other models", "choose the right pair")


def test_an_assistant_for_another_gemma(folder: Path, tmp_path: Path) -> None:
    write_random_model(tmp_path / "gemma3.gguf", ARCHITECTURES["gemma3"])
    found = outcome(tmp_path / "gemma3.gguf", folder / "mtp-gemma4.gguf")
    check_refused(found, "mtp-gemma4.gguf", "it is made for other models than gemma3")


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_layers_for_another_width(folder: Path, tmp_path: Path, name: str) -> None:
    path = write_mtp_model(tmp_path / "mtp.gguf", name, part="layers", keys={"embedding_length": 512})
    check_refused(outcome(folder / f"{name}-trunk.gguf", path), str(path), "it reads states of 512 numbers")


def per_layer(name: str) -> dict[str, list[Any]]:
    """Keys with one value for each layer, for one layer more."""
    keys = MTP_MODELS[name].architecture().keys
    return {key: [*value[:1], *value] for key, value in keys.items() if isinstance(value, list) and "rope" not in key}


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_layers_for_a_deeper_model(folder: Path, tmp_path: Path, name: str) -> None:
    model = MTP_MODELS[name]
    keys = {"block_count": model.trunk + 1 + model.layers, **per_layer(name)}
    path = write_mtp_model(tmp_path / "mtp.gguf", name, part="layers", keys=keys)
    found = outcome(folder / f"{name}-trunk.gguf", path)
    check_refused(found, str(path), f"it follows a model of {model.trunk + 1} layers, this one has {model.trunk}")


@pytest.mark.parametrize("name", MTP_MODELS)
def test_other_tokens(folder: Path, tmp_path: Path, name: str) -> None:
    tokens = [f"tok_{i}" for i in range(random_models.TOKENS)]
    tokens[200] = "other"
    path = edited(folder / f"mtp-{name}.gguf", tmp_path / "mtp.gguf", {"tokenizer.ggml.tokens": tokens})
    check_refused(outcome(folder / f"{name}-trunk.gguf", path), str(path), "has another token 200")


@pytest.fixture
def vocabulary(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], dict[str, Any]]:
    """Sets the size of the vocabularies that are written; the keys that tell it."""

    def of_size(size: int) -> dict[str, Any]:
        monkeypatch.setattr(random_models, "TOKENS", size)
        return {"vocab_size": size}

    return of_size


@pytest.mark.parametrize("size", [100, 600])
@pytest.mark.parametrize("name", WITH_LAYERS)
def test_vocabularies_of_far_other_sizes(
    folder: Path, tmp_path: Path, name: str, size: int, vocabulary: Callable[[int], dict[str, Any]]
) -> None:
    path = write_mtp_model(tmp_path / "mtp.gguf", name, part="layers", keys=vocabulary(size))
    check_refused(outcome(folder / f"{name}-trunk.gguf", path), str(path), f"has {size} tokens")


@pytest.mark.parametrize("size", [250, 262])
def test_a_vocabulary_of_nearly_the_same_size_serves_or_is_refused(
    folder: Path, tmp_path: Path, size: int, vocabulary: Callable[[int], dict[str, Any]]
) -> None:
    path = write_mtp_model(tmp_path / "mtp.gguf", "qwen35", part="layers", keys=vocabulary(size))
    found = outcome(folder / "qwen35-trunk.gguf", path)
    assert works(found) or str(path) in found.error, found


WINDOWS = "attention.sliding_window_pattern"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"embedding_length": 256}, "it reads states of 128 numbers, the model has 256"),
        ({"attention.key_length": 32, "attention.value_length": 32}, "attention.key_length is 64, not 32"),
        ({"attention.key_length_swa": 32, "attention.value_length_swa": 32}, "attention.key_length_swa is 64, not 32"),
        ({"attention.sliding_window": 64}, "attention.sliding_window is 32, not 64"),
        ({"attention.head_count": 4, "attention.head_count_kv": 2}, "head_count_kv"),
        ({WINDOWS: [*[True] * 4, False, *[True] * 5]}, "window"),
        ({WINDOWS: [*[True] * 4, False, *[True] * 3, False, False]}, "window"),
        ({WINDOWS: [True] * 10}, "window"),
    ],
    ids=str,
)
def test_an_assistant_for_a_gemma4_of_another_shape(
    folder: Path, tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    """It reads the keys and values of the last layer, and of the last but one, which has a window."""
    model = write_mtp_model(tmp_path / "model.gguf", "gemma4", keys=keys)
    check_refused(outcome(model, folder / "mtp-gemma4.gguf"), "mtp-gemma4.gguf", str(model), said)


@pytest.mark.parametrize(
    "values",
    [
        {"attention.key_length": 32, "attention.value_length": 32},
        {"attention.key_length_swa": 32},
        {"attention.sliding_window": 0},
        {"embedding_length_out": 96},
        {"embedding_length_out": 256},
        {"attention.head_count": 0},
        {WINDOWS: [True] * 600},
        {WINDOWS: [False] * 4},
        {"attention.head_count_kv": 0},
        {"attention.head_count_kv": 2},
    ],
    ids=str,
)
def test_an_assistant_with_other_keys(folder: Path, tmp_path: Path, values: dict[str, Any]) -> None:
    full = {f"{ASSISTANT}{key}": value for key, value in values.items()}
    path = edited(folder / "mtp-gemma4.gguf", tmp_path / "mtp.gguf", full)
    check_refused(outcome(folder / "gemma4-trunk.gguf", path), str(path))


# --- damage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["glm4moe", "qwen35", "step35", "gemma4"])
@pytest.mark.parametrize("own", [True, False], ids=["own", "sidecar"])
def test_damaged_layers_are_used_or_refused_in_one_line(folder: Path, tmp_path: Path, name: str, own: bool) -> None:
    if own and not MTP_MODELS[name].layers:
        pytest.skip("its layers are in a file of their own")
    source = folder / (f"{name}.gguf" if own else f"mtp-{name}.gguf")
    model = None if own else folder / f"{name}-trunk.gguf"
    assert run(source, model, tmp_path, 150 * FACTOR) == []
