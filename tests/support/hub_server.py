"""A local HTTP server that speaks as much of the Hub's API as huggingface_hub needs to download.

Model info (with and without a revision), the tree of a revision, search, resolve with HEAD, ETag, commit and range
headers, redirects to another address for large files, the Hub's error codes, access tokens, and connections that break
in the middle of a file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_the_right_token"
RANGE = re.compile(r"bytes=(\d+)-(\d*)")
LARGE = (".safetensors", ".bin", ".pt", ".gguf", ".model")


@dataclass
class Repo:
    """files: name -> content of main. revisions: further branches or tags. access: public, private or gated.

    tags: what search filters by. claims: name -> what the listing says of a file, in place of the truth.
    """

    files: dict[str, bytes]
    revisions: dict[str, dict[str, bytes]] = field(default_factory=dict)
    access: str = "public"
    tags: tuple[str, ...] = ()
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)

    def commit_of(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit and its files, by branch, tag or commit."""
        for name, files in {"main": self.files, **self.revisions}.items():
            commit = hashlib.sha1(repr(sorted((name, _sum(data)) for name, data in files.items())).encode()).hexdigest()
            if revision in (name, commit):
                return commit, files
        return None


class _Server(ThreadingHTTPServer):
    """Waits for the threads of its connections when it closes, and takes clients that go away for granted.

    The inherited handle_error() prints a traceback, which parses source text in the connection's thread. Python 3.11
    before 3.11.8 fails with "AST constructor recursion depth mismatch" wherever another thread does that, too: in
    pytest, which then shows a failed test.
    """

    daemon_threads = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.failures: list[BaseException | None] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            self.failures.append(error)


