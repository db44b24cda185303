"""What answers say: loops, drafted text beside plain text, a task with right answers.

    python benchmarks/answers.py loops MODEL [--data question.jsonl] [--penalties 1 1.05 1.1]
    python benchmarks/answers.py lossless [--model demo] [--nodes 16]
    python benchmarks/answers.py queries MODEL ... [--count 200]

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

import json
import random
from argparse import ArgumentParser
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path

import common
import lossless
from medusa_cli.converters.heads import schema
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding.loops import loop_start
from medusa_cli.decoding.options import CHAT_TEMPERATURE, DraftOptions, EngineOptions
from medusa_cli.decoding.runtime import Engine, open_engine
from medusa_cli.decoding.settings import Settings
from medusa_cli.decoding.tree_search import greedy_tree
from medusa_cli.support.errors import MedusaError

POEM = "Write a short poem about the sea."


@dataclass
class Loops:
    """How many answers fall into a loop, by sampling, and what a penalty on repeats costs.

    Each prompt (without --data: one poem) is answered with each seed and each repeat penalty, at the temperature of a
    chat and otherwise with the defaults of the engine, loops not stopped. For each penalty: answers that ended by
    themselves; those that say the same 1 to 64 tokens over and over until their end (what `--stop-loops` ends); those
    in which decoding/loops.py finds a loop, which also counts tables and copied code; tokens per step up to there, and
    milliseconds of acceptance a step.
    """

    model: str
    _: KW_ONLY
    data: Path | None = None
    penalties: tuple[float, ...] = (1.0, 1.05, 1.1)
    seeds: int = 2
    tokens: int = 512

    def run(self) -> None:
        prompts = [POEM] if self.data is None else common.questions(self.data)
        engine = open_engine(self.model, EngineOptions(), DraftOptions(), common.MESSAGES)
        table = Table(
            "repeat penalty", "ended by themselves", "in a loop", "repeats by loops.py", "tokens per step, the others",
            "acceptance, ms a step", box=None,
        )  # fmt: skip
        for penalty in self.penalties:
            table.add_row(f"{penalty:g}", *self._cells(self._answers(engine, prompts, penalty)))
        common.show(table)

    def _answers(self, engine: Engine, prompts: list[str], penalty: float) -> list[native.Generation]:
        found = []
        for prompt in prompts:
            asked = engine.chat_tokens([{"role": "user", "content": prompt}])
            for seed in range(self.seeds):
                settings = Settings(CHAT_TEMPERATURE, repeat_penalty=penalty, max_tokens=self.tokens)
                engine.session.reset()
                found.append(engine.generate(asked, settings, seed, None))
        return found

    @staticmethod
    def _cells(found: list[native.Generation]) -> list[str]:
        from _native_testing import loop_end

        texts = [list(one.tokens) for one in found]
        whole = [one for one, text in zip(found, texts, strict=True) if loop_start(text) == len(text)]
        steps = sum(one.stats["steps"] - one.stats["plain_steps"] for one in whole)
        committed = sum(one.stats["tokens_per_step"] * (one.stats["steps"] - one.stats["plain_steps"]) for one in whole)
        accept = sum(one.stats["timings_ms"]["accept"] for one in whole) / sum(one.stats["steps"] for one in whole)
        ended = sum(one.stop_reason == "eos" for one in found)
        # By the definition of `--stop-loops`, which ends an answer as soon as one of its beginnings repeats itself.
        loops = sum(loop_end(text) is not None for text in texts)
        return [f"{ended} of {len(found)}", str(loops), str(len(found) - len(whole)), f"{committed / steps:.2f}",
                f"{accept:.3f}"]  # fmt: skip


@dataclass
class Lossless:
    """Greedy decoding with drafts against plain decoding, token for token.

    What counts as explained: benchmarks/lossless.py. Exits with 1 when a difference is not.
    """

    _: KW_ONLY
    data: Path = common.PROMPTS
    model: str = "demo"
    heads: Path | None = None
    nodes: int = 16
    max_tokens: int = 128

    def run(self) -> None:
        bench = common.Bench(self.model, self.heads, self.nodes)
        table = Table("prompt", "tokens", "first difference", "logit gap", "explained")
        results = []
        for asked in common.questions(self.data):
            prompt = common.chat_tokens(bench.model, asked)
            bench.reset()
            plain = bench.plain.generate(prompt, max_tokens=self.max_tokens)
            drafted = bench.drafting.generate(prompt, max_tokens=self.max_tokens)
            result = lossless.compare(bench.model, prompt, plain, drafted)
            results.append(result)
            cells = ("-", "-", "-")
            if result.first_difference is not None:
                cells = (str(result.first_difference), f"{result.gap:.3f}", "yes" if result.explained else "NO")
            table.add_row(" ".join(asked.split())[:48], str(result.tokens), *cells)
        differing = [result for result in results if result.first_difference is not None]
        unexplained = sum(not result.explained for result in differing)
        tokens, same = sum(result.tokens for result in results), len(results) - len(differing)
        common.show(
            table,
            f"{same} of {len(results)} texts identical ({tokens} tokens, {bench.tree.size} nodes)",
            f"{len(differing) - unexplained} differ by numerics alone, {unexplained} unexplained",
        )
        if unexplained:
            raise MedusaError(f"{unexplained} texts differ from plain decoding")


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


def made_up(count: int, shots: int, seed: int) -> list[tuple[str, str]]:
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


@dataclass
class Queries:
    """A task with exact answers, made up here: questions about a table become queries (Speculative Streaming, table 1).

    Questions are drawn from templates over made-up tables, a seed for each set; every prompt shows --shots solved ones
    before, other than those that are asked. Each model completes the query greedily up to the end of the line. Right:
    the very text that the template gives. The cost of a right answer is -ln p for each of its tokens. A model whose
    file has heads or streams answers twice, plainly and with drafts from the best tree of --nodes nodes; both texts are
    compared, and tokens per step are those of the drafted one. --show: print so many answers.
    """

    models: tuple[str, ...]
    _: KW_ONLY
    count: int = 200
    shots: int = 8
    seed: int = 0
    nodes: int = 8
    threads: int = 1
    json: Path | None = None
    show: int = 0

    def run(self) -> None:
        asked = made_up(self.count, self.shots, self.seed)
        found = [self._ask(name, asked) for name in self.models]
        table = Table("model", "exactly right", "nats a token of right answers", "drafted as plain", "tokens per step")
        for one in found:
            drafted = ("-", "-") if one.same is None else (f"{one.same:.1%}", f"{one.tokens_per_step:.2f}")
            table.add_row(one.model, f"{one.exact:.1%}", f"{one.nats_per_token:.4f}", *drafted)
        common.show(table)
        if self.json:
            self.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")

    def _sessions(self, name: str) -> tuple[native.Model, list[native.Session]]:
        """The model; plain decoding and, with heads, drafts."""
        reference = common.find_model(name)
        model = native.Model(str(reference.path), n_gpu_layers=0)
        sessions = [native.Session(model, n_ctx=2048, n_threads=self.threads)]
        inside = schema.KIND_KEY in native.read_gguf(str(reference.path)).metadata
        if path := reference.heads.path if reference.heads else reference.path if inside else None:
            heads = native.Heads(model, str(path))
            tree = native.Tree(greedy_tree(heads.accuracy, self.nodes))
            sessions.append(native.Session(model, heads, tree=tree, n_ctx=2048, n_threads=self.threads))
        return model, sessions

    def _ask(self, name: str, asked: list[tuple[str, str]]) -> Found:
        from _native_testing import score

        model, sessions = self._sessions(name)
        right = same = tokens = steps = 0
        committed = nats = 0.0
        for at, (prompt, answer) in enumerate(asked):
            given = model.tokenize(prompt, add_special=True, parse_special=False)
            whole = model.tokenize(prompt + answer + "\n", add_special=True, parse_special=False)
            wanted = len(whole) - len(given)
            said = [session.generate(given, max_tokens=wanted + 16, stop=["\n"]) for session in sessions]
            right += said[0].text.strip() == answer.strip()
            nats += sum(score(model, whole, n_threads=self.threads)[1][-wanted:])
            tokens += wanted
            if len(said) > 1:
                same += said[1].text == said[0].text
                stats = said[1].stats
                drafted = stats["steps"] - stats["plain_steps"]
                steps, committed = steps + drafted, committed + stats["tokens_per_step"] * drafted
            if at < self.show:
                print(f"{prompt.rsplit('Question: ', 1)[1]} {said[0].text.strip()!r}, right: {answer.strip()!r}")
        count = len(asked)
        drafts = (same / count, committed / steps) if steps else (None, None)
        return Found(Path(name).name, right / count, nats / tokens, *drafts)


def parser() -> ArgumentParser:
    return common.parser(__doc__, Loops, Lossless, Queries)


if __name__ == "__main__":
    common.main(parser())
