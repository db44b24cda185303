"""A benchmark's JSON: what was measured and where, figures per method, and every single generation."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from medusa_cli import __version__
from medusa_cli.bench import spec_bench, summary
from medusa_cli.bench.measure import Measurements, Plan
from medusa_cli.bench.methods import METHODS, PLAIN
from medusa_cli.bench.protocol import Outcome
from medusa_cli.bench.spec_bench import Question
from medusa_cli.decoding.lossless import first_difference
from medusa_cli.support import machine
from medusa_cli.support.errors import MedusaError

FORMAT = 1


def build(plan: Plan, found: Measurements, data: str) -> dict[str, Any]:
    """The document of a run, even if cut short ("complete": false). data: where the prompts are from."""
    methods = {}
    for method in plan.methods:
        if any(outcome.method == method.name for outcome in found.outcomes):
            methods[method.name] = _method(plan, found, method.name)
    totals = {name: entry["total"] for name, entry in methods.items()}
    from medusa_cli import native

    for name, promise in found.predicted.items():
        methods[name]["predicted"] = summary.prediction(promise, totals[name], totals.get(PLAIN))
    description = next((ready.description for ready in found.ready.values() if ready.description), "")
    return {
        "bench_format": FORMAT,
        "complete": found.complete,
        "medusa": __version__,
        "llama_cpp_python": native.installed_llama_cpp_python(),
        "model": {"name": plan.model, "description": description},
        "machine": this_machine(),
        "settings": {
            "data": data,
            "prompts": len(plan.prompts),
            "max_tokens": plan.max_tokens,
            "repeat": plan.repeat,
            "temperatures": list(plan.temperatures),
            "seed": plan.seed,
            "heads": plan.draft.heads,
            "tree": plan.draft.tree,
            "draft_model": str(plan.draft.draft_model) if plan.draft.draft_model else None,
            "draft_max": plan.draft.draft_max,
            "lookahead": plan.lookahead,
            "synth_accept": plan.synth_accept,
            **json.loads(json.dumps(dataclasses.asdict(plan.engine))),
        },
        "loops": found.loops,
        "methods": methods,
        "spec_bench": _spec_bench(found.outcomes),
        "runs": _runs(found.outcomes),
    }


def this_machine() -> dict[str, Any]:
    """Where a document's figures come from."""
    from medusa_cli import native

    memory, _ = machine.memory()
    return {"cpu": machine.cpu_name(), "cores_physical": native.physical_cores(), "memory_total": memory}


def _method(plan: Plan, found: Measurements, name: str) -> dict[str, Any]:
    temperatures = {}
    for temperature in plan.temperatures:
        part = [outcome for outcome in found.outcomes if outcome.temperature == temperature]
        if any(outcome.method == name for outcome in part):
            temperatures[f"{temperature:g}"] = _figures(part, name)
    return {
        "summary": METHODS[name].summary,
        "tree": found.ready[name].tree,
        **_figures(found.outcomes, name),
        "temperatures": temperatures,
        "predicted": None,
    }


def _figures(outcomes: list[Outcome], name: str) -> dict[str, Any]:
    return {"total": summary.summarise(outcomes, name), "categories": summary.by_category(outcomes, name)}


def _spec_bench(outcomes: list[Outcome]) -> dict[str, Any]:
    """By method, if the prompts are Spec-Bench's and there is plain decoding to compare with; else empty."""
    plain = summary.by_round(outcomes, PLAIN)
    if not plain or not spec_bench.is_its_file(outcome.category for outcome in outcomes):
        return {}
    found: dict[str, list[Question]] = {}
    for outcome in outcomes:
        base = plain.get(outcome.round)
        if base is not None and outcome.method != PLAIN:
            found.setdefault(outcome.method, []).append((outcome, base.whole_speed))
    return {name: spec_bench.figures(questions) for name, questions in found.items()}


def _runs(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """The generations, each with its first difference from plain's (None: equal, or nothing to compare with)."""
    plain = summary.by_round(outcomes, PLAIN)
    runs = []
    for outcome in outcomes:
        row = dataclasses.asdict(outcome)
        row["tokens"] = len(outcome.tokens)
        other = plain.get(outcome.round)
        comparable = METHODS[outcome.method].same_sampler or outcome.temperature == 0.0
        row["first_divergence"] = first_difference(other.ended, outcome.ended) if other and comparable else None
        runs.append(row)
    return runs


def read(path: Path) -> dict[str, Any]:
    """A document that an earlier run wrote. MedusaError if the file is not one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise MedusaError(f"no such file: {path}: give a file written by `medusa bench --json`") from error
    except IsADirectoryError as error:
        raise MedusaError(f"{path} is a directory: give a file written by `medusa bench --json`") from error
    except (ValueError, RecursionError) as error:
        raise MedusaError(f"{path} is not JSON: give a file written by `medusa bench --json`") from error
    format = found.get("bench_format") if isinstance(found, dict) else None
    if format is None or not isinstance(found.get("methods"), dict):
        raise MedusaError(f"{path} is not a benchmark: give a file written by `medusa bench --json`")
    if format != FORMAT:
        raise MedusaError(f"{path} has benchmark format {format}, this medusa knows {FORMAT}: run the benchmark again")
    return found
