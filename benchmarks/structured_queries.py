"""A task with exact answers, made up here: questions about a table become queries (Speculative Streaming, table 1).

    python benchmarks/structured_queries.py MODEL ... [--count 200] [--shots 8] [--seed 0] [--nodes 8] [--threads 1]
                                            [--json FILE] [--show N]

Questions are drawn from templates over made-up tables, a seed for each set; every prompt shows `--shots` solved ones
before, other than those that are asked. Each model completes the query greedily up to the end of the line. Right: the
very text that the template gives. The cost of a right answer is -ln p for each of its tokens. A model whose file has
heads or streams answers twice, plainly and with drafts from the best tree of `--nodes` nodes; both texts are compared,
and tokens per step are those of the drafted one.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

from medusa_cli.converters.heads import schema
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding.tree_search import greedy_tree
from medusa_cli.models import references

TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cities": (("country", "river", "mayor"), ("population", "area", "height")),
    "books": (("author", "language", "publisher"), ("pages", "year", "price")),
    "players": (("team", "position", "country"), ("age", "goals", "salary")),
    "films": (("director", "genre", "studio"), ("year", "length", "budget")),
    "orders": (("customer", "product", "city"), ("amount", "price", "weight")),
    "trains": (("operator", "origin", "colour"), ("speed", "seats", "year")),
    "hotels": (("city", "owner", "view"), ("rooms", "stars", "price")),
    "lakes": (("country", "fish", "island"), ("depth", "area", "length")),
    "songs": (("singer", "album", "genre"), ("year", "length", "plays")),
    "dogs": (("breed", "owner", "colour"), ("age", "weight", "height")),
    "schools": (("city", "head", "language"), ("pupils", "rooms", "year")),
    "planes": (("airline", "maker", "home"), ("seats", "range", "age")),
}
"""Columns of text and of numbers."""
WORDS = (
    "Peru", "Norway", "Kenya", "Anna", "Boris", "Clara", "Denis", "red", "green", "blue", "Lisbon", "Oslo", "Quito",
    "Atlas", "Orion", "Vega", "north", "south", "French", "Dutch", "Greek", "Ivan", "Julia", "Karl",
)  # fmt: skip


@dataclass(frozen=True)
class Query:
    table: str
    columns: tuple[str, ...]
    question: str
    answer: str

    def text(self, answered: bool) -> str:
        shown = f"Table: {self.table} ({', '.join(self.columns)})\nQuestion: {self.question}\nQuery:"
        return f"{shown} {self.answer}\n\n" if answered else shown


KINDS = 8
"""Of questions; the solved ones show each of them where there are so many."""


def make(rng: random.Random, kind: int) -> Query:
    name = rng.choice(list(TABLES))
    texts, numbers = TABLES[name]
    text, other, number = rng.choice(texts), rng.choice(texts), rng.choice(numbers)
    word, limit = rng.choice(WORDS), rng.randrange(2, 900)
    where = f'WHERE {text} = "{word}"'
    question, answer = (
        (f"What is the {number} of the {name} whose {text} is {word}?", f"SELECT {number} FROM {name} {where}"),
        (f"How many {name} have the {text} {word}?", f"SELECT COUNT(*) FROM {name} {where}"),
        (f"What is the highest {number} of all {name}?", f"SELECT MAX({number}) FROM {name}"),
        (f"What is the lowest {number} of all {name}?", f"SELECT MIN({number}) FROM {name}"),
        (
            f"What is the mean {number} of the {name} with {text} {word}?",
            f"SELECT AVG({number}) FROM {name} {where}",
        ),
        (
            f"Which {other} have {name} whose {number} is over {limit}?",
            f"SELECT {other} FROM {name} WHERE {number} > {limit}",
        ),
        (
            f"Which {other} have {name} whose {number} is under {limit}?",
            f"SELECT {other} FROM {name} WHERE {number} < {limit}",
        ),
        (f"List the {other} of all {name} by {number}.", f"SELECT {other} FROM {name} ORDER BY {number}"),
    )[kind]
    return Query(name, texts + numbers, question, answer)


def prompts(count: int, shots: int, seed: int) -> list[tuple[str, str]]:
    """(prompt, right answer with the space before it); questions are distinct, also from the solved ones."""
    rng, out = random.Random(seed), list[tuple[str, str]]()
    solved = [make(random.Random(f"{seed} shot {at}"), at % KINDS) for at in range(shots)]
    seen = {query.question for query in solved}
    while len(out) < count:
        query = make(rng, rng.randrange(KINDS))
        if query.question not in seen:
            seen.add(query.question)
            shown = "".join(one.text(answered=True) for one in solved)
            out.append((shown + query.text(answered=False), f" {query.answer}"))
    return out


@dataclass(frozen=True)
class Found:
    """same: share of drafted answers that are the plain ones; None, as tokens_per_step, without heads."""

    model: str
    exact: float
    nats_per_token: float
    same: float | None
    tokens_per_step: float | None


def ask(name: str, asked: list[tuple[str, str]], arguments: argparse.Namespace) -> Found:
    reference = references.resolve(name, Console(stderr=True))
    model = native.Model(str(reference.path), n_gpu_layers=0)
    plain = native.Session(model, n_ctx=2048, n_threads=arguments.threads)
    inside = schema.KIND_KEY in native.read_gguf(str(reference.path)).metadata
    path = reference.heads.path if reference.heads else reference.path if inside else None
    heads = native.Heads(model, str(path)) if path else None
    drafting = None
    if heads is not None:
        tree = native.Tree(greedy_tree(heads.accuracy, arguments.nodes))
        drafting = native.Session(model, heads, tree=tree, n_ctx=2048, n_threads=arguments.threads)
    right = same = tokens = steps = 0
    committed = nats = 0.0
    for at, (prompt, answer) in enumerate(asked):
        given = model.tokenize(prompt, add_special=True, parse_special=False)
        whole = model.tokenize(prompt + answer + "\n", add_special=True, parse_special=False)
        wanted = len(whole) - len(given)
        said = [
            session.generate(given, max_tokens=wanted + 16, stop=["\n"]) for session in (plain, drafting) if session
        ]
        right += said[0].text.strip() == answer.strip()
        nats, tokens = nats + sum(native.score(model, whole, n_threads=arguments.threads)[1][-wanted:]), tokens + wanted
        if len(said) > 1:
            same += said[1].text == said[0].text
            stats = said[1].stats
            drafted = stats["steps"] - stats["plain_steps"]
            steps, committed = steps + drafted, committed + stats["tokens_per_step"] * drafted
        if at < arguments.show:
            print(f"{prompt.rsplit('Question: ', 1)[1]} {said[0].text.strip()!r}, right: {answer.strip()!r}")
    count = len(asked)
    drafts = (same / count, committed / steps) if steps else (None, None)
    return Found(Path(name).name, right / count, nats / tokens, *drafts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--shots", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print the first answers")
    arguments = parser.parse_args()
    asked = prompts(arguments.count, arguments.shots, arguments.seed)
    found = [ask(name, asked, arguments) for name in arguments.models]
    table = Table("model", "exactly right", "nats a token of right answers", "drafted as plain", "tokens per step")
    for one in found:
        drafted = ("-", "-") if one.same is None else (f"{one.same:.1%}", f"{one.tokens_per_step:.2f}")
        table.add_row(one.model, f"{one.exact:.1%}", f"{one.nats_per_token:.4f}", *drafted)
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
