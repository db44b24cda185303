"""Sampling settings of one run or one chat: what `/set` changes and the engine is asked with."""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding import model_sampling
from medusa_cli.decoding.model_sampling import ModelSampling
from medusa_cli.decoding.options import MAX_SEED, AcceptKind, DraftOptions, SamplingOptions, parse_logit_bias
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from medusa_cli import native

NO_SAMPLING = ModelSampling()
ASKED, MODELS = "asked for", "from the model"
"""Where a value comes from."""
SYNTHETIC = "synthetic"
"""Accept rule of `medusa bench --synth-accept`: the text is not what the model would say."""


def engine_default(name: str) -> Any:
    """What the engine does unless told otherwise, by the name of a parameter; 0.09 for its 0.0900000036."""
    from medusa_cli import native

    return round(native.defaults()[name], 6)


def given(**values: Any) -> dict[str, Any]:
    """Those of `values` that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _engines(name: str) -> Any:
    return field(default_factory=functools.partial(engine_default, name))


@dataclass
class Settings:
    """seed None: a new random one for each answer. accept None: greedy at temperature 0, exact above."""

    temperature: float
    top_k: int = _engines("top_k")
    top_p: float = _engines("top_p")
    min_p: float = _engines("min_p")
    repeat_penalty: float = _engines("repeat_penalty")
    frequency_penalty: float = _engines("frequency_penalty")
    presence_penalty: float = _engines("presence_penalty")
    repeat_last_n: int = _engines("repeat_last_n")
    seed: int | None = None
    max_tokens: int = -1
    accept: str | None = None
    epsilon: float = _engines("epsilon")
    delta: float = _engines("delta")
    greedy_root: bool = False
    as_published: bool = False
    synthetic_rate: float | None = None
    ignore_eos: bool = False
    stop_loops: bool = False
    stop: tuple[str, ...] = ()
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    """How many of the likeliest tokens each piece tells beside its own; None: nothing."""
    origins: dict[str, str] = field(default_factory=dict)
    """By field: where its value comes from, where that is not the default of ours."""

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, always."""
        return is_greedy(self.temperature)

    @property
    def accept_kind(self) -> str:
        """The accept rule in force, by its name in AcceptKind; "synthetic" where acceptance is made up."""
        if self.synthetic_rate is not None:
            return SYNTHETIC
        return self.accept or (AcceptKind.greedy.value if self.greedy else AcceptKind.exact.value)

    def pick_seed(self) -> int:
        """The fixed seed, or a new random one."""
        return secrets.randbelow(MAX_SEED + 1) if self.seed is None else self.seed

    def sampling(self, seed: int) -> native.Sampling:
        """The engine's sampler chain for these settings."""
        from medusa_cli import native

        return native.Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=self.repeat_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repeat_last_n=self.repeat_last_n,
            logit_bias=self.logit_bias,
            seed=seed,
        )

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


def from_options(
    asked: SamplingOptions,
    draft: DraftOptions,
    default_temperature: float,
    model: ModelSampling = NO_SAMPLING,
    *,
    stop_loops: bool = False,
) -> Settings:
    """Settings for a command line: what was asked for, else what the model's file says, else ours.

    typer.BadParameter for options that contradict each other. stop_loops: where nothing is said.
    """
    import typer

    sampling = model_sampling.fill(asked, draft, model)
    temperature = sampling.temp
    if draft.accept is AcceptKind.greedy:
        if temperature is not None and not is_greedy(temperature):
            raise typer.BadParameter("greedy needs --temp 0; exact keeps the sampled text", param_hint="--accept")
        temperature = 0.0
    if temperature is None:
        temperature = default_temperature
    _check_rule(asked, draft, temperature)
    for name, value in (("--epsilon", draft.epsilon), ("--delta", draft.delta)):
        if value is not None and value <= 0:
            raise typer.BadParameter("it must be above 0", param_hint=name)
    if any(not text for text in sampling.stop or []):
        raise typer.BadParameter("an empty text would stop every answer at once", param_hint="--stop")
    return Settings(
        temperature=temperature,
        seed=sampling.seed if is_seed(sampling.seed) else None,
        max_tokens=sampling.max_tokens,
        accept=draft.accept.value if draft.accept else None,
        greedy_root=draft.greedy_root,
        as_published=draft.as_published,
        ignore_eos=sampling.ignore_eos,
        stop_loops=stop_loops if sampling.stop_loops is None else sampling.stop_loops,
        origins=_origins(asked, sampling),
        stop=tuple(sampling.stop or ()),
        logit_bias=parse_logit_bias(sampling.logit_bias),
        **given(
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repeat_penalty=sampling.repeat_penalty,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repeat_last_n=sampling.repeat_last_n,
            epsilon=draft.epsilon,
            delta=published_delta(draft.epsilon) if draft.as_published and draft.delta is None else draft.delta,
        ),
    )


def _origins(asked: SamplingOptions, filled: SamplingOptions) -> dict[str, str]:
    found = {}
    for parameter in PARAMETERS.values():
        option = "temp" if parameter.field == "temperature" else parameter.field
        if getattr(asked, option, None) not in (None, getattr(SamplingOptions, option, None)):
            found[parameter.field] = ASKED
        elif getattr(filled, option, None) not in (None, getattr(SamplingOptions, option, None)):
            found[parameter.field] = MODELS
    return found


