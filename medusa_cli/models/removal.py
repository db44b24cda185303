"""Finds what a name to be removed means, and removes it."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medusa_cli.hub import cache
from medusa_cli.hub.cache import CachedFile
from medusa_cli.models import cached, heads, names
from medusa_cli.models.names import HubName
from medusa_cli.support.console import printable
from medusa_cli.support.errors import MedusaError


@dataclass(frozen=True)
class Removal:
    """One thing to remove. cached: files in the Hub's cache; paths: elsewhere."""

    name: str
    size: int
    cached: tuple[CachedFile, ...] = ()
    paths: tuple[Path, ...] = ()


def find(wanted: Sequence[str]) -> list[Removal]:
    """What the names mean, each once. MedusaError, with similar names, for one that means nothing here."""
    models, installed = [*cached.models(), *cached.drafters_alone()], heads.installed()
    found: dict[str, Removal] = {}
    for name in wanted:
        fitting = [
            Removal(model.name, model.size, model.files, () if model.files else (model.path,))
            for model in models
            if _means(name, model)
        ]
        fitting += [_of_heads(one) for one in installed if one.name == name]
        if not fitting:
            known = [model.name for model in models] + [one.name for one in installed]
            near = difflib.get_close_matches(name, known, 3, 0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else "see `medusa list`"
            raise MedusaError(f"{printable(name)} is not on this machine: {hint}")
        found |= {one.name: one for one in fitting}
    return list(_with_layers(found, models).values())


def _with_layers(found: dict[str, Removal], models: Sequence[cached.CachedModel]) -> dict[str, Removal]:
    """The same, with the drafters that were fetched with these models and serve no other."""
    used = {model.beside for model in models if model.name not in found}
    for model in models:
        if (layers := model.beside) is None or layers in used:
            continue
        used.add(layers)
        one = found[model.name]
        found[model.name] = dataclasses.replace(one, size=one.size + layers.size, cached=(*one.cached, layers))
    return found


def remove(found: Sequence[Removal]) -> int:
    """Removes all of it and returns the bytes freed. MedusaError if something cannot be removed."""
    freed = cache.remove([file for one in found for file in one.cached])
    for one in found:
        for path in one.paths:
            try:
                freed += path.stat().st_size
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise MedusaError(f"{path}: cannot be removed ({error.strerror or error})") from error
    return freed


def _means(name: str, model: cached.CachedModel) -> bool:
    """Whether `name` is the model's own, its file's, or that of its whole repository."""
    if name == model.name:
        return True
    try:
        asked = names.parse(name)
    except MedusaError:
        return False
    if not isinstance(asked, HubName) or not model.files or asked.repo != model.files[0].repo:
        return False
    if asked.revision is not None and asked.revision != model.files[0].revision:
        return False
    if asked.file is not None:
        return any(file.name == asked.file for file in model.files)
    return asked.quant is None or asked.quant.upper() == model.quant


def _of_heads(one: heads.Installed) -> Removal:
    """The heads, and what `medusa train` wrote beside them."""
    beside = [one.path.with_suffix(suffix) for suffix in (".train.json", ".train.png")]
    size = 0
    with contextlib.suppress(OSError):
        size = one.path.stat().st_size
    return Removal(one.name, size, paths=(one.path, *(path for path in beside if path.is_file())))
