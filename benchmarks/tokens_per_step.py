"""How many tokens drafts bring in a step.

    python benchmarks/tokens_per_step.py heads --data question.jsonl [--heads A.gguf B.gguf] [--nodes 4 8 16]
    python benchmarks/tokens_per_step.py kinds --data question.jsonl
    python benchmarks/tokens_per_step.py untrained --data question.jsonl [--beside-heads]
    python benchmarks/tokens_per_step.py trees [--data question.jsonl]
    python benchmarks/tokens_per_step.py shapes --data question.jsonl [--nodes 8] [--prices 0.037 0.048 0.06]

`COMMAND --help` says what each of them measures. --data: MT-Bench's question file, or any JSON lines with
{"turns": [...]} or {"prompt": ...}; first turns are asked.
"""

from __future__ import annotations

import json
import statistics
import time
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import common
from common import Bench
from rich.progress import track
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding import prompts as prompt_tokens
from medusa_cli.decoding import tree_search
from medusa_cli.decoding.loops import loop_start
from medusa_cli.decoding.options import EngineOptions
from medusa_cli.decoding.tree_search import greedy_tree
from medusa_cli.decoding.trees import TreeMethod
from medusa_cli.prompts import bench_set
from medusa_cli.support.errors import MedusaError
from medusa_cli.tuning import choose, texts
from medusa_cli.tuning import run as tuning

RULES = ("greedy", "exact", "rejection", "typical", "nucleus")
SEEDS_APART = 1000
MOST_NODES = 32
"""Of a step whose drafts need no training."""


@dataclass
class Sums:
    """Of all answers by one rule."""

    steps: int = 0
    committed: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    cut: int = 0
    reached: Counter[int] = field(default_factory=Counter)

    def add(self, answer: native.Generation) -> None:
        stats = answer.stats
        self.steps += stats["steps"] - stats["plain_steps"]
        self.committed += stats["tokens_per_step"] * (stats["steps"] - stats["plain_steps"])
        self.tokens += len(answer.tokens) - 1
        self.seconds += sum(stats["timings_ms"].values()) / 1000
        for depth, share in enumerate(stats["acceptance_per_depth"]):
            self.reached[depth] += share * (stats["steps"] - stats["plain_steps"])

    @property
    def per_step(self) -> float:
        return self.committed / max(self.steps, 1)

    @property
    def per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def depths(self) -> str:
        return " ".join(f"{self.reached[depth] / self.steps:.2f}" for depth in sorted(self.reached))


