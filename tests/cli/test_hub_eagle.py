"""EAGLE-3 files in repositories: fetched with their model, listed, named, removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import invoke
from drafter_commands import CHAIN, answered, refused
from eagle_models import write_eagle, write_target
from gguf_edits import edited
from local_hub import LocalHub, content, local_hub

FIXED = ("--temp", "0", *CHAIN)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with local_hub(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """target: large enough for a drafter beside it, "eagle"; "half": no drafter of this size is fetched."""
    folder = tmp_path_factory.mktemp("eagle")
    target = write_target(folder / "target.gguf", "plain", agree=True)
    eagle = write_eagle(folder / "eagle.gguf", "wide", agree=True)
    large = edited(eagle, folder / "half.gguf", {"general.description": "x" * 9_000_000})
    long = edited(target, folder / "long.gguf", {"general.description": "x" * 3_000_000})
    return {"target": long.read_bytes(), "eagle": eagle.read_bytes(), "half": large.read_bytes()}


def pulled(name: str) -> tuple[dict[str, str | None], str]:
    code, out, error = invoke("pull", name, "--json")
    assert code == 0, error
    return json.loads(out.splitlines()[0]), error


def test_a_model_comes_with_its_drafter_and_both_go(hub: LocalHub, files: dict[str, bytes]) -> None:
    hub.add("org/m", {"m-Q4_K_M.gguf": files["target"], "m-eagle3.gguf": files["eagle"], "README.md": b"x"})
    found, said = pulled("org/m")
    assert Path(found["drafter"] or "").name == "m-eagle3.gguf"
    assert " of them a drafter, which stays in memory beside the model" in said
    hub.server.requests.clear()
    answer, said = answered("org/m", *FIXED)
    assert said.splitlines()[-1].startswith("Drafting with m-eagle3.gguf (")
    assert (answer["tokens_per_step"] > 1.3, hub.server.requests) == (True, [])
    _, out, _ = invoke("list", "--json")
    [listed] = [model for model in json.loads(out)["models"] if model["name"].startswith("org/m")]
    assert listed["drafter"] == {"path": found["drafter"], "kind": "EAGLE-3", "layers": 1}
    _, out, _ = invoke("list")
    assert "1 EAGLE-3, repository" in out
    code, out, error = invoke("rm", "org/m", "-y", "--json")
    assert (code, json.loads(out)["freed"]) == (0, len(files["target"]) + len(files["eagle"])), error
    assert not (hub.cache / "models--org--m").exists()


def test_a_drafter_of_more_than_half_the_models_size_is_left_there(hub: LocalHub, files: dict[str, bytes]) -> None:
    hub.add("org/m", {"m-Q4_K_M.gguf": files["target"], "m-eagle3.gguf": files["half"]})
    found, said = pulled("org/m")
    assert (found["drafter"], "drafter" in said) == (None, False)
    assert hub.server.downloads().count("m-Q4_K_M.gguf") == 1
    answer, said = answered("org/m", "-md", "org/m/m-eagle3.gguf", *FIXED)
    assert answer["tokens_per_step"] > 1.3, "it was asked for by name"


def test_a_name_alone_makes_no_drafter(hub: LocalHub) -> None:
    """Models are called so, too."""
    model = content("eagle", 900_000)
    hub.add("org/eagle", {"Eagle-7B-Q4_K_M.gguf": model, "Eagle-7B-Q8_0.gguf": model})
    found, said = pulled("org/eagle")
    assert (Path(found["path"] or "").name, found["drafter"]) == ("Eagle-7B-Q4_K_M.gguf", None)
    assert "also available: Q8_0" in said


def test_a_repository_of_a_drafter_alone(hub: LocalHub, files: dict[str, bytes], tmp_path: Path) -> None:
    hub.add("org/eagle3", {"eagle3-m-Q8_0.gguf": files["eagle"], "README.md": b"x"})
    model = tmp_path / "model.gguf"
    model.write_bytes(files["target"])
    for _ in range(2):
        for name in ("org/eagle3", "org/eagle3/eagle3-m-Q8_0.gguf"):
            assert answered(model, "-md", name, *FIXED)[0]["tokens_per_step"] > 1.3
    hub.server.failing = 503
    answer, said = answered(model, "-md", "org/eagle3", *FIXED)
    assert (answer["tokens_per_step"] > 1.3, said.count("using the copy in the cache")) == (True, 1)
    hub.server.failing = None
    name = "org/eagle3/eagle3-m-Q8_0.gguf"
    line = f"{name}: drafts for a model, it is none: give the model, and --draft-model {name}"
    assert refused("pull", name) == line
    assert refused("pull", "org/eagle3").startswith("org/eagle3: has no GGUF model")


@pytest.mark.parametrize("name", ["org/m", "org/m/eagle3.gguf"])
@pytest.mark.parametrize("models", [(), ("m-Q4_K_M.gguf",)])
def test_drafters_that_were_fetched_alone_can_be_removed(
    hub: LocalHub, files: dict[str, bytes], tmp_path: Path, models: tuple[str, ...], name: str
) -> None:
    """In a repository with models, one that is too large to come with them."""
    hub.add("org/m", {**dict.fromkeys(models, files["target"]), "eagle3.gguf": files["half"]})
    model = tmp_path / "model.gguf"
    model.write_bytes(files["target"])
    answered(model, "-md", "org/m/eagle3.gguf", tokens=1)
    for one in models:
        pulled(f"org/m/{one}")
    code, out, error = invoke("rm", name, "-y", "--json")
    assert code == 0, error
    whole = name == "org/m"
    assert json.loads(out)["freed"] == len(files["half"]) + whole * len(models) * len(files["target"])
    assert (hub.cache / "models--org--m").exists() == (bool(models) and not whole)
