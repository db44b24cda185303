"""A device that is too small, through the command line: the most that fits is chosen, or one line says what would."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import device_cli
import pytest
import random_heads
from device_run import run
from fixtures import BASE_LAYERS, tiny_base

from medusa_cli.models import demo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the device needs POSIX memory protection")

MOST = BASE_LAYERS + 1
NOTE = re.compile(r"note: (no|\d+) (?:of \d+ )?layers? fits? on PRETENDED0 \([^)]*\).*\n")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf"))


@pytest.fixture(scope="module")
def heads(base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("heads") / "heads.gguf"
    return str(random_heads.write(path, random_heads.random_heads("hydra++"), base=base))


def generate(behaviour: dict[str, int], base: str, *arguments: str) -> tuple[int, str, str]:
    order = ("generate", base, "--raw", "-p", "abc", "-n", "12", "--ignore-eos", "-t", "1")
    return device_cli.run(behaviour, *order, *arguments)


def chosen(err: str) -> int:
    """Layers that the remark names; all of them without a remark."""
    found = NOTE.fullmatch(err)
    assert found is not None or not err
    return MOST if found is None else int(found[1].replace("no", "0"))


def test_the_most_that_fits_is_chosen_and_said_in_one_line(base: str) -> None:
    _, text, _ = generate({}, base, "-ngl", "0")
    layers = []
    for memory in (1 << 16, 2_500_000, 2_900_000, 3_200_000, 1 << 23):
        code, out, err = generate({"memory": memory}, base)
        assert (code, out) == (0, text)
        layers.append(chosen(err))
    assert layers == sorted(layers)
    assert (layers[0], layers[-1]) == (0, MOST)
    assert 0 < layers[2] < MOST


@pytest.mark.parametrize("allocation", range(1, 7))
def test_where_the_estimate_was_too_much_fewer_layers_load(base: str, heads: str, allocation: int) -> None:
    """Weights, heads, what drafts within the model's graph keep (twice), cache, what is computed in: whichever of these
    is too much. Without room for such drafts the host drafts, and all layers stay.
    """
    code, out, err = generate({"failing_allocation": allocation}, base, "--heads", heads)
    assert (code, out) == (0, generate({}, base, "-ngl", "0")[1])
    assert (chosen(err) < MOST) == (allocation not in (3, 4))


@pytest.mark.parametrize("memory", [1 << 16, 600_000, 1_200_000])
def test_layers_that_were_asked_for_are_kept_to(base: str, memory: int) -> None:
    code, out, err = generate({"memory": memory}, base, "-ngl", str(MOST))
    assert (code, out) == (1, "")
    assert re.fullmatch(r"error: -ngl 3 does not fit on PRETENDED0 \(.* free\); by estimate, -ngl \d.* would\n", err)


def test_what_is_said_to_fit_does(base: str) -> None:
    small = {"memory": 2_900_000}
    _, _, err = generate(small, base, "-c", "8192", "-ngl", str(MOST))
    told = re.search(r"by estimate, (.*) would", err)
    assert told is not None
    for remedy in told[1].split(" or "):
        arguments = remedy.split() if "-ngl" in remedy else ["-ngl", str(MOST), *remedy.split()]
        arguments += [] if "-c" in arguments else ["-c", "8192"]
        assert generate(small, base, *arguments)[0] == 0


@pytest.mark.slow
def test_training_says_before_it_starts_that_its_texts_do_not_fit(base: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")

    def train(*arguments: str, memory: int = 5_000_000) -> tuple[int, str, str]:
        order = ("train", base, "-o", str(tmp_path / "heads.gguf"), "--recipe", str(recipe), "--minutes", "0.1")
        return device_cli.run({"memory": memory}, *order, *arguments)

    recipe = tmp_path / "r.json"
    recipe.write_text(json.dumps({"work_dir": str(tmp_path)}))

    for arguments in ((), ("-ngl", str(MOST))):
        code, out, err = train(*arguments)
        assert (code, out) == (1, "")
        told = re.fullmatch(
            r"error: \S+ does not fit on PRETENDED0 \(.* free\) with 32 texts at a time; by estimate, "
            r"-ngl (\d) or parallel = (\d+) in a recipe would\n",
            err,
        )
        assert told is not None
        assert int(told[1]) < MOST
        assert int(told[2]) < 32
        fitting = told[2]
    assert "at a time; by estimate, -ngl 0 would\n" in train(memory=1 << 16)[2]
    recipe.write_text(json.dumps({"work_dir": str(tmp_path), "parallel": int(fitting)}))
    assert train()[0] == 0


def test_devices_by_name(base: str) -> None:
    text = generate({}, base, "-ngl", "0")[1]
    assert generate({}, base, "--device", "PRETENDED0") == (0, text, "")
    assert generate({}, base, "-dev", "none") == (0, text, "")
    code, out, err = generate({}, base, "--device", "CUDA7")
    assert (code, out) == (1, "")
    assert err == "error: --device: there is no 'CUDA7' here, but PRETENDED0, none\n"


@pytest.mark.parametrize(("devices", "gpu"), [(["PRETENDED0"], True), ([], False), (None, True)])
def test_a_model_goes_to_the_devices_it_is_given(base: str, devices: list[str] | None, gpu: bool) -> None:
    assert run(model=base, devices=devices, prompt="abc", tokens=2)["gpu"] is gpu
    assert "no device X" in run(model=base, devices=["X"], prompt="abc")["error"]


@pytest.mark.model
def test_without_a_fused_operator_the_estimate_is_too_little_and_fewer_layers_load(
    demo_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first attempt took is free again for the second."""
    monkeypatch.setitem(device_cli.ENVIRONMENT, demo.DEMO_VARIABLE, str(demo_model_path))
    small = {"memory": 280 << 20, "missing_operators": ["FLASH_ATTN_EXT"]}
    code, out, err = device_cli.run(small, "generate", "demo", "-p", "Hi", "-n", "4")
    assert (code, chosen(err)) == (0, 23)
    assert out == device_cli.run({}, "generate", "demo", "-p", "Hi", "-n", "4", "-ngl", "0")[1]


@pytest.mark.model
@pytest.mark.parametrize(("gpu_layers", "n_ctx"), [(-1, 4096), (-1, 512), (12, 4096), (1, 4096)])
def test_the_estimate_is_near_and_not_too_little(demo_model_path: Path, gpu_layers: int, n_ctx: int) -> None:
    from medusa_cli import native
    from medusa_cli.decoding import offload

    order = {"model": str(demo_model_path), "heads": str(demo.DEMO_HEADS), "tree": [[0]], "tokens": 2}
    found = run(**order, gpu_layers=gpu_layers, n_ctx=n_ctx)
    shape = offload.shape_of(native.read_gguf(str(demo_model_path)), native.read_gguf(str(demo.DEMO_HEADS)).tensors)
    layers = len(shape.layers) + 1 if gpu_layers < 0 else gpu_layers
    needed = offload.needed(shape, offload.Context(n_ctx), layers)
    assert found["memory_used"] <= needed <= found["memory_used"] + (40 << 20)
