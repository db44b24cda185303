"""Sampling settings of one run or one chat: what `/set` changes, the engine gets, and a model comes with."""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding import structure
from medusa_cli.decoding.fields import Field, fields
from medusa_cli.decoding.options import CHAT_TEMPERATURE, MAX_SEED, AcceptKind, DraftOptions, SamplingOptions
from medusa_cli.decoding.thinking import Thinking
from medusa_cli.models import demo
from medusa_cli.support.errors import MedusaError, WrongOption

if TYPE_CHECKING:
    from medusa_cli import native

PREFIX = "general.sampling."
KEYS = {field.option.file: field for field in fields(SamplingOptions).values() if field.option.file}
"""Options for which a file may have a default, by the file's keys."""
LACKING = ("sequence", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau", "mirostat_eta")
"""Keys for samplers, and for an order of samplers, that the engine does not have."""
ASKED, MODELS = "asked for", "from the model"
"""Where a value comes from."""
SYNTHETIC = "synthetic"
"""Accept rule of `medusa bench --synth-accept`: the text is not what the model would say."""
CHAIN = tuple(name for name, one in fields(SamplingOptions).items() if one.option.engine)
"""Options of the engine's sampler chain, which has defaults for them."""


@dataclass(frozen=True)
class ModelSampling:
    """Sampling defaults that come with a model: the `general.sampling.*` keys of its GGUF file, as in llama.cpp.

    They apply to answers for people, not to benchmarks, tuning and training. values: by field of SamplingOptions.
    notes: what was left out, one line each.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def by_flag(self) -> dict[str, Any]:
        """The values by the command line's names for the options: "temp", "top_k"."""
        long = {name: one.long.removeprefix("--").replace("-", "_") for name, one in fields(SamplingOptions).items()}
        return {long[name]: value for name, value in self.values.items()}


NO_SAMPLING = ModelSampling()


def engine_default(name: str) -> Any:
    """What the engine does unless told otherwise, by the name of a parameter; 0.09 for its 0.0900000036."""
    from medusa_cli import native

    return round(native.defaults()[name], 6)


def given(**values: Any) -> dict[str, Any]:
    """The `values` that are not None."""
    return {name: value for name, value in values.items() if value is not None}


@dataclass
class Settings(SamplingOptions):
    """Sampling options, each with its value, and how drafts are accepted.

    seed None: a new random one for each answer. accept None: greedy at temperature 0, exact above.
    """

    temperature: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    stop: Sequence[str] = ()
    stop_loops: bool = False
    accept: str | None = None
    epsilon: float = field(default_factory=functools.partial(engine_default, "epsilon"))
    delta: float = field(default_factory=functools.partial(engine_default, "delta"))
    greedy_root: bool = False
    as_published: bool = False
    synthetic_rate: float | None = None
    origins: dict[str, str] = field(default_factory=dict)
    """By field: where its value comes from, if it is not our default."""

    def __post_init__(self) -> None:
        for name in CHAIN:
            if getattr(self, name) is None:
                setattr(self, name, engine_default(name))
        self.seed = self.seed if is_seed(self.seed) else None
        self.stop = tuple(self.stop or ())
        self.logit_bias = dict(self.logit_bias or {})
        self.stop_loops = bool(self.stop_loops)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return is_greedy(self.temperature)

    @property
    def accept_kind(self) -> str:
        """The accept rule in force, by its name in AcceptKind; "synthetic" if acceptance is made up."""
        if self.synthetic_rate is not None:
            return SYNTHETIC
        return self.accept or (AcceptKind.greedy.value if self.greedy else AcceptKind.exact.value)

    @property
    def wanted_thinking(self) -> Thinking:
        """What the chat template is told."""
        return Thinking(False if self.think == 0 else self.thinking, self.reasoning_effort)

    @property
    def structure(self) -> native.Grammar | None:
        """What the answer follows; None: nothing. MedusaError or NativeError, one line, for what cannot be."""
        return structure.grammar(self.json_schema, self.grammar)

    def pick_seed(self) -> int:
        """The fixed seed, or a new random one."""
        return secrets.randbelow(MAX_SEED + 1) if self.seed is None else self.seed

    def sampling(self, seed: int) -> native.Sampling:
        """The engine's sampler chain for these settings."""
        from medusa_cli import native

        chain = {name: getattr(self, name) for name in CHAIN}
        return native.Sampling(temperature=self.temperature, logit_bias=self.logit_bias, seed=seed, **chain)

    def rule(self) -> native.Accept:
        """The engine's accept rule for these settings."""
        from medusa_cli import native

        if self.synthetic_rate is not None:
            return native.Accept(SYNTHETIC, synthetic_rate=self.synthetic_rate)
        return native.Accept(
            self.accept_kind,
            epsilon=self.epsilon,
            delta=self.delta,
            model_alone=self.as_published,
            greedy_root=self.greedy_root or self.as_published,
        )


def model_sampling(lookup: Callable[[str], Any]) -> ModelSampling:
    """The defaults in a file's metadata; lookup: the value of a key, None if it is missing.

    They come from strangers: whatever is not a number in range is left out, with a note.
    """
    values: dict[str, Any] = {}
    notes = []
    for key, option in KEYS.items():
        found = lookup(PREFIX + key)
        if found is None:
            continue
        number = _checked(found, option)
        if number is None:
            notes.append(f"{PREFIX}{key} is {found!r:.40}, not {option.wanted}: left out")
        else:
            values[option.name] = number
    # A mirostat of 0 and an XTC probability of 0 are off.
    if lacking := [name for name in LACKING if lookup(PREFIX + name)]:
        names = ", ".join(lacking)
        notes.append(f"the model's file also sets {PREFIX}{{{names}}}, which medusa does not have: left out")
    return ModelSampling(values, tuple(notes))


def _checked(found: Any, option: Field) -> float | None:
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not option.holds(found):
        return None
    if option.kind is int:
        return int(found) if found == int(found) else None
    return float(f"{found:.6g}")  # 0.6 for a file's 0.6000000238


def chat_temperature(model: str) -> float:
    """The default in a chat and on the server, by the model's name, if its file has none."""
    return demo.CHAT_TEMPERATURE if model == demo.DEMO else CHAT_TEMPERATURE


def from_options(
    asked: SamplingOptions,
    draft: DraftOptions,
    default_temperature: float,
    model: ModelSampling = NO_SAMPLING,
    *,
    stop_loops: bool = False,
) -> Settings:
    """Settings for a command line: what was asked for, else what the model's file says, else ours.

    WrongOption for options that contradict each other. stop_loops: the default.
    """
    sampling = _filled(asked, draft, model)
    temperature = sampling.temperature
    if draft.accept is AcceptKind.greedy:
        if temperature is not None and not is_greedy(temperature):
            raise WrongOption("accept", "greedy needs {temperature} 0; exact keeps the sampled text")
        temperature = 0.0
    if temperature is None:
        temperature = default_temperature
    _check_rule(asked, draft, temperature)
    if sampling.thinking is False and sampling.think > 0:
        raise WrongOption("think", "the thinking is off: leave {no_thinking} or {think} out")
    if any(not text for text in sampling.stop or []):
        raise WrongOption("stop", "an empty text would stop every answer at once")
    _check_structure(sampling, draft)
    values = {
        **vars(sampling),
        "temperature": temperature,
        "stop_loops": stop_loops if sampling.stop_loops is None else sampling.stop_loops,
    }
    return Settings(
        **values,
        accept=draft.accept.value if draft.accept else None,
        greedy_root=draft.greedy_root,
        as_published=draft.as_published,
        origins=_origins(asked, sampling),
        **given(
            epsilon=draft.epsilon,
            delta=published_delta(draft.epsilon) if draft.as_published and draft.delta is None else draft.delta,
        ),
    )


def _check_structure(sampling: SamplingOptions, draft: DraftOptions) -> None:
    """WrongOption for what contradicts a schema or grammar; MedusaError or NativeError for one that cannot be."""
    asked = [name for name in structure.NAMES if getattr(sampling, name) is not None]
    if not asked:
        return
    if len(asked) > 1:
        raise WrongOption("grammar", "a schema is a grammar already: leave {json_schema} or {grammar} out")
    if sampling.ignore_eos:
        raise WrongOption("ignore_eos", "{asked} says where an answer ends: leave {ignore_eos} out", asked=asked[0])
    if draft.accept is AcceptKind.nucleus or draft.as_published:
        raise WrongOption("accept", "this rule looks past a schema or grammar: use exact or typical")
    structure.grammar(sampling.json_schema, sampling.grammar)


def _filled(asked: SamplingOptions, draft: DraftOptions, model: ModelSampling) -> SamplingOptions:
    """`asked`, filled with the model's defaults that the accept rule has a use for."""
    left_out = {"temperature"} if draft.accept is AcceptKind.greedy else set()
    if draft.as_published:
        left_out = set(model.values) - {"temperature"}
    elif draft.accept is AcceptKind.nucleus:
        left_out = set(model.values) - {"temperature", "top_p"}
    filled = {
        name: value for name, value in model.values.items() if name not in left_out and getattr(asked, name) is None
    }
    return dataclasses.replace(asked, **filled)


def _origins(asked: SamplingOptions, filled: SamplingOptions) -> dict[str, str]:
    found = {}
    for name, option in fields(SamplingOptions).items():
        if getattr(asked, name) != option.default:
            found[name] = ASKED
        elif getattr(filled, name) != option.default:
            found[name] = MODELS
    return found


def published_delta(epsilon: float | None) -> float:
    """The square root of epsilon (None: of its default), as in the papers (Medusa 2.3.1)."""
    return math.sqrt(engine_default("epsilon") if epsilon is None else epsilon)


def is_seed(value: int | None) -> bool:
    """Whether an option or argument fixes the random numbers."""
    return value not in (None, -1)


def is_greedy(temperature: float) -> bool:
    """Whether the most likely token is always taken at that temperature."""
    from medusa_cli import native

    return temperature < native.LOWEST_TEMPERATURE


def needs_temperature(rule: str | None) -> bool:
    """Whether an accept rule means nothing at temperature 0."""
    return rule in (AcceptKind.rejection.value, AcceptKind.nucleus.value)


def _check_rule(sampling: SamplingOptions, draft: DraftOptions, temperature: float) -> None:
    """WrongOption for options that contradict the accept rule."""
    rule = draft.accept
    if rule and needs_temperature(rule.value) and is_greedy(temperature):
        text = "{rule} needs a temperature above 0: add {temperature} 0.7; at 0 greedy accepts"
        raise WrongOption("accept", text, rule=rule.value)
    if draft.greedy_root and rule not in (AcceptKind.typical, AcceptKind.nucleus):
        raise WrongOption("greedy_root", "it only applies to {accept} typical or nucleus")
    if draft.as_published and rule is not AcceptKind.typical:
        raise WrongOption("as_published", "it only applies to {accept} typical")
    if not draft.as_published and rule is not AcceptKind.nucleus:
        return
    # A window without a penalty does nothing.
    kept = {"repeat_last_n"} if draft.as_published else {"repeat_last_n", "top_p"}
    asked = "{as_published}" if draft.as_published else "{accept} nucleus"
    for name in (*CHAIN, "logit_bias"):
        if name not in kept and getattr(sampling, name) not in (None, {}):
            raise WrongOption(name, asked + " applies after temperature alone: leave {" + name + "} out")


PARAMETERS = {
    one.long.removeprefix("--"): one
    for one in (*fields(SamplingOptions).values(), *fields(DraftOptions).values())
    if one.option.chat
}
"""What `/set` changes, by its names."""
SWITCH = ("on", "off")
ACCEPT = "accept"
ACCEPT_MEANING = ", ".join(kind.value for kind in AcceptKind)


def show(settings: Settings, name: str) -> str:
    """The value of a `/set` name as text."""
    if name == ACCEPT:
        return settings.accept_kind
    value = getattr(settings, PARAMETERS[name].name)
    if PARAMETERS[name].name in structure.NAMES:
        return SWITCH[value is None]
    if value is None:
        return "random" if name == "seed" else "default"
    if isinstance(value, bool):
        return SWITCH[0 if value else 1]
    return f"{value:g}" if isinstance(value, float) else str(value.value if isinstance(value, Enum) else value)


def changed(settings: Settings, name: str, text: str) -> Settings:
    """A copy of `settings` with one `/set` name changed. MedusaError says what is allowed."""
    name = name.lower().lstrip("-").replace("_", "-")
    if name == ACCEPT:
        return _with_accept(settings, text)
    if name not in PARAMETERS:
        raise MedusaError(f"no parameter {name!r}: there are {', '.join([*PARAMETERS, ACCEPT])}")
    parameter = PARAMETERS[name]
    value = _parsed(parameter, name, text)
    origins = {**settings.origins, parameter.name: ASKED}
    changes: dict[str, Any] = {parameter.name: value, "origins": origins}
    if parameter.name in structure.NAMES:
        changes |= {other: None for other in structure.NAMES if other != parameter.name}
    result = dataclasses.replace(settings, **changes)
    _check_structure(result, DraftOptions())
    if name == "epsilon" and result.as_published:
        result.delta = published_delta(result.epsilon)
    warm = not result.greedy
    if result.accept == AcceptKind.greedy.value if warm else needs_temperature(result.accept):
        result.accept = None
    return result


def _parsed(parameter: Field, name: str, text: str) -> Any:
    """A value as `/set` has it. MedusaError says what is allowed."""
    if parameter.name in structure.NAMES:
        return None if text == SWITCH[1] else structure.read(parameter.name, text)
    if not parameter.is_number:
        words = SWITCH if parameter.kind is bool else [one.value for one in parameter.kind]
        if text not in words:
            raise MedusaError(f"{name} takes {', '.join(words)}, not {text!r}")
        return text == SWITCH[0] if parameter.kind is bool else parameter.kind(text)
    try:
        value = parameter.kind(text)
    except ValueError as error:
        raise MedusaError(f"{name} takes {parameter.what}, not {text!r}") from error
    if not parameter.holds(value):
        raise MedusaError(f"{name} takes {parameter.wanted}, not {text}")
    return value


def _with_accept(settings: Settings, text: str) -> Settings:
    kinds = [kind.value for kind in AcceptKind]
    if text not in kinds:
        raise MedusaError(f"{ACCEPT} takes {', '.join(kinds)}, not {text!r}")
    if text == AcceptKind.greedy.value and not settings.greedy:
        raise MedusaError("greedy needs temperature 0: /set temp 0")
    if needs_temperature(text) and settings.greedy:
        raise MedusaError(f"{text} needs a temperature above 0: /set temp 0.7")
    return dataclasses.replace(settings, accept=text)
