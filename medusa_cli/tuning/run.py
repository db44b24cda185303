"""`medusa tune`: measures, chooses, verifies by real decoding, stores."""

from __future__ import annotations

import dataclasses
import datetime
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding import devices, drafting, pass_cost, profile, runtime, tree_search
from medusa_cli.decoding.devices import DeviceKind, TreeRules
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.decoding.settings import engine_default
from medusa_cli.decoding.trees import DYNAMIC, DynamicStart, TreeMethod
from medusa_cli.support import progress
from medusa_cli.support.errors import MedusaError
from medusa_cli.tuning import choose, costs, decode, texts

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli import native
    from medusa_cli.models.references import ModelRef

SHARES = {"texts": 0.25, "costs": 0.5, "calibration": 0.55, "learning": 0.65, "decoding": 1.0}
"""When each phase ends, as a share of the minutes."""
PROBE_PROMPTS = 4
MIN_LEARNED = 4
ANSWER_TOKENS = 96
"""Length of an answer that speed is measured on. Costs in the middle of such answers are measured beside those at
--ctx, so that the prediction can be compared with real decoding."""
MOST_SIMULATED = 100
"""Nodes of the largest tree that simulated decoding grows, as in the Hydra paper."""
SMALL_BYTES = 512 << 20
"""Up to this size, passes may be too short for launches on a device to pay: the CPU is measured, too."""


@dataclass(frozen=True)
class Opened:
    """A model with its heads, and the key of its profile."""

    name: str
    model: native.Model
    heads: native.Heads
    options: EngineOptions
    key: profile.Key
    heads_path: Path
    writable: bool
    """Whether the heads' file belongs to the person, and may be changed."""
    method: TreeMethod = TreeMethod.accuracies
    """How trees are found."""

    @property
    def rules(self) -> TreeRules:
        """The rules of the device that the model runs on."""
        return devices.RULES[devices.kind_of(self.model.backend)]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the trees that are weighed, ascending, root included."""
        more = (MOST_SIMULATED,) if self.method is TreeMethod.simulate else ()
        return (*self.rules.sizes, *more)

    @property
    def n_ctx(self) -> int:
        """Size of a session's context when none is asked for, as in chats."""
        most: int = engine_default("n_ctx")
        return min(self.model.n_ctx_train or most, most)

    def session(self, tree: drafting.Tree | None, *, lookup: bool = False, recycling: bool = False) -> native.Session:
        """A session with this tree and a context of the default size; plain decoding without one."""
        options = dataclasses.replace(self.options, ctx_size=self.n_ctx)
        return runtime.open_session(self.model, self.heads, tree, options, lookup=lookup, recycling=recycling)


def open_model(
    reference: str,
    heads: str | None,
    options: EngineOptions,
    console: Console,
    method: TreeMethod = TreeMethod.accuracies,
) -> Opened:
    """Loads model and heads. MedusaError when there are no heads, or the model cannot check a tree."""
    ref = runtime.resolve(reference, DraftOptions(heads=heads), console)
    return open_heads(ref, heads, options, console, method)


def open_heads(
    ref: ModelRef, heads: str | None, options: EngineOptions, console: Console, method: TreeMethod
) -> Opened:
    """open_model() of what the reference means."""

    def load(gpu_layers: int) -> native.Model:
        return runtime.load_model(ref.path, gpu_layers, console, options.device)

    model = runtime.within_memory(ref, options, DraftOptions(heads=heads), console, load)
    facts = runtime.model_facts(ref, model)
    heads_path = drafting.heads_file(DraftOptions(heads=heads), ref, facts.holds_heads)
    if heads_path is None:
        raise MedusaError(
            f"{ref.name} has no draft heads, so there is no tree to tune: give --heads FILE, or make some with "
            "`medusa train` or `medusa convert`"
        )
    if model.is_recurrent:
        raise MedusaError(f"{drafting.recurrent(facts)}: there is no tree to tune")
    loaded = runtime.load_heads(model, heads_path, ref, console)
    key = profile.key(model, heads_path, options)
    writable = ref.heads.is_own if ref.heads else True
    return Opened(ref.name, model, loaded, options, key, heads_path, writable, method)


