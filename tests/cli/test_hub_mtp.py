"""Layers for further tokens (MTP) in repositories: fetched with their model, listed, used, removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_fakes import BASE_METADATA, BASE_TENSORS, heads_gguf, write_gguf
from command_line import invoke
from gguf_edits import edited
from local_hub import LocalHub, content, local_hub
from mtp_models import write_assistant, write_mtp_model

MODEL, LARGE, SMALL = content("model", 900_000), content("large", 460_000), content("small", 440_000)
CHAIN = ("--temp", "0", "--tree", "cartesian:1,1,1")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with local_hub(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("mtp")
    paths = {
        "trunk": write_mtp_model(folder / "trunk.gguf", "glm4moe", agree=0.9, part="trunk"),
        "layers": write_mtp_model(folder / "layers.gguf", "glm4moe", agree=0.9, part="layers"),
        "own": write_mtp_model(folder / "own.gguf", "glm4moe", agree=0.9),
        "gemma4": write_mtp_model(folder / "gemma4.gguf", "gemma4", agree=0.9),
        "assistant": write_assistant(folder / "assistant.gguf", agree=0.9),
    }
    paths["long"] = edited(paths["trunk"], folder / "long.gguf", {"general.description": "x" * 9_000_000})
    return {name: path.read_bytes() for name, path in paths.items()}


def pulled(*names: str) -> tuple[dict[str, str], str]:
    """What `pull --json` printed of the first name, and what was said."""
    code, out, error = invoke("pull", *names, "--json")
    assert code == 0, error
    return json.loads(out.splitlines()[0]), error


def generated(reference: str, *arguments: str) -> tuple[float, str]:
    """Tokens per step, and what was said."""
    fixed = ("--raw", "-p", "hello", "-n", "40", "--ignore-eos", "--json", "--no-lookup")
    code, out, error = invoke("generate", reference, *fixed, *(arguments or CHAIN))
    assert code == 0, error
    return json.loads(out)["tokens_per_step"], error


def refused(*arguments: str) -> str:
    code, out, error = invoke(*arguments)
    assert (code, out) == (1, ""), error
    return error.splitlines()[-1].removeprefix("error: ")


# --- fetching ---------------------------------------------------------------------------------------


def test_model_and_layers_come_in_one_go_and_are_announced_in_one_line(hub: LocalHub) -> None:
    hub.add("org/m", {"m-Q4_K_M.gguf": MODEL, "mtp-m-Q4_K_M.gguf": SMALL, "m-Q8_0.gguf": MODEL, "README.md": b"x"})
    found, said = pulled("org/m")
    size = "org/m: Q4_K_M, 1.3 MB, 440.0 kB of them a drafter, which stays in memory beside the model"
    assert said == f"{size}; also available: Q8_0\n"
    assert found["name"] == "org/m:Q4_K_M"
    assert Path(found["path"]).read_bytes() == MODEL
    assert Path(found["drafter"]).read_bytes() == SMALL
    assert found["heads"] is None
    assert sorted(hub.server.downloads()) == ["m-Q4_K_M.gguf", "mtp-m-Q4_K_M.gguf"]
    hub.server.requests.clear()
    assert pulled("org/m") == (found, "")
    assert hub.server.downloads() == []
    assert refused("generate", "org/m", "-p", "x").startswith(found["path"]), "it is in the cache"


def test_layers_of_the_same_quantization_come_first(hub: LocalHub) -> None:
    tiny = content("tiny", 1000)
    hub.add(
        "org/m",
        {"m-Q4_K_M.gguf": MODEL, "m-Q8_0.gguf": MODEL, "m-Q6_K.gguf": MODEL, "mtp-m-Q8_0.gguf": SMALL,
         "mtp-m-Q4_K_M.gguf": content("4", 2000), "mtp-m-Q2_K.gguf": tiny, "mtp-m-F16.gguf": LARGE},
    )  # fmt: skip
    names = {quant: Path(pulled(f"org/m:{quant}")[0]["drafter"]).name for quant in ("Q4_K_M", "Q8_0", "Q6_K")}
    assert names == {"Q4_K_M": "mtp-m-Q4_K_M.gguf", "Q8_0": "mtp-m-Q8_0.gguf", "Q6_K": "mtp-m-Q2_K.gguf"}
    assert "mtp-m-F16.gguf" not in hub.server.downloads()


def test_layers_of_more_than_half_the_models_size_are_left_there(hub: LocalHub) -> None:
    hub.add("org/m", {"m-Q4_K_M.gguf": MODEL, "mtp-m-Q4_K_M.gguf": LARGE})
    found, said = pulled("org/m")
    assert (found["drafter"], said) == (None, "org/m: Q4_K_M, 900.0 kB\n")
    hub.add("org/n", {"n-Q4_K_M.gguf": MODEL, "mtp-n-Q4_K_M.gguf": LARGE, "mtp-n-Q8_0.gguf": SMALL})
    assert Path(pulled("org/n")[0]["drafter"]).name == "mtp-n-Q8_0.gguf"
    assert hub.server.downloads().count("mtp-n-Q4_K_M.gguf") == 0


def test_assistants_are_told_by_their_architecture(hub: LocalHub, files: dict[str, bytes]) -> None:
    hub.add("org/m", {"m-it-Q4_K_M.gguf": files["gemma4"], "m-it-assistant-Q4_K_M.gguf": files["assistant"]})
    found, said = pulled("org/m")
    assert Path(found["drafter"]).name == "m-it-assistant-Q4_K_M.gguf"
    assert "a drafter, which" in said
    hub.add("org/assistant", {"Assistant-7B-Q4_K_M.gguf": files["trunk"], "Assistant-7B-Q8_0.gguf": files["trunk"]})
    found, said = pulled("org/assistant")
    assert (Path(found["path"]).name, found["drafter"]) == ("Assistant-7B-Q4_K_M.gguf", None)
    assert "also available: Q8_0" in said


def test_heads_come_before_layers(hub: LocalHub, tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "b.gguf", BASE_METADATA, BASE_TENSORS).read_bytes()
    heads = heads_gguf(tmp_path / "h.gguf").read_bytes()
    hub.add("org/m", {"m-Q4_K_M.gguf": base + bytes(9000), "m-medusa.gguf": heads, "mtp-m.gguf": content("x", 900)})
    found, said = pulled("org/m")
    assert (Path(found["heads"] or "").name, found["drafter"]) == ("m-medusa.gguf", None)
    assert ", draft heads" in said


def test_layers_are_no_model(hub: LocalHub) -> None:
    hub.add("org/m", {"m-Q4_K_M.gguf": MODEL, "mtp-m-Q4_K_M.gguf": SMALL})
    for _ in range(2):
        line = refused("pull", "org/m/mtp-m-Q4_K_M.gguf")
        name = "org/m/mtp-m-Q4_K_M.gguf"
        assert line == f"{name}: drafts for a model, it is none: give the model, and --draft-model {name}"
        pulled("org/m")
    hub.add("org/alone", {"mtp-m.gguf": SMALL})
    assert refused("pull", "org/alone").startswith("org/alone: has no GGUF model")


# --- the cache --------------------------------------------------------------------------------------


def test_the_cached_layers_draft(hub: LocalHub, files: dict[str, bytes]) -> None:
    model = files["long"]
    hub.add("org/m", {"m-Q4_K_M.gguf": model, "mtp-m-Q4_K_M.gguf": files["layers"]})
    speed, said = generated("org/m")
    assert "Drafting with mtp-m-Q4_K_M.gguf (6.3 MB more in memory)" in said
    assert speed > 1.3
    hub.server.requests.clear()
    speed, said = generated("org/m")
    assert (speed > 1.3, said.count("\n")) == (True, 1)
    assert hub.server.requests == []
    assert generated("org/m", "--no-drafter", "--temp", "0") == (1, "")
    code, out, _ = invoke("inspect", "org/m", "--json")
    assert (code, Path(json.loads(out)["drafter"]["path"]).name) == (0, "mtp-m-Q4_K_M.gguf")


def test_named_layers_on_the_hub(hub: LocalHub, files: dict[str, bytes], tmp_path: Path) -> None:
    """As the line about such a file says: the model, and -md with its name."""
    hub.add("org/m", {"m-Q4_K_M.gguf": files["long"], "mtp-m-Q4_K_M.gguf": files["layers"]})
    hub.add("org/layers", {"mtp-m-Q8_0.gguf": files["layers"], "README.md": b"x"})
    local = tmp_path / "local.gguf"
    local.write_bytes(files["trunk"])
    for _ in range(2):
        assert generated(str(local), "-md", "org/m/mtp-m-Q4_K_M.gguf", *CHAIN)[0] > 1.3
        assert generated(str(local), "-md", "org/layers/mtp-m-Q8_0.gguf", *CHAIN)[0] > 1.3
    assert "m-Q4_K_M.gguf" not in hub.server.downloads()


def listed() -> dict[str, dict[str, object]]:
    code, out, _ = invoke("list", "--json")
    assert code == 0
    return {model["name"]: model for model in json.loads(out)["models"] if model["name"] != "demo"}


def test_list_names_layers_and_rm_takes_them_along(hub: LocalHub, files: dict[str, bytes]) -> None:
    hub.add(
        "org/m",
        {"m-Q4_K_M.gguf": files["long"], "m-Q8_0.gguf": files["long"] + bytes(8), "mtp-m.gguf": files["layers"]},
    )
    hub.add("org/own", {"own-Q4_K_M.gguf": files["own"]})
    pulled("org/m", "org/m:Q8_0", "org/own")
    found = listed()
    assert sorted(found) == ["org/m:Q4_K_M", "org/m:Q8_0", "org/own:Q4_K_M"]
    for name in ("org/m:Q4_K_M", "org/m:Q8_0"):
        mtp = found[name]["drafter"]
        assert isinstance(mtp, dict)
        assert (Path(mtp["path"]).name, mtp["layers"]) == ("mtp-m.gguf", 1)
    assert found["org/own:Q4_K_M"]["drafter"] == {
        "path": found["org/own:Q4_K_M"]["path"],
        "kind": "MTP",
        "layers": 1,
    }
    _, out, _ = invoke("list")
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("org/")}
    assert "1 MTP, repository" in lines["org/m:Q8_0"]
    assert "1 MTP, its file" in lines["org/own:Q4_K_M"]

    layers = found["org/m:Q8_0"]["drafter"]
    assert isinstance(layers, dict)
    assert invoke("rm", "org/m:Q8_0", "-y")[0] == 0
    assert Path(layers["path"]).is_file(), "the other model is drafted for"
    code, out, _ = invoke("rm", "org/m", "-y", "--json")
    assert code == 0
    assert not (hub.cache / "models--org--m").exists(), "nobody would find them again"
    assert json.loads(out)["freed"] == len(files["long"]) + len(files["layers"])


def test_damaged_layers_in_the_cache_are_left_out(hub: LocalHub, files: dict[str, bytes]) -> None:
    hub.add("org/m", {"m-Q4_K_M.gguf": files["long"], "mtp-m.gguf": files["layers"][:3000]})
    assert generated("org/m", "--temp", "0")[0] == 1
    assert listed()["org/m:Q4_K_M"]["drafter"] is None
    assert "error" not in listed()["org/m:Q4_K_M"]


def test_layers_for_another_model_in_the_repository_are_left_out(hub: LocalHub, files: dict[str, bytes]) -> None:
    hub.add("org/m", {"m-Q4_K_M.gguf": files["gemma4"] + bytes(9_000_000), "mtp-m.gguf": files["layers"]})
    speed, said = generated("org/m", "--temp", "0")
    assert (speed, "Drafting with" in said) == (1, False)
