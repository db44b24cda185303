"""The page at `/`: files of the package, read once; requests cannot name files."""

from __future__ import annotations

from importlib import resources
from pathlib import PurePath

from fastapi import FastAPI
from fastapi.responses import Response

KINDS = {".css": "text/css", ".js": "text/javascript"}
NAMES = (
    *("chat.css", "answer.css"),
    *("answer.js", "chat.js", "clipboard.js", "markdown.js", "math.js", "server.js", "text.js"),
    *("vendor/highlight.min.js", "vendor/markdown-it.umd.min.js", "vendor/temml.min.js"),
)
FILES = {"/": ("chat.html", "text/html")} | {f"/{name}": (name, KINDS[PurePath(name).suffix]) for name in NAMES}
"""Request path -> file, media type."""


def add_page(app: FastAPI) -> None:
    """Serves the page's files."""
    for path, (name, kind) in FILES.items():
        content = resources.files(__name__).joinpath(name).read_bytes()
        _add_file(app, path, content, kind)


def _add_file(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=kind)
