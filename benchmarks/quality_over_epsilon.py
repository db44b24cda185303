"""What acceptance rules bring and what they cost: tokens per step and the quality of the text, typical over epsilon.

    python benchmarks/quality_over_epsilon.py --data question.jsonl [--model demo] [--heads A.gguf B.gguf]
           [--second-model MODEL] [--temperature 0.7] [--epsilon 0.05 0.09 0.15 0.2 0.25] [--as-published]
           [--nodes 16] [-n 128] [--limit N] [--json FILE] [--output FILE.png]

As Medusa's figure 5 and Hydra 6.3 do, for each heads file, with greedy, exact and rejection points. typical: delta =
sqrt(epsilon), over the whole sampler chain, or as published (`medusa chat --accept typical --as-published`). Quality,
of the answers given the prompts: bits per byte under the model itself and under a second one (any tokenizer: the text
is tokenized anew), and the share of 4-grams of tokens that stood in the same answer before. Rows are to be compared
with `exact`, which is the model's own distribution. The picture needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common import Bench
from rich.console import Console
from rich.progress import track
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding import prompts
from medusa_cli.decoding.tree_search import greedy_tree
from medusa_cli.models import references
from medusa_cli.prompts import bench_set

GRAM = 4
COLOURS = ("#1f6fb2", "#d9822b", "#2e8b57", "#7b5ea7")
"""Of the heads files."""


@dataclass
class Row:
    """bits: per byte of text, under the model and under the second one."""

    heads: str
    rule: str
    epsilon: float | None
    tokens_per_step: float
    bits: float
    second_bits: float | None
    repetition: float

    @property
    def place(self) -> str:
        """Where it stands in the picture."""
        return self.rule if self.epsilon is None else f"{self.epsilon:g}"


@dataclass
class Judge:
    """A model that texts are scored with. known: what it said of (question, answer): greedy and exact answers are the
    same with all heads."""

    model: native.Model
    known: dict[tuple[str, str], float] = field(default_factory=dict)

    def nats(self, question: str, answer: str) -> float:
        """-ln p of an answer after a question in the model's own template."""
        if (question, answer) not in self.known:
            self.known[question, answer] = self._nats(question, answer)
        return self.known[question, answer]

    def _nats(self, question: str, answer: str) -> float:
        before = prompts.chat_tokens(self.model, [{"role": "user", "content": question}])
        tokens = self.model.tokenize(answer, add_special=False, parse_special=False)
        if not tokens:
            return 0.0
        return sum(native.score(self.model, [*before, *tokens])[1][len(before) - 1 :])


def repeated(tokens: list[int]) -> tuple[int, int]:
    """(4-grams that stood before, all 4-grams)."""
    grams = [tuple(tokens[at : at + GRAM]) for at in range(len(tokens) - GRAM + 1)]
    return len(grams) - len(set(grams)), len(grams)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--heads", type=Path, nargs="+", default=[None], help="default: the model's own")
    parser.add_argument("--second-model")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.05, 0.09, 0.15, 0.2, 0.25])
    parser.add_argument("--as-published", action="store_true")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    questions = [asked.text for asked in bench_set.read(arguments.data)[: arguments.limit]]
    second = None
    if arguments.second_model:
        found = references.resolve(arguments.second_model, Console(stderr=True))
        second = Judge(native.Model(str(found.path)))
    rows = []
    own: Judge | None = None
    for heads in arguments.heads:
        bench = Bench(arguments.model, heads, 1)
        own = Judge(bench.model, own.known if own else {})
        rows += measure_heads(bench, heads, questions, (own, second), arguments)
    Console().print(table_of(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1), "utf-8")
    if arguments.output:
        draw(rows, arguments.output)


