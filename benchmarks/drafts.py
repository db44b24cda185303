"""Do drafts pay? Whole speed of several ways to draft, in turn with plain decoding.

    python benchmarks/drafts.py files --data question.jsonl --heads A.gguf B.gguf [--nodes 8]
    python benchmarks/drafts.py trees [--largest 16]
    python benchmarks/drafts.py watchdog [--limit 12]
    python benchmarks/drafts.py copies [--methods lookup,medusa+lookup]
    python benchmarks/drafts.py long MODEL [--contexts 1000 8000]

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from argparse import ArgumentParser
from collections import defaultdict
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import common
import lossless
import numpy as np
from common import DOCS, PROMPTS, fixed_text
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.bench import document, methods, report, summary
from medusa_cli.bench.measure import Measurements, Plan, measure
from medusa_cli.decoding import devices, profile, prompts
from medusa_cli.decoding.options import EngineOptions
from medusa_cli.decoding.tree_search import Choice, greedy_tree
from medusa_cli.decoding.trees import DYNAMIC
from medusa_cli.models import demo
from medusa_cli.prompts import bench_set
from medusa_cli.support import progress, tables
from medusa_cli.support.errors import MedusaError
from medusa_cli.tuning import decode
from medusa_cli.tuning import run as tuning
from medusa_cli.tuning.choose import PLAIN, Candidate

SIZES = devices.RULES[devices.DeviceKind.cpu].sizes
"""Of the trees: the finest list there is, whatever the model runs on."""


@dataclass
class Files:
    """Whole speed of several heads files for one model, beside plain decoding, and the size of the files.

    Greedy answers. All take turns question by question; of each answer the quickest round counts, without the prompt.
    Trees are the best of --nodes nodes by the accuracies in the files.
    """

    _: KW_ONLY
    data: Path
    heads: tuple[Path, ...]
    model: str = "demo"
    nodes: int = 8
    questions: int = 4
    max_tokens: int = 48
    rounds: int = 2
    threads: int = 0

    def run(self) -> None:
        model = common.open_model(self.model)
        sessions = {PLAIN: native.Session(model, n_ctx=2048, n_threads=self.threads)}
        for path in self.heads:
            heads = native.Heads(model, str(path))
            tree = native.Tree(greedy_tree(heads.accuracy, self.nodes))
            sessions[path.name] = native.Session(model, heads, tree=tree, n_ctx=2048, n_threads=self.threads)
        sums: dict[str, dict[str, float]] = {name: defaultdict(float) for name in sessions}
        for text in common.questions(self.data, self.questions):
            self._ask(common.chat_tokens(model, text), sessions, sums)
        table = Table("drafts", "tokens/s", "of plain", "tokens per step", "file, MB")
        speeds = {name: sum_["tokens"] / sum_["seconds"] for name, sum_ in sums.items()}
        sizes = {path.name: f"{path.stat().st_size / 1e6:.1f}" for path in self.heads}
        for name, speed in speeds.items():
            per_step = f"{sums[name]['committed'] / sums[name]['steps']:.2f}" if name != PLAIN else ""
            table.add_row(name, f"{speed:.0f}", f"{speed / speeds[PLAIN]:.2f}", per_step, sizes.get(name, ""))
        common.show(table)

    def _ask(self, prompt: list[int], sessions: dict[str, native.Session], sums: dict[str, dict[str, float]]) -> None:
        """Adds one question's answers to `sums`."""
        least = dict.fromkeys(sessions, math.inf)
        greedy = native.Sampling(temperature=0.0)
        for _ in range(self.rounds):
            for name, session in sessions.items():
                session.reset()
                answer = session.generate(prompt, max_tokens=self.max_tokens, sampling=greedy)
                ms = sum(answer.stats["timings_ms"].values())
                least[name] = min(least[name], ms / 1000 / max(len(answer.tokens) - 1, 1))
        for name, session in sessions.items():
            assert session.last is not None
            count, stats = len(session.last.tokens) - 1, session.last.stats
            found = {"seconds": least[name] * count, "tokens": count, "steps": stats["steps"]}
            found["committed"] = stats["tokens_per_step"] * stats["steps"]
            for key, value in found.items():
                sums[name][key] += value


