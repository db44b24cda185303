"""From single generations to figures per method, category and temperature."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from medusa_cli.bench.methods import BASELINES, METHODS, PLAIN
from medusa_cli.bench.protocol import Outcome
from medusa_cli.decoding.figures import PHASES
from medusa_cli.decoding.lossless import first_difference
from medusa_cli.decoding.settings import SYNTHETIC

PromptKey = tuple[str, float]
Round = tuple[str, float, int]

# 97.5% quantiles of Student's t for 1 to 10 degrees of freedom; beyond that, a series is right to 0.0005.
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_Z_975 = 1.959964


def t_975(degrees: int) -> float:
    """The 97.5% quantile of Student's t distribution."""
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = _Z_975
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / degrees**power for power, term in enumerate(terms))


def confidence(values: Sequence[float]) -> tuple[float, float] | None:
    """95% interval of the mean of independent values (t distribution); None for fewer than three."""
    if len(values) < 3:
        return None
    half = t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.mean(values)
    return mean - half, mean + half


def by_round(outcomes: Iterable[Outcome], method: str) -> dict[Round, Outcome]:
    """The method's generations, keyed by what they share with the other methods'."""
    return {outcome.round: outcome for outcome in outcomes if outcome.method == method}


def paired_ratios(
    ours: dict[Round, Outcome], base: dict[Round, Outcome], value: Callable[[Outcome], float]
) -> list[float]:
    """value(ours) / value(base) within a round, median over a prompt's repeats, one number per prompt.

    Rounds in which either is 0 (the text is too short to have a speed) are left out.
    """
    values = {key: (value(ours[key]), value(base[key])) for key in ours.keys() & base.keys()}
    ratios = by_prompt({key: above / below for key, (above, below) in values.items() if above > 0 and below > 0})
    return [ratios[prompt] for prompt in sorted(ratios)]


def by_prompt(values: Mapping[Round, float]) -> dict[PromptKey, float]:
    """Medians over the repeats of each prompt, at each temperature."""
    found: dict[PromptKey, list[float]] = defaultdict(list)
    for key, one in values.items():
        found[key[:2]].append(one)
    return {key: statistics.median(of) for key, of in found.items()}


def _total_speed(outcomes: Iterable[Outcome]) -> float | None:
    timed = [outcome for outcome in outcomes if outcome.decoded and outcome.decode_ms > 0]
    milliseconds = sum(outcome.decode_ms for outcome in timed)
    return 1e3 * sum(outcome.decoded for outcome in timed) / milliseconds if milliseconds else None


def _speedups(ours: dict[Round, Outcome], base: dict[Round, Outcome], name: str) -> dict[str, Any]:
    ratios = paired_ratios(ours, base, lambda outcome: outcome.tokens_per_second)
    common = ours.keys() & base.keys()
    above, below = (_total_speed(of[key] for key in common) for of in (ours, base))
    interval = confidence(ratios)
    return {
        f"speedup_vs_{name}": statistics.mean(ratios) if ratios else None,
        f"speedup_vs_{name}_ci95": list(interval) if interval else None,
        f"speedup_vs_{name}_total": above / below if above and below else None,
    }


