"""Where heads and bases come from: a path, or a repository of the Hugging Face Hub.

The room `hub` fetches into huggingface_hub's cache; this module picks the files that are needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from medusa_cli.converters.checkpoints.checkpoint import SUFFIXES, head_files, model_files, other_files, read_index
from medusa_cli.hub.download import check_room, fetch, fetch_shown
from medusa_cli.hub.errors import Unreachable
from medusa_cli.hub.repository import SHA256, Listing, cached_snapshot, list_files
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import expanded
from medusa_cli.support.units import size

REFERENCE = re.compile(r"(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})(?:@(?P<revision>[\w./-]{1,200}))?", re.ASCII)
CONFIG_FILES = ("config.json", "generation_config.json")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)

Choice = Callable[[Collection[str], Callable[[str], dict[str, str]], str], list[str]]


@dataclass(frozen=True)
class Found:
    """A checkpoint on this machine.

    provenance: for a repository "repo", "revision" (the commit) and, if the Hub gives it, "sha256"
    ("FILE:HEX, FILE:HEX" of the weight files); for a local path only "name".
    """

    path: Path
    provenance: dict[str, str]


def resolve_heads(reference: str, console: Console) -> Found:
    """A local path as it is, else the repository org/repo[@revision], with everything heads need.

    If the repository is a full model, that includes the base. MedusaError: no such path or repository, no access,
    no network and no copy, no space, a repository without weights.
    """
    return _resolve(reference, console, _choose_heads)


def resolve_base(reference: str, console: Console) -> Found:
    """Like resolve_heads, for a base model: weights, configuration, tokenizer; head files are not fetched."""
    return _resolve(reference, console, _choose_base)


def resolve_side_files(reference: str, console: Console) -> Found:
    """Like resolve_base, without the weights: configuration and tokenizer alone."""
    return _resolve(reference, console, _choose_side_files)


def _choose_heads(present: Collection[str], index_of: Callable[[str], dict[str, str]], label: str) -> list[str]:
    model, where = model_files(present, index_of)
    weights = model + head_files(present) or other_files(present, label)
    return _with_side_files(present, weights, where, TOKENIZER_FILES if model else ())


def _choose_base(present: Collection[str], index_of: Callable[[str], dict[str, str]], label: str) -> list[str]:
    model, where = model_files(present, index_of)
    if not model:
        _refuse_ggufs(present, label)
    weights = model or other_files(set(present) - set(head_files(present)), label)
    return _with_side_files(present, weights, where, TOKENIZER_FILES)


def _choose_side_files(present: Collection[str], index_of: Callable[[str], dict[str, str]], label: str) -> list[str]:
    if "config.json" not in present:
        _refuse_ggufs(present, label)
        raise MedusaError(f"{label}: has no config.json, name the base model with --base")
    return _with_side_files(present, [], {}, TOKENIZER_FILES)


def _refuse_ggufs(present: Collection[str], label: str) -> None:
    if any(name.endswith(".gguf") for name in present):
        raise MedusaError(f"{label}: contains only GGUF files: choose one with --base {label}:QUANT, Q8_0 for example")


def _with_side_files(
    present: Collection[str], weights: list[str], where: dict[str, str], side_files: tuple[str, ...]
) -> list[str]:
    indices = [name for name in present if where and name.endswith(".index.json")]
    return weights + indices + [name for name in CONFIG_FILES + side_files if name in present]


def _resolve(reference: str, console: Console, choose: Choice) -> Found:
    path = expanded(reference)
    if reference and path.exists():
        return Found(path, {"name": path.resolve().name})
    match = REFERENCE.fullmatch(reference)
    if match is None or reference.startswith("."):
        raise MedusaError(f"{reference}: no such file or folder, and no repository of the form org/repo[@revision]")
    # From the Hub, or only from the cache if the Hub cannot be asked. Without a revision: the main branch.
    repo, revision = match["repo"], match["revision"]
    label = f"{repo}@{revision}" if revision else repo
    try:
        listing = list_files(repo, revision)
    except Unreachable as error:
        copy = cached_snapshot(repo, revision)
        if copy is None:
            raise MedusaError(
                f"{label}: {error}, and there is no copy in the cache: give a local folder, or retry online"
            ) from error
        console.print(f"note: {label}: {error}: using the copy in the cache", markup=False, soft_wrap=True)
        folder, present = copy, [entry.name for entry in copy.iterdir()]
        names = choose(present, lambda index: read_index(copy / index), f"{label} (copy in the cache)")
    else:
        folder, names = _downloaded(repo, revision, listing, console, choose)
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise MedusaError(f"{label}: {missing[0]} is not in the cache yet: run again with a network")
    # The cache names large files by their checksum.
    blobs = {name: (folder / name).resolve().name for name in names if name.endswith(SUFFIXES)}
    sums = [f"{name}:{blob}" for name, blob in blobs.items() if SHA256.fullmatch(blob)]
    return Found(folder, {"repo": repo, "revision": folder.name, **({"sha256": ", ".join(sums)} if sums else {})})


def _downloaded(
    repo: str, revision: str | None, listing: Listing, console: Console, choose: Choice
) -> tuple[Path, list[str]]:
    """The snapshot's folder, and the chosen files in it; files in the cache are not fetched again."""
    label = f"{repo}@{revision}" if revision else repo
    top = {name: file for name, file in listing.files.items() if "/" not in name}

    def index_of(name: str) -> dict[str, str]:
        return read_index(fetch(repo, listing.commit, [top[name]], lambda done, total: None)[0])

    names = choose(top, index_of, label)
    absent = [name for name in names if name not in top]
    if absent:
        raise MedusaError(f"{label}: lacks {absent[0]!r} that its index lists")
    files = [top[name] for name in names]
    total = size(sum(file.size or 0 for file in files))
    console.print(f"{label}: {len(names)} files, {total}", markup=False, highlight=False)
    check_room(repo, label, files)
    return fetch_shown(repo, revision, listing.commit, files, console)[0].parent, names