def published_delta(epsilon: float | None) -> float:
    """The square root of epsilon (None: of its default), as the papers have it (Medusa 2.3.1)."""
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
    """typer.BadParameter for options that contradict the accept rule."""
    import typer

    rule = draft.accept
    if rule and needs_temperature(rule.value) and is_greedy(temperature):
        raise typer.BadParameter(
            f"{rule.value} needs a temperature above 0: add --temp 0.7; at 0 greedy accepts", param_hint="--accept"
        )
    if draft.greedy_root and rule not in (AcceptKind.typical, AcceptKind.nucleus):
        raise typer.BadParameter("it only applies to --accept typical or nucleus", param_hint="--greedy-root")
    if draft.as_published and rule is not AcceptKind.typical:
        raise typer.BadParameter("it only applies to --accept typical", param_hint="--as-published")
    if not draft.as_published and rule is not AcceptKind.nucleus:
        return
    left_out = {
        "--top-k": sampling.top_k,
        "--min-p": sampling.min_p,
        "--repeat-penalty": sampling.repeat_penalty,
        "--frequency-penalty": sampling.frequency_penalty,
        "--presence-penalty": sampling.presence_penalty,
        "--logit-bias": sampling.logit_bias or None,
        **({"--top-p": sampling.top_p} if draft.as_published else {}),
    }
    for name, value in left_out.items():
        if value is not None:
            asked = "--as-published" if draft.as_published else "--accept nucleus"
            raise typer.BadParameter(f"{asked} applies after temperature alone: leave {name} out", param_hint=name)


@dataclass(frozen=True)
class Parameter:
    """One `/set` name: the Settings field behind it, its type, and its range (inclusive)."""

    field: str
    type: type[int] | type[float]
    low: float
    high: float
    meaning: str


PARAMETERS = {
    "temp": Parameter("temperature", float, 0, 100, "temperature, 0: likeliest token"),
    "top-k": Parameter("top_k", int, 0, 1e9, "keep the k likeliest tokens, 0: all"),
    "top-p": Parameter("top_p", float, 0, 1, "nucleus, 1: off"),
    "min-p": Parameter("min_p", float, 0, 1, "share of the likeliest, 0: off"),
    "repeat-penalty": Parameter("repeat_penalty", float, 0.01, 100, "1: off"),
    "repeat-last-n": Parameter("repeat_last_n", int, -1, 1e9, "how many tokens back it looks, -1: all"),
    "max-tokens": Parameter("max_tokens", int, -1, 1e9, "-1: no limit"),
    "seed": Parameter("seed", int, -1, MAX_SEED, "-1: a new one each time"),
    "epsilon": Parameter("epsilon", float, 1e-6, 1, "threshold for typical"),
    "delta": Parameter("delta", float, 1e-6, 1, "entropy factor for typical"),
}
ACCEPT = "accept"
ACCEPT_MEANING = ", ".join(kind.value for kind in AcceptKind)


def show(settings: Settings, name: str) -> str:
    """The value of a `/set` name as text."""
    if name == ACCEPT:
        return settings.accept_kind
    value = getattr(settings, PARAMETERS[name].field)
    return "random" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def changed(settings: Settings, name: str, text: str) -> Settings:
    """A copy of `settings` with one `/set` name changed. MedusaError says what is allowed."""
    name = name.lower().lstrip("-").replace("_", "-")
    if name == ACCEPT:
        return _with_accept(settings, text)
    if name not in PARAMETERS:
        raise MedusaError(f"no parameter {name!r}: there are {', '.join([*PARAMETERS, ACCEPT])}")
    parameter = PARAMETERS[name]
    kind = "a whole number" if parameter.type is int else "a number"
    try:
        value = parameter.type(text)
    except ValueError as error:
        raise MedusaError(f"{name} takes {kind}, not {text!r}") from error
    if not math.isfinite(value) or not parameter.low <= value <= parameter.high:
        raise MedusaError(f"{name} takes {kind} from {parameter.low:g} to {parameter.high:g}, not {text}")
    result = dataclasses.replace(settings, origins={**settings.origins, parameter.field: ASKED})
    setattr(result, parameter.field, None if name == "seed" and value < 0 else value)
    if name == "epsilon" and result.as_published:
        result.delta = published_delta(result.epsilon)
    warm = not result.greedy
    if result.accept == AcceptKind.greedy.value if warm else needs_temperature(result.accept):
        result.accept = None
    return result


def _with_accept(settings: Settings, text: str) -> Settings:
    kinds = [kind.value for kind in AcceptKind]
    if text not in kinds:
        raise MedusaError(f"{ACCEPT} takes {', '.join(kinds)}, not {text!r}")
    if text == AcceptKind.greedy.value and not settings.greedy:
        raise MedusaError("greedy needs temperature 0: /set temp 0")
    if needs_temperature(text) and settings.greedy:
        raise MedusaError(f"{text} needs a temperature above 0: /set temp 0.7")
    return dataclasses.replace(settings, accept=text)
