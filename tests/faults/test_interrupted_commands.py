"""Commands that are ended at their writes, or that the system gives no more memory: outputs are whole or not there, and
the same command again makes all good.

One point of each kind, chosen at random but always the same; MEDUSA_FAULTS=40 tries 40, and training, too.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fixtures
import numpy as np
import pytest
from hub_server import HubServer, Repo
from interrupted import Place, Reference, Scenario, built, peak
from safetensors.numpy import save_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="preloads a library in C"),
    pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="sanitizers have to be first"),
]
POINTS = int(os.environ.get("MEDUSA_FAULTS", "1"))
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
HIDDEN, VOCAB = fixtures.BASE_HIDDEN, fixtures.BASE_VOCAB


def base(folder: Path) -> str:
    return str(fixtures.tiny_base(folder / "tiny.gguf", chat_template=TEMPLATE, context=1024))


def checkpoint(folder: Path) -> str:
    """Two Medusa heads for it, as on the Hub."""
    rng, heads = np.random.default_rng(0), folder / "heads"
    heads.mkdir()
    tensors = {}
    for head in range(2):
        tensors[f"{head}.0.linear.weight"] = rng.standard_normal((HIDDEN, HIDDEN)).astype(np.float16)
        tensors[f"{head}.0.linear.bias"] = np.zeros(HIDDEN, np.float16)
        tensors[f"{head}.1.weight"] = rng.standard_normal((VOCAB, HIDDEN)).astype(np.float16)
    save_file(tensors, heads / "medusa_lm_head.safetensors")
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "x"}
    (heads / "config.json").write_text(json.dumps(config))
    return str(heads)


def chat(folder: Path) -> Scenario:
    options = ["-t", "1", "--session", "one", "-n", "20", "--temp", "0"]
    return Scenario(
        ["chat", base(folder), *options],
        ["xdg_data_home/medusa/sessions/one.json"],
        typed="hello\nagain\n",
        random=True,
        varies=["xdg_cache_home/medusa/prompts/*", ],
    )  # fmt: skip


def tune(folder: Path) -> Scenario:
    heads, model = folder / "h.gguf", base(folder)
    fixtures.write_heads(heads, heads=2, blocks=1, lm_head="own", accuracy=[0.5, 0.1, 0.1, 0.4, 0.1, 0.1])
    options = ["--heads", str(heads), "--minutes", "0.1", "-t", "1"]
    return Scenario(["tune", model, *options], ["xdg_data_home/medusa/profiles/*.json"], random=True)


def convert(folder: Path) -> Scenario:
    return Scenario(["convert", checkpoint(folder), "--base", base(folder), "-o", "out.gguf"], ["out.gguf"])


def sidecar(folder: Path) -> Scenario:
    given = ["--base", base(folder), "-o", "out.gguf", "--sidecar"]
    return Scenario(["convert", checkpoint(folder), *given], ["out.gguf"])


def train(folder: Path, **more: Any) -> Scenario:
    pytest.importorskip("torch")
    recipe = folder / "recipe.json"
    recipe.write_text(json.dumps({"tokens": 2000, "seed": 1, "work_dir": "work", "parallel": 4, **more}))
    options = ["-o", "out.gguf", "--heads", "2", "-t", "1", "--recipe", str(recipe)]
    return Scenario(["train", base(folder), *options], ["out.gguf"])


def joint(folder: Path) -> Scenario:
    plain = train(folder, kind="medusa", joint_layers=1)
    return Scenario([*plain.arguments, "--joint"], plain.outputs)


def pull(folder: Path) -> Scenario:
    probes = "hf_home/hub/models--org--tiny/tmp*/dummy_file_src"  # of huggingface_hub, for whether it can make links
    return Scenario(["pull", "org/tiny"], ["hf_home/hub/models--org--tiny/blobs/*"], varies=[probes])


QUICK: list[Callable[[Path], Scenario]] = [chat, tune, convert, sidecar, pull]
SCENARIOS = QUICK if POINTS == 1 else [*QUICK, train, joint]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module", params=SCENARIOS, ids=lambda scenario: scenario.__name__)
def reference(request: Any, library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    folder = tmp_path_factory.mktemp(request.param.__name__)
    scenario = request.param(folder)
    if request.param is not pull:
        yield Reference(scenario, library, folder / "reference")
        return
    with HubServer({"org/tiny": Repo({"tiny.gguf": Path(base(folder)).read_bytes()})}) as hub:
        there = {"HF_ENDPOINT": hub.endpoint, "NO_PROXY": "127.0.0.1"}
        yield Reference(replace(scenario, environment=there), library, folder / "reference")


def points(reference: Reference, salt: str) -> list[int]:
    return sorted(random.Random(salt).sample(range(1, reference.calls + 1), min(POINTS, reference.calls)))


def check_mended(place: Place, reference: Reference) -> None:
    """The same command again gives what it gives without faults, and nothing is left over."""
    is_there = place.outputs() == reference.place.outputs()
    again = place.run()
    if is_there and again.code == 1 and "add --force" in again.said:
        again = place.run("--force")
    assert again.code == 0, again.said
    assert place.files() == reference.place.files()
    assert place.outputs() == reference.place.outputs()


def check_whole(place: Place, reference: Reference) -> None:
    expected = reference.place.outputs()
    assert {name: digest for name, digest in place.outputs().items() if expected.get(name, digest) != digest} == {}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed(how: signal.Signals, reference: Reference, library: Path, tmp_path: Path) -> None:
    for point in points(reference, str(how)):
        place = Place(reference.place.scenario, tmp_path / str(point))
        ended = place.run(LD_PRELOAD=library, KILL_AT=point, KILL_WITH=int(how))
        if ended.code == 1:  # a process that it started
            assert ended.said.splitlines()[-1].startswith("error: "), ended.said
        else:
            assert ended.code in ({-how} if how == signal.SIGKILL else {-how, 128 + how, 0}), ended.said
        assert "Traceback" not in ended.said
        check_whole(place, reference)
        check_mended(place, reference)
        shutil.rmtree(place.folder)


def test_two_at_once(reference: Reference, tmp_path: Path) -> None:
    """Each does its work, or says in one line that it has to wait; the result is that of one."""
    wait = random.Random("two")
    for number in range(POINTS):
        place = Place(reference.place.scenario, tmp_path / str(number))
        first = place.start()
        time.sleep(wait.uniform(0, 1))
        second = place.start()
        ends = [place.end(process) for process in (first, second)]
        assert min(ended.code for ended in ends) == 0, ends
        for ended in ends:
            assert ended.code in {0, 1}, ended.said
            assert "Traceback" not in ended.said
            assert not ended.code or ended.said.splitlines()[-1].startswith("error: ")
        assert place.files() == reference.place.files()
        assert place.outputs() == reference.place.outputs()
        shutil.rmtree(place.folder)


@pytest.fixture(scope="module")
def taken_by_libraries() -> int:
    """Bytes of address space that it takes to load them: with less, they end the process themselves."""
    code = "import medusa_cli.cli, numpy, medusa_cli.native as n; n.system_info()"
    code += "; print(open('/proc/self/status').read())"
    return peak(subprocess.check_output([sys.executable, "-c", code], text=True))


def test_no_memory(reference: Reference, taken_by_libraries: int, tmp_path: Path) -> None:
    if reference.memory <= taken_by_libraries:
        pytest.skip("it loads no libraries")
    if "train" in reference.place.scenario.arguments:
        pytest.skip("without memory, torch neither loads nor fails")
    limits = random.Random("memory")
    for number in range(POINTS):
        place = Place(reference.place.scenario, tmp_path / str(number))
        ended = place.run(memory=limits.randrange(taken_by_libraries, reference.memory))
        assert ended.code in {0, 1}, ended.said
        assert "Traceback" not in ended.said
        if ended.code:
            last = ended.said.splitlines()[-1]
            assert last.startswith(("error: ", "medusa: ggml stopped")), ended.said
            assert "memory" in last, last
        check_whole(place, reference)
        check_mended(place, reference)
        shutil.rmtree(place.folder)


def test_no_space_left(reference: Reference, library: Path, tmp_path: Path) -> None:
    for point in points(reference, "full"):
        place = Place(reference.place.scenario, tmp_path / str(point))
        ended = place.run(LD_PRELOAD=library, FULL_AT=point)
        assert ended.code in {0, 1}, ended.said
        assert "Traceback" not in ended.said
        if ended.code:
            last = ended.said.splitlines()[-1]
            assert last.startswith("error: "), ended.said
            assert "no space left" in last.lower() or "device full" in last
        check_whole(place, reference)
        assert not [name for name in place.files() if name.endswith(".part")]
        check_mended(place, reference)
        shutil.rmtree(place.folder)
