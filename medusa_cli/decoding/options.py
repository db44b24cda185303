"""What a person can ask for: options of model, drafting and sampling, each in one place with its range and wording.

The command line, `/set`, Python's keywords, requests to the server and the defaults in a model's file all come from
here. None stands for the engine's default: help texts name those numbers, so that `--help` need not load the engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, TypedDict

from medusa_cli.decoding.fields import Option

MAX_SEED = 2**32 - 1
CHAT_TEMPERATURE = 0.7
"""Default for answers in a chat."""
GENERATE_TEMPERATURE = 0.0
"""Default of `medusa generate`: the most likely token."""
DRAFT_MAX = 4
"""Tokens in a row that a draft model drafts by default."""
LOWEST_SHARE = 1e-6
"""Lowest epsilon and delta, which must be above 0."""


class CacheType(str, Enum):
    """KV cache types, by ggml's names."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    q8_0 = "q8_0"
    q5_1 = "q5_1"
    q5_0 = "q5_0"
    q4_1 = "q4_1"
    q4_0 = "q4_0"
    iq4_nl = "iq4_nl"


class AcceptKind(str, Enum):
    """Accept rules: exact and rejection keep the base model's distribution, typical and nucleus do not."""

    greedy = "greedy"
    exact = "exact"
    rejection = "rejection"
    typical = "typical"
    nucleus = "nucleus"


