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
from dataclasses import asdict, dataclass
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
COLOURS = {"greedy": "#9aa0a6", "exact": "#1f6fb2", "rejection": "#2e8b57"}


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


@dataclass
class Judge:
    """A model that texts are scored with."""

    model: native.Model

    def nats(self, question: str, answer: str) -> float:
        """-ln p of an answer after a question in the model's own template."""
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
    rows = [row for heads in arguments.heads for row in measure_heads(heads, questions, second, arguments)]
    Console().print(table_of(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1), "utf-8")
    if arguments.output:
        draw(rows, arguments.output)


def measure_heads(
    heads: Path | None, questions: list[str], second: Judge | None, arguments: argparse.Namespace
) -> list[Row]:
    bench = Bench(arguments.model, heads, 1)
    name = bench.heads.kind if heads is None else heads.stem
    tree = native.Tree(greedy_tree(bench.heads.accuracy, arguments.nodes))
    session = native.Session(bench.model, bench.heads, tree=tree, n_ctx=2048)
    rules: list[tuple[str, float | None]] = [("greedy", None), ("exact", None), ("rejection", None)]
    rules += [("typical", epsilon) for epsilon in arguments.epsilon]
    return [measure(session, bench, questions, second, (name, *rule), arguments) for rule in rules]


def measure(
    session: native.Session,
    bench: Bench,
    questions: list[str],
    second: Judge | None,
    row: tuple[str, str, float | None],
    arguments: argparse.Namespace,
) -> Row:
    name, rule, epsilon = row
    published = arguments.as_published and rule == "typical"
    limits = {} if epsilon is None else {"epsilon": epsilon, "delta": math.sqrt(epsilon)}
    accept = native.Accept(rule, model_alone=published, greedy_root=published, **limits)
    own = Judge(bench.model)
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
    """A panel for each figure over epsilon: a line of typical for each heads file, level lines of the other rules."""
    from matplotlib.figure import Figure

    panels = [("tokens per step", "tokens_per_step"), ("bits per byte, the model", "bits")]
    if all(row.second_bits is not None for row in rows):
        panels.append(("bits per byte, second model", "second_bits"))
    panels.append(("repeated 4-grams", "repetition"))
    figure = Figure(figsize=(3.4 * len(panels), 3.2), layout="constrained")
    for axes, (title, key) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, heads in enumerate(dict.fromkeys(row.heads for row in rows)):
            typical = [row for row in rows if row.heads == heads and row.rule == "typical"]
            style = ("-", "--", ":")[number % 3]
            axes.plot(
                [row.epsilon for row in typical],
                [getattr(row, key) for row in typical],
                marker="o",
                color="#d9822b",
                linestyle=style,
                label=f"typical, {heads}",
            )
            for row in rows:
                if row.heads == heads and row.rule in COLOURS:
                    axes.axhline(getattr(row, key), color=COLOURS[row.rule], linestyle=style, label=row.rule)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epsilon", fontsize=9)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=160, facecolor="white")


if __name__ == "__main__":
    main()