@dataclass
class Heads:
    """Tokens per step of heads files by size of the tree, temperature and rule of acceptance.

    The fixed tree of each size is built from the accuracies in the heads file (default: the model's own), which come
    from other text; --dynamic adds trees grown in each step, whose number of steps depends on the clock. --rules, of
    greedy,exact,rejection,typical,nucleus. greedy: temperature 0; the others: at each --temperature, seeded by prompt,
    --seeds times. --penalty: on repeated tokens, 1.1 in a chat with the demo. An answer that falls into a loop counts
    up to there (decoding/loops.py); "cut" says how many do. Tokens per step: tokens of all steps over steps; tokens/s:
    of the steps, the rules taking turns prompt by prompt.
    Exits with 1 when the first heads, greedy, stay below X of --require NODES:X ..., or bring less than --ratio times
    the tokens per step of the second ones.
    """

    _: KW_ONLY
    data: Path
    heads: tuple[Path, ...] = ()
    model: str = "demo"
    nodes: tuple[int, ...] = (4, 8, 16)
    dynamic: bool = False
    rules: str = "greedy,exact,typical"
    max_tokens: int = 128
    temperature: tuple[float, ...] = (0.7,)
    penalty: float = 1.0
    seeds: int = 1
    limit: int | None = None
    require: tuple[str, ...] = ()
    ratio: float | None = None
    json: Path | None = None

    def run(self) -> None:
        rules, prompts = self._rules(), common.questions(self.data, self.limit)
        table = Table("heads", "nodes", "temperature", "rule", "tokens per step", "tokens/s", "cut", "depth 1, 2, ...")
        greedy: dict[tuple[Path | None, int], float] = {}
        rows = []
        for heads in self.heads or (None,):
            bench = Bench(self.model, heads, 1)
            for nodes in [*self.nodes, *([0] if self.dynamic else [])]:
                for temperature in self.temperature:
                    for rule, sums in self._measure(bench, nodes, prompts, temperature, rules).items():
                        shown = 0.0 if rule == "greedy" else temperature
                        name = heads.name if heads else self.model
                        size = nodes or "dynamic"
                        rows.append(
                            {"heads": name, "nodes": size, "temperature": shown, "rule": rule,
                             "tokens_per_step": sums.per_step, "steps": sums.steps}
                        )  # fmt: skip
                        table.add_row(
                            heads.name if heads else bench.heads.kind, str(size), f"{shown:g}", rule,
                            f"{sums.per_step:.3f}", f"{sums.per_second:.1f}", str(sums.cut), sums.depths,
                        )  # fmt: skip
                        if rule == "greedy":
                            greedy[heads, nodes] = sums.per_step
        common.show(table)
        if self.json:
            self.json.write_text(json.dumps(rows, indent=1) + "\n")
        self._judge(greedy)

    def _rules(self) -> list[str]:
        names = self.rules.split(",")
        for name in names:
            if name not in RULES:
                raise MedusaError(f"no rule {name!r}: there are {', '.join(RULES)}")
        return names

    def _measure(
        self, bench: Bench, nodes: int, prompts: list[str], temperature: float, rules: list[str]
    ) -> dict[str, Sums]:
        """nodes: 0 for dynamic trees."""
        if nodes:
            tree = native.Tree(greedy_tree(bench.heads.accuracy, nodes))
            session = native.Session(bench.model, bench.heads, tree=tree, n_ctx=2048)
        else:
            session = native.Session(bench.model, bench.heads, dynamic=native.DynamicTree(), n_ctx=2048)
        found = {rule: Sums() for rule in rules}
        rounds = [(seed, at) for seed in range(self.seeds) for at in range(len(prompts))]
        label = f"{session.tree.size} nodes, temperature {temperature:g}"
        for seed, at in track(rounds, label, console=common.MESSAGES, transient=True):
            tokens = common.chat_tokens(bench.model, prompts[at])
            for rule in rules:
                sampling = native.Sampling(
                    temperature=0.0 if rule == "greedy" else temperature,
                    repeat_penalty=self.penalty,
                    seed=SEEDS_APART * seed + at,
                )
                answer, cut = up_to_its_loop(session, tokens, self.max_tokens, sampling, native.Accept(rule))
                found[rule].add(answer)
                found[rule].cut += cut
        return found

    def _judge(self, greedy: dict[tuple[Path | None, int], float]) -> None:
        """greedy: tokens per step by heads and nodes. MedusaError where --require or --ratio is missed."""
        missed = []
        first = self.heads[0] if self.heads else None
        for text in self.require:
            nodes, _, bar = text.partition(":")
            if greedy[first, int(nodes)] < float(bar):
                missed.append(f"{greedy[first, int(nodes)]:.3f} with {nodes} nodes, wanted {bar}")
        if self.ratio:
            second = self.heads[1]
            ratios = {nodes: greedy[first, nodes] / greedy[second, nodes] for nodes in self.nodes}
            common.show("ratio of the first to the second: " + ", ".join(f"{n}: {r:.3f}" for n, r in ratios.items()))
            missed += [f"ratio {r:.3f} with {n} nodes" for n, r in ratios.items() if r < self.ratio]
        if missed:
            raise MedusaError("missed: " + "; ".join(missed))


def up_to_its_loop(
    session: native.Session, tokens: list[int], most: int, sampling: native.Sampling, rule: native.Accept
) -> tuple[native.Generation, bool]:
    """The answer, again and shorter where it loops."""
    session.reset()
    answer = session.generate(tokens, max_tokens=most, sampling=sampling, accept=rule)
    start = loop_start(list(answer.tokens))
    if start == len(answer.tokens):
        return answer, False
    session.reset()
    return session.generate(tokens, max_tokens=max(start, 2), sampling=sampling, accept=rule), True


