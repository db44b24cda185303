"""What a person types for a model: a path, or a name on the Hub. This only looks up whether a path exists.

What exists here is a path. Of the rest, names are `org/repo`, `org/repo:QUANT`, `org/repo/FILE.gguf`, each with
`@REVISION` after the repository or at the end, and the Hub's own addresses; everything else is a path, too.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from medusa_cli.hub.repository import REPO, WORD, is_safe_name
from medusa_cli.support.console import printable
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import expanded

HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
PATH_STARTS = ("/", "./", "../", "~", "\\", ".\\", "..\\")
REVISION = r"refs/(?:pr|convert|heads|tags)/[\w.-]{1,100}|[\w.-]{1,200}"
BRANCH = r"[\w.-]{1,100}(?:/[\w.-]{1,100}){0,5}"
"""As addresses may name it; after @, a slash would end it."""
QUANT = r"[A-Za-z][\w.-]{0,40}"
NAME = re.compile(
    rf"(?P<repo>{WORD}/{WORD})(?:@(?P<revision>{REVISION}))?(?:/(?P<file>[^@]+?\.gguf))?(?::(?P<quant>{QUANT}))?"
    rf"(?:@(?P<last>{REVISION}))?",
    re.ASCII | re.IGNORECASE,
)
PAGES = ("tree", "blob", "resolve", "raw")
OTHER_KINDS = ("datasets", "spaces", "collections", "papers")


@dataclass(frozen=True)
class HubName:
    """A repository, and which part of it. revision None: its main branch. At most one of file and quant is given."""

    repo: str
    revision: str | None = None
    file: str | None = None
    quant: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        file = f"/{self.file}" if self.file else ""
        return f"{self.repo}{revision}{file}" + (f":{self.quant}" if self.quant else "")


def parse(reference: str) -> Path | HubName:
    """A path (that exists or not) or a name on the Hub. MedusaError for addresses that are neither."""
    path = expanded(reference)
    if reference and exists(path):
        return path
    inside = _after_host(reference)
    if inside is None and looks_like_path(reference):
        return path
    name = _page(inside) if inside is not None else None
    name = name or _name(unquote(inside) if inside is not None else reference)
    if name is None and inside is not None:
        raise MedusaError(f"{printable(reference)}: not a model's address: give hf.co/org/repo, or a file's page there")
    return name or path


def _name(text: str) -> HubName | None:
    """org/repo and whatever may follow it."""
    found = NAME.fullmatch(text)
    if found is None or (found["revision"] and found["last"]) or (found["file"] and found["quant"]):
        return None
    return _checked(HubName(found["repo"], found["revision"] or found["last"], found["file"], found["quant"]))


def _page(inside: str) -> HubName | None:
    """org/repo/blob/REVISION/FILE, still quoted, as in addresses of the Hub's pages and files."""
    parts = [unquote(part) for part in inside.split("/")]
    if len(parts) < 4 or parts[2] not in PAGES:
        return None
    file = "/".join(parts[4:]) if parts[2] != "tree" else ""
    return _checked(HubName("/".join(parts[:2]), parts[3], file or None))


def _checked(name: HubName) -> HubName | None:
    """The name; None if one of its parts cannot be valid."""
    revision = name.revision is None or (re.fullmatch(BRANCH, name.revision, re.ASCII) and ".." not in name.revision)
    file = name.file is None or (is_safe_name(name.file) and name.file.lower().endswith(".gguf"))
    return name if REPO.fullmatch(name.repo) and revision and file else None


def exists(path: Path) -> bool:
    """Path.exists(), even for names that no file system takes."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def looks_like_path(reference: str) -> bool:
    """Whether a reference is meant as a path, existing or not: by its start, or as a file in at most one folder."""
    parts = reference.split("/")
    return (
        reference.startswith(PATH_STARTS)
        or re.match(r"[A-Za-z]:[\\/]", reference) is not None
        or len(parts) < 2
        or (len(parts) == 2 and parts[1].lower().endswith(".gguf"))
    )


def _after_host(reference: str) -> str | None:
    """What follows the Hub's address, unchanged; None without one. MedusaError for addresses elsewhere."""
    scheme = re.match(r"(https?|hf)://", reference, re.IGNORECASE)
    if scheme and scheme[1].lower() == "hf":
        inside = reference[scheme.end() :]
    else:
        host, _, inside = reference[scheme.end() if scheme else 0 :].partition("/")
        if host.lower() not in (*HOSTS, *_endpoint_host()):
            if scheme is None:
                return None
            raise MedusaError(
                f"{printable(reference)}: not an address on the Hub: download it, and give the file's path"
            )
    inside = re.split(r"[?#]", inside, maxsplit=1)[0].strip("/")
    if inside.partition("/")[0] in OTHER_KINDS:
        raise MedusaError(f"{printable(reference)}: not a model's address: give hf.co/org/repo")
    return inside


def _endpoint_host() -> tuple[str, ...]:
    host = os.environ.get("HF_ENDPOINT", "").partition("://")[2].partition("/")[0]
    return (host.lower(),) if host else ()
