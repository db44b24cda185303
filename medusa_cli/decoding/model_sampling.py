"""Sampling defaults that come with a model: the `general.sampling.*` keys of its GGUF file, as llama.cpp's tools read
them. Whoever answers a person takes them; benchmarks, tuning and training do not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from medusa_cli.decoding.options import AcceptKind, DraftOptions, SamplingOptions

PREFIX = "general.sampling."


@dataclass(frozen=True)
class Key:
    """A key of the file: the option it stands for, its type and its range (inclusive)."""

    option: str
    type: type[int] | type[float]
    low: float
    high: float


KEYS = {
    "temp": Key("temp", float, 0, 100),
    "top_k": Key("top_k", int, 0, 1e9),
    "top_p": Key("top_p", float, 0, 1),
    "min_p": Key("min_p", float, 0, 1),
    "penalty_last_n": Key("repeat_last_n", int, -1, 1e9),
    "penalty_repeat": Key("repeat_penalty", float, 0.01, 100),
}
LACKING = ("sequence", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau", "mirostat_eta")
"""Keys of samplers, and of an order of samplers, that the engine does not have."""


@dataclass(frozen=True)
class ModelSampling:
    """values: by field of SamplingOptions. notes: what was left out, one line each."""

    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read(lookup: Callable[[str], Any]) -> ModelSampling:
    """The defaults in a file's metadata; lookup: the value of a key, None without it.

    They are a stranger's: what is not a number in range is left out, with a note.
    """
    values: dict[str, Any] = {}
    notes = []
    for name, key in KEYS.items():
        found = lookup(PREFIX + name)
        if found is None:
            continue
        number = _checked(found, key)
        if number is None:
            kind = "a whole number" if key.type is int else "a number"
            notes.append(f"{PREFIX}{name} is {found!r:.40}, not {kind} from {key.low:g} to {key.high:g}: left out")
        else:
            values[key.option] = number
    # A mirostat of 0 and an XTC probability of 0 are off.
    if lacking := [name for name in LACKING if lookup(PREFIX + name)]:
        names = ", ".join(lacking)
        notes.append(f"the model's file also sets {PREFIX}{{{names}}}, which medusa does not have: left out")
    return ModelSampling(values, tuple(notes))


def _checked(found: Any, key: Key) -> float | None:
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
        return None
    if not key.low <= found <= key.high or (key.type is int and found != int(found)):
        return None
    # 0.6 for a file's 0.6000000238.
    return int(found) if key.type is int else float(f"{found:.6g}")


def fill(asked: SamplingOptions, draft: DraftOptions, model: ModelSampling) -> SamplingOptions:
    """`asked`, with the model's defaults where it says nothing and the accept rule has a use for them."""
    left_out = {"temp"} if draft.accept is AcceptKind.greedy else set()
    if draft.as_published:
        left_out = set(model.values) - {"temp"}
    elif draft.accept is AcceptKind.nucleus:
        left_out = set(model.values) - {"temp", "top_p"}
    filled = {
        name: value for name, value in model.values.items() if name not in left_out and getattr(asked, name) is None
    }
    return dataclasses.replace(asked, **filled)
