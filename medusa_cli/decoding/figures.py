"""How figures are shown: the muted line, the `/stats` table, the JSON object, sizes and counts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medusa_cli.decoding.records import Generation

PHASES = ("draft", "verify", "accept", "commit", "other")
NOTABLE_ERROR = 0.15
"""A prediction of speed is flagged from this relative error on."""
STAT_KEYS = (
    "tokens_per_step",
    "acceptance_per_depth",
    "tokens_per_second",
    "prompt_tokens_per_second",
    "steps",
    "plain_steps",
    "timings_ms",
    "ttft_ms",
    "peak_rss_bytes",
    "tree_nodes",
    "accept",
    "threads",
    "drafts_ended",
    "parts",
)


THREAD_REASONS = {
    "asked": "as requested",
    "all": "one for each core",
    "others": "other programs keep the processor busy",
    "slower": "more threads were slower",
}
"""Why that many threads ran, by the engine's word."""


def threads_line(threads: dict[str, Any]) -> str:
    """How many threads most steps used, of how many, and why; "-" if nothing was measured."""
    steps = threads.get("steps") or {}
    if not steps or not threads.get("most"):
        return "-"
    usual = max(steps, key=lambda count: steps[count])
    share = 100 * steps[usual] // sum(steps.values())
    mostly = "" if share == 100 else f" in {share}% of steps"
    return f"{usual} of {threads['most']}{mostly}: {THREAD_REASONS[threads['reason']]}"