def check_can_write(opened: Opened) -> None:
    """MedusaError if write() could not write."""
    from medusa_cli.support.files import check_writable

    if not opened.writable:
        raise MedusaError(
            f"--write would change {opened.heads_path}, which was downloaded: copy it and give the copy to --heads"
        )
    check_writable(opened.heads_path)


def write(opened: Opened, found: dict[str, Any]) -> None:
    """Stores the heads' measurements in their own file, and the profile once more, for the file as it then is.

    The tree stays as it was if none was chosen. MedusaError if the file cannot be written.
    """
    from medusa_cli.converters.gguf.header import replace_metadata
    from medusa_cli.converters.heads.write import tuned_entries

    replace_metadata(opened.heads_path, tuned_entries(found["accuracy"], found["tree"]))
    key = profile.key(opened.model, opened.heads_path, opened.options)
    profile.save({**found, "key": key})


def tune(
    opened: Opened, minutes: float, positions: Sequence[int], file: Path | None, console: Console
) -> dict[str, Any]:
    """Measures for about `minutes` and returns the profile. Nothing is stored."""
    began = time.monotonic()
    phases = _Phases(opened, console, {phase: began + 60 * minutes * share for phase, share in SHARES.items()})
    asked = _prompts(opened, file)
    at = len(asked) - max(1, len(asked) // 4)
    # Prompts whose answers make and score the trees, and prompts on which real decoding is measured.
    prompts, kept_back = asked[:at], asked[at:]
    ranked = phases.rank(prompts)
    built_on, held_out = choose.halves(ranked)
    if not held_out:
        raise MedusaError("the model's answers are too short to measure heads on: give longer tasks with --text FILE")
    accuracy = tree_search.accuracy_table(built_on)
    trees = choose.trees_by_size(opened.method, accuracy, built_on, opened.sizes)
    candidates = choose.fixed_trees(trees, len(accuracy), held_out)
    curves, factors, start = [], choose.Calibration(), DynamicStart()
    decoded: Mapping[str, decode.Decoded] = {}
    if candidates:
        near = sum(map(len, kept_back)) // len(kept_back) + ANSWER_TOKENS // 2
        curves = phases.curves([near, *phases.fitting(positions)], candidates)
        factors = phases.calibrate(candidates, kept_back[:PROBE_PROMPTS])
        candidates = choose.priced(candidates, curves, factors)
        start = phases.learn(choose.relative_costs(curves, opened.rules.tile), prompts)
        decoded = phases.weigh(choose.shortlist(candidates), start, kept_back)
    measured = {name: found.speedup for name, found in decoded.items() if name != choose.PLAIN}
    verdict = choose.verdict(candidates, measured)
    return {
        "profile_format": profile.FORMAT,
        "key": opened.key,
        "model": {"name": opened.name, "description": opened.model.description},
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "tree": [list(choice) for choice in verdict.candidate.choices] if verdict.candidate else [],
        "dynamic": verdict.dynamic,
        "recycling": verdict.recycling,
        "reason": verdict.reason,
        "method": opened.method.value,
        "accuracy": accuracy.tolist(),
        "texts": {"prompts": "made up" if file is None else str(file), "count": len(ranked),
                  "positions": sum(map(len, ranked))},
        "costs": [{"position": curve.position, "verify_ms": {str(n): ms for n, ms in curve.verify_ms.items()}}
                  for curve in curves],
        "calibration": dataclasses.asdict(factors),
        "dynamic_start": dataclasses.asdict(start),
        "cpu_speedup": cpu_speedup(opened, kept_back, phases.ends["decoding"], console),
        "predicted": [_predicted(candidate) for candidate in candidates],
        "measured": [_measured(name, found, candidates) for name, found in decoded.items()],
    }  # fmt: skip


def _predicted(candidate: choose.Candidate) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "nodes": candidate.nodes,
        "tree": candidate.tree.choices,
        "tokens_per_step": candidate.tokens_per_step,
        "costs": list(candidate.costs),
        "speedups": candidate.speedups,
        "speedup": candidate.speedup,
    }


