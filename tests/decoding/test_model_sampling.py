"""Sampling defaults of a model's file: what is read, what is refused, who wins."""

from __future__ import annotations

import math
from typing import Any

import pytest

from medusa_cli.decoding import settings
from medusa_cli.decoding.options import AcceptKind, DraftOptions, SamplingOptions
from medusa_cli.decoding.settings import ASKED, MODELS, PREFIX, ModelSampling, Settings

FILE = {"temp": 0.6000000238418579, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "penalty_last_n": -1,
        "penalty_repeat": 1.100000023841858}  # fmt: skip


def read(**keys: Any) -> ModelSampling:
    return settings.model_sampling({PREFIX + name: value for name, value in keys.items()}.get)


def test_every_key_becomes_the_option_of_llama_cpp() -> None:
    found = read(**FILE)
    assert found.notes == ()
    assert found.values == {
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repeat_last_n": -1, "repeat_penalty": 1.1,
    }  # fmt: skip
    assert found.by_flag == {
        **{name: found.values[name] for name in found.values if name != "temperature"},
        "temp": 0.6,
    }
    assert read().values == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temp", -1.0), ("temp", math.nan), ("temp", math.inf), ("temp", "0.6"), ("temp", True), ("temp", [0.6]),
        ("top_k", 2.5), ("top_k", -1), ("top_k", 10**12), ("top_p", 1.5), ("min_p", -0.1), ("penalty_last_n", -2),
        ("penalty_repeat", 0.0), ("penalty_repeat", 1e9),
    ],
)  # fmt: skip
def test_what_is_no_number_in_range_is_left_out(key: str, value: Any) -> None:
    found = read(**{**FILE, key: value})
    option = settings.KEYS[key].name
    assert option not in found.values
    assert len(found.values) == len(FILE) - 1
    assert len(found.notes) == 1
    assert found.notes[0].startswith(f"{PREFIX}{key} is ")
    assert "\n" not in found.notes[0]


def test_samplers_that_are_not_there_are_named_once() -> None:
    found = read(sequence="xtc;top_k", xtc_probability=0.5, xtc_threshold=0.1, mirostat=2, mirostat_tau=5.0, top_k=3)
    assert found.values == {"top_k": 3}
    assert len(found.notes) == 1
    assert all(name in found.notes[0] for name in ("sequence", "xtc_probability", "mirostat_tau"))
    assert read(mirostat=0, xtc_probability=0.0).notes == ()


def chosen(
    sampling: SamplingOptions = SamplingOptions(), draft: DraftOptions = DraftOptions(), **file: Any
) -> Settings:
    return settings.from_options(sampling, draft, 0.7, read(**file))


def test_an_option_wins_over_the_file_and_the_file_over_ours() -> None:
    found = chosen(SamplingOptions(top_k=7), temp=0.6, top_k=20, penalty_repeat=1.1)
    assert (found.temperature, found.top_k, found.repeat_penalty) == (0.6, 7, 1.1)
    assert found.top_p == settings.engine_default("top_p")
    assert found.origins == {"temperature": MODELS, "top_k": ASKED, "repeat_penalty": MODELS}
    changed = settings.changed(found, "temp", "0.1")
    assert changed.origins["temperature"] == ASKED
    assert found.origins["temperature"] == MODELS


def test_the_file_contradicts_no_accept_rule() -> None:
    assert chosen(draft=DraftOptions(accept=AcceptKind.greedy), temp=0.6).temperature == 0
    nucleus = chosen(draft=DraftOptions(accept=AcceptKind.nucleus), temp=0.6, top_p=0.9, top_k=3, penalty_repeat=1.1)
    assert (nucleus.temperature, nucleus.top_p) == (0.6, 0.9)
    assert (nucleus.top_k, nucleus.repeat_penalty) == (settings.engine_default("top_k"), 1.0)
    published = chosen(draft=DraftOptions(accept=AcceptKind.typical, as_published=True), temp=0.6, top_p=0.9)
    assert (published.temperature, published.top_p) == (0.6, settings.engine_default("top_p"))
