"""References to the Hub, against a local server: what is fetched, from where, and every way it can fail.

Each lookup runs in a process of its own, because huggingface_hub reads its environment when it is imported.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from hub_server import TOKEN, HubServer, Repo
from huggingface_hub import constants
from medusa_cli.converters.checkpoints.checkpoint import open_checkpoint
from medusa_cli.converters.heads.formats import read_heads
from rich.console import Console
from safetensors.numpy import save

from medusa_cli.conversion import sources
from medusa_cli.conversion.sources import resolve_base, resolve_heads
from medusa_cli.hub import download
from medusa_cli.hub.repository import Listing, RemoteFile
from medusa_cli.support.errors import MedusaError

HEADS = Path(__file__).parents[1] / "data" / "heads"
SCRIPT = """
import json, sys
from pathlib import Path
from rich.console import Console
from medusa_cli.conversion import sources
from medusa_cli.support.errors import MedusaError
try:
    found = getattr(sources, sys.argv[1])(sys.argv[2], Console(stderr=True, width=500))
    names = sorted(path.name for path in found.path.iterdir()) if found.path.is_dir() else []
    print(json.dumps({"path": str(found.path), "names": names, **found.provenance}))
except MedusaError as error:
    print(json.dumps({"error": str(error)}))
"""


def fixture(name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (HEADS / name).iterdir()}


class Hub:
    """The server, and a cache of this test's own."""

    def __init__(self, server: HubServer, home: Path) -> None:
        self.server, self.home, self.messages = server, home, ""

    def resolve(self, reference: str, kind: str = "heads", **environment: str) -> dict[str, Any]:
        """What resolve_heads or resolve_base says; stderr is kept in `messages`."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        own = {
            "HF_ENDPOINT": self.server.endpoint,
            "HF_HOME": str(self.home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_ETAG_TIMEOUT": "60",
            "HF_HUB_DOWNLOAD_TIMEOUT": "60",
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, "-c", SCRIPT, f"resolve_{kind}", reference]
        done = subprocess.run(
            command,
            env={**inherited, **own, **environment},
            # Not the checkout: its medusa_cli has no compiled module.
            cwd=Path(__file__).parents[1] / "support",
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        self.messages = done.stderr
        assert done.stdout, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        assert "\n" not in result.get("error", "")
        return result


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    heads = fixture("medusa-v1")
    heads |= {"README.md": b"# heads", "eval/results.json": b"{}", "training_args.bin": b"not for us"}
    full = fixture("medusa-full")
    extra = {"pytorch_model.bin": b"the same again", "tokenizer.json": b"{}", "README.md": b"", "model.gguf": b"GGUF"}
    repos = {
        "org/heads": Repo(heads, {"v2": fixture("medusa-v2")}),
        "org/full": Repo({**full, **extra}),
        "org/private": Repo(heads, access="private"),
        "org/gated": Repo(heads, access="gated"),
        "org/gguf": Repo({"model.Q4_0.gguf": b"GGUF", "config.json": b"{}"}),
        "org/empty": Repo({"README.md": b""}),
        "org/holed": Repo({name: data for name, data in full.items() if "-00002-of" not in name}),
    }
    with HubServer(repos) as server:
        yield Hub(server, tmp_path / "home")


def test_local_paths_stay_as_they_are(tmp_path: Path) -> None:
    console = Console(stderr=True)
    found = resolve_heads(str(HEADS / "medusa-v1"), console)
    assert (found.path, found.provenance) == (HEADS / "medusa-v1", {"name": "medusa-v1"})
    file = HEADS / "medusa-v1" / "medusa_lm_head.pt"
    assert resolve_base(str(file), console).path == file
    for reference in (str(tmp_path / "nothing"), "nothing", "a/b/c", "a/b@", "../x/../y", "a /b", "a/b@c d", ""):
        with pytest.raises(MedusaError, match="no such file or folder"):
            resolve_heads(reference, console)


def test_heads_are_fetched_once_and_only_what_is_needed(hub: Hub) -> None:
    pytest.importorskip("torch")
    found = hub.resolve("org/heads")
    assert found["names"] == ["config.json", "medusa_lm_head.pt"]
    assert found["repo"] == "org/heads"
    commit = hub.server.repos["org/heads"].commit_of("main")
    assert commit
    assert found["revision"] == commit[0]
    sha256 = hashlib.sha256(commit[1]["medusa_lm_head.pt"]).hexdigest()
    assert found["sha256"] == f"medusa_lm_head.pt:{sha256}"
    assert read_heads(open_checkpoint(Path(found["path"]))).family == "v1"
    assert sorted(hub.server.downloads()) == ["config.json", "medusa_lm_head.pt"]
    assert "org/heads: 2 files" in hub.messages

    hub.server.requests.clear()
    assert hub.resolve("org/heads") == found
    assert hub.server.downloads() == []


def test_a_revision_is_honoured(hub: Hub) -> None:
    found = hub.resolve("org/heads@v2")
    assert found["names"] == ["config.json", "medusa_lm_head.safetensors"]
    commit = hub.server.repos["org/heads"].commit_of("v2")
    assert commit
    assert found["revision"] == commit[0]
    assert hub.resolve(f"org/heads@{commit[0]}") == found
    assert hub.resolve("org/heads@v3")["error"] == "org/heads: has no revision 'v3'"


def test_a_full_model_brings_all_shards_and_its_tokenizer(hub: Hub) -> None:
    for kind in ("heads", "base"):
        found = hub.resolve("org/full", kind)
        shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
        assert found["names"] == sorted(["config.json", "model.safetensors.index.json", "tokenizer.json", *shards])
        assert [part.partition(":")[0] for part in found["sha256"].split(", ")] == shards
        checkpoint = open_checkpoint(Path(found["path"]))
        assert read_heads(checkpoint).is_full_model
    assert len(hub.server.downloads()) == 5


def test_repositories_without_what_is_needed(hub: Hub) -> None:
    assert "contains only GGUF files" in hub.resolve("org/gguf", "base")["error"]
    assert "no weights" in hub.resolve("org/empty")["error"]
    assert "lacks 'model-00002-of-00002.safetensors'" in hub.resolve("org/holed")["error"]


def test_private_and_gated_repositories(hub: Hub) -> None:
    assert hub.resolve("org/private")["error"] == (
        "org/private: not on the Hub, or private: check the name, or set HF_TOKEN"
    )
    assert "access must be granted" in hub.resolve("org/gated")["error"]
    assert hub.resolve("org/private", HF_TOKEN="hf_wrong")["error"].startswith(
        "org/private: not on the Hub, or private"
    )
    for name in ("org/private", "org/gated"):
        assert hub.resolve(name, HF_TOKEN=TOKEN)["repo"] == name


def test_a_repository_that_does_not_exist(hub: Hub) -> None:
    assert "not on the Hub" in hub.resolve("org/none")["error"]
    assert "neither a local path nor a repository" in hub.resolve("org/none", HF_TOKEN=TOKEN)["error"]
    assert "not a valid repository name" in hub.resolve("org--x/-none-..")["error"]


def test_a_dropped_connection_goes_on_where_it_stopped(hub: Hub) -> None:
    large = save({"0.0.linear.weight": np.arange(1 << 18, dtype=np.float32)})
    hub.server.repos["org/large"] = Repo({"medusa_lm_head.safetensors": large})
    hub.server.drops["medusa_lm_head.safetensors"] = 1
    found = hub.resolve("org/large")
    assert hub.server.ranges == [f"bytes={len(large) // 2}-"]
    assert hub.server.downloads() == ["medusa_lm_head.safetensors"] * 2
    assert (Path(found["path"]) / "medusa_lm_head.safetensors").read_bytes() == large


def test_offline_uses_the_cache_or_says_so(hub: Hub) -> None:
    error = hub.resolve("org/heads", HF_HUB_OFFLINE="1")["error"]
    assert error.startswith("org/heads: HF_HUB_OFFLINE is set, and there is no copy in the cache")
    assert hub.server.requests == []
    found = hub.resolve("org/heads")
    hub.server.requests.clear()
    assert hub.resolve("org/heads", HF_HUB_OFFLINE="1") == found
    assert "using the copy in the cache" in hub.messages
    assert "no copy in the cache" in hub.resolve("org/heads@v2", HF_HUB_OFFLINE="1")["error"]
    assert hub.server.requests == []


def test_a_copy_that_is_not_complete_is_not_used(hub: Hub) -> None:
    found = hub.resolve("org/full")
    (Path(found["path"]) / "model-00002-of-00002.safetensors").unlink()
    error = hub.resolve("org/full", HF_HUB_OFFLINE="1")["error"]
    assert error == "org/full: model-00002-of-00002.safetensors is not in the cache yet: run again with a network"
    assert hub.resolve("org/full") == found


def test_a_hub_that_fails_or_cannot_be_reached(hub: Hub) -> None:
    found = hub.resolve("org/heads")
    hub.server.failing = 418
    assert "the Hub answers with error 418" in hub.resolve("org/full")["error"]
    assert hub.resolve("org/heads") == found
    assert "error 418: using the copy" in hub.messages
    nowhere = "http://127.0.0.1:9"
    assert "the Hub cannot be reached" in hub.resolve("org/full", HF_ENDPOINT=nowhere)["error"]
    assert hub.resolve("org/heads", HF_ENDPOINT=nowhere) == found


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left in the download cache"),
        (PermissionError(errno.EACCES, "Permission denied"), r"download failed \(Permission denied\)"),
        (OSError("consistency check failed\nand more"), r"download failed \(consistency check failed\)"),
    ],
)
def test_a_disk_that_fails_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    file = RemoteFile("medusa_lm_head.pt", 5, "0" * 64)
    monkeypatch.setattr(sources, "list_files", lambda *_: Listing("0" * 40, {file.name: file}))
    monkeypatch.setattr(download, "_stream", fail)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(MedusaError, match=f"^org/heads: {message}"):
        resolve_heads("org/heads", Console(stderr=True))


def test_what_is_no_error_of_the_person_stays_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    with pytest.raises(KeyError):
        resolve_heads("org/heads", Console(stderr=True))
