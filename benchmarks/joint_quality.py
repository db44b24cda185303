"""How far a changed model is from the one it was made from, beside what quantizing does.

    python benchmarks/joint_quality.py BASE --new NEW.gguf ... [--data question.jsonl] [--questions 20] [-n 96]
                                       [--other-tokens 3000] [--yardstick Q8_0 Q6_K Q5_1] [--judge OTHER.gguf]
                                       [--threads 1] [--json FILE]

BASE answers the questions, greedily; then BASE and each NEW read these answers (own text) and the package's passages
(other text): mean KL(BASE || NEW), how often the likeliest token is the same, both perplexities. --yardstick quantizes
BASE again to each of the types (the recipes people download: files with several types), and measures each against the
one before, the first against BASE. Then each model answers the questions itself: the share of 4-grams that repeat an
earlier one of the same answer, tokens an answer, and, with --judge, how likely another model finds these answers, in
nats a byte.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from medusa_cli.converters.gguf.file_types import FILE_TYPES
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding import prompts
from medusa_cli.models import references
from medusa_cli.prompts import bench_set
from medusa_cli.prompts.seeds.passages import PASSAGES

CONSOLE = Console()
NGRAM = 4


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

        from medusa_cli.training.backbone.weights import BaseTensors

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
        tokens = prompts.chat_tokens(model, [{"role": "user", "content": question}])
        session.reset()
        made = session.generate(tokens, max_tokens=count, sampling=native.Sampling(temperature=0.0)).tokens
        found.append(Passage([*tokens, *made], len(made)))
    return [passage for passage in found if passage.scored]


def described(name: str, model: native.Model, texts: Sequence[Passage], judge: native.Model | None) -> Answers:
    repeated = count = tokens = 0
    nats, size = 0.0, 0
    for passage in texts:
        made = passage.tokens[-passage.scored :]
        grams = [tuple(made[at : at + NGRAM]) for at in range(len(made) - NGRAM + 1)]
        repeated, count, tokens = repeated + len(grams) - len(set(grams)), count + len(grams), tokens + len(made)
        if judge is not None:
            text = model.detokenize(made)
            judged = judge.tokenize(text)
            if len(judged) > 1:
                nats, size = nats + sum(native.score(judge, judged)[1]), size + len(text.encode())
    return Answers(name, repeated / max(count, 1), tokens / len(texts), nats / size if size else None)


def quantized(base: Path, kind: str, folder: Path, threads: int) -> Path:
    number = next(number for number, name in FILE_TYPES.items() if name == kind)
    path = folder / f"{kind}.gguf"
    native.quantize_model(str(base), str(path), file_type=number, allow_requantize=True, n_threads=threads)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("--new", type=Path, nargs="*", default=[])
    parser.add_argument("--data", type=Path, default=bench_set.BUILT_IN_FILE)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("-n", "--max-tokens", type=int, default=96)
    parser.add_argument("--other-tokens", type=int, default=3000)
    parser.add_argument("--yardstick", nargs="*", default=[], choices=list(FILE_TYPES.values()), metavar="TYPE")
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    import torch

    torch.set_num_threads(arguments.threads)
    base = references.resolve(arguments.base, Console(stderr=True)).path
    threads, count = arguments.threads, arguments.max_tokens
    questions = [prompt.text for prompt in bench_set.read(arguments.data)[: arguments.questions]]
    model = native.Model(str(base), n_gpu_layers=0)
    judge = native.Model(str(arguments.judge), n_gpu_layers=0) if arguments.judge else None
    own = answer(model, questions, count, threads)
    foreign: list[Passage] = []
    answers = [described("the model itself", model, own, judge)]
    for text in PASSAGES:
        tokens = model.tokenize(text)
        if sum(passage.scored for passage in foreign) < arguments.other_tokens:
            foreign.append(Passage(tokens, len(tokens) - 1))
    longest = max(len(passage.tokens) for passage in (*own, *foreign))
    found: dict[str, dict[str, Any]] = {}

    def measure(name: str, old: Reader, new: Reader) -> None:
        found[name] = {"own": asdict(compare(old, new, own)), "other": asdict(compare(old, new, foreign))}

    opened = Reader(base, longest, threads)
    for path in arguments.new:
        new = Reader(path, longest, threads)
        measure(path.stem, opened, new)
        answers.append(described(path.stem, new.model, answer(new.model, questions, count, threads), judge))
    with tempfile.TemporaryDirectory() as folder:
        before, last = opened, str(base.stem)
        for kind in arguments.yardstick:
            after = Reader(quantized(base, kind, Path(folder), threads), longest, threads)
            measure(f"{last if before is not opened else 'base'} to {kind}", before, after)
            before, last = after, kind
    show(found, answers)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"distances": found, "answers": [asdict(one) for one in answers]}, indent=1) + "\n"
        )


def show(found: dict[str, dict[str, Any]], answers: list[Answers]) -> None:
    table = Table("change", "text", "tokens", "KL", "same likeliest", "perplexity", "before", "change of it")
    for name, texts in found.items():
        for text, far in texts.items():
            change = 100 * (far["perplexity"] / far["base_perplexity"] - 1)
            table.add_row(
                name, text, str(far["tokens"]), f"{far['kl']:.4f}", f"{far['top1']:.1%}", f"{far['perplexity']:.3f}",
                f"{far['base_perplexity']:.3f}", f"{change:+.2f}%",
            )  # fmt: skip
    CONSOLE.print(table)
    table = Table("answers of", "repeated 4-grams", "tokens", "nats a byte by the judge")
    for one in answers:
        judged = "" if one.judged is None or math.isnan(one.judged) else f"{one.judged:.4f}"
        table.add_row(one.name, f"{one.repeated:.1%}", f"{one.tokens:.0f}", judged)
    CONSOLE.print(table)


if __name__ == "__main__":
    main()
