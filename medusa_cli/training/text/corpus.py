"""Generated text and its hidden states on disk: append-only shards behind an atomic manifest.

A shard is four files: NAME.tokens.npy int32 [N], NAME.states.npy float16 [N, n_embd], NAME.prompts.npy int32 (tokens of
all prompts), NAME.json (its texts, in order, with their lengths). A shard counts once the manifest lists it, so an
interruption at any point loses at most the texts that were still in memory.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medusa_cli.support.atomic import atomic_file, explain_os_error
from medusa_cli.support.errors import MedusaError

SHARD_BYTES = 64 << 20
SHARD_SECONDS = 120.0
"""A shard is written after this time even if it is small: this is what a crash may cost."""
FORMAT = 1
PRIVATE = 0o600
"""Prompts and answers may be somebody's secrets."""


@dataclass(frozen=True)
class Text:
    """One generated answer. group: the conversation it belongs to (held out as a whole); complete: ended by itself.

    source: where its prompt came from; temperature: what it was sampled at; prompt: its prompt's length in tokens. All
    are unknown for text from older versions.
    """

    job: int
    group: str
    length: int
    complete: bool
    source: str = "unknown"
    temperature: float | None = None
    prompt: int = 0


@dataclass(frozen=True)
class NewText:
    """tokens [length] int32, states [length, n_embd] float16 they were sampled from, prompt: its tokens, int32."""

    text: Text
    tokens: NDArray[np.int32]
    states: NDArray[np.float16]
    prompt: NDArray[np.int32]


class Corpus:
    """The texts under one folder.

    tokens: in all texts, including those in memory. state: JSON values, kept in the manifest for whoever generates.
    """

    def __init__(self, folder: Path, n_embd: int) -> None:
        """Opens or creates. MedusaError if the folder holds something else or cannot be written."""
        self.folder, self.n_embd = Path(folder), n_embd
        self.shards: list[str] = []
        self.texts: list[Text] = []
        self.state: dict[str, Any] = {}
        self.tokens = 0
        self._pending: list[NewText] = []
        self._flushed = time.monotonic()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_os_error(error, self.folder) from error
        if self._manifest.exists():
            self._load()

    @property
    def _manifest(self) -> Path:
        return self.folder / "manifest.json"

    def _load(self) -> None:
        try:
            manifest = json.loads(self._manifest.read_text("utf-8"))
            if manifest["format"] != FORMAT or manifest["n_embd"] != self.n_embd:
                raise ValueError("another format or hidden size")
            self.shards, self.state = manifest["shards"], manifest["state"]
            for name in self.shards:
                rows = json.loads((self.folder / f"{name}.json").read_text("utf-8"))
                self.texts.extend(Text(**row) for row in rows)
            self.tokens = sum(text.length for text in self.texts)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> MedusaError:
        return MedusaError(f"{self.folder}: damaged training data ({why}), remove the folder to start over")

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.n_embd + 4

    def done_jobs(self) -> set[int]:
        """Jobs whose text is here, including those in memory."""
        return {text.job for text in self.texts} | {new.text.job for new in self._pending}

    def add(self, new: NewText) -> None:
        """Takes one text. Flushes large or old shards."""
        self._pending.append(new)
        self.tokens += new.text.length
        size = sum(new.text.length for new in self._pending) * self.bytes_per_token
        if size >= SHARD_BYTES or time.monotonic() - self._flushed > SHARD_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes what is in memory as one shard, then the manifest."""
        pending, shards = self._pending, self.shards
        if pending:
            name = f"shard-{len(shards):05d}"
            shards = [*shards, name]
            for what, parts in (
                ("tokens", [new.tokens for new in pending]),
                ("states", [new.states for new in pending]),
                ("prompts", [new.prompt for new in pending]),
            ):
                with atomic_file(self.folder / f"{name}.{what}.npy", PRIVATE) as file:
                    np.save(file, np.concatenate(parts))
            rows = json.dumps([asdict(new.text) for new in pending])
            with atomic_file(self.folder / f"{name}.json", PRIVATE) as file:
                file.write(rows.encode("utf-8"))
        self._write_manifest(shards)
        self.shards, self._pending, self._flushed = shards, [], time.monotonic()
        self.texts.extend(new.text for new in pending)

    def _write_manifest(self, shards: list[str]) -> None:
        manifest = {"format": FORMAT, "n_embd": self.n_embd, "shards": shards, "state": self.state}
        with atomic_file(self._manifest, PRIVATE) as file:
            file.write(json.dumps(manifest, indent=1).encode("utf-8"))

    def load_tokens(self) -> NDArray[np.int32]:
        """[sum of lengths]: all stored tokens, in the order of `texts`."""
        parts = [np.load(self.folder / f"{name}.tokens.npy") for name in self.shards]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def load_prompts(self) -> list[NDArray[np.int32]]:
        """The tokens of each text's prompt, in the order of `texts`; empty if they are not known."""
        paths = [self.folder / f"{name}.prompts.npy" for name in self.shards]
        parts = [np.load(path) for path in paths if path.exists()]
        tokens = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        ends = np.cumsum([0, *(text.prompt for text in self.texts)])
        if ends[-1] != len(tokens):
            raise self._damaged("prompts of another length")
        return [tokens[begin:end] for begin, end in itertools.pairwise(ends)]

    def starts(self) -> list[int]:
        """The first row of each answer."""
        starts: list[int] = np.cumsum([0, *(text.length for text in self.texts)])[:-1].tolist()
        return starts

    def prompts_by_row(self) -> dict[int, NDArray[np.int32]]:
        """load_prompts() by the first row of each answer."""
        return dict(zip(self.starts(), self.load_prompts(), strict=True))

    def open_states(self) -> list[NDArray[np.float16]]:
        """One memory-mapped [N, n_embd] array per shard; together, their rows match load_tokens()."""
        arrays = [np.load(self.folder / f"{name}.states.npy", mmap_mode="r") for name in self.shards]
        if any(array.ndim != 2 or array.shape[1] != self.n_embd for array in arrays):
            raise self._damaged("hidden states of another size")
        return arrays

    def stored(self) -> Iterator[tuple[Text, NDArray[np.int32]]]:
        """All stored texts with their tokens."""
        ends = np.cumsum([text.length for text in self.texts])
        yield from zip(self.texts, np.split(self.load_tokens(), ends[:-1]), strict=False)