def measure_heads(
    bench: Bench,
    heads: Path | None,
    questions: list[str],
    judges: tuple[Judge, Judge | None],
    arguments: argparse.Namespace,
) -> list[Row]:
    name = bench.heads.kind if heads is None else heads.stem
    tree = native.Tree(greedy_tree(bench.heads.accuracy, arguments.nodes))
    session = native.Session(bench.model, bench.heads, tree=tree, n_ctx=2048)
    rules: list[tuple[str, float | None]] = [("greedy", None), ("exact", None), ("rejection", None)]
    rules += [("typical", epsilon) for epsilon in arguments.epsilon]
    return [measure(session, bench, questions, judges, (name, *rule), arguments) for rule in rules]


def measure(
    session: native.Session,
    bench: Bench,
    questions: list[str],
    judges: tuple[Judge, Judge | None],
    row: tuple[str, str, float | None],
    arguments: argparse.Namespace,
) -> Row:
    name, rule, epsilon = row
    own, second = judges
    published = arguments.as_published and rule == "typical"
    limits = {} if epsilon is None else {"epsilon": epsilon, "delta": math.sqrt(epsilon)}
    accept = native.Accept(rule, model_alone=published, greedy_root=published, **limits)
    steps, committed, nats, second_nats, size, again, grams = 0, 0.0, 0.0, 0.0, 0, 0, 0
    for seed, question in enumerate(track(questions, f"{name} {rule} {epsilon or ''}", console=Console(stderr=True))):
        session.reset()
        temperature = 0.0 if rule == "greedy" else arguments.temperature
        answer = session.generate(
            bench.chat_tokens(question),
            max_tokens=arguments.max_tokens,
            sampling=native.Sampling(temperature=temperature, seed=seed),
            accept=accept,
        )
        steps += answer.stats["steps"]
        committed += answer.stats["tokens_per_step"] * answer.stats["steps"]
        size += len(answer.text.encode())
        nats += own.nats(question, answer.text)
        second_nats += second.nats(question, answer.text) if second else 0.0
        found = repeated(answer.tokens)
        again, grams = again + found[0], grams + found[1]
    bits = 1 / (size * math.log(2))
    return Row(
        name, rule, epsilon, committed / steps, nats * bits, second_nats * bits if second else None, again / grams
    )


def table_of(rows: list[Row]) -> Table:
    table = Table("heads", "rule", "epsilon", "tokens per step", "bits/byte", "second model", "repeated 4-grams")
    for row in rows:
        table.add_row(
            row.heads,
            row.rule,
            "-" if row.epsilon is None else f"{row.epsilon:g}",
            f"{row.tokens_per_step:.3f}",
            f"{row.bits:.3f}",
            "-" if row.second_bits is None else f"{row.second_bits:.3f}",
            f"{row.repetition:.1%}",
        )
    return table


def draw(rows: list[Row], path: Path) -> None:
    """A panel for each figure: the rules, then typical over epsilon, a colour for each heads file."""
    from matplotlib.figure import Figure

    panels = [("tokens per step", "tokens_per_step"), ("bits per byte, the model", "bits")]
    if all(row.second_bits is not None for row in rows):
        panels.append(("bits per byte, second model", "second_bits"))
    panels.append(("repeated 4-grams", "repetition"))
    places = list(dict.fromkeys(row.place for row in rows))
    figure = Figure(figsize=(3.4 * len(panels), 3.4), layout="constrained")
    for axes, (title, key) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, heads in enumerate(dict.fromkeys(row.heads for row in rows)):
            colour = COLOURS[number % len(COLOURS)]
            for is_typical, style, label in ((True, "-o", heads), (False, "D", None)):
                of = [row for row in rows if row.heads == heads and (row.rule == "typical") == is_typical]
                at = [places.index(row.place) for row in of]
                axes.plot(at, [getattr(row, key) for row in of], style, color=colour, label=label)
        axes.set_title(title, fontsize=10)
        axes.set_xticks(range(len(places)), places, rotation=60, fontsize=8)
        axes.set_xlabel("rule, or epsilon of typical", fontsize=9)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=160, facecolor="white")


if __name__ == "__main__":
    main()
