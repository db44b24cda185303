"""What the Python API refuses: one line each, before anything runs. And that it takes what the commands take."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import medusa_cli
from medusa_cli import MedusaError, Model
from medusa_cli.api import arguments
from medusa_cli.decoding.fields import fields
from medusa_cli.decoding.options import (
    AnswerArguments,
    DraftOptions,
    EngineArguments,
    EngineOptions,
    SamplingOptions,
)


def names(group: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(group)}


def test_arguments_are_the_options_of_the_commands() -> None:
    options = names(SamplingOptions) | names(DraftOptions) | names(EngineOptions)
    assert options == arguments.ANSWER_NAMES | arguments.ENGINE_NAMES
    assert names(SamplingOptions) < arguments.ANSWER_NAMES
    assert names(EngineOptions) < arguments.ENGINE_NAMES
    assert not arguments.ANSWER_NAMES & arguments.ENGINE_NAMES


def test_arguments_have_the_types_of_the_options() -> None:
    for arguments_of, groups in (
        (AnswerArguments, (SamplingOptions, DraftOptions)),
        (EngineArguments, (EngineOptions, DraftOptions)),
    ):
        hints = typing.get_type_hints(arguments_of)
        for name, one in {**fields(groups[0]), **fields(groups[1])}.items():
            if name == "json_schema":  # Python also takes objects and pydantic models
                continue
            if name in hints and one.kind in (int, float, bool, str):
                assert hints[name] == (one.kind | None if one.optional else one.kind), name


def test_public_names_exist() -> None:
    assert set(medusa_cli.__all__) <= set(dir(medusa_cli))
    assert all(getattr(medusa_cli, name) is not None for name in medusa_cli.__all__)
    stub = Path(medusa_cli.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert {name for name in medusa_cli.__all__ if name[0] != "_"} == {
        line.split()[-1] for line in stub.splitlines() if " import " in line
    }
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = medusa_cli.nothing  # type: ignore[attr-defined]


ANSWERS: list[dict[str, Any]] = [
    {"top_k": -1}, {"top_k": 1.5}, {"top_k": True}, {"top_p": 1.01}, {"top_p": "1"}, {"min_p": float("nan")},
    {"temperature": -0.1}, {"temperature": float("inf")}, {"temp": 1.0}, {"nothing": 1}, {"max_tokens": -2},
    {"max_tokens": 2**31}, {"repeat_penalty": 0}, {"frequency_penalty": 2.1}, {"presence_penalty": -3},
    {"seed": 2**32}, {"seed": "7"}, {"stop": ""}, {"stop": ["a", ""]}, {"stop": 5}, {"stop": ["a", 5]},
    {"stop": "\ud800"}, {"logit_bias": {-1: 1.0}}, {"logit_bias": {"1": 1.0}}, {"logit_bias": {1: "x"}},
    {"logit_bias": {1: float("nan")}}, {"logit_bias": [1]}, {"accept": "wrong"}, {"accept": "rejection"},
    {"accept": "greedy", "temperature": 1.0}, {"epsilon": 0.0, "accept": "typical"}, {"greedy_root": True},
    {"greedy_root": 1}, {"logprobs": -1}, {"logprobs": 101}, {"ctx_size": 5}, {"ignore_eos": None},
]  # fmt: skip


@pytest.mark.parametrize("given_", ANSWERS, ids=str)
def test_bad_arguments_of_answers(given_: dict[str, Any]) -> None:
    with pytest.raises(MedusaError) as caught:
        arguments.answer_settings(given_)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)


NAMES = st.sampled_from(sorted(arguments.ANSWER_NAMES)) | st.text(max_size=8)
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4)
    | st.lists(st.text(max_size=4) | st.integers(), max_size=3)
    | st.dictionaries(st.integers() | st.text(max_size=3), st.floats() | st.text(max_size=3), max_size=3)
)  # fmt: skip


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_no_value_does_worse_than_a_line(given_: dict[str, Any]) -> None:
    said = ""
    try:
        arguments.answer_settings(given_)
    except MedusaError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1


def test_good_arguments_reach_the_settings() -> None:
    chosen = arguments.answer_settings(
        {"temperature": np.float32(0.5), "top_k": np.int64(3), "stop": "x", "logit_bias": {5: -1e-3, 6: float("-inf")}}
    )
    assert (chosen.temperature, chosen.top_k, chosen.stop) == (0.5, 3, ("x",))
    assert chosen.logit_bias == {5: -0.001, 6: float("-inf")}
    assert arguments.answer_settings({"stop": None, "seed": -1, "temperature": None}).stop == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ctx_size": -1}, "ctx_size takes a whole number from 0"),
        ({"ctx_size": 2**31 - 1}, "give a smaller ctx_size"),
        ({"heads": "nope.gguf"}, "nope.gguf"),
        ({"tree": "nope"}, "no tree named 'nope'"),
        ({"cache_type_k": "f15"}, "cache_type_k takes f32"),
        ({"no_spec": 1}, "no_spec takes True or False"),
        ({"threads": 1.5}, "threads takes a whole number"),
        ({"seed": 3}, "it is an argument of an answer"),
        ({"tree": "chain_4"}, "tree needs draft heads, and SmolLM2-135M-Instruct.Q4_1.gguf has none: give heads FILE"),
        ({"lookahead": "4,3,4"}, "unknown argument 'lookahead'"),
        ({"device": "toaster"}, "device: there is no 'toaster' here"),
    ],
    ids=str,
)
@pytest.mark.model
def test_bad_arguments_of_models(demo_model_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(MedusaError) as caught:
        Model(demo_model_path, quiet=True, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello", encoding="utf-8")
    for path in (tmp_path / "none.gguf", tmp_path / "text.gguf", tmp_path):
        with pytest.raises(MedusaError):
            Model(path, quiet=True)


@pytest.fixture(scope="module")
def model(demo_model_path: Path) -> Iterator[Model]:
    with Model(demo_model_path, ctx_size=256, quiet=True) as opened:
        yield opened


@pytest.mark.model
@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ("\ud800", "not valid text"),
        (5, "a prompt is text"),
        (b"bytes", "a prompt is text"),
        ([1, 2, -5], "-5 is not a token id"),
        ([1, 2.5], "2.5 is not a token id"),
        ([1, 10**9], "is not a token id"),
        (["text"], "is not a token id"),
        ([{"role": 1}], "message 0"),
        ([{"role": "user"}], "message 0"),
        ([{"role": "user", "content": "x"}, 5], "message 1"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [5]}], "tool_calls: a call has"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "only parts of type 'text'"),
        ("x " * 3000, "the context holds 256: shorten it, or give a larger ctx_size"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_bad_prompts(model: Model, prompt: Any, said: str) -> None:
    for ask in (model.generate, model.stream):
        with pytest.raises(MedusaError) as caught:
            ask(prompt, max_tokens=1)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
    assert model.queue_length == 0


@pytest.mark.model
def test_biases_and_tokens_beyond_the_vocabulary(model: Model) -> None:
    with pytest.raises(MedusaError, match="logit_bias names token 9999999, the vocabulary ends at 49151"):
        model.generate("Hi", logit_bias={9999999: 1.0})
    with pytest.raises(MedusaError, match="raw=True needs a prompt that is text"):
        model.generate([1, 2], raw=True)
