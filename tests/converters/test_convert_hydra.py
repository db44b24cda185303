"""`medusa convert` of Hydra checkpoints: what comes out drafts as the published modules do, and chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures import BASE_HEADS, BASE_HIDDEN, BASE_VOCAB, tiny_base
from head_modules import HydraHeads, fill, prefix_layer
from typer.testing import CliRunner

from medusa_cli import cli, native
from medusa_cli.conversion import self_check

HEADS, LAYERS = 3, 3


@pytest.fixture(params=["hydra", "hydra++"])
def module(request: pytest.FixtureRequest) -> HydraHeads:
    prefix = prefix_layer(BASE_HIDDEN, BASE_VOCAB, BASE_HEADS, BASE_HEADS) if request.param == "hydra++" else None
    module = fill(HydraHeads(BASE_HIDDEN, BASE_VOCAB, HEADS, LAYERS, prefix), 1)
    assert isinstance(module, HydraHeads)
    return module


def save(folder: Path, module: HydraHeads) -> Path:
    folder.mkdir()
    torch.save({name: value.detach() for name, value in module.state_dict().items()}, folder / "hydra_lm_head.pt")
    architecture = "prefix-mlp" if hasattr(module, "prefix_embeding_layer") else "mlp"
    config = {"hydra_num_heads": HEADS, "hydra_num_layers": LAYERS, "hydra_head_arch": architecture}
    (folder / "config.json").write_text(json.dumps({**config, "grounded_heads": True, "hidden_state_offset": 0}))
    return folder


def with_embeddings_of(module: HydraHeads, base: Path) -> HydraHeads:
    """The modules read the base's embeddings, which their checkpoint repeats and the converter leaves out."""
    stored = next(t for t in gguf.GGUFReader(base).tensors if t.name == "token_embd.weight")
    rows = np.array(stored.data, np.float32).reshape(BASE_VOCAB, BASE_HIDDEN)
    module.input_embed_fn.weight.data = torch.from_numpy(rows)
    return module


@pytest.mark.parametrize("sidecar", [True, False])
def test_converted_heads_draft_what_the_module_does(tmp_path: Path, module: HydraHeads, sidecar: bool) -> None:
    base, out = tiny_base(tmp_path / "base.gguf"), tmp_path / "out.gguf"
    folder = save(tmp_path / "heads", with_embeddings_of(module, base))
    arguments: list[Any] = ["convert", folder, "--base", base, "-o", out, "--heads-quant", "F16", "--json"]
    arguments += ["--sidecar"] if sidecar else ["--quant", "F32"]
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    kind = "hydra++" if hasattr(module, "prefix_embeding_layer") else "hydra"
    assert report["heads"]["kind"] == kind
    assert 0 < report["check"]["deviation"] <= report["check"]["bound"]
    assert len(report["check"]["top1"]) == HEADS

    model = native.Model(str(base if sidecar else out), repack=False)
    heads = native.Heads(model, str(out))
    rng = np.random.default_rng(2)
    states = rng.standard_normal((12, BASE_HIDDEN)).astype(np.float32)
    tokens = rng.integers(0, BASE_VOCAB, 12 + HEADS)
    with torch.no_grad():
        wanted = torch.stack(module(torch.from_numpy(states), torch.from_numpy(tokens))).softmax(-1).numpy()
    for at in range(12):
        path = tokens[at + 1 : at + 1 + HEADS].tolist()
        actual = heads.probabilities(states[: at + 1], path)
        np.testing.assert_allclose(actual, wanted[:, at], rtol=0.03, atol=1e-4)


def test_converted_heads_chat(tmp_path: Path, module: HydraHeads) -> None:
    base, out = tiny_base(tmp_path / "base.gguf"), tmp_path / "out.gguf"
    folder = save(tmp_path / "heads", with_embeddings_of(module, base))
    arguments = ["convert", folder, "--base", base, "-o", out, "--quant", "F32"]
    assert CliRunner().invoke(cli.app, [str(argument) for argument in arguments]).exit_code == 0
    run = ["generate", str(out), "--raw", "-p", "abc", "--max-tokens", "12", "--temp", "0"]
    drafted = CliRunner().invoke(cli.app, run)
    plain = CliRunner().invoke(cli.app, [*run, "--no-spec"])
    assert drafted.exit_code == plain.exit_code == 0, drafted.output
    assert drafted.stdout == plain.stdout


def test_damaged_weights_are_noticed(tmp_path: Path, module: HydraHeads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-check compares the written file with its source, whatever went wrong between them."""

    original = self_check.reference_logits

    def other(source: Any, states: Any, path: Any, base: Any) -> Any:
        return original(source, states, (path + 1) % BASE_VOCAB, base)

    monkeypatch.setattr(self_check, "reference_logits", other)
    base = tiny_base(tmp_path / "base.gguf")
    folder = save(tmp_path / "heads", with_embeddings_of(module, base))
    arguments = ["convert", folder, "--base", base, "-o", tmp_path / "out.gguf", "--quant", "F32"]
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == 1
    assert "self-check failed" in result.stderr