def kernel_rows(kernels: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Which kernels are selected, the instruction sets they could use here, and the types they support."""
    if kernels is None:
        return [("kernels", "unknown")]
    sets = ", ".join(kernels["supported"])
    if kernels["selected"] is None:
        return [("kernels", f"llama.cpp's own: {kernels['reason']}"), ("", f"this CPU could run: {sets}")]
    return [
        ("kernels", f"{kernels['selected']} (of {sets}; MEDUSA_ISA chooses)"),
        ("", f"for {' '.join(kernels['types'])}"),
        ("attention", kernels["selected"] if kernels["attention"] else f"llama.cpp's: {kernels['selected']} has none"),
    ]


def _rate(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) and value > 0 else "-"


def stats_line(stats: dict[str, Any]) -> str:
    """`[ Prompt x t/s | Generation y t/s | tokens/step z ]`; "-" if nothing was measured."""
    prompt = _rate(stats.get("prompt_tokens_per_second"), 1)
    speed = _rate(stats.get("tokens_per_second"), 1)
    step = _rate(stats.get("tokens_per_step"), 2)
    ended = f" (no more drafts: {why})" if (why := stats.get("drafts_ended")) else ""
    return f"[ Prompt {prompt} t/s | Generation {speed} t/s | tokens/step {step} ]{ended}"


def as_json(generation: Generation, seed: int) -> dict[str, Any]:
    """The object of `medusa generate --json`: the text, its tokens, and the engine's counters."""
    return {
        "text": generation.text,
        "thinking": generation.thinking or None,
        "tokens": list(generation.tokens),
        "prompt_tokens": generation.prompt_tokens,
        "generated_tokens": len(generation.tokens),
        "stop_reason": generation.stop_reason,
        "loop_tokens": generation.loop_tokens or None,
        "seed": seed,
        **{key: generation.stats.get(key) for key in STAT_KEYS},
        # Known only when two runs are compared.
        "output_match": None,
    }


def tokens_before_repeats(tokens: Sequence[int], period: int) -> int:
    """How many tokens an answer that ended in a loop has up to the end of the first round. period: of a round."""
    at = len(tokens)
    while at > period and tokens[at - 1] == tokens[at - 1 - period]:
        at -= 1
    return at


def of_parts(steps: Sequence[tuple[int, bool]], thought: int, said: int) -> dict[str, Any]:
    """Tokens of the thinking and of the rest, and tokens per step of each. steps: their tokens; whether thought."""
    found = {}
    for name, tokens, thinking in (("thinking", thought, True), ("answer", said, False)):
        committed = [count for count, was in steps if was == thinking]
        rate = sum(committed) / len(committed) if committed else 0.0
        found[name] = {"tokens": tokens, "steps": len(committed), "tokens_per_step": rate}
    return found


def merged(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counters of several runs of the engine, one after the other, as if they were one."""
    first, *others = map(dict, runs)
    for other in others:
        one, two = (found["steps"] - found.get("plain_steps", 0) for found in (first, other))
        speeds = [(found["tokens_per_second"], sum(found["timings_ms"].values())) for found in (first, other)]
        depths = itertools.zip_longest(first["acceptance_per_depth"], other["acceptance_per_depth"], fillvalue=0.0)
        threads, more = first.get("threads") or {}, other.get("threads") or {}
        first |= {
            "tokens_per_step": _mean((first["tokens_per_step"], one), (other["tokens_per_step"], two)),
            "acceptance_per_depth": [_mean((share, one), (later, two)) for share, later in depths],
            "tokens_per_second": _mean(*speeds),
            "steps": first["steps"] + other["steps"],
            "plain_steps": first.get("plain_steps", 0) + other.get("plain_steps", 0),
            "timings_ms": {name: spent + other["timings_ms"][name] for name, spent in first["timings_ms"].items()},
            "peak_rss_bytes": other["peak_rss_bytes"],
            "tree_nodes": max(first["tree_nodes"], other["tree_nodes"]),
            "drafts_ended": first.get("drafts_ended") or other.get("drafts_ended"),
            "threads": _threads(threads, more) if threads and more else threads or more,
        }
    return first


def _mean(*weighted: tuple[float, float]) -> float:
    weight = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / weight if weight else 0.0


def _threads(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    steps = {
        count: one["steps"].get(count, 0) + other["steps"].get(count, 0) for count in {**one["steps"], **other["steps"]}
    }
    return {**one, "steps": steps, "repeated_steps": one["repeated_steps"] + other["repeated_steps"]}


def stats_rows(generation: Generation, seed: int, n_ctx: int) -> list[tuple[str, str]]:
    """Label and value of each line of `/stats`."""
    stats = generation.stats
    used = generation.prompt_tokens + len(generation.tokens)
    timings = stats.get("timings_ms") or {}
    depths = stats.get("acceptance_per_depth") or []
    steps, plain = stats.get("steps", 0), stats.get("plain_steps", 0)
    undrafted = f", plus {plain} plain ones" if plain else ""
    rows = [
        ("prompt", f"{generation.prompt_tokens} tokens, {generation.reused_tokens} of them cached, "
                   f"{_rate(stats.get('prompt_tokens_per_second'), 1)} t/s"),
        ("answer", f"{len(generation.tokens)} tokens, {_rate(stats.get('tokens_per_second'), 1)} t/s, "
                   f"ended by {generation.stop_reason}"),
        ("tokens per step", f"{_rate(stats.get('tokens_per_step'), 2)} over {steps - plain} steps{undrafted}"),
    ]  # fmt: skip
    for name, part in (stats.get("parts") or {}).items():
        rows.append((f"  {name}", f"{part['tokens']} tokens, {_rate(part['tokens_per_step'], 2)} per step"))
    if depths:
        rows.append(("accepted by depth", "  ".join(f"{100 * share:.0f}%" for share in depths)))
    rows += [
        ("tree", f"{stats.get('tree_nodes', 1)} nodes, accept {stats.get('accept', '-')}"),
        ("time", "  ".join(f"{phase} {timings.get(phase, 0.0):.0f} ms" for phase in PHASES)),
        ("threads", threads_line(stats.get("threads") or {})),
        ("first token", f"after {_rate(stats.get('ttft_ms'), 0)} ms"),
        ("seed", str(seed)),
        ("context", f"{used} of {n_ctx} tokens"),
        ("memory", f"{(stats.get('peak_rss_bytes') or 0) / 1e6:.0f} MB at most"),
    ]
    return rows
