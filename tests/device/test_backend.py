"""The engine on a real device, where there is one: a GPU, or a backend that GGML_BACKEND_PATH names (.ci/vulkan)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import _native_testing as testing
import lossless
import pytest
import random_heads
from fixtures import BASE_LAYERS, tiny_base

from medusa_cli import native
from medusa_cli.decoding.prompts import chat_tokens
from medusa_cli.models import demo

DEVICES = [one for one in native.system_info()["devices"] if one["type"] != "cpu" and one["backend"] != "PRETENDED"]
pytestmark = pytest.mark.skipif(not DEVICES, reason="no device but the CPU")

TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
PROMPT = [5, 9, 17, 200]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf"))


def same_text(
    model: native.Model, heads: native.Heads, tree: native.Tree | None, prompt: list[int], count: int
) -> None:
    """Drafted text is that of plain decoding on the same device, but for differences of numerics."""
    dynamic = native.DynamicTree() if tree is None else None
    plain = native.Session(model, n_ctx=512, n_threads=1).generate(prompt, max_tokens=count, ignore_eos=True)
    drafting = native.Session(model, heads, tree=tree, dynamic=dynamic, n_ctx=512, n_threads=1)
    drafted = drafting.generate(prompt, max_tokens=count, ignore_eos=True)
    assert lossless.compare(model, prompt, plain, drafted).explained
    assert max(len(parents) for parents in drafted.parents) > 1


@pytest.mark.parametrize("gpu_layers", [-1, 1])
@pytest.mark.parametrize("kind", ["medusa", "hydra", "hydra++", "recurrent"])
def test_the_text_is_that_of_plain_decoding(base: str, tmp_path: Path, kind: Any, gpu_layers: int) -> None:
    model = native.Model(base, n_gpu_layers=gpu_layers)
    heads = native.Heads(model, str(random_heads.write(tmp_path / "heads.gguf", random_heads.random_heads(kind))))
    same_text(model, heads, native.Tree(TREE), PROMPT, 24)


def test_layers_and_output_matrix_lie_on_the_device(base: str) -> None:
    whole, part, none = (native.Model(base, n_gpu_layers=layers) for layers in (-1, 1, 0))
    assert (whole.gpu, part.gpu, none.gpu) == (True, True, False)
    assert whole.backend in {one["backend"] for one in DEVICES}
    layers = [{use.name: use.layers for use in model.devices} for model in (whole, part, none)]
    assert [found.get("CPU", 0) for found in layers] == [0, BASE_LAYERS, BASE_LAYERS]


def test_the_logits_are_those_of_the_cpu(base: str) -> None:
    device, cpu = (testing.teacher_forced(native.Model(base, n_gpu_layers=layers), PROMPT, prompt_length=4)[1]
                   for layers in (-1, 0))  # fmt: skip
    assert max(abs(a - b) for a, b in zip(device, cpu, strict=True)) < 0.02 * (max(cpu) - min(cpu))


@pytest.mark.model
@pytest.mark.parametrize("nodes", [None, 8], ids=["dynamic", "8 nodes"])
def test_a_chat_with_shipped_heads(demo_model_path: Path, nodes: int | None) -> None:
    model = native.Model(str(demo_model_path))
    heads = native.Heads(model, str(demo.DEMO_HEADS))
    prompt = chat_tokens(model, [{"role": "user", "content": "Name three colours."}])
    tree = None if nodes is None else native.Tree(heads.tree).clipped(heads.head_count, heads.output_rows, nodes)
    same_text(model, heads, tree, prompt, 20)
