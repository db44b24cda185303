"""Models by name, against a local Hub: what is fetched, resumed, checked, refused, listed and removed."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cli_fakes
import pytest
from cli_fakes import BASE_METADATA, BASE_TENSORS, base_gguf, heads_gguf, write_gguf
from command_line import invoke
from hub_server import TOKEN
from huggingface_hub import constants
from hypothesis import given, settings
from hypothesis import strategies as st
from local_hub import LocalHub, content, local_hub, quiet

from medusa_cli.hub import download, repository
from medusa_cli.models import names, remote
from medusa_cli.models.names import HubName
from medusa_cli.support import machine
from medusa_cli.support.errors import MedusaError

LARGE = content("large", 3_000_000)
NUMBERS = itertools.count()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with local_hub(tmp_path, monkeypatch) as found:
        yield found


def fetch(reference: str, **options: bool) -> remote.Fetched:
    found = names.parse(reference)
    assert isinstance(found, HubName)
    return remote.fetch_model(found, quiet(), **options)


def refused(reference: str) -> str:
    """The line that the command says."""
    code, out, error = invoke("pull", reference)
    assert (code, out) == (1, "")
    line = error.splitlines()[-1]
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


# --- fetching ---------------------------------------------------------------------------------------


def test_a_model_is_fetched_once_and_then_found_without_the_hub(hub: LocalHub) -> None:
    hub.add("org/m", {"m-Q8_0.gguf": content("8", 5000), "m-Q4_K_M.gguf": LARGE, "README.md": b"x"})
    hub.server.redirects = True
    code, out, error = invoke("pull", "org/m")
    assert code == 0, error
    path = Path(out.strip())
    assert path.read_bytes() == LARGE
    assert path.is_relative_to(hub.cache)
    assert "org/m: Q4_K_M, 3.0 MB; also available: Q8_0" in error
    assert hub.blobs("org/m") == [hashlib.sha256(LARGE).hexdigest()]
    hub.server.requests.clear()
    found = fetch("org/m")
    assert (found.path, str(found.name)) == (path, "org/m:Q4_K_M")
    assert fetch("org/m/m-Q4_K_M.gguf").path == fetch("hf.co/org/m:q4_k_m").path == path
    assert hub.server.requests == []


def test_pull_brings_what_is_newer(hub: LocalHub) -> None:
    repo = hub.add("org/m", {"m-Q4_K_M.gguf": content("old", 5000)})
    old = fetch("org/m").path
    repo.files = {"m-Q4_K_M.gguf": content("new", 6000)}
    assert fetch("org/m").path == old
    new = fetch("org/m", update=True).path
    assert new.read_bytes() == content("new", 6000)
    assert fetch("org/m").path == new


def test_revisions_and_split_models(hub: LocalHub) -> None:
    parts = {f"m-Q4_K_M-0000{number}-of-00002.gguf": content(str(number), 4000) for number in (1, 2)}
    hub.add("org/m", {"m-Q8_0.gguf": content("8", 5000)}, revisions={"v1": parts})
    found = fetch("org/m@v1")
    assert found.path.name == "m-Q4_K_M-00001-of-00002.gguf"
    assert [(found.path.parent / name).read_bytes() for name in parts] == list(parts.values())
    (found.path.parent / "m-Q4_K_M-00002-of-00002.gguf").unlink()
    assert fetch("org/m@v1") == found
    assert (found.path.parent / "m-Q4_K_M-00002-of-00002.gguf").is_file()


@settings(max_examples=20)
@given(st.lists(st.integers(1, 700_000), max_size=5))
def test_a_link_that_is_cut_anywhere_goes_on_where_it_was(hub: LocalHub, cuts: list[int]) -> None:
    name = f"org/cut{next(NUMBERS)}"
    data = content(name, 800_000)
    hub.add(name, {"m.gguf": data})
    hub.server.cuts["m.gguf"] = list(cuts)
    hub.server.ranges.clear()
    assert fetch(name).path.read_bytes() == data
    begun = [int(one.removeprefix("bytes=").rstrip("-")) for one in hub.server.ranges]
    assert begun == sorted(set(begun))
    assert begun == [at for at in itertools.accumulate(cuts) if at < len(data)][: len(begun)]
    hub.server.cuts.clear()


def test_a_link_that_stays_broken_says_what_is_kept(hub: LocalHub) -> None:
    hub.add("org/m", {"m.gguf": LARGE})
    hub.server.cuts["m.gguf"] = [1_000_000, *[0] * 9]
    assert refused("org/m") == "org/m: the Hub cannot be reached: 1.0 MB of 3.0 MB are kept, run again to resume"
    hub.server.cuts.clear()
    assert fetch("org/m").path.read_bytes() == LARGE
    assert hub.server.ranges[-1] == "bytes=1000000-"


def test_ctrl_c_keeps_what_is_there(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("org/m", {"m.gguf": LARGE})
    hub.server.pause = 0.1
    script = "import sys; from medusa_cli.cli import main; sys.argv = ['medusa', 'pull', 'org/m']; main()"
    # Not the checkout: its medusa_cli has no compiled module.
    folder = Path(__file__).parents[1] / "support"
    environment = {"HF_HOME": str(hub.cache.parent), "HF_HUB_DISABLE_TELEMETRY": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        part = hub.cache / "models--org--m" / "blobs" / f"{hashlib.sha256(LARGE).hexdigest()}.incomplete"
        deadline = time.monotonic() + 60
        while not (part.is_file() and part.stat().st_size > 600_000):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.splitlines()[-1].startswith("Stopped at ")
    assert "the same command resumes from there" in error
    kept = part.stat().st_size
    hub.server.pause = 0.0
    assert fetch("org/m").path.read_bytes() == LARGE
    assert hub.server.ranges == [f"bytes={kept}-"]


def test_a_server_without_ranges_sends_everything_again(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    import hub_server

    hub.add("org/m", {"m.gguf": LARGE})
    hub.server.cuts["m.gguf"] = [1_000_000]
    monkeypatch.setattr(hub_server, "RANGE", hub_server.re.compile("never"))
    assert fetch("org/m").path.read_bytes() == LARGE


def test_a_wrong_checksum_is_refused_and_leaves_nothing(hub: LocalHub) -> None:
    claim = {"size": len(LARGE), "lfs": {"sha256": "0" * 64, "size": len(LARGE), "pointerSize": 1}}
    hub.add("org/m", {"m.gguf": LARGE}, claims={"m.gguf": claim})
    line = refused("org/m")
    assert line.startswith(f"org/m: m.gguf has the checksum {hashlib.sha256(LARGE).hexdigest()[:12]}..., not 0000")
    assert line.endswith("and was removed: run again")
    assert hub.blobs("org/m") == []


def test_more_or_less_than_the_hub_promised(hub: LocalHub) -> None:
    sha256 = hashlib.sha256(LARGE).hexdigest()
    for name, size in (("org/more", 1000), ("org/less", len(LARGE) + 1000)):
        claim = {"size": size, "lfs": {"sha256": sha256, "size": size, "pointerSize": 1}}
        hub.add(name, {"m.gguf": LARGE}, claims={"m.gguf": claim})
    assert "has the checksum" in refused("org/more")
    assert refused("org/less").startswith("org/less: the connection closed too early: 3.0 MB of 3.0 MB are kept")


def test_a_damaged_part_of_a_download_is_found_out(hub: LocalHub) -> None:
    hub.add("org/m", {"m.gguf": LARGE})
    part = hub.cache / "models--org--m" / "blobs" / f"{hashlib.sha256(LARGE).hexdigest()}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(1000))
    assert "has the checksum" in refused("org/m")
    assert fetch("org/m").path.read_bytes() == LARGE
    fetch_again = hub.add("org/n", {"m.gguf": content("n", 2000)})
    longer = (
        hub.cache / "models--org--n" / "blobs" / f"{hashlib.sha256(fetch_again.files['m.gguf']).hexdigest()}.incomplete"
    )
    longer.parent.mkdir(parents=True)
    longer.write_bytes(bytes(9000))
    assert fetch("org/n").path.read_bytes() == content("n", 2000)


# --- what cannot be ---------------------------------------------------------------------------------


def test_no_access_is_one_line_each(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/private", {"m.gguf": LARGE}, access="private")
    hub.add("org/gated", {"m.gguf": LARGE}, access="gated")
    assert refused("org/private") == "org/private: not on the Hub, or private: check the name, or set HF_TOKEN"
    assert refused("org/gated").startswith("org/gated: access must be granted first")
    assert hub.blobs("org/gated") == []
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.server.redirects = True
    for name in ("org/private", "org/gated"):
        assert fetch(name).path.read_bytes() == LARGE
    assert refused("org/none").startswith("org/none: neither a local path nor a repository on the Hub")
    assert refused("org/private@v9") == "org/private: has no revision 'v9'"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (429, "the Hub reports too many requests: try again later, or set HF_TOKEN"),
        (500, "the Hub answers with error 500"),
    ],
)
def test_a_hub_that_fails(hub: LocalHub, status: int, words: str) -> None:
    hub.add("org/m", {"m.gguf": LARGE})
    hub.server.failing = status
    assert refused("org/m") == f"org/m: {words}, and it is not in the cache: give a local file"
    hub.server.failing = None
    hub.server.failing_files = status
    assert refused("org/m") == f"org/m: {words}: 0 B of 3.0 MB are kept, run again to resume"
    hub.server.failing_files = None
    path = fetch("org/m").path
    hub.server.failing = status
    code, out, error = invoke("pull", "org/m")
    assert (code, out) == (0, f"{path}\n")
    assert error == f"note: org/m: {words}: using the copy in the cache\n"


def test_only_public_names_of_huggingface_hub_are_used() -> None:
    import huggingface_hub
    import huggingface_hub.errors
    import huggingface_hub.utils

    folder, found = Path(download.__file__).parent, []
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("huggingface_hub"):
                found += [(node.module, name.name) for name in node.names]
    public = {
        "huggingface_hub": {*huggingface_hub.__all__, "constants", "errors"},
        "huggingface_hub.utils": set(getattr(huggingface_hub.utils, "__all__", dir(huggingface_hub.utils))),
        "huggingface_hub.errors": {name for name in dir(huggingface_hub.errors) if not name.startswith("_")},
    }
    assert found
    assert [entry for entry in found if entry[1] not in public.get(str(entry[0]), ())] == []


def test_offline(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/m", {"m.gguf": LARGE})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub_session()
    assert refused("org/m") == "org/m: HF_HUB_OFFLINE is set, and it is not in the cache: give a local file"
    assert hub.server.requests == []


def huggingface_hub_session() -> None:
    """A new one, which reads HF_HUB_OFFLINE."""
    import huggingface_hub

    huggingface_hub.close_session()


def test_near_names_are_offered(hub: LocalHub) -> None:
    hub.add("org/Tiny-1.5B-Instruct-GGUF", {"m.gguf": LARGE})
    hub.add("other/quants", {"m.gguf": LARGE}, tags=("base_model:quantized:org/Tiny-1.5B-Instruct",))
    hub.add("org/Tiny-1.5B-Instruct", {"model.safetensors": b"x"})
    hub.add("org/docs", {"README.md": b"x"})
    for typo in ("org/Tiny-1.5B-Instuct-GGUF", "ogr/Tiny-1.5B-Instruct-GGUF", "org/tiny-1.5b-instruct-ggf"):
        hint = "check the name (did you mean org/Tiny-1.5B-Instruct-GGUF?), or set HF_TOKEN"
        assert refused(typo) == f"{typo}: not on the Hub, or private: {hint}"
    assert refused("org/Tiny-1.5B-Instruct") == (
        "org/Tiny-1.5B-Instruct: has no GGUF model, but weights in another format: of the same model: other/quants"
    )
    assert refused("org/docs") == "org/docs: has no GGUF model: look for its name and GGUF on the Hub"
    assert repository.similar("org/zzzzzz") == []


def test_too_little_room_is_said_before(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(size: int) -> dict[str, object]:
        return {"size": size, "lfs": {"sha256": "0" * 64, "size": size, "pointerSize": 1}}

    hub.add(
        "org/m",
        {"m-Q4_K_M.gguf": LARGE, "m-Q3_K_M.gguf": LARGE},
        claims={"m-Q4_K_M.gguf": claim(9_000_000_000), "m-Q3_K_M.gguf": claim(1_000_000_000)},
    )
    monkeypatch.setattr(download, "free_space", lambda folder: 2_000_000_000)
    assert refused("org/m") == (
        f"org/m: 9.00 GB must be downloaded, 2.00 GB is free in {hub.cache}: free some, set HF_HOME to a folder on "
        "another disk, or take org/m:Q3_K_M (1.00 GB)"
    )
    monkeypatch.setattr(download, "free_space", lambda folder: 1 << 60)
    monkeypatch.setattr(machine, "memory", lambda: (4_000_000_000, 3_000_000_000))
    monkeypatch.setattr(remote, "_device_memory", lambda: 0)
    with pytest.raises(
        MedusaError, match=r"Q4_K_M needs more than 9.00 GB of memory, but there is 4.00 GB: `medusa pull`"
    ):
        fetch("org/m")
    assert hub.server.downloads() == []


HOSTILE = ["../../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "a\\..\\evil.gguf", "C:evil.gguf",
           "x\x1b[31m.gguf", "\u202egguf.exe.gguf", "a//b.gguf", "new\nline.gguf"]  # fmt: skip


def test_hostile_names_in_a_listing_are_not_seen(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("org/m", {**dict.fromkeys(HOSTILE, LARGE), "m-Q4_K_M.gguf": LARGE})
    hub.add("org/evil", dict.fromkeys(HOSTILE, LARGE))
    assert list(repository.list_files("org/m", None).files) == ["m-Q4_K_M.gguf"]
    assert fetch("org/m").path.read_bytes() == LARGE
    code, _, error = invoke("pull", "org/evil")
    assert (code, error.count("\n")) == (1, 1)
    assert "\x1b" not in error
    assert list(tmp_path.rglob("*evil*")) == []


def test_sizes_that_cannot_be(hub: LocalHub) -> None:
    for size in (-5, 1 << 62, "7"):
        hub.add("org/m", {"m.gguf": LARGE}, claims={"m.gguf": {"size": size, "lfs": None}})
        try:
            listing = repository.list_files("org/m", None)
        except MedusaError:
            continue
        assert listing.files["m.gguf"].size in (None, size)
    hub.add(
        "org/m",
        {"m.gguf": LARGE},
        claims={"m.gguf": {"size": 1 << 62, "lfs": {"sha256": "0" * 64, "size": 1 << 62, "pointerSize": 1}}},
    )
    assert "must be downloaded" in refused("org/m")


# --- heads ------------------------------------------------------------------------------------------


def gguf_bytes(make: object, tmp_path: Path) -> bytes:
    path = tmp_path / f"{next(NUMBERS)}.gguf"
    make(path)  # type: ignore[operator]
    return path.read_bytes()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> type[cli_fakes.FakeSession]:
    return cli_fakes.install(monkeypatch)


def generated(session: type[cli_fakes.FakeSession], *arguments: str) -> tuple[str | None, str]:
    """The file of the heads that a generation used, and what was said on stderr."""
    session.answers = ["ok"]
    code, _, error = invoke("generate", *arguments, "-p", "x")
    assert code == 0, error
    heads = session.created[-1].heads
    return (heads.path if heads else None), error


def test_heads_of_the_repository_are_found_beside_the_model(
    hub: LocalHub, tmp_path: Path, session: type[cli_fakes.FakeSession]
) -> None:
    base, heads = gguf_bytes(base_gguf, tmp_path), gguf_bytes(heads_gguf, tmp_path)
    hub.add("org/m", {"m-Q4_K_M.gguf": base, "m-medusa.gguf": heads, "m-medusa-Q8_0.gguf": base})
    used, error = generated(session, "org/m")
    assert used is not None
    assert Path(used).name == "m-medusa.gguf"
    assert "Drafting with heads from the same repository: m-medusa.gguf" in error
    assert generated(session, "org/m", "--no-spec")[0] is None
    # A model with heads in one file is a model, whatever its name.
    assert generated(session, "org/m:Q8_0")[0] == used
    local = base_gguf(tmp_path / "local.gguf")
    assert generated(session, str(local))[0] is None
    assert generated(session, str(local), "--heads", "org/m")[0] == used
    assert generated(session, str(local), "--heads", "org/m/m-medusa.gguf")[0] == used
    code, _, error = invoke("generate", "org/m/m-medusa.gguf", "-p", "x")
    assert error == (
        "error: org/m/m-medusa.gguf: holds draft heads, not a model: give the model, and --heads org/m/m-medusa.gguf\n"
    )
    code, _, error = invoke("generate", str(local), "--heads", "org/none", "-p", "x")
    assert (code, error.count("\n")) == (1, 1)
    hub.add("org/plain", {"m.gguf": base})
    code, _, error = invoke("generate", str(local), "--heads", "org/plain", "-p", "x")
    assert error == (
        "error: org/plain: has no GGUF of draft heads: for other formats use `medusa convert org/plain --install`\n"
    )


def test_heads_for_another_base_are_left_out(
    hub: LocalHub, tmp_path: Path, session: type[cli_fakes.FakeSession]
) -> None:
    other = gguf_bytes(lambda path: write_gguf(path, {**BASE_METADATA, "llama.block_count": 2}, BASE_TENSORS), tmp_path)
    hub.add("org/m", {"m-Q4_K_M.gguf": other, "m-medusa.gguf": gguf_bytes(heads_gguf, tmp_path)})
    used, error = generated(session, "org/m")
    assert used is None
    assert "m-medusa.gguf in the same repository is for another base and is ignored" in error


# --- list, rm, completion ---------------------------------------------------------------------------


def test_list_and_rm(hub: LocalHub, tmp_path: Path) -> None:
    base, heads = gguf_bytes(base_gguf, tmp_path), gguf_bytes(heads_gguf, tmp_path)
    hub.add(
        "org/m", {"m-Q4_K_M.gguf": base, "m-Q8_0.gguf": base + bytes(100), "m-medusa.gguf": heads, "README.md": b"x"}
    )
    hub.add("org/n", {"n-Q4_K_M.gguf": base})
    assert invoke("pull", "org/m", "org/m:Q8_0", "org/n")[0] == 0
    code, out, _ = invoke("list", "--json")
    models = {model["name"]: model for model in json.loads(out)["models"] if model["name"] != "demo"}
    assert sorted(models) == ["org/m:Q4_K_M", "org/m:Q8_0", "org/n:Q4_K_M"]
    assert models["org/m:Q8_0"]["heads"]["origin"] == "repository"
    assert models["org/n:Q4_K_M"]["heads"] is None
    assert models["org/m:Q4_K_M"]["size"] == len(base)
    code, out, _ = invoke("list")
    assert "org/m:Q8_0" in out

    code, _, error = invoke("rm", "org/m:Q8_0")
    assert (code, error) == (1, "error: org/m:Q8_0 would be removed: add --yes, there is no terminal to ask in\n")
    code, out, error = invoke("rm", "org/m:Q8_0", "--yes", "--json")
    assert (code, json.loads(out)) == (0, {"removed": ["org/m:Q8_0"], "freed": len(base) + 100})
    assert not Path(models["org/m:Q8_0"]["path"]).exists()
    assert fetch("org/m").path.read_bytes() == base
    assert invoke("rm", "org/m", "org/n", "-y")[0] == 0
    _, out, _ = invoke("list", "--json")
    assert [model["name"] for model in json.loads(out)["models"] if model["name"] != "demo"] == []
    assert not (hub.cache / "models--org--n").exists()
    code, _, error = invoke("rm", "org/m", "-y")
    assert (code, error) == (1, "error: org/m is not on this machine: see `medusa list`\n")


def test_pull_takes_names_only(hub: LocalHub, tmp_path: Path) -> None:
    path = base_gguf(tmp_path / "m.gguf")
    assert refused(str(path)) == f"{path} is a path, so there is nothing to download: give org/repo, or `demo`"
    assert refused("word") == "word is not a name on the Hub: give org/repo, or `demo`"


def test_completion_offers_what_is_here(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from medusa_cli.models.completion import complete_installed, complete_models

    hub.add("org/m", {"m-Q4_K_M.gguf": LARGE})
    fetch("org/m")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org-folder").mkdir()
    (tmp_path / "organ.gguf").touch()
    (tmp_path / "org.txt").touch()
    assert complete_models("org") == ["org/m:Q4_K_M", "organ.gguf", "org-folder/"]
    assert complete_models("dem") == ["demo"]
    assert complete_models(f"{tmp_path}/organ") == [f"{tmp_path}/organ.gguf"]
    assert complete_installed("org/") == ["org/m:Q4_K_M"]
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "organ.gguf"))
    assert complete_models("org/") == []