@dataclass
class Trees:
    """Is the tuned way to decode the best one? Trees of every size in turn with it, and with dynamic trees.

    Needs the profile that `medusa tune` stored on this machine: its accuracies make the likeliest tree of each size,
    and the chains. Every session answers a prompt before the next one comes, in changing order, every other prompt
    greedily, the rest at temperature 0.7; figures are means over the prompts of the speed relative to plain decoding of
    the same one. Exits with 1 when what was tuned is slower than the fastest fixed tree (or plain decoding) by more
    than --margin, or, with --dynamic-gain, when dynamic trees are not faster than the fastest fixed one by that share.
    The fastest of many is partly the luckiest: the more prompts, the fairer.
    """

    _: KW_ONLY
    model: str = "demo"
    heads: str | None = None
    data: Path = PROMPTS
    largest: int = 16
    minutes: float = 3.0
    max_tokens: int = 96
    margin: float = 0.03
    dynamic_gain: float | None = None

    def run(self) -> None:
        opened = tuning.open_model(self.model, self.heads, EngineOptions(), common.MESSAGES)
        stored = profile.load(opened.key)
        if stored is None:
            raise MedusaError(f"{opened.name} was not tuned here: run `medusa tune {self.model}` first")
        trees = self._fixed(stored["accuracy"], stored["tree"])
        sessions = {
            PLAIN: opened.session(None),
            **{tree.name: opened.session(tree.tree) for tree in trees},
            DYNAMIC: opened.session(profile.tuned_of(stored).start),
        }
        asked = [[{"role": "user", "content": text}] for text in common.questions(self.data)]
        tokens = [prompts.chat_tokens(opened.model, messages, bare_if_no_template=True) for messages in asked]
        deadline = time.monotonic() + 60 * self.minutes
        with progress.phase(common.MESSAGES, "Decoding", "answers") as bar:
            total = len(tokens) * len(sessions)
            found = decode.in_turn(
                sessions, tokens, self.max_tokens, deadline, lambda answers: bar.update(answers, total)
            )
        if not found:
            raise MedusaError("the answers are too short to tell speeds apart: give other prompts with --data")
        tuned = {tuple(choice) for choice in stored["tree"]}
        fixed = next((tree.name for tree in trees if set(tree.choices) == tuned), PLAIN)
        self._judge(found, DYNAMIC if stored["dynamic"] else fixed)

    def _fixed(self, accuracy: list[list[float]], tuned: list[list[int]]) -> list[Candidate]:
        """The likeliest tree of each size, all chains, and the tuned tree; each once."""
        chains = [[(0,) * depth for depth in range(1, length + 1)] for length in range(1, len(accuracy) + 1)]
        found: dict[frozenset[Choice], Candidate] = {}
        likeliest = [greedy_tree(accuracy, size) for size in SIZES if 1 < size <= self.largest]
        for choices in (*likeliest, *chains, [tuple(choice) for choice in tuned]):
            if choices:
                found.setdefault(frozenset(choices), Candidate(choices, 0.0))
        return list(found.values())

    def _judge(self, found: dict[str, decode.Decoded], tuned: str) -> None:
        """Prints the table and what it says of the tuned way and of dynamic trees."""
        fixed = {name: decoded.speedup for name, decoded in found.items() if name != DYNAMIC}
        best = max(fixed, key=lambda name: fixed[name])
        table = Table("decoding", "of plain's speed, mean", "95%", "tokens per step")
        for name, decoded in found.items():
            interval = summary.confidence(decoded.ratios)
            spread = "-" if interval is None else f"±{(interval[1] - interval[0]) / 2:.3f}"
            marks = " (tuned)" * (name == tuned) + " (best fixed)" * (name == best)
            table.add_row(f"{name}{marks}", f"{decoded.speedup:.3f}", spread, f"{decoded.tokens_per_step:.2f}")
        tuned_ratio = found[tuned].speedup / fixed[best]
        pairs = zip(found[DYNAMIC].ratios, found[best].ratios, strict=True)
        gain = statistics.mean(one / other for one, other in pairs) - 1
        common.show(
            table,
            f"{len(found[PLAIN].ratios)} prompts",
            f"tuned ({tuned}) over the best fixed ({best}): {tuned_ratio:.3f}",
            f"dynamic over the best fixed ({best}), prompt by prompt: {1 + gain:.3f}",
        )
        if tuned_ratio < 1 - self.margin:
            raise MedusaError(f"tuned is {1 - tuned_ratio:.1%} slower than {best}")
        if self.dynamic_gain is not None and gain < self.dynamic_gain:
            raise MedusaError(f"dynamic gains {gain:.1%}, {self.dynamic_gain:.1%} was asked for")


Q8_0 = np.dtype([("scale", "<f2"), ("q", "i1", 32)])


