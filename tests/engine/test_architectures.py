"""Architectures that people run: our logits beside llama.cpp's, drafted text beside plain text, what runs on what.

Small models with random weights, quantized as people have them (tests/support/architectures.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import _native_testing as testing
import lossless
import numpy as np
import pytest
from architectures import ARCHITECTURES, TOKENS
from fixtures import write_heads
from random_heads import random_heads, write
from random_models import write_random_model

from medusa_cli import native

Q4_K_M = 15
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architectures.md"
TEXTS: list[list[int]] = np.random.default_rng(0).integers(1, TOKENS, (5, 40)).tolist()
PROMPT = TEXTS[0]
BOUND = 0.1
"""Root of the mean squared difference of logits, in their standard deviations, in the middle one of the texts: random
weights blow up roundings that trained ones average out, and where two experts tie, other ones may be asked. Unrelated
logits differ by 1.4."""
DRAFTS = {"cells": "trees", "snapshots": "chains, steps back", "copies": "chains, decodes again", "none": "none"}
KERNELS = native.kernel_info()["selected"] is not None
LOGITS = """
import json, sys
import _native_testing as testing
import numpy as np
from medusa_cli import native
texts, paths = json.loads(sys.argv[1])
found = []
for model in map(native.Model, paths):
    found.append([testing.teacher_forced(model, text, prompt_length=len(text) - 1)[1] for text in texts])