class HubServer:
    """Serves `repos` on a free port while the context is open.

    requests: (method, path) of everything asked, in order. drops: file name -> how many downloads break off in the
    middle. cuts: file name -> bytes after which its next downloads break off, one each. ranges: Range headers that were
    sent. failing: an HTTP status that answers everything; failing_files: one that answers downloads. redirects: large
    files lie at another address, which must not be shown the token. pause: seconds before each 256 KiB of a file.
    """

    def __init__(self, repos: dict[str, Repo]) -> None:
        self.repos = repos
        self.requests: list[tuple[str, str]] = []
        self.ranges: list[str] = []
        self.drops: dict[str, int] = {}
        self.cuts: dict[str, list[int]] = {}
        self.failing: int | None = None
        self.failing_files: int | None = None
        self.redirects = False
        self.pause = 0.0
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def downloads(self) -> list[str]:
        """Names of the files that were sent, in order."""
        paths = [path for method, path in self.requests if method == "GET" and "/resolve/" in path]
        return [path.rpartition("/")[2] for path in paths]

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        assert self._server.failures == []


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds until a connection that says nothing is closed

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        if self.hub.failing is not None:
            self._error(self.hub.failing)
            return
        routes: list[tuple[str, Callable[..., None]]] = [
            (r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/revision/(?P<revision>[^/]+))?", self._info),
            (r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)", self._tree),
            (r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)", self._file),
        ]
        if path == "/api/models":
            self._search()
            return
        if stored := re.fullmatch(r"/storage/([0-9a-f]{64})/(.+)", path):
            self._stored(stored[1], stored[2], body)
            return
        for pattern, route in routes:
            match = re.fullmatch(pattern, path)
            if match:
                self._route(route, match, body)
                return
        self._error(404)

    def _route(self, route: Callable[..., None], match: re.Match[str], body: bool) -> None:
        """Checks access as the Hub does: private repositories look absent, gated ones say so."""
        found = match.groupdict()
        repo = self.hub.repos.get(found["repo"])
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repo is None or (repo.access == "private" and not allowed):
            self._error(404 if allowed else 401, "RepoNotFound")
            return
        if repo.access == "gated" and not allowed and route == self._file:
            self._error(403, "GatedRepo")
            return
        commit = repo.commit_of(found["revision"] or "main")
        if commit is None:
            self._error(404, "RevisionNotFound")
            return
        route(found, *commit, body)

    def _info(self, found: dict[str, str], commit: str, files: dict[str, bytes], body: bool) -> None:
        siblings = []
        for name, data in files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": _git_sum(data)}
            if name.endswith(LARGE):
                entry["lfs"] = {"sha256": _sum(data), "size": len(data), "pointerSize": 134}
            siblings.append({**entry, **self.hub.repos[found["repo"]].claims.get(name, {})})
        self._json({"id": found["repo"], "modelId": found["repo"], "sha": commit, "siblings": siblings})

    def _tree(self, found: dict[str, str], commit: str, files: dict[str, bytes], body: bool) -> None:
        entries = []
        for name, data in files.items():
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": _git_sum(data)}
            if name.endswith(LARGE):
                entry["lfs"] = {"oid": _sum(data), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        self._json(entries)

    def _file(self, found: dict[str, str], commit: str, files: dict[str, bytes], body: bool) -> None:
        name = found["name"]
        if name not in files:
            self._error(404, "EntryNotFound")
            return
        if self.hub.failing_files is not None:
            self._error(self.hub.failing_files)
            return
        data = files[name]
        etag = _sum(data) if name.endswith(LARGE) else _git_sum(data)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}
        if self.hub.redirects and name.endswith(LARGE):
            self.send_response(302)
            host = self.hub.endpoint.replace("127.0.0.1", "localhost")
            moved = {"X-Linked-ETag": f'"{etag}"', "X-Linked-Size": str(len(data))}
            moved["Location"] = f"{host}/storage/{etag}/{name}"
            for key, value in {**headers, **moved, "Content-Length": "0"}.items():
                self.send_header(key, value)
            self.end_headers()
            return
        self._send(name, data, headers, body)

    def _stored(self, etag: str, name: str, body: bool) -> None:
        """The other address of a large file."""
        assert "Authorization" not in self.headers
        found = [files[name] for repo in self.hub.repos.values() for files in [repo.files] if name in files]
        self._send(name, next(data for data in found if _sum(data) == etag), {"ETag": f'"{etag}"'}, body)

    def _send(self, name: str, data: bytes, headers: dict[str, str], body: bool) -> None:
        start, end = 0, len(data)
        wanted = RANGE.fullmatch(self.headers.get("Range", ""))
        if wanted:
            self.hub.ranges.append(self.headers["Range"])
            start = int(wanted[1])
            end = min(end, int(wanted[2]) + 1) if wanted[2] else end
        self.send_response(206 if wanted else 200)
        headers = {**headers, "Accept-Ranges": "bytes", "Content-Length": str(end - start)}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if not body:
            return
        if self.hub.drops.get(name, 0) > 0:
            self.hub.drops[name] -= 1
            end, self.close_connection = start + (end - start) // 2, True
        elif self.hub.cuts.get(name) and end == len(data):
            end, self.close_connection = min(end, start + self.hub.cuts[name].pop(0)), True
        for at in range(start, end, 1 << 18):
            if self.hub.pause:
                time.sleep(self.hub.pause)
            self.wfile.write(data[at : min(end, at + (1 << 18))])
        self.wfile.flush()

    def _search(self) -> None:
        """By author, by a part of the name, by tags."""
        asked = parse_qs(urlsplit(self.path).query)
        found = [
            name
            for name, repo in self.hub.repos.items()
            if repo.access != "private"
            and all(name.startswith(f"{owner}/") for owner in asked.get("author", []))
            and all(word.lower() in name.lower() for word in asked.get("search", []))
            and set(asked.get("filter", [])) <= {*repo.tags, *(["gguf"] if any(map(_is_gguf, repo.files)) else [])}
        ]
        self._json([{"id": name, "modelId": name} for name in found])

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _error(self, status: int, code: str | None = None) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _is_gguf(name: str) -> bool:
    return name.endswith(".gguf")


@functools.lru_cache(maxsize=256)
def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@functools.lru_cache(maxsize=256)
def _git_sum(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