class Effort(str, Enum):
    """How much a model thinks, if its template has such levels."""

    low = "low"
    medium = "medium"
    high = "high"


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How the model is loaded and where it runs."""

    ctx_size: Annotated[
        int,
        Option(
            "Context size in tokens; 0: the model's own, as memory allows (4096 on GPUs).",
            short="-c",
            metavar="N",
            low=0,
            common=True,
        ),
    ] = 0
    threads: Annotated[
        int, Option("CPU threads; 0: adapt to free cores.", short="-t", metavar="N", low=0, common=True)
    ] = 0
    n_gpu_layers: Annotated[
        int,
        Option("Layers on the GPU; -1: as many as fit, 0: none.", short="-ngl", metavar="N", low=-1, common=True),
    ] = -1
    device: Annotated[
        str | None,
        Option(
            "Devices to run layers on, by the names in `medusa doctor`; none: CPU only. Default: all GPUs.",
            short="-dev",
            metavar="NAME,...",
        ),
    ] = None
    cache_type_k: Annotated[CacheType, Option("Type of cached keys.", short="-ctk")] = CacheType.f16
    cache_type_v: Annotated[CacheType, Option("Type of cached values.", short="-ctv")] = CacheType.f16


@dataclasses.dataclass(frozen=True)
class DraftOptions:
    """What drafts, in which tree, and how drafts are accepted."""

    heads: Annotated[
        str | None,
        Option(
            "Draft heads to use: a GGUF file, or org/repo on the Hub. Default: heads found for the model.",
            metavar="HEADS",
            common=True,
        ),
    ] = None
    tree: Annotated[
        str | None,
        Option(
            "Draft tree: grown in each step, the best fixed one, a built-in one, cartesian:3,2,2, random:64, or a "
            "JSON file of choices.",
            metavar="dynamic|static|NAME|RULE|FILE[:NAME]",
        ),
    ] = None
    no_heads: Annotated[bool, Option("Load no heads; draft with lookup and recycling.")] = False
    lookup: Annotated[
        bool | None,
        Option("Draft what followed the same words earlier; default: on unless --tree is given.", switch=True),
    ] = None
    recycling: Annotated[
        bool | None,
        Option("Draft tokens the model ranked highly earlier; default: on if no heads draft.", switch=True),
    ] = None
    draft_model: Annotated[
        str | None,
        Option(
            "Draft with a smaller model of the same vocabulary, or an MTP, EAGLE-3 or DFlash file, instead of heads.",
            short="-md",
            metavar="MODEL",
        ),
    ] = None
    draft_max: Annotated[
        int,
        Option(
            f"Tokens a draft model drafts in a row; 0: {DRAFT_MAX}, with other drafters as many as pay.",
            metavar="N",
            low=0,
        ),
    ] = 0
    no_drafter: Annotated[bool, Option("Leave the drafter that came with the model (MTP, EAGLE-3, DFlash) unused.")] = (
        False
    )
    repeat_steps: Annotated[
        bool,
        Option("Draft the same way in every run (fixed tree, no lookup), so that the number of steps repeats."),
    ] = False
    no_spec: Annotated[bool, Option("Plain decoding: load no heads, draft nothing.")] = False
    accept: Annotated[
        AcceptKind | None,
        Option("Acceptance rule; default: greedy at temperature 0, exact above. typical and nucleus change the text."),
    ] = None
    epsilon: Annotated[
        float | None,
        Option(
            "Threshold for typical. Default 0.09.",
            metavar="X", low=LOWEST_SHARE, high=1, engine=True, chat="threshold for typical",
        ),
    ] = None  # fmt: skip
    delta: Annotated[
        float | None,
        Option(
            "Entropy factor for typical. Default 0.3.",
            metavar="X", low=LOWEST_SHARE, high=1, engine=True, chat="entropy factor for typical",
        ),
    ] = None  # fmt: skip
    greedy_root: Annotated[bool, Option("With typical and nucleus: take the likeliest token as the root.")] = False
    as_published: Annotated[
        bool,
        Option(
            "With typical: the paper's rule, applied after temperature alone, with the likeliest root and "
            "delta = the square root of epsilon unless given."
        ),
    ] = False


@dataclasses.dataclass
class SamplingOptions:
    """What is generated, and when that ends."""

    temperature: Annotated[
        float | None,
        Option(
            f"Temperature; default: the model's own, else {CHAT_TEMPERATURE} in chat, 0 (most likely token) in "
            "generate.",
            metavar="X", low=0, high=100, common=True, chat="temperature, 0: likeliest token", file="temp",
            request="", request_high=2,
        ),
    ] = None  # fmt: skip
    top_k: Annotated[
        int | None,
        Option(
            "Keep the k likeliest tokens; 0: all. Default 40.",
            metavar="N", low=0, engine=True, chat="keep the k likeliest tokens, 0: all", file="top_k",
            request="Beyond OpenAI: 0 is off.",
        ),
    ] = None  # fmt: skip
    top_p: Annotated[
        float | None,
        Option(
            "Keep the likeliest tokens up to this total probability; 1: off. Default 0.95.",
            metavar="X", low=0, high=1, engine=True, chat="nucleus, 1: off", file="top_p", request="",
        ),
    ] = None  # fmt: skip
    min_p: Annotated[
        float | None,
        Option(
            "Drop tokens less likely than this share of the likeliest one; 0: off. Default 0.05.",
            metavar="X", low=0, high=1, engine=True, chat="share of the likeliest, 0: off", file="min_p",
            request="Beyond OpenAI: 0 is off.",
        ),
    ] = None  # fmt: skip
    repeat_penalty: Annotated[
        float | None,
        Option(
            "Penalty on repeated tokens; 1 (default): off.",
            metavar="X", low=0.01, high=100, engine=True, chat="1: off", file="penalty_repeat",
            request="Beyond OpenAI.",
        ),
    ] = None  # fmt: skip
    frequency_penalty: Annotated[
        float | None,
        Option(
            "Lower a token's logit by this for each earlier occurrence. Default 0.",
            metavar="X", low=-2, high=2, engine=True, request="",
        ),
    ] = None  # fmt: skip
    presence_penalty: Annotated[
        float | None,
        Option(
            "Lower the logit of tokens that occurred earlier by this. Default 0.",
            metavar="X", low=-2, high=2, engine=True, request="",
        ),
    ] = None  # fmt: skip
    repeat_last_n: Annotated[
        int | None,
        Option(
            "How many tokens back penalties look; -1: the whole context. Default 64.",
            metavar="N", low=-1, engine=True, chat="how many tokens back it looks, -1: all", file="penalty_last_n",
        ),
    ] = None  # fmt: skip
    logit_bias: Annotated[
        Mapping[int, float] | None,
        Option("Add BIAS to the logit of token ID (repeatable; -inf forbids it).", metavar="ID=BIAS"),
    ] = None
    max_tokens: Annotated[
        int,
        Option(
            "Maximum number of tokens to generate; -1: until the model stops or the context is full.",
            short="-n", metavar="N", low=-1, common=True, chat="-1: no limit",
        ),
    ] = -1  # fmt: skip
    seed: Annotated[
        int | None,
        Option(
            "Random seed; the same seed gives the same text. Default (and -1): a new one each time.",
            short="-s", metavar="N", low=-1, high=MAX_SEED, common=True, chat="-1: a new one each time",
        ),
    ] = None  # fmt: skip
    stop: Annotated[Sequence[str] | None, Option("Stop before TEXT (repeatable).", metavar="TEXT")] = None
    ignore_eos: Annotated[bool, Option("Continue past end-of-generation tokens.")] = False
    stop_loops: Annotated[
        bool | None,
        Option(
            "Stop an answer that only repeats itself; default: on in chat.",
            switch=True, request="Beyond OpenAI: stop an answer that only repeats itself.",
        ),
    ] = None  # fmt: skip
    thinking: Annotated[
        bool | None,
        Option(
            "Let the model think before it answers; default: on where its chat template has a switch.",
            switch=True, common=True, chat="on or off: whether it thinks before it answers",
            request="Beyond OpenAI: whether the model thinks before it answers.",
        ),
    ] = None  # fmt: skip
    think: Annotated[
        int,
        Option(
            "Most tokens of thinking, after which the model has to answer; -1: no limit, 0: none.",
            metavar="N", low=-1, chat="most tokens of thinking, -1: no limit",
            request="Beyond OpenAI: most tokens of thinking; -1: no limit.",
        ),
    ] = -1  # fmt: skip
    reasoning_effort: Annotated[
        Effort | None,
        Option(
            "How much the model thinks, if its chat template has such levels.",
            chat="low, medium or high, if the model has such levels",
        ),
    ] = None  # fmt: skip
    json_schema: Annotated[
        str | None,
        Option(
            "Answer with JSON that is valid by this JSON schema: a file, or the schema itself.",
            metavar="FILE|JSON", chat="file of a JSON schema for the answers, off: none",
        ),
    ] = None  # fmt: skip
    grammar: Annotated[
        str | None,
        Option(
            "Answer as the grammar in this file allows (GBNF, as in llama.cpp).",
            metavar="FILE", chat="file of a grammar for the answers, off: none",
            request="Beyond OpenAI: a grammar (GBNF) that the answer follows.",
        ),
    ] = None  # fmt: skip
    logprobs: Annotated[
        int | None,
        Option("How many of the likeliest tokens each piece tells beside its own.", low=0, high=100, only_python=True),
    ] = None


class EngineArguments(TypedDict, total=False):
    """How a model is loaded, and what drafts for it. `medusa generate --help-all` describes each."""

    ctx_size: int
    threads: int
    n_gpu_layers: int
    device: str | None
    cache_type_k: str
    cache_type_v: str
    heads: str | None
    tree: str | None
    no_heads: bool
    lookup: bool | None
    recycling: bool | None
    draft_model: str | None
    draft_max: int
    no_drafter: bool
    repeat_steps: bool
    no_spec: bool


class AnswerArguments(TypedDict, total=False):
    """What is generated, when it ends, and how drafts are accepted. `medusa generate --help-all` describes each."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repeat_last_n: int | None
    logit_bias: Mapping[int, float] | None
    max_tokens: int
    seed: int | None
    stop: str | Sequence[str] | None
    ignore_eos: bool
    stop_loops: bool | None
    thinking: bool | None
    think: int
    reasoning_effort: str | None
    json_schema: str | Mapping[str, Any] | type | None
    grammar: str | None
    logprobs: int | None
    accept: str | None
    epsilon: float | None
    delta: float | None
    greedy_root: bool
    as_published: bool
