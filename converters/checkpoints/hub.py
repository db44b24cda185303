"""Where heads and bases come from: a path, or a repository of the Hugging Face Hub.

huggingface_hub does the downloading, into its own cache and by its own rules (HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE);
this module picks the files that are needed and turns its errors into one line each.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from medusa_cli.hub.errors import Unreachable, explained
from medusa_cli.support.errors import MedusaError

from .checkpoint import SUFFIXES, head_files, model_files, other_files, read_index

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
SHA256 = re.compile(r"[0-9a-f]{64}")

Choice = Callable[[Collection[str], Callable[[str], dict[str, str]], str], list[str]]


@dataclass(frozen=True)
class Found:
    """A checkpoint on this machine.

    provenance: for a repository "repo", "revision" (the commit) and, where the Hub tells, "sha256"
    ("FILE:HEX, FILE:HEX" of the weight files); for a local path only "name".
    """

    path: Path
    provenance: dict[str, str]


def resolve_heads(reference: str, console: Console) -> Found:
    """A local path as it is, else the repository org/repo[@revision], with all that heads need.

    Where the repository is a full model, that includes the base. MedusaError: no such path or repository, no access,
    no network and no copy, no space, a repository without weights.
    """
    return _resolve(reference, console, _choose_heads)


def resolve_base(reference: str, console: Console) -> Found:
    """As resolve_heads, for a base model: weights, configuration, tokenizer; head files stay where they are."""
    return _resolve(reference, console, _choose_base)


def _choose_heads(present: Collection[str], index_of: Callable[[str], dict[str, str]], label: str) -> list[str]:
    model, where = model_files(present, index_of)
    weights = model + head_files(present) or other_files(present, label)
    return _with_side_files(present, weights, where, TOKENIZER_FILES if model else ())


def _choose_base(present: Collection[str], index_of: Callable[[str], dict[str, str]], label: str) -> list[str]:
    model, where = model_files(present, index_of)
    if not model and any(name.endswith(".gguf") for name in present):
        raise MedusaError(f"{label}: holds GGUF files only: name one with --base {label}:QUANT, Q8_0 for example")
    weights = model or other_files(set(present) - set(head_files(present)), label)
    return _with_side_files(present, weights, where, TOKENIZER_FILES)


def _with_side_files(
    present: Collection[str], weights: list[str], where: dict[str, str], side_files: tuple[str, ...]
) -> list[str]:
    indices = [name for name in present if where and name.endswith(".index.json")]
    return weights + indices + [name for name in CONFIG_FILES + side_files if name in present]


def _resolve(reference: str, console: Console, choose: Choice) -> Found:
    path = Path(reference).expanduser()
    if reference and path.exists():
        return Found(path, {"name": path.resolve().name})
    match = REFERENCE.fullmatch(reference)
    if match is None or reference.startswith("."):
        raise MedusaError(f"{reference}: no such file or folder, and no repository of the form org/repo[@revision]")
    repository = _Repository(match["repo"], match["revision"])
    with _quiet_without_terminal(console):
        return repository.fetch(console, choose)


class _Repository:
    """One repository at one revision (None: its main branch)."""

    def __init__(self, repo: str, revision: str | None) -> None:
        self.repo, self.revision = repo, revision
        self.label = f"{repo}@{revision}" if revision else repo

    def fetch(self, console: Console, choose: Choice) -> Found:
        """From the Hub, or from the cache alone where the Hub cannot be asked."""
        try:
            files = self._list()
        except Unreachable as error:
            copy = self._cached_folder()
            if copy is None:
                raise MedusaError(
                    f"{self.label}: {error}, and there is no copy in the cache: give a local folder, or retry online"
                ) from error
            console.print(f"note: {self.label}: {error}: using the copy in the cache", markup=False, soft_wrap=True)
            folder, present = copy, [entry.name for entry in copy.iterdir()]
            names = choose(present, lambda index: read_index(copy / index), f"{self.label} (copy in the cache)")
        else:
            names = choose(files, self._index, self.label)
            folder = self._download(names, files, console)
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise MedusaError(f"{self.label}: {missing[0]} is not in the cache yet: run again with a network")
        return Found(folder, self._provenance(folder, names))

    def _list(self) -> dict[str, int]:
        """Files at the top of the repository, with their sizes (0: unknown)."""
        from huggingface_hub import HfApi

        with explained(self.repo, self.revision):
            info = HfApi().model_info(self.repo, revision=self.revision, files_metadata=True)
        return {file.rfilename: file.size or 0 for file in info.siblings or () if "/" not in file.rfilename}

    def _index(self, name: str) -> dict[str, str]:
        from huggingface_hub import hf_hub_download

        with explained(self.repo, self.revision):
            path = hf_hub_download(self.repo, name, revision=self.revision)
        return read_index(Path(path))

    def _download(self, names: list[str], files: dict[str, int], console: Console) -> Path:
        """The snapshot's folder, with `names` in it; what the cache has is not fetched again."""
        from huggingface_hub import snapshot_download

        absent = [name for name in names if name not in files]
        if absent:
            raise MedusaError(f"{self.label}: lacks {absent[0]!r} that its index lists")
        size = sum(files[name] for name in names)
        console.print(f"{self.label}: {len(names)} files, {size / 1e6:,.1f} MB", markup=False, highlight=False)
        with explained(self.repo, self.revision):
            patterns = [re.sub(r"([*?[])", r"[\1]", name) for name in names]
            return Path(snapshot_download(self.repo, revision=self.revision, allow_patterns=patterns))

    def _cached_folder(self) -> Path | None:
        """The folder of this revision in the cache."""
        from huggingface_hub import try_to_load_from_cache

        for name in CONFIG_FILES + tuple(f"medusa_lm_head{suffix}" for suffix in SUFFIXES):
            path = try_to_load_from_cache(self.repo, name, revision=self.revision)
            if isinstance(path, str):
                return Path(path).parent
        return None

    def _provenance(self, folder: Path, names: list[str]) -> dict[str, str]:
        """The cache names large files by their sum."""
        blobs = {name: (folder / name).resolve().name for name in names if name.endswith(SUFFIXES)}
        sums = [f"{name}:{blob}" for name, blob in blobs.items() if SHA256.fullmatch(blob)]
        known = {"sha256": ", ".join(sums)} if sums else {}
        return {"repo": self.repo, "revision": folder.name, **known}


@contextlib.contextmanager
def _quiet_without_terminal(console: Console) -> Iterator[None]:
    """The library's progress bars belong on a terminal only."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if console.is_terminal or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
