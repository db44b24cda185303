"""What a bench and its worker processes say to each other."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from medusa_cli.decoding.options import AcceptKind, CacheType, DraftOptions, EngineOptions


@dataclass(frozen=True)
class Spec:
    """What a worker loads. lookahead: the numbers of lookahead decoding, where that is what drafts."""

    driver: str
    model: str
    engine: EngineOptions
    draft: DraftOptions
    lookahead: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON types: enums by value, paths as text."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))
        return plain

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Spec:
        """The inverse of to_json."""
        engine, draft = dict(found["engine"]), dict(found["draft"])
        for key in ("cache_type_k", "cache_type_v"):
            engine[key] = CacheType(engine[key])
        draft["accept"] = AcceptKind(draft["accept"]) if draft["accept"] else None
        return cls(**{**found, "engine": EngineOptions(**engine), "draft": DraftOptions(**draft)})


@dataclass(frozen=True)
class Order:
    """One prompt (a user turn), and how to answer it.

    synth_accept: drafts are accepted with this probability, whatever the model says.
    """

    prompt: str
    max_tokens: int
    temperature: float
    seed: int
    synth_accept: float | None = None


@dataclass(frozen=True)
class Ready:
    """What was loaded. notes: remarks for the person. tree_nodes: 1 where no heads draft."""

    description: str
    n_ctx: int
    tree: str = ""
    tree_nodes: int = 1
    notes: tuple[str, ...] = ()
