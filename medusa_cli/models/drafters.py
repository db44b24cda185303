"""Drafters that people already have: layers for further tokens (MTP), in a model's own file or in one beside it, and
EAGLE-3 and DFlash files.

Files beside a model are found by their names and matched by what their headers say; the engine compares the rest.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.models import gguf_files, quantizations
from medusa_cli.models.quantizations import ASSISTANT, DFLASH, DRAFTER_PREFIX, EAGLE
from medusa_cli.models.references import DrafterRef, ModelRef
from medusa_cli.support.console import printable
from medusa_cli.support.errors import is_reportable
from medusa_cli.support.units import size

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli import native

ARCHITECTURE = "general.architecture"
ASSISTED = "gemma4"
"""The architecture whose drafters are models of their own, quantizations.ASSISTANT, and read its cache."""
READ_STATES = {EAGLE: "EAGLE-3", DFLASH: "DFlash"}
"""Architectures of drafters that read inner states of any model, and what they are called."""
TOKENS = "tokenizer.ggml.tokens"
MOST_PADDING = 128
"""Tokens that one of two equal vocabularies may have in addition, as the engine allows it."""


def read(path: Path) -> DrafterRef | None:
    """The layers of a file that llama.cpp can run; None if there are none."""
    header = gguf_files.read_header(path)
    if header.next_layers == 0:
        return None
    try:
        header.check_next_layers()
    except Exception as error:
        if not is_reportable(error):
            raise
        return None
    several = header.next_layers > 1 and header.get(ARCHITECTURE) not in quantizations.DRAFTERS
    return DrafterRef(path, kind_of(header), header.next_layers, header.next_layers if several else 0)


def kind_of(header: native.GgufFile) -> str:
    """What the layers of a file that has some are called."""
    kind = header.get(ARCHITECTURE)
    return READ_STATES.get(kind, "MTP") if isinstance(kind, str) else "MTP"


def asked_for(path: Path) -> DrafterRef | None:
    """The drafter in a file that the person named; None for an ordinary model. NativeError if it cannot be run."""
    header = gguf_files.read_header(path)
    if not header.next_layers_alone:
        return None
    header.check_next_layers()
    return read(path)


def with_drafter(ref: ModelRef, console: Console) -> ModelRef:
    """The model with the layers that draft for it, if there are any; a line on `console` if they are not its own."""
    found = for_model(ref.path, ref.drafter.path if ref.drafter else None)
    if found is not None and found.path != ref.path:
        text = f"Drafting with {found.path.name} ({size(found.path.stat().st_size)} more in memory)"
        console.print(printable(text), style="dim", markup=False, soft_wrap=True)
    return dataclasses.replace(ref, drafter=found)


def for_model(model: Path, fetched: Path | None = None) -> DrafterRef | None:
    """The layers that draft for a model: its own, or those of the file that was fetched with it or lies beside it."""
    if (own := read(model)) is not None:
        return own
    paths = _beside(model) if fetched is None else [fetched, *_beside(model)]
    return best(paths, model) if paths else None


def best(paths: Collection[Path], model: Path) -> DrafterRef | None:
    """Of the files that fit the model, the one whose name is most like its own; then the smallest."""

    def alike(path: Path) -> tuple[int, int]:
        pairs = zip(path.name.lower().removeprefix(DRAFTER_PREFIX), model.name.lower(), strict=False)
        return -sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)), path.stat().st_size

    header = gguf_files.read_header(model)
    for path in sorted(paths, key=alike):
        try:
            if fits(gguf_files.read_header(path), header) and (found := read(path)) is not None:
                return found
        except Exception as error:
            if not is_reportable(error):
                raise
    return None


def _beside(model: Path) -> list[Path]:
    """Files that the names of drafters are given to; no links to what is gone."""
    named = [path for path in model.parent.glob("*.gguf") if quantizations.OF_DRAFTER.search(path.name)]
    return [path for path in named if path != model and path.is_file()]


def fits(drafter: native.GgufFile, model: native.GgufFile) -> bool:
    """Whether a file's layers can follow the model, as far as keys tell: architecture, sizes, layers, vocabulary."""
    if not drafter.next_layers_alone:
        return False
    kind, wanted = drafter.get(ARCHITECTURE), model.get(ARCHITECTURE)
    if (kind, wanted) == (ASSISTANT, ASSISTED):
        return _of(drafter, "embedding_length_out") == _of(model, "embedding_length")
    if kind in READ_STATES:
        return _reads_states(drafter, model) and _same_tokens(drafter, model)
    layers = [_of(file, "block_count") - file.next_layers for file in (drafter, model)]
    widths = [_of(file, "embedding_length") for file in (drafter, model)]
    return kind == wanted and layers[0] == layers[1] and widths[0] == widths[1]


def _reads_states(drafter: native.GgufFile, model: native.GgufFile) -> bool:
    layers, count = drafter.get(f"{drafter.get(ARCHITECTURE)}.target_layers"), _of(model, "block_count")
    inside = isinstance(layers, list) and all(isinstance(layer, int) and layer < count for layer in layers)
    width = "target_hidden_size" if drafter.get(ARCHITECTURE) == EAGLE else "embedding_length"
    return inside and _of(drafter, width) == _of(model, "embedding_length")


def _same_tokens(one: native.GgufFile, other: native.GgufFile) -> bool:
    """These files name no architecture that they follow, and widths alone say little."""
    mine, others = one.get(TOKENS), other.get(TOKENS)
    if not isinstance(mine, list) or not isinstance(others, list) or abs(len(mine) - len(others)) > MOST_PADDING:
        return False
    return all(a == b for a, b in zip(mine, others, strict=False))


def _of(file: native.GgufFile, key: str) -> int:
    value = file.get(f"{file.get(ARCHITECTURE)}.{key}")
    return value if isinstance(value, int) else -1
