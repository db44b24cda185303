"""EAGLE-3 drafters that are wrong, or belong to another model: one line each, never a crash.

libllama ends the process over many of them. So each pair is opened in a process of its own: tests/support/mtp_trials.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import random_models
from architectures import ARCHITECTURES, TOKENS, Keys
from damaged_eagle import DAMAGES, REPLACEABLE, without_one
from damaged_layers import run
from eagle_models import DRAFT_TOKENS, EAGLE_MODELS, LAYERS, draft_tokens, write_eagle, write_target
from mtp_trials import Outcome, outcome, outcomes
from random_models import write_random_model

FACTOR = int(os.environ.get("MEDUSA_FUZZ", "1"))
"""How many times as many damaged files as usual."""

DAMAGED = {damage.name: damage for damage in DAMAGES}
TARGETS = {model.target: name for name, model in EAGLE_MODELS.items()}
"""Architecture -> a drafter's name that write_target knows it by."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each target: ARCHITECTURE.gguf; of each drafter: eagle3-NAME.gguf."""
    folder = tmp_path_factory.mktemp("eagle")
    for target, name in TARGETS.items():
        write_target(folder / f"{target}.gguf", name)
    for name in EAGLE_MODELS:
        write_eagle(folder / f"eagle3-{name}.gguf", name)
    return folder


def target_of(folder: Path, name: str) -> Path:
    return folder / f"{EAGLE_MODELS[name].target}.gguf"


def check_refused(found: Outcome, *said: str) -> None:
    assert found.error, f"it was not refused: {found}"
    assert found.error.isprintable()
    assert [part for part in said if part not in found.error] == [], found.error


def works(found: Outcome) -> bool:
    """Whether all steps had drafts, and the text is that of plain decoding."""
    return found.same and found.drafted >= 13 and not found.ended


def test_intact_files_work(folder: Path) -> None:
    pairs = [(target_of(folder, name), folder / f"eagle3-{name}.gguf") for name in EAGLE_MODELS]
    assert [(pair, found) for pair, found in zip(pairs, outcomes(pairs), strict=True) if not works(found)] == []


# --- drafters ---------------------------------------------------------------------------------------


def test_names_of_damages_differ() -> None:
    assert len(DAMAGED) == len(DAMAGES)


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_drafters_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    damage = DAMAGED[name]
    path = damage.write(tmp_path / "eagle3.gguf")
    check_refused(outcome(target_of(folder, damage.model), path), str(path), damage.said)


@pytest.mark.parametrize("name", EAGLE_MODELS)
def test_each_tensor_is_there_or_not_needed(folder: Path, tmp_path: Path, name: str) -> None:
    cases = dict(without_one(folder / f"eagle3-{name}.gguf", tmp_path))
    found = outcomes([(target_of(folder, name), path) for path in cases.values()])
    for (tensor, path), one in zip(cases.items(), found, strict=True):
        if (name, tensor) in REPLACEABLE:
            assert works(one), (tensor, one)
        else:
            check_refused(one, str(path))


def test_a_drafter_is_no_model_of_its_own(folder: Path) -> None:
    path = folder / "eagle3-wide.gguf"
    check_refused(outcome(path, path), str(path))


# --- wrong pairs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {"block_count": LAYERS - 1},
        {"block_count": 1},
        {"embedding_length": 512},
        {"embedding_length": 128, "attention.head_count": 2, "attention.head_count_kv": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["plain", "wide"])
def test_a_model_of_another_shape(folder: Path, tmp_path: Path, name: str, keys: Keys) -> None:
    """Of too few layers, or with states of another width."""
    model = write_target(tmp_path / "model.gguf", name, keys=keys)
    path = folder / f"eagle3-{name}.gguf"
    check_refused(outcome(model, path), str(path), str(model))


def test_a_deeper_model_serves(folder: Path, tmp_path: Path) -> None:
    """Nothing in a drafter's file tells how many layers its model has."""
    model = write_target(tmp_path / "model.gguf", "plain", keys={"block_count": LAYERS + 1})
    assert works(outcome(model, folder / "eagle3-plain.gguf"))


@pytest.fixture
def vocabulary(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], dict[str, Any]]:
    """Sets the size of the vocabularies that are written; the keys that tell it."""

    def of_size(size: int) -> dict[str, Any]:
        monkeypatch.setattr(random_models, "TOKENS", size)
        return {"vocab_size": size}

    return of_size


@pytest.mark.parametrize("size", [100, 600])
@pytest.mark.parametrize("name", ["plain", "residual", "wide"])
def test_vocabularies_of_far_other_sizes(
    folder: Path, tmp_path: Path, name: str, size: int, vocabulary: Callable[[int], dict[str, Any]]
) -> None:
    path = write_eagle(tmp_path / "eagle3.gguf", name, keys=vocabulary(size))
    beyond = name == "wide" and size < DRAFT_TOKENS  # its own vocabulary (d2t) has ids that are no tokens
    check_refused(outcome(target_of(folder, name), path), str(path), f"of {size}" if beyond else f"has {size} tokens")


def test_drafts_that_are_no_tokens_of_the_model(
    folder: Path, tmp_path: Path, vocabulary: Callable[[int], dict[str, Any]]
) -> None:
    """A drafter's vocabulary may have padding that the model's lacks; its own output rows must not stand for it."""
    path = tmp_path / "eagle3.gguf"
    beyond = draft_tokens()
    beyond[-1] = TOKENS + 2
    write_eagle(path, "wide", keys=vocabulary(TOKENS + 6), change=lambda tensors: tensors.update({"d2t": beyond}))
    check_refused(outcome(target_of(folder, "wide"), path), str(path), f"it drafts token {TOKENS + 2}")


@pytest.mark.parametrize("size", [250, 262])
@pytest.mark.parametrize("name", ["plain", "residual", "fc", "wide"])
def test_a_vocabulary_of_nearly_the_same_size_serves_or_is_refused(
    folder: Path, tmp_path: Path, name: str, size: int, vocabulary: Callable[[int], dict[str, Any]]
) -> None:
    path = write_eagle(tmp_path / "eagle3.gguf", name, keys=vocabulary(size))
    found = outcome(target_of(folder, name), path)
    assert works(found) or str(path) in found.error, found


@pytest.mark.parametrize("name", ["mamba2", "gemma3", "deepseek2", "rwkv7"])
def test_models_of_other_kinds(folder: Path, tmp_path: Path, name: str) -> None:
    """All of these have too few layers, and some have no states that could be read."""
    write_random_model(tmp_path / f"{name}.gguf", ARCHITECTURES[name])
    path = folder / "eagle3-wide.gguf"
    check_refused(outcome(tmp_path / f"{name}.gguf", path), str(path))


# --- damage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["d2t", "wide", "qwen35"])
def test_damaged_headers_are_used_or_refused_in_one_line(folder: Path, tmp_path: Path, name: str) -> None:
    assert run(folder / f"eagle3-{name}.gguf", target_of(folder, name), tmp_path, 150 * FACTOR) == []