@dataclass
class Kinds:
    """Tokens per step by kind of question, and what a step costs beside its pass.

    Greedy, the heads' own static tree cut to --nodes. Also the share of steps that accept each depth, the overhead
    (time of everything but verify per step, relative to a plain step of the same run), and the speed relative to plain
    decoding with the same kernels. Exits with 1 when the mean tokens per step stay below --require.
    """

    _: KW_ONLY
    data: Path
    model: str = "demo"
    heads: Path | None = None
    nodes: int = 16
    max_tokens: int = 128
    limit: int | None = None
    require: float | None = None

    def run(self) -> None:
        bench = Bench(self.model, self.heads, self.nodes)
        by_category: dict[str, list[float]] = defaultdict(list)
        acceptance, overheads, speedups, same = [], [], [], 0
        prompts = bench_set.read(self.data)[: self.limit]
        for prompt in prompts:
            tokens = common.chat_tokens(bench.model, prompt.text)
            drafted = bench.drafting.generate(tokens, max_tokens=self.max_tokens)
            baseline = bench.plain.generate(tokens, max_tokens=self.max_tokens)
            same += drafted.tokens == baseline.tokens
            if drafted.stats["steps"] == 0:
                continue
            by_category[prompt.category].append(drafted.stats["tokens_per_step"])
            acceptance.append(drafted.stats["acceptance_per_depth"])
            speedups.append(drafted.stats["tokens_per_second"] / baseline.stats["tokens_per_second"])
            ours = step_ms(drafted, "draft", "accept", "commit", "other")
            overheads.append(ours / step_ms(baseline, "verify"))
        table = Table("category", "prompts", "tokens per step")
        for category, values in sorted(by_category.items()):
            table.add_row(category, str(len(values)), f"{statistics.mean(values):.2f}")
        everything = [value for values in by_category.values() for value in values]
        mean = statistics.mean(everything)
        table.add_row("all", str(len(everything)), f"{mean:.3f}", style="bold")
        depths = " ".join(f"{statistics.mean(column):.3f}" for column in zip(*acceptance, strict=True))
        common.show(
            table,
            f"tree of {bench.tree.size} nodes; accepted at depth 1, 2, ...: {depths}",
            f"overhead (all but verify, of a plain step): median {statistics.median(overheads):.3f}",
            f"tokens per second, relative to our plain decoding: median {statistics.median(speedups):.2f}",
            f"identical to plain decoding: {same} of {len(prompts)} answers",
        )
        if self.require and mean < self.require:
            raise MedusaError(f"tokens per step {mean:.3f} are below {self.require}")


def step_ms(answer: native.Generation, *phases: str) -> float:
    times = answer.stats["timings_ms"]
    return sum(times[name] for name in phases) / max(1.0, float(answer.stats["steps"]))


@dataclass(frozen=True)
class Drafts:
    heads: native.Heads | None
    lookup: bool
    recycling: bool

    def __str__(self) -> str:
        taking_part = {"heads": self.heads, "lookup": self.lookup, "recycling": self.recycling}
        return " + ".join(name for name, part in taking_part.items() if part)

    def session(self, model: native.Model, nodes: int) -> native.Session:
        """Every step takes its likeliest nodes, as if they cost nothing."""
        almost_free = [(1, 1.0), (MOST_NODES, 1.001)]
        dynamic = native.DynamicTree(costs=almost_free, learns_costs=False, max_nodes=nodes)
        return native.Session(
            model, self.heads, dynamic=dynamic, lookup=self.lookup, recycling=self.recycling, n_ctx=2048, n_threads=1
        )


@dataclass
class Untrained:
    """Tokens per step of drafts that need no training, alone and beside heads, with so many nodes in a step.

    Greedy, one thread. Every step takes its likeliest nodes up to the given number (at most 32), root included, as if
    they cost nothing: what the drafts are worth, whatever a machine asks for them. Recycling knows what it found at the
    earlier questions of its own row; --cold: of this question alone. --beside-heads: with the model's own heads, too.
    """

    _: KW_ONLY
    data: Path
    model: str = "demo"
    nodes: tuple[int, ...] = (4, 8, 16)
    max_tokens: int = 128
    limit: int | None = None
    cold: bool = False
    beside_heads: bool = False

    def run(self) -> None:
        reference = common.find_model(self.model)
        model = native.Model(str(reference.path))
        asked = [common.chat_tokens(model, text) for text in common.questions(self.data, self.limit)]
        rows = [Drafts(None, True, True)]
        if self.beside_heads:
            heads = native.Heads(model, str(reference.heads.path if reference.heads else reference.path))
            rows += [Drafts(heads, False, False), Drafts(heads, True, False), Drafts(heads, True, True)]
        table = Table("drafts", "nodes", "tokens per step")
        for nodes in self.nodes:
            for drafts in rows:
                committed = steps = 0.0
                session = drafts.session(model, nodes)
                for tokens in track(asked, f"{drafts}, {nodes}", console=common.MESSAGES, transient=True):
                    if self.cold:
                        session = drafts.session(model, nodes)
                    session.reset()
                    sampling = native.Sampling(temperature=0.0)
                    stats = session.generate(tokens, max_tokens=self.max_tokens, sampling=sampling).stats
                    steps += stats["steps"]
                    committed += stats["tokens_per_step"] * stats["steps"]
                table.add_row(str(drafts), str(nodes), f"{committed / steps:.2f}")
        common.show(table)