np.save(sys.argv[2], found)
"""

pytestmark = pytest.mark.skipif(
    os.environ.get("MEDUSA_PRETEND_DEVICE") == "1", reason="looks at the kernels of the processor"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("architectures")
    for name, architecture in ARCHITECTURES.items():
        full = folder / f"{name}.f32.gguf"
        write_random_model(full, architecture, seed=1)
        native.quantize_model(str(full), str(folder / f"{name}.gguf"), file_type=Q4_K_M)
        full.unlink()
    return {name: folder / f"{name}.gguf" for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def stock(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Logits by llama.cpp's own kernels."""
    found = tmp_path_factory.mktemp("stock") / "logits.npy"
    arguments = json.dumps([TEXTS, [str(path) for path in files.values()]])
    # The source folder, which may have no compiled module, would come before the installed package.
    subprocess.run(
        [sys.executable, "-c", LOGITS, arguments, str(found)],
        env={**os.environ, "MEDUSA_ISA": "off"}, cwd=found.parent, check=True,
    )  # fmt: skip
    return dict(zip(files, np.load(found), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_those_of_llama_cpp(name: str, files: dict[str, Path], stock: dict[str, np.ndarray]) -> None:
    model = native.Model(str(files[name]))
    ours = np.array([testing.teacher_forced(model, text, prompt_length=len(text) - 1)[1] for text in TEXTS])
    differences = np.sqrt(np.mean((ours - stock[name]) ** 2, axis=1)) / stock[name].std(axis=1)
    assert np.median(differences) < BOUND


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_drafts_change_no_text(name: str, files: dict[str, Path]) -> None:
    model = native.Model(str(files[name]))
    plain = native.Session(model).generate(PROMPT, max_tokens=60, ignore_eos=True)
    if not model.can_draft:
        with pytest.raises(native.NativeError, match="cannot check drafts"):
            native.Session(model, lookup=True)
        return
    # Random text repeats itself soon, so these draft, and much of it is refused.
    for lookup, recycling in ((True, False), (False, True)):
        session = native.Session(model, lookup=lookup, recycling=recycling)
        drafted = session.generate(PROMPT, max_tokens=60, ignore_eos=True)
        result = lossless.compare(model, PROMPT, plain, drafted)
        assert result.explained, result
        if model.is_recurrent:
            assert all(parents == list(range(-1, len(parents) - 1)) for parents in drafted.parents), "chains"


NO_STATES = ("lfm2", "lfm2moe")
CHAIN = native.Tree([[0], [0, 0], [0, 0, 0]])


def repeating_heads(path: Path, model: native.Model) -> native.Heads:
    """They repeat the model's own guess, which is right where random text runs into one token."""
    write_heads(path, heads=3, blocks=1, lm_head="base", hidden=model.n_embd, vocab=TOKENS, fill=0.0)
    return native.Heads(model, str(path))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_heads_change_no_text(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    model = native.Model(str(files[name]))
    if name in NO_STATES:
        with pytest.raises(native.NativeError, match="logits or the hidden states of"):
            repeating_heads(tmp_path / "heads.gguf", model)
        return
    heads = repeating_heads(tmp_path / "heads.gguf", model)
    if not model.can_draft:
        with pytest.raises(native.NativeError, match="cannot check drafts"):
            native.Session(model, heads, tree=CHAIN)
        return
    plain = native.Session(model).generate(PROMPT, max_tokens=40, ignore_eos=True)
    drafted = native.Session(model, heads, tree=CHAIN).generate(PROMPT, max_tokens=40, ignore_eos=True)
    assert lossless.compare(model, PROMPT, plain, drafted).explained


@pytest.mark.parametrize("kind", ["medusa", "hydra++"])
@pytest.mark.parametrize("name", ["qwen35", "nemotron_h", "granitehybrid", "mamba2"])
def test_conversations_with_recurrent_models(name: str, kind: str, files: dict[str, Path], tmp_path: Path) -> None:
    model = native.Model(str(files[name]))
    if kind == "medusa":
        heads = repeating_heads(tmp_path / "heads.gguf", model)
    else:
        source = random_heads("hydra++", "base", hidden=model.n_embd)
        heads = native.Heads(model, str(write(tmp_path / "heads.gguf", source)))
    plain = native.Session(model)
    for session in (
        native.Session(model, heads, tree=CHAIN),
        native.Session(model, heads, tree=CHAIN, lookup=True),
        native.Session(model, heads, dynamic=native.DynamicTree(), lookup=True, recycling=True),
    ):
        prompt = PROMPT
        for _ in range(2):
            expected = plain.generate(prompt, max_tokens=60, ignore_eos=True)
            drafted = session.generate(prompt, max_tokens=60, ignore_eos=True)
            assert lossless.compare(model, prompt, expected, drafted).explained
            prompt = [*prompt, *drafted.tokens, 3]
    with pytest.raises(native.NativeError, match="can check a chain of drafts"):
        native.Session(model, heads, tree=native.Tree([[0], [1]]))


@pytest.mark.skipif(not KERNELS, reason="llama.cpp's kernels round differently for each width")
@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "nemotron_h", "granitehybrid", "mamba2"])
def test_states_are_taken_back_exactly(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    """Sampled text tells: greedy text of random weights runs into one token, whatever the state holds."""
    model = native.Model(str(files[name]))
    heads = repeating_heads(tmp_path / "heads.gguf", model)
    session = native.Session(model, heads, tree=CHAIN)
    for seed in range(3):
        sampling = native.Sampling(temperature=1.0, seed=seed)
        plain = native.Session(model).generate(PROMPT, max_tokens=100, sampling=sampling, ignore_eos=True)
        drafted = session.generate(PROMPT, max_tokens=100, sampling=sampling, ignore_eos=True)
        assert drafted.tokens == plain.tokens
        assert drafted.stats["tokens_per_step"] < 3, "some drafts are refused"


@pytest.mark.skipif(not KERNELS, reason="llama.cpp's kernels round differently for each width")
@pytest.mark.parametrize("kind", [None, "medusa", "hydra++"])
@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "nemotron_h", "granitehybrid", "mamba2"])
def test_states_go_back_to_checkpoints(name: str, kind: str | None, files: dict[str, Path], tmp_path: Path) -> None:
    """A conversation whose earlier turns change is read again from the last checkpoint before the change."""
    model = native.Model(str(files[name]))
    heads = None
    if kind == "medusa":
        heads = repeating_heads(tmp_path / "heads.gguf", model)
    elif kind:
        source = random_heads("hydra++", "base", hidden=model.n_embd)
        heads = native.Heads(model, str(write(tmp_path / "heads.gguf", source)))
    session = native.Session(model, heads, tree=CHAIN if heads else None, lookup=heads is None, n_ctx=1024)
    said = [3 + i * 7 % 40 for i in range(100)]
    for turn in range(4):
        sampling = native.Sampling(temperature=1.0, seed=turn)
        answer = session.generate(said, max_tokens=40, sampling=sampling, ignore_eos=True)
        fresh = native.Session(model, n_ctx=1024).generate(said, max_tokens=40, sampling=sampling, ignore_eos=True)
        assert answer.tokens == fresh.tokens
        assert (answer.reused_tokens > 0) == (turn > 0)
        said = [*said[:-3], *answer.tokens[20:], *(3 + i * (turn + 2) % 40 for i in range(50))]


def row(name: str, model: native.Model) -> str:
    """Of the page's table."""
    drafts = DRAFTS[native.draft_memory(model)]
    buffer = native.kernel_info()["buffer"]
    matrices = [group for group in model.placement if group.role in ("matrix", "experts")]
    left = sorted({group.type for group in matrices if group.buffer != buffer})
    ours = "all but " + ", ".join(left) if left else "all"
    use = native.attention_use(model)
    attention = use.reason if use.left else "ours" if use.served else "none"
    return f"| `{name}` | {drafts} | {ours} | {attention} |"


@pytest.mark.skipif(not KERNELS, reason="no kernels of ours on this machine")
def test_the_page_says_what_runs_on_what(files: dict[str, Path]) -> None:
    rows = [row(name, native.Model(str(path))) for name, path in files.items()]
    said = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    assert said == rows, "the table of docs/architectures.md is to be:\n" + "\n".join(rows)
