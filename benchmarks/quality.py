"""How good answers are: by rules of acceptance, and of a model that was trained with its heads.

    python benchmarks/quality.py rules --data question.jsonl [--heads A.gguf B.gguf] [--epsilon 0.05 0.09 ...]
    python benchmarks/quality.py models BASE [--new NEW.gguf ...] [--yardstick Q8_0 Q6_K Q5_1]

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

import json
import math
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any

import common
from common import Bench
from medusa_cli.converters.gguf.file_types import FILE_TYPES
from rich.progress import track
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding.tree_search import greedy_tree
from medusa_cli.prompts import bench_set
from medusa_cli.prompts.seeds.data import PASSAGES
from medusa_cli.support.errors import MedusaError

GRAM = 4
COLOURS = ("#1f6fb2", "#d9822b", "#2e8b57", "#7b5ea7")
"""Of the heads files."""


def repeated(tokens: Sequence[int]) -> tuple[int, int]:
    """(4-grams that stood before, all 4-grams)."""
    grams = [tuple(tokens[at : at + GRAM]) for at in range(len(tokens) - GRAM + 1)]
    return len(grams) - len(set(grams)), len(grams)


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
        from _native_testing import score

        before = common.chat_tokens(self.model, question)
        tokens = self.model.tokenize(answer, add_special=False, parse_special=False)
        if not tokens:
            return 0.0
        return sum(score(self.model, [*before, *tokens])[1][len(before) - 1 :])


@dataclass
class Rules:
    """What acceptance rules bring and what they cost: tokens per step and the quality of the text.

    As Medusa's figure 5 and Hydra 6.3 do, for each heads file (default: the model's own), with greedy, exact and
    rejection points, typical over --epsilon. typical: delta = sqrt(epsilon), over the whole sampler chain, or as
    published (`medusa chat --accept typical --as-published`). Quality, of the answers given the prompts: bits per byte
    under the model itself and under a second one (any tokenizer: the text is tokenized anew), and the share of 4-grams
    of tokens that stood in the same answer before. Rows are to be compared with `exact`, which is the model's own
    distribution. --output: a picture, which needs matplotlib.
    """

    _: KW_ONLY
    data: Path
    model: str = "demo"
    heads: tuple[Path, ...] = ()
    second_model: str | None = None
    nodes: int = 16
    max_tokens: int = 128
    temperature: float = 0.7
    epsilon: tuple[float, ...] = (0.05, 0.09, 0.15, 0.2, 0.25)
    as_published: bool = False
    limit: int | None = None
    json: Path | None = None
    output: Path | None = None

    def run(self) -> None:
        questions = common.questions(self.data, self.limit)
        second = Judge(common.open_model(self.second_model)) if self.second_model else None
        rules: list[tuple[str, float | None]] = [("greedy", None), ("exact", None), ("rejection", None)]
        rules += [("typical", epsilon) for epsilon in self.epsilon]
        rows = []
        own: Judge | None = None
        for heads in self.heads or (None,):
            bench = Bench(self.model, heads, 1)
            own = Judge(bench.model, own.known if own else {})
            name = bench.heads.kind if heads is None else heads.stem
            tree = native.Tree(greedy_tree(bench.heads.accuracy, self.nodes))
            session = native.Session(bench.model, bench.heads, tree=tree, n_ctx=2048)
            rows += [self._measure(session, questions, (own, second), (name, *rule)) for rule in rules]
            if self.json:
                self.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1), "utf-8")
        common.show(table_of(rows))
        if self.output:
            draw(rows, self.output)

    def _measure(
        self,
        session: native.Session,
        questions: list[str],
        judges: tuple[Judge, Judge | None],
        row: tuple[str, str, float | None],
    ) -> Row:
        """judges: the model itself, and another. row: heads, rule, epsilon."""
        (own, second), (name, rule, epsilon) = judges, row
        published = self.as_published and rule == "typical"
        limits = {} if epsilon is None else {"epsilon": epsilon, "delta": math.sqrt(epsilon)}
        accept = native.Accept(rule, model_alone=published, greedy_root=published, **limits)
        steps, committed, nats, second_nats, size, again, grams = 0, 0.0, 0.0, 0.0, 0, 0, 0
        for seed, question in enumerate(track(questions, f"{name} {rule} {epsilon or ''}", console=common.MESSAGES)):
            session.reset()
            temperature = 0.0 if rule == "greedy" else self.temperature
            answer = session.generate(
                common.chat_tokens(own.model, question),
                max_tokens=self.max_tokens,
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


@dataclass(frozen=True)
class Passage:
    """tokens of a prompt and what follows; scored: how many of them, at the end, are compared."""

    tokens: list[int]
    scored: int


@dataclass(frozen=True)
class Answers:
    """Of one model to all questions. judged: nats a byte by another model, None without one."""

    name: str
    repeated: float
    tokens: float
    judged: float | None


class Reader:
    """States after the final norm, and the output matrix that belongs to them."""

    def __init__(self, path: Path, longest: int, threads: int) -> None:
        import numpy as np
        import torch

        from medusa_cli.training.backbone.shape import BaseTensors

        self.model = native.Model(str(path), n_gpu_layers=0)
        self.reader = native.StatesReader(self.model, longest, outputs=True, n_threads=threads)
        tensors = BaseTensors(path)
        name = "output.weight" if tensors.has("output.weight") else "token_embd.weight"
        self.output: Any = torch.from_numpy(np.ascontiguousarray(tensors.load(name)))

    def log_p(self, passage: Passage) -> Any:
        """[scored, V], in float32."""
        import torch

        states = self.reader.read(passage.tokens[:-1]).post_norm
        assert states is not None
        return torch.log_softmax(torch.from_numpy(states[-passage.scored :]) @ self.output.T, dim=1)


def compare(old: Reader, new: Reader, texts: Sequence[Passage]) -> Any:
    """A quality.Distance."""
    import torch

    from medusa_cli.training.backbone.quality import Distance

    rows = []
    for passage in texts:
        p, q = old.log_p(passage), new.log_p(passage)
        token = torch.tensor(passage.tokens[-passage.scored :])[:, None]
        costs = [-logp.gather(1, token)[:, 0] for logp in (p, q)]
        same = (p.argmax(dim=1) == q.argmax(dim=1)).float()
        rows.append(torch.stack([(p.exp() * (p - q)).sum(dim=1), same, *costs], dim=1))
    return Distance.of(torch.cat(rows))


def answer(model: native.Model, questions: Sequence[str], count: int, threads: int) -> list[Passage]:
    """Greedily."""
    session = native.Session(model, n_ctx=2048, n_threads=threads)
    found = []
    for question in questions:
        tokens = common.chat_tokens(model, question)
        session.reset()
        made = session.generate(tokens, max_tokens=count, sampling=native.Sampling(temperature=0.0)).tokens
        found.append(Passage([*tokens, *made], len(made)))
    return [passage for passage in found if passage.scored]


def described(name: str, model: native.Model, texts: Sequence[Passage], judge: native.Model | None) -> Answers:
    from _native_testing import score

    again = count = tokens = 0
    nats, size = 0.0, 0
    for passage in texts:
        made = passage.tokens[-passage.scored :]
        found = repeated(made)
        again, count, tokens = again + found[0], count + found[1], tokens + len(made)
        if judge is not None:
            text = model.detokenize(made)
            judged = judge.tokenize(text)
            if len(judged) > 1:
                nats, size = nats + sum(score(judge, judged)[1]), size + len(text.encode())
    return Answers(name, again / max(count, 1), tokens / len(texts), nats / size if size else None)


@dataclass
class Models:
    """How far a changed model is from the one it was made from, beside what quantizing does.

    BASE answers the questions, greedily; then BASE and each NEW read these answers (own text) and the package's
    passages (other text): mean KL(BASE || NEW), how often the likeliest token is the same, both perplexities.
    --yardstick quantizes BASE again to each of the types (the recipes people download: files with several types), and
    measures each against the one before, the first against BASE. Then each model answers the questions itself: the
    share of 4-grams that repeat an earlier one of the same answer, tokens an answer, and, with --judge, how likely
    another model finds these answers, in nats a byte.
    """

    base: str
    _: KW_ONLY
    new: tuple[Path, ...] = ()
    data: Path = bench_set.BUILT_IN_FILE
    questions: int = 20
    max_tokens: int = 96
    other_tokens: int = 3000
    yardstick: tuple[str, ...] = ()
    judge: Path | None = None
    threads: int = 1
    json: Path | None = None

    def run(self) -> None:
        import torch

        numbers = {name: number for number, name in FILE_TYPES.items()}
        if unknown := set(self.yardstick) - set(numbers):
            raise MedusaError(f"no file type {', '.join(unknown)}: there are {', '.join(numbers)}")
        torch.set_num_threads(self.threads)
        base = common.find_model(self.base).path
        questions = common.questions(self.data, self.questions)
        model = native.Model(str(base), n_gpu_layers=0)
        judge = native.Model(str(self.judge), n_gpu_layers=0) if self.judge else None
        own = answer(model, questions, self.max_tokens, self.threads)
        answers = [described("the model itself", model, own, judge)]
        texts = {"own": own, "other": self._passages(model)}
        longest = max(len(passage.tokens) for text in texts.values() for passage in text)
        found: dict[str, dict[str, Any]] = {}

        def measure(name: str, old: Reader, new: Reader) -> None:
            found[name] = {of: asdict(compare(old, new, text)) for of, text in texts.items()}

        opened = Reader(base, longest, self.threads)
        for path in self.new:
            new = Reader(path, longest, self.threads)
            measure(path.stem, opened, new)
            said = answer(new.model, questions, self.max_tokens, self.threads)
            answers.append(described(path.stem, new.model, said, judge))
        with tempfile.TemporaryDirectory() as folder:
            before, last = opened, "base"
            for kind in self.yardstick:
                path, number = Path(folder) / f"{kind}.gguf", numbers[kind]
                native.quantize_model(
                    str(base), str(path), file_type=number, allow_requantize=True, n_threads=self.threads
                )
                after = Reader(path, longest, self.threads)
                measure(f"{last} to {kind}", before, after)
                before, last = after, kind
        show(found, answers)
        if self.json:
            document = {"distances": found, "answers": [asdict(one) for one in answers]}
            self.json.write_text(json.dumps(document, indent=1) + "\n")

    def _passages(self, model: native.Model) -> list[Passage]:
        found: list[Passage] = []
        for text in PASSAGES:
            tokens = model.tokenize(text)
            if sum(passage.scored for passage in found) < self.other_tokens:
                found.append(Passage(tokens, len(tokens) - 1))
        return found


def show(found: dict[str, dict[str, Any]], answers: list[Answers]) -> None:
    table = Table("change", "text", "tokens", "KL", "same likeliest", "perplexity", "before", "change of it")
    for name, texts in found.items():
        for text, far in texts.items():
            change = 100 * (far["perplexity"] / far["base_perplexity"] - 1)
            table.add_row(
                name, text, str(far["tokens"]), f"{far['kl']:.4f}", f"{far['top1']:.1%}", f"{far['perplexity']:.3f}",
                f"{far['base_perplexity']:.3f}", f"{change:+.2f}%",
            )  # fmt: skip
    common.show(table)
    table = Table("answers of", "repeated 4-grams", "tokens", "nats a byte by the judge")
    for one in answers:
        judged = "" if one.judged is None or math.isnan(one.judged) else f"{one.judged:.4f}"
        table.add_row(one.name, f"{one.repeated:.1%}", f"{one.tokens:.0f}", judged)
    common.show(table)


def parser() -> ArgumentParser:
    return common.parser(__doc__, Rules, Models)


if __name__ == "__main__":
    common.main(parser())