def shuffle_heads(source: Path, target: Path, seed: int = 0) -> None:
    """A copy of a file of heads in which the values of each floating-point tensor have changed places."""
    data = bytearray(source.read_bytes())
    kinds: dict[str, np.dtype[Any]] = {"f16": np.dtype("<f2"), "f32": np.dtype("<f4")}
    found = native.read_gguf(str(source))
    rng = np.random.default_rng(seed)
    for tensor in found.tensors:
        if tensor.type in kinds and tensor.name.endswith((".weight", ".bias")):
            values = np.frombuffer(data, kinds[tensor.type], int(np.prod(tensor.shape)), tensor.offset)
            values[:] = rng.permutation(values)
        elif tensor.type == "q8_0":
            blocks = np.frombuffer(data, Q8_0, tensor.nbytes // Q8_0.itemsize, tensor.offset)
            blocks["q"] = rng.permutation(blocks["q"].ravel()).reshape(blocks["q"].shape)
    target.write_bytes(data)


@dataclass
class Watchdog:
    """Is a session with the watchdog ever slower than plain decoding? Real heads and useless ones, in turn with plain.

    Greedy, to the full length whatever the model says. Useless heads: the real ones with their weights shuffled.
    Prompts are decoded one after another by every session, in changing order; sessions keep what their watchdogs
    learn, as in a chat. `always`: every step drafts. Medians over prompts of the speed relative to plain decoding of
    the same prompt in the same round; exits with 1 when that of a watched session is below --floor.
    """

    _: KW_ONLY
    data: Path = PROMPTS
    model: str = "demo"
    heads: Path | None = None
    nodes: int = 4
    max_tokens: int = 128
    repeat: int = 1
    limit: int | None = None
    floor: float = 0.97

    def run(self) -> None:
        bench = common.Bench(self.model, self.heads, self.nodes)
        with tempfile.TemporaryDirectory() as folder:
            useless_file = Path(folder) / "heads.gguf"
            shuffle_heads(self.heads or demo.DEMO_HEADS, useless_file)
            useless = native.Heads(bench.model, str(useless_file))
            sessions = self._sessions(bench, useless)
            texts = common.questions(self.data, self.limit) * self.repeat
            found = self._measure([common.chat_tokens(bench.model, text) for text in texts], sessions)
        table = Table("session", "of plain's speed, median", "lowest", "tokens per step", "plain steps")
        slow = []
        for name, runs in found.items():
            speeds = [
                (run["tokens_per_second"], base["tokens_per_second"])
                for run, base in zip(runs, found[PLAIN], strict=True)
            ]
            ratios = [speed / base for speed, base in speeds]
            median = statistics.median(ratios)
            steps, undrafted = (sum(run[key] for run in runs) for key in ("steps", "plain_steps"))
            committed = sum(run["tokens_per_step"] * (run["steps"] - run["plain_steps"]) for run in runs)
            per_step = f"{committed / (steps - undrafted):.2f}" if steps > undrafted else "-"
            table.add_row(name, f"{median:.3f}", f"{min(ratios):.3f}", per_step, f"{undrafted / steps:.0%}")
            if (sessions[name][1] or "dynamic" in name) and median < self.floor:
                slow.append(name)
        speed = statistics.median(run["tokens_per_second"] for run in found[PLAIN])
        plain = f"{len(texts)} answers, tree of {bench.tree.size} nodes, plain: {speed:.1f} tokens/s (median)"
        common.show(table, plain)
        if slow:
            raise MedusaError(f"slower than {self.floor} of plain: {', '.join(slow)}")

    @staticmethod
    def _sessions(bench: common.Bench, useless: native.Heads) -> dict[str, tuple[native.Session, bool]]:
        """With whether the watchdog watches. Dynamic trees look after themselves."""
        model, tree = bench.model, bench.tree
        return {
            PLAIN: (bench.plain, False),
            "real heads, always": (bench.drafting, False),
            "real heads": (native.Session(model, bench.heads, tree=tree), True),
            "useless heads, always": (native.Session(model, useless, tree=tree), False),
            "useless heads": (native.Session(model, useless, tree=tree), True),
            "real heads, dynamic trees": (native.Session(model, bench.heads, dynamic=native.DynamicTree()), False),
            "useless heads, dynamic trees": (native.Session(model, useless, dynamic=native.DynamicTree()), False),
        }

    def _measure(
        self, asked: list[list[int]], sessions: dict[str, tuple[native.Session, bool]]
    ) -> dict[str, list[dict[str, float]]]:
        """Statistics of each session's answers. A first answer warms up all of them, watchdogs excepted."""
        names = list(sessions)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for session, _ in sessions.values():
            session.generate(asked[0], max_tokens=16)
        for number, prompt in enumerate(asked):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                session, watched = sessions[name]
                session.reset()
                answer = session.generate(prompt, max_tokens=self.max_tokens, ignore_eos=True, watchdog=watched)
                found[name].append(answer.stats)
        return found


@dataclass
class Copies:
    """Does drafting pay on text that copies much of its prompt? The built-in prompts of these kinds, against stock.

    Runs `medusa bench` on those prompts and exits with 1 when a method's mean speedup over stock is below --floor.
    """

    _: KW_ONLY
    model: str = "demo"
    methods: str = "lookup,medusa+lookup"
    kinds: str = "copy-edit"
    max_tokens: int = 128
    repeat: int = 1
    floor: float = 2.5

    def run(self) -> None:
        kinds = self.kinds.split(",")
        chosen = [prompt for prompt in bench_set.built_in() if prompt.category in kinds]
        if not chosen:
            raise MedusaError(f"no built-in prompts of the kind {self.kinds}")
        wanted = methods.parse(self.methods)
        compared = [methods.METHODS[methods.STOCK], *wanted]
        plan = Plan(self.model, compared, chosen, max_tokens=self.max_tokens, repeat=self.repeat)
        found = Measurements()
        measure(plan, found, common.MESSAGES)
        built = document.build(plan, found, "built in")
        report.show(built, Console())
        below = []
        for method in wanted:
            speedup = built["methods"][method.name]["total"]["speedup_vs_stock"]
            if speedup is None or speedup < self.floor:
                below.append(f"{method.name}: {tables.number(speedup)} times stock, not {self.floor:g}")
        if below:
            raise MedusaError("; ".join(below))


QUESTIONS = (
    "What is the text above about? Answer in one paragraph.",
    "Write a short story about a lighthouse keeper.",
    "List five things that the text above says.",
)
ROOM = 512
"""For a question and its answer."""


@dataclass
class Long:
    """Do drafts still pay behind long texts? Answers as a chat drafts them and plain ones, in turn.

    Each question comes behind so many tokens of the project's own text (the training passages, then --text; default:
    the pages in docs). Drafts are those of a chat: the model's heads where there are any, recycling where not, lookup,
    trees grown step by step. Tokens/s of the answer alone, the prompt not counted. Exits with 1 when drafting is slower
    than --floor times plain behind any of the texts, or when a greedy answer differs from the plain one.
    """

    model: str
    _: KW_ONLY
    contexts: tuple[int, ...] = (1000, 8000)
    heads: Path | None = None
    max_tokens: int = 96
    rounds: int = 2
    text: tuple[Path, ...] = DOCS
    floor: float = 0.0

    def run(self) -> None:
        reference = common.find_model(self.model)
        model = native.Model(str(reference.path))
        path = self.heads or (reference.heads.path if reference.heads else None)
        heads = native.Heads(model, str(path)) if path else None
        table = Table("behind", "plain, tokens/s", "with drafts", "ratio", "tokens per step")
        slow = []
        for context in self.contexts:
            plain, drafted, per_step = self._measure(model, heads, context)
            table.add_row(f"{context:,}", f"{plain:.1f}", f"{drafted:.1f}", f"{drafted / plain:.2f}", f"{per_step:.2f}")
            if drafted < self.floor * plain:
                slow.append(f"{context:,} tokens: {drafted / plain:.2f} times plain")
        common.show(table)
        if slow:
            raise MedusaError(f"below {self.floor:g}: " + "; ".join(slow))

    def _measure(self, model: native.Model, heads: native.Heads | None, context: int) -> tuple[float, float, float]:
        """(plain tokens/s, with drafts, tokens per step), of all rounds."""
        text = model.detokenize(fixed_text(model, context, self.text))
        n_ctx = context + ROOM + self.max_tokens
        sessions = {
            "plain": native.Session(model, n_ctx=n_ctx),
            "drafts": native.Session(
                model,
                heads,
                dynamic=native.DynamicTree() if heads else None,
                lookup=True,
                recycling=heads is None,
                n_ctx=n_ctx,
            ),
        }
        tokens, seconds = dict.fromkeys(sessions, 0), dict.fromkeys(sessions, 0.0)
        per_step = []
        for _ in range(self.rounds):
            for question in QUESTIONS:
                asked = common.chat_tokens(model, f"{text}\n\n{question}")
                answers = {}
                for name, session in sessions.items():
                    answer = answers[name] = session.generate(asked, max_tokens=self.max_tokens)
                    tokens[name] += len(answer.tokens) - 1
                    seconds[name] += sum(answer.stats["timings_ms"].values()) / 1000
                per_step.append(answers["drafts"].stats["tokens_per_step"])
                same = lossless.compare(model, asked, answers["plain"], answers["drafts"])
                if not same.explained:
                    raise MedusaError(f"behind {context:,} tokens the drafted answer differs: {same}")
        speeds = {name: tokens[name] / seconds[name] for name in sessions}
        return speeds["plain"], speeds["drafts"], statistics.mean(per_step)


def parser() -> ArgumentParser:
    return common.parser(__doc__, Files, Trees, Watchdog, Copies, Long)


if __name__ == "__main__":
    common.main(parser())