def _measured(name: str, found: decode.Decoded, candidates: Sequence[choose.Candidate]) -> dict[str, Any]:
    return {
        "name": name,
        "nodes": next((candidate.nodes for candidate in candidates if candidate.name == name), None),
        "prompts": len(found.ratios),
        "tokens_per_step": found.tokens_per_step,
        "tokens_per_second": found.tokens_per_second,
        "speedup": found.speedup,
    }


def _prompts(opened: Opened, file: Path | None) -> list[list[int]]:
    return fitting_prompts(opened.model, file, opened.n_ctx - max(texts.MAX_TOKENS, ANSWER_TOKENS) - opened.sizes[-1])


def fitting_prompts(model: native.Model, file: Path | None, room: int) -> list[list[int]]:
    """The prompts of texts.prompts() below `room` tokens, as token ids. MedusaError if there are too few."""
    from medusa_cli.decoding.prompts import chat_tokens

    asked = [[{"role": "user", "content": text}] for text in texts.prompts(file)]
    found = [chat_tokens(model, messages, bare_if_no_template=True) for messages in asked]
    fitting = [tokens for tokens in found if len(tokens) < room]
    if len(fitting) < texts.MIN_PROMPTS:
        raise MedusaError(f"the prompts do not fit the model's context ({room} tokens are left for them): shorten them")
    return fitting