@dataclass
class Trees:
    """Trees by accuracies (Medusa 2.3.3) beside trees by simulated decoding (Hydra 4), by size.

    The model answers prompts (default: those that `medusa tune` makes up), half greedily, half at temperature 0.7.
    Every other answer makes the trees of both kinds, the rest scores them; then the roles are changed. No clock is in
    it: the figures are those of the heads.
    """

    _: KW_ONLY
    model: str = "demo"
    heads: str | None = None
    data: Path | None = None
    minutes: float = 3.0
    nodes: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 100)

    def run(self) -> None:
        opened = tuning.open_model(self.model, self.heads, EngineOptions(), common.MESSAGES)
        asked = [[{"role": "user", "content": text}] for text in texts.prompts(self.data)]
        prompts = [prompt_tokens.chat_tokens(opened.model, messages, bare_if_no_template=True) for messages in asked]
        deadline = time.monotonic() + 60 * self.minutes
        ranked = texts.rank_texts(opened.model, opened.heads, prompts, 0, deadline, lambda done: None)
        halves = choose.halves(ranked)
        table = Table("nodes", "accuracies", "simulated", "ratio", "simulated, on its own text", "shared nodes")
        for nodes in self.nodes:
            # Means over both ways to divide the answers.
            both = zip(self._score(*halves, nodes), self._score(*halves[::-1], nodes), strict=True)
            ours, simulated, own, shared = (statistics.mean(pair) for pair in both)
            columns = (f"{ours:.3f}", f"{simulated:.3f}", f"{simulated / ours:.3f}", f"{own:.3f}", f"{shared:.0%}")
            table.add_row(str(nodes), *columns)
        positions = sum(map(len, ranked))
        common.show(f"{positions} positions in {len(ranked)} answers; tokens per step on held-out text", table)

    @staticmethod
    def _score(
        built_on: list[texts.Ranks], held_out: list[texts.Ranks], nodes: int
    ) -> tuple[float, float, float, float]:
        """Tokens per step of both trees, of the simulated one on its own text, and the share of common nodes."""
        accuracy = tree_search.accuracy_table(built_on)
        trees = [choose.trees_by_size(method, accuracy, built_on, [nodes])[nodes] for method in TreeMethod]
        ours, simulated = (tree_search.simulate(held_out, tree)[0] for tree in trees)
        shared = len(set(trees[0]) & set(trees[1])) / max(1, len(trees[0]))
        return ours, simulated, tree_search.simulate(built_on, trees[1])[0], shared


@dataclass
class Shapes:
    """The model's heads with trees of several shapes: tokens per step, and nodes in a step on average, root included.

    Fixed trees of --nodes, and trees grown in each step, of up to 32 nodes, where each node costs one of --prices plain
    steps and drafting nothing; each with the heads alone and with prompt lookup, which shares the nodes. Greedy; an
    answer that falls into a loop counts up to there. No clock is in it.
    """

    _: KW_ONLY
    data: Path
    model: str = "demo"
    nodes: tuple[int, ...] = (8,)
    prices: tuple[float, ...] = (0.037, 0.048, 0.06)
    max_tokens: int = 128
    limit: int | None = None

    def run(self) -> None:
        bench = Bench(self.model, None, 1)
        asked = [common.chat_tokens(bench.model, text) for text in common.questions(self.data, self.limit)]
        table = Table("trees", "drafts", "nodes", "tokens per step")
        for lookup in (False, True):
            for name, session in self._sessions(bench, lookup):
                drafts = "heads + lookup" if lookup else "heads"
                found, nodes = Sums(), 0
                for tokens in track(asked, f"{name}, {drafts}", console=common.MESSAGES, transient=True):
                    answer, _ = up_to_its_loop(
                        session, tokens, self.max_tokens, native.Sampling(temperature=0.0), native.Accept("greedy")
                    )
                    found.add(answer)
                    nodes += sum(map(len, answer.parents))
                table.add_row(name, drafts, f"{nodes / found.steps:.2f}", f"{found.per_step:.3f}")
        common.show(table)

    def _sessions(self, bench: Bench, lookup: bool) -> Iterator[tuple[str, native.Session]]:
        def session(tree: native.Tree | None, dynamic: native.DynamicTree | None) -> native.Session:
            return native.Session(
                bench.model, bench.heads, tree=tree, dynamic=dynamic, lookup=lookup, n_ctx=2048, n_threads=1
            )

        for nodes in self.nodes:
            yield f"fixed, {nodes}", session(native.Tree(greedy_tree(bench.heads.accuracy, nodes)), None)
        for price in self.prices:
            costs = [(1, 1.0), (MOST_NODES, 1 + price * (MOST_NODES - 1))]
            yield f"grown at {price:g}", session(None, native.DynamicTree(costs=costs, learns_costs=False))


def parser() -> ArgumentParser:
    return common.parser(__doc__, Heads, Kinds, Untrained, Trees, Shapes)


if __name__ == "__main__":
    common.main(parser())
