"""What `medusa list` shows: models on this machine, their heads, whether they were tuned, and installed heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medusa_cli.converters.heads import schema
from medusa_cli.decoding import profile
from medusa_cli.models import cached, drafters, gguf_files, heads
from medusa_cli.models.cached import CachedModel
from medusa_cli.models.references import Origin
from medusa_cli.support.errors import describe, is_reportable


def inventory() -> dict[str, Any]:
    """JSON-ready: "models" and "heads". A file that cannot be read has its "error"."""
    tuned = profile.pairs()
    installed = heads.installed()
    return {
        "models": [_model(model, tuned) for model in cached.models()],
        "heads": [_installed(one) for one in installed],
    }


def _model(model: CachedModel, tuned: set[tuple[str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": model.name,
        "path": str(model.path),
        "size": model.size,
        "quant": model.quant or None,
        "heads": None,
        "drafter": None,
        "tuned": False,
    }
    try:
        metadata, layers = gguf_files.read_header(model.path).metadata, drafters.for_model(model.path, model.drafter)
        if layers is not None:
            found["drafter"] = {"path": str(layers.path), "kind": layers.kind, "layers": layers.layers}
        if (of_model := _heads(model, metadata)) is None:
            return found
        path, origin = of_model
        of_heads = gguf_files.read_header(path).metadata
        kind, count = of_heads.get(schema.KIND_KEY), of_heads.get(schema.HEAD_COUNT_KEY)
        found["heads"] = {"origin": origin, "path": str(path), "kind": kind, "head_count": count}
        found["tuned"] = (profile.content_hash(model.path), profile.content_hash(path)) in tuned
    except Exception as error:
        if not is_reportable(error) and not isinstance(error, OSError):
            raise
        found["error"] = describe(error)
    return found


def _heads(model: CachedModel, metadata: dict[str, Any]) -> tuple[Path, str] | None:
    """The heads that a chat would draft with, and where they come from."""
    if schema.VERSION_KEY in metadata:
        return model.path, "its file"
    mine = heads.for_base(metadata)
    if mine is not None and (model.heads is None or heads.is_named(mine, metadata)):
        return mine.path, Origin.installed.value
    if model.heads is not None and heads.fits(model.heads, metadata):
        return model.heads, Origin.repository.value if model.files else Origin.shipped.value
    return None


def _installed(one: heads.Installed) -> dict[str, Any]:
    return {
        "name": one.name,
        "path": str(one.path),
        "size": one.path.stat().st_size,
        "kind": one.kind,
        "head_count": one.head_count,
        "base_name": one.base_name,
        "base_fingerprint": one.fingerprint,
        "tree": one.has_tree,
    }
