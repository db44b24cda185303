"""huggingface_hub, in this process, made to ask a local server and to keep what it fetches in a test's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import HubServer, Repo
from huggingface_hub import constants
from rich.console import Console

from medusa_cli.hub import download


class LocalHub:
    """The server, and the cache folder."""

    def __init__(self, server: HubServer, cache: Path) -> None:
        self.server, self.cache = server, cache

    def add(self, name: str, files: dict[str, bytes], **more: object) -> Repo:
        repo = Repo(files, **more)  # type: ignore[arg-type]
        self.server.repos[name] = repo
        return repo

    def blobs(self, repo: str) -> list[str]:
        """Names in the repository's folder of contents, unfinished ones, too."""
        return sorted(path.name for path in (self.cache / f"models--{repo.replace('/', '--')}" / "blobs").glob("*"))


@contextmanager
def local_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A Hub without repositories."""
    with HubServer({}) as server:
        cache = tmp_path / "hf" / "hub"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {
            "ENDPOINT": server.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(cache),
            "HF_TOKEN_PATH": str(tmp_path / "hf" / "token"),
            "HF_HUB_OFFLINE": False,
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(download, "WAITS", (0.0, 0.0))
        huggingface_hub.close_session()
        yield LocalHub(server, cache)
        huggingface_hub.close_session()


def quiet() -> Console:
    """A console that shows nothing."""
    return Console(quiet=True)


def content(name: str, size: int) -> bytes:
    """Bytes that begin as a GGUF, others for each name."""
    block = hashlib.sha256(name.encode()).digest()
    return (b"GGUF" + block * (size // len(block) + 1))[:size]