@dataclass(frozen=True)
class _Phases:
    """What is measured, one after the other. ends: when each of SHARES is over (time.monotonic)."""

    opened: Opened
    console: Console
    ends: Mapping[str, float]

    def rank(self, prompts: Sequence[list[int]]) -> list[Any]:
        """The answers to the prompts, as from texts.rank_texts()."""
        with progress.phase(self.console, "Accuracy", "tokens") as bar:
            total = len(prompts) * texts.MAX_TOKENS
            return texts.rank_texts(
                self.opened.model,
                self.opened.heads,
                prompts,
                self.opened.options.threads,
                self.ends["texts"],
                lambda done: bar.update(done, total, "the model writes, its heads guess"),
            )

    def fitting(self, positions: Sequence[int]) -> list[int]:
        """The positions that the model was trained for."""
        trained = self.opened.model.n_ctx_train
        longest = trained - self.opened.sizes[-1]
        fitting = [position for position in positions if trained <= 0 or position <= longest]
        if not fitting:
            raise MedusaError(f"--ctx: the model was trained on {trained} tokens: give at most {longest}")
        for position in positions:
            if position not in fitting:
                self.console.print(f"note: --ctx {position} is skipped, the model was trained on {trained} tokens")
        return fitting

    def curves(self, positions: Sequence[int], candidates: Sequence[choose.Candidate]) -> list[choose.CostCurve]:
        """What passes cost after each position."""
        curves, sizes = [], self.opened.sizes
        # The tokens per step beyond which no width needs to be tried: inf if wider passes may cost less.
        rising = self.opened.rules.rising
        most = max(candidate.tokens_per_step for candidate in candidates) if rising else math.inf
        begin = time.monotonic()
        with progress.phase(self.console, "Cost", "passes") as bar:
            done, total = 0, len(positions) * len(sizes) * costs.ROUNDS
            for number, position in enumerate(positions, start=1):
                bar.update(done, total, f"reading {position} tokens")
                timer = self._timer(sizes[-1], position)

                def on_pass(width: int, position: int = position) -> None:
                    nonlocal done
                    done += 1
                    bar.update(done, total, f"{width} tokens behind {position}")

                until = begin + (self.ends["costs"] - begin) * number / len(positions)
                curves.append(costs.cost_curve(timer, position, sizes, most, until, on_pass))
                del timer  # frees its cache before the next one is made
        return curves

    def _timer(self, widest: int, position: int) -> pass_cost.Timer:
        opened = self.opened
        return pass_cost.make_timer(opened.model, widest, position, opened.options.threads, opened.n_ctx)

    def calibrate(self, candidates: Sequence[choose.Candidate], prompts: Sequence[list[int]]) -> choose.Calibration:
        """Compares short real answers with bare passes at the same positions, in turn."""
        opened = self.opened
        probes = [one for one in candidates if one.nodes in opened.rules.probes] or list(candidates[:1])
        sessions = {1: opened.session(None), **{probe.nodes: opened.session(probe.tree) for probe in probes}}
        timer = self._timer(max(sessions), sum(map(len, prompts)) // len(prompts) + ANSWER_TOKENS // 4)
        real: list[tuple[int, dict[str, float], int]] = []
        passes: dict[int, list[float]] = {nodes: [] for nodes in sessions}
        with progress.phase(self.console, "Calibration", "answers") as bar:
            for number, prompt in enumerate(prompts):
                for nodes, session in sessions.items():
                    bar.update(len(real), len(prompts) * len(sessions))
                    stats = session.generate(prompt, max_tokens=ANSWER_TOKENS // 2).stats
                    real.append((nodes, stats["timings_ms"], stats["steps"]))
                    passes[nodes].append(pass_cost.pass_ms(timer, nodes))
                if number > 0 and time.monotonic() > self.ends["calibration"]:
                    break
        return costs.calibration(real, {nodes: sorted(found)[len(found) // 2] for nodes, found in passes.items()})

    def learn(self, curve: list[tuple[int, float]], prompts: Sequence[list[int]]) -> DynamicStart:
        """Learns what the heads' probabilities are worth, from real answers with dynamic trees."""
        session = self.opened.session(DynamicStart(costs=curve))
        with progress.phase(self.console, "Learning", "answers") as bar:
            for number, prompt in enumerate(prompts):
                if number >= MIN_LEARNED and time.monotonic() > self.ends["learning"]:
                    break
                bar.update(number, len(prompts), "how often the heads are right when they say so")
                session.reset()
                session.generate(prompt, max_tokens=ANSWER_TOKENS, sampling=decode.sampling(number))
        return DynamicStart(session.calibration or [], curve)

    def weigh(
        self, candidates: Sequence[choose.Candidate], start: DynamicStart, prompts: Sequence[list[int]]
    ) -> dict[str, decode.Decoded]:
        """Real decoding in every way that is weighed."""
        opened = self.opened
        sessions = {
            choose.PLAIN: opened.session(None),
            **{candidate.name: opened.session(candidate.tree) for candidate in candidates},
            DYNAMIC: opened.session(start),
            choose.WITH_LOOKUP: opened.session(start, lookup=True),
            choose.WITH_RECYCLING: opened.session(start, lookup=True, recycling=True),
        }
        names, deadline = ", ".join(sessions), self.ends["decoding"]
        return _in_turn("Decoding", names, sessions, prompts, ANSWER_TOKENS, deadline, self.console)


def _in_turn(
    title: str,
    note: str,
    sessions: Mapping[str, native.Session],
    prompts: Sequence[list[int]],
    most: int,
    deadline: float,
    console: Console,
) -> dict[str, decode.Decoded]:
    with progress.phase(console, title, "answers") as bar:
        total = len(prompts) * len(sessions)
        return decode.in_turn(sessions, prompts, most, deadline, lambda answers: bar.update(answers, total, note))


def cpu_speedup(opened: Opened, prompts: Sequence[list[int]], deadline: float, console: Console) -> float | None:
    """Speed of plain decoding on the CPU over that on the device; None without a device, or for a large model on it."""
    small = opened.model.size_bytes <= SMALL_BYTES
    if devices.kind_of(opened.model.backend) is DeviceKind.cpu or not small:
        return None
    options = dataclasses.replace(opened.options, n_gpu_layers=0, ctx_size=opened.n_ctx)
    model = runtime.load_model(Path(opened.model.path), options.n_gpu_layers, console)
    sessions = {choose.PLAIN: opened.session(None), "cpu": runtime.open_session(model, None, None, options)}
    note = "the CPU against the device"
    found = _in_turn("CPU", note, sessions, prompts, ANSWER_TOKENS // 2, deadline, console)
    return found["cpu"].speedup if found else None