def _steps(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The steps' counters, weighted by how many there were; tokens and acceptance only of those that could draft."""
    drafted = [outcome.steps - outcome.plain_steps for outcome in outcomes]
    steps = sum(drafted)
    depth = max((len(outcome.acceptance_per_depth) for outcome in outcomes), default=0)
    accepted = [0.0] * depth
    for outcome, own_steps in zip(outcomes, drafted, strict=True):
        for at, share in enumerate(outcome.acceptance_per_depth):
            accepted[at] += share * own_steps
    committed = sum(outcome.tokens_per_step * own for outcome, own in zip(outcomes, drafted, strict=True))
    return {
        "steps": sum(outcome.steps for outcome in outcomes),
        "plain_steps": sum(outcome.plain_steps for outcome in outcomes),
        "tokens_per_step": committed / steps if steps else None,
        "acceptance_per_depth": [count / steps for count in accepted] if steps else [],
        "timings_ms": {phase: sum(outcome.timings_ms[phase] for outcome in outcomes) for phase in PHASES},
    }


def _output_match(ours: dict[Round, Outcome], plain: dict[Round, Outcome], method: str) -> dict[str, Any] | None:
    """How many texts equal plain's, and where the others first differ; None if texts cannot be compared."""
    comparable = METHODS[method].same_sampler
    if any(outcome.accept == SYNTHETIC for outcome in ours.values()):
        return None
    keys = sorted(key for key in ours.keys() & plain.keys() if comparable or key[1] == 0.0)
    if method == PLAIN or not keys:
        return None
    places = [first_difference(plain[key].ended, ours[key].ended) for key in keys]
    differing = sorted(place for place in places if place is not None)
    return {"identical": len(places) - len(differing), "compared": len(places), "first_divergence": differing}


def summarise(outcomes: Sequence[Outcome], method: str) -> dict[str, Any]:
    """Figures of one method from `outcomes`, which also hold the baselines'. Keys: docs/bench.md."""
    ours = by_round(outcomes, method)
    own = list(ours.values())
    bases = {name: by_round(outcomes, name) for name in BASELINES}
    found: dict[str, Any] = {
        "prompts": len({outcome.round[:2] for outcome in own}),
        "generations": len(own),
        "tokens": sum(len(outcome.tokens) for outcome in own),
        "tokens_per_second": _total_speed(own),
    }
    for name, base in bases.items():
        found |= _speedups(ours, base, name)
    overheads = paired_ratios(ours, bases[PLAIN], lambda outcome: outcome.step_ms)
    prompt_seconds = sum(o.prompt_tokens / o.prompt_tokens_per_second for o in own if o.prompt_tokens_per_second)
    prompt_tokens = sum(outcome.prompt_tokens for outcome in own if outcome.prompt_tokens_per_second)
    return {
        **found,
        **_steps(own),
        "overhead": statistics.mean(overheads) if overheads else None,
        "ttft_ms": statistics.median(outcome.ttft_ms for outcome in own) if own else None,
        "prompt_tokens_per_second": prompt_tokens / prompt_seconds if prompt_seconds else None,
        "peak_rss_bytes": max((outcome.peak_rss_bytes for outcome in own), default=0) or None,
        "tree_nodes": max((outcome.tree_nodes for outcome in own), default=1),
        "accept": ", ".join(sorted({outcome.accept for outcome in own})),
        "stop_reason": dict(Counter(outcome.stop_reason for outcome in own)),
        "output_match": _output_match(ours, bases[PLAIN], method),
    }


def by_category(outcomes: Sequence[Outcome], method: str) -> dict[str, dict[str, Any]]:
    """summarise() for each category, in order of appearance."""
    categories = dict.fromkeys(outcome.category for outcome in outcomes)
    split = {name: [outcome for outcome in outcomes if outcome.category == name] for name in categories}
    return {name: summarise(part, method) for name, part in split.items() if any(o.method == method for o in part)}


def prediction(promise: dict[str, float], total: dict[str, Any], plain: dict[str, Any] | None) -> dict[str, Any] | None:
    """The promised speedup over plain beside the measured one; None without plain, or if nothing was drafted.

    The time that steps spend outside forward passes (draft, accept, commit) comes from the run, and so does how many
    of its steps the watchdog kept plain.
    """
    if plain is None or not plain["steps"] or not total["speedup_vs_plain"]:
        return None
    undrafted = total["plain_steps"]
    drafted = total["steps"] - undrafted
    if not drafted:
        return None

    def outside(figures: dict[str, Any]) -> float:
        return sum(figures["timings_ms"].values()) - figures["timings_ms"]["verify"]

    plain_outside = outside(plain) / plain["steps"]
    plain_ms = promise["plain_ms"] + plain_outside
    step_ms = promise["verify_ms"] + (outside(total) - undrafted * plain_outside) / drafted
    tokens = drafted * promise["tokens_per_step"] + undrafted
    speedup = tokens * plain_ms / (drafted * step_ms + undrafted * plain_ms)
    return {
        "tokens_per_step": promise["tokens_per_step"],
        "overhead": step_ms / plain_ms,
        "speedup_vs_plain": speedup,
        "error": speedup / total["speedup_vs_plain"] - 1,
    }
