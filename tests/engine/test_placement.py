"""Which buffers a loaded model's weights really lie in, and with that, whose kernels multiply with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import _native_testing as testing
import fixtures
import pytest

from medusa_cli import native
from medusa_cli.conversion.quantize import quantize

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="llama.cpp exports neither kernels' way in nor tensors on Windows"
)

PROGRAM = (
    "import json, sys; from medusa_cli import native\n"
    "model = native.Model(sys.argv[1], n_gpu_layers=0)\n"
    "groups = [[g.role, g.type, g.buffer, g.tensors, g.nbytes] for g in model.placement]\n"
    "print(json.dumps([native.kernel_info(), groups]))"
)
Groups = dict[tuple[str, str, str], tuple[int, int]]
BLOCKS = {"q2_K": 256, "q3_K": 256, "q4_K": 256, "q5_K": 256, "q6_K": 256, "iq4_xs": 256}
TIED, UNTIED = "token_embd.weight", "output.weight"


def loaded(model: Path, isa: str | None) -> tuple[dict[str, Any], Groups]:
    """kernel_info() and (role, type, buffer) -> (tensors, bytes) in a process with this MEDUSA_ISA (None: unset)."""
    environment = {name: value for name, value in os.environ.items() if name != "MEDUSA_ISA"}
    if isa is not None:
        environment["MEDUSA_ISA"] = isa
    # Elsewhere than in the checkout, whose package has no compiled module.
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model)],
        cwd=model.parent, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    info, groups = json.loads(result.stdout)
    return info, {(role, type_, buffer): (tensors, nbytes) for role, type_, buffer, tensors, nbytes in groups}


def expected(model: Path) -> dict[str, tuple[int, int]]:
    """Type -> (tensors, bytes) of the matrices in the file that a kernel takes."""
    tensors = native.read_gguf(str(model)).tensors
    tied = UNTIED not in {tensor.name for tensor in tensors}
    found: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        if len(tensor.shape) != 2 or tensor.type not in testing.kernel_types() or (tensor.name == TIED and not tied):
            continue
        if tensor.shape[0] % BLOCKS.get(tensor.type, 32) == 0:
            count, nbytes = found.get(tensor.type, (0, 0))
            found[tensor.type] = (count + 1, nbytes + tensor.nbytes)
    return found


def served(info: dict[str, Any], groups: Groups) -> dict[str, tuple[int, int]]:
    ours = ("matrix", info["buffer"])
    return {type_: counts for (role, type_, buffer), counts in groups.items() if (role, buffer) == ours}


def best() -> str | None:
    """What is selected when MEDUSA_ISA is not set: nothing where only the reference runs."""
    return testing.kernel_names()[-1] if len(testing.kernel_names()) > 1 else None


@pytest.mark.model
@pytest.mark.parametrize("isa", [None, *testing.kernel_names()])
def test_every_matrix_of_the_demo_model_runs_on_the_kernels(demo_model_path: Path, isa: str | None) -> None:
    info, groups = loaded(demo_model_path, isa)
    assert info["selected"] == (isa or best())
    if info["selected"] is None:
        pytest.skip(info["reason"])
    wanted = expected(demo_model_path)
    assert set(wanted) == {"q4_1", "q8_0"}
    assert served(info, groups) == wanted
    # The output matrix is the embedding: a second copy, beside the one whose rows are looked up.
    [(_, type_, buffer)] = [key for key in groups if key[0] == "embedding"]
    assert groups["embedding", type_, buffer] == wanted["q8_0"]
    assert buffer.startswith("CPU")
    assert {role for role, _, buffer in groups if buffer != info["buffer"]} == {"embedding", "other"}


@pytest.mark.model
@pytest.mark.parametrize("isa", ["off", "no-such-set"])
def test_nothing_runs_on_the_kernels_when_they_are_off(demo_model_path: Path, isa: str) -> None:
    info, groups = loaded(demo_model_path, isa)
    assert (info["selected"], info["requested"]) == (None, isa)
    assert f"MEDUSA_ISA={isa}" in info["reason"]
    assert not [buffer for _, _, buffer in groups if buffer == info["buffer"]]
    # One tensor, looked up and multiplied with, unless llama.cpp repacks the type itself.
    count = sum(tensors for (role, *_), (tensors, _) in groups.items() if role == "matrix")
    assert count == sum(tensors for tensors, _ in expected(demo_model_path).values())


@pytest.fixture(scope="module")
def odd_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small F16 model: its output matrix has 324 rows, no multiple of 16, and some matrices have 80 columns."""
    folder = tmp_path_factory.mktemp("odd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixtures, "BASE_VOCAB", 324)
        patch.setattr(fixtures, "BASE_FF", 80)
        base = fixtures.tiny_base(folder / "base.gguf")
    quantize(base, folder / "f16.gguf", "F16")
    return folder / "f16.gguf"


def test_any_number_of_rows_fits_but_not_of_columns(odd_sizes: Path) -> None:
    tensors = {tensor.name: tensor for tensor in native.read_gguf(str(odd_sizes)).tensors}
    assert tensors[UNTIED].shape[1] % 16 != 0
    info, groups = loaded(odd_sizes, "scalar")
    wanted = expected(odd_sizes)
    assert wanted["f16"][0] == 6 * fixtures.BASE_LAYERS + 1
    assert served(info, groups) == wanted
    elsewhere = {key: counts for key, counts in groups.items() if key[0] == "matrix" and key[2] != info["buffer"]}
    down = tensors["blk.0.ffn_down.weight"].nbytes
    assert list(elsewhere.values()) == [(fixtures.BASE_LAYERS, fixtures.BASE_LAYERS * down)]
    assert sum(tensors for tensors, _ in groups.values()) == len(tensors)


PAGES = """
import sys
from medusa_cli import native
model = native.Model(sys.argv[1], n_gpu_layers=0)
resident, ours = 0, False
for line in open("/proc/self/smaps"):
    fields = line.split()
    if "-" in fields[0] and not fields[0].endswith(":"):
        ours = line.rstrip().endswith(sys.argv[1])
    elif ours and fields[0] == "Rss:":
        resident += int(fields[1]) << 10
repacked = sum(one.nbytes for one in model.placement if one.buffer == "MEDUSA")
print(resident, repacked)
"""


@pytest.mark.model
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells which pages are a file's")
def test_repacked_weights_give_the_pages_of_the_file_back(demo_model_path: Path, tmp_path: Path) -> None:
    """Tied output matrix: its repacked copy gives pages back that the lookup copy reads again when it needs them."""
    command = [sys.executable, "-c", PAGES, str(demo_model_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    resident, repacked = map(int, done.stdout.split())
    size = demo_model_path.stat().st_size
    if repacked == 0:
        pytest.skip("this processor runs the stock kernels")
    assert repacked > 0.6 * size
    assert resident < 0.1 * size
