"""The page at `/`: three files of the package, read once; no request names a file."""

from __future__ import annotations

from importlib import resources

from fastapi import FastAPI
from fastapi.responses import Response

FILES = {
    "/": ("chat.html", "text/html"),
    "/chat.css": ("chat.css", "text/css"),
    "/chat.js": ("chat.js", "text/javascript"),
}


def add_page(app: FastAPI) -> None:
    """Serves the page's files."""
    for path, (name, kind) in FILES.items():
        content = resources.files(__name__).joinpath(name).read_bytes()
        _add_file(app, path, content, kind)


def _add_file(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=kind)
