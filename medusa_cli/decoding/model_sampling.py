"""Sampling defaults that come with a model: the `general.sampling.*` keys of its GGUF file, as llama.cpp's tools read
them. Whoever answers a person takes them; benchmarks, tuning and training do not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from medusa_cli.decoding.fields import Field, fields
from medusa_cli.decoding.options import AcceptKind, DraftOptions, SamplingOptions

PREFIX = "general.sampling."
KEYS = {field.option.file: field for field in fields(SamplingOptions).values() if field.option.file}
"""Options that a file may have a default for, by its keys."""
LACKING = ("sequence", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau", "mirostat_eta")
"""Keys of samplers, and of an order of samplers, that the engine does not have."""


@dataclass(frozen=True)
class ModelSampling:
    """values: by field of SamplingOptions. notes: what was left out, one line each."""

    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def by_flag(self) -> dict[str, Any]:
        """The values by what the command line calls the options: "temp", "top_k"."""
        long = {name: one.long.removeprefix("--").replace("-", "_") for name, one in fields(SamplingOptions).items()}
        return {long[name]: value for name, value in self.values.items()}


def read(lookup: Callable[[str], Any]) -> ModelSampling:
    """The defaults in a file's metadata; lookup: the value of a key, None without it.

    They are a stranger's: what is not a number in range is left out, with a note.
    """
    values: dict[str, Any] = {}
    notes = []
    for key, field in KEYS.items():
        found = lookup(PREFIX + key)
        if found is None:
            continue
        number = _checked(found, field)
        if number is None:
            notes.append(f"{PREFIX}{key} is {found!r:.40}, not {field.wanted}: left out")
        else:
            values[field.name] = number
    # A mirostat of 0 and an XTC probability of 0 are off.
    if lacking := [name for name in LACKING if lookup(PREFIX + name)]:
        names = ", ".join(lacking)
        notes.append(f"the model's file also sets {PREFIX}{{{names}}}, which medusa does not have: left out")
    return ModelSampling(values, tuple(notes))


def _checked(found: Any, field: Field) -> float | None:
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not field.holds(found):
        return None
    if field.kind is int:
        return int(found) if found == int(found) else None
    return float(f"{found:.6g}")  # 0.6 for a file's 0.6000000238


def fill(asked: SamplingOptions, draft: DraftOptions, model: ModelSampling) -> SamplingOptions:
    """`asked`, with the model's defaults where it says nothing and the accept rule has a use for them."""
    left_out = {"temperature"} if draft.accept is AcceptKind.greedy else set()
    if draft.as_published:
        left_out = set(model.values) - {"temperature"}
    elif draft.accept is AcceptKind.nucleus:
        left_out = set(model.values) - {"temperature", "top_p"}
    filled = {
        name: value for name, value in model.values.items() if name not in left_out and getattr(asked, name) is None
    }
    return dataclasses.replace(asked, **filled)
