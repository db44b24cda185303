"""What steps cost beside their pass: drafts, lookup, commits, the type of the cache.

    python benchmarks/steps.py streams MODEL [--layers 2 4] [--rank 32]
    python benchmarks/steps.py lookup
    python benchmarks/steps.py commit [--context 32768] [--leaves 42]
    python benchmarks/steps.py caches MODEL [--context 32000] [--types f16 q8_0]

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from argparse import ArgumentParser
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from statistics import median

import common
import numpy as np
from common import DOCS, fixed_text
from medusa_cli.converters.gguf.fingerprint import fingerprint
from medusa_cli.converters.heads import schema
from medusa_cli.converters.heads.draft_heads import Block, DraftHeads, write_heads
from medusa_cli.converters.heads.stream_heads import StreamHeads
from rich.table import Table

from medusa_cli import native

LEVELS, ROWS, TOKENS = 4, 8192, 24
TREE = [[0], [1], [0, 0], [0, 1], [0, 0, 0], [1, 0], [0, 0, 0, 0]]


class Maker:
    """Writes random heads for a model. rank: of the streams' adapters, 0: none."""

    def __init__(self, path: Path, folder: Path, rank: int) -> None:
        self.rank = rank
        self.file, self.folder, self.rng = native.read_gguf(str(path)), folder, np.random.default_rng(0)
        self.shapes = {tensor.name: tensor.shape for tensor in self.file.tensors}
        architecture = self.file.metadata["general.architecture"]
        self.hidden = int(self.file.metadata[f"{architecture}.embedding_length"])
        self.layers = int(self.file.metadata[f"{architecture}.block_count"])
        self.rows = len(self.file.metadata["tokenizer.ggml.tokens"])
        self.d2t = np.arange(min(ROWS, self.rows))

    def half(self, rows: int, columns: int) -> np.ndarray:
        return (self.rng.standard_normal((rows, columns), np.float32) / np.sqrt(columns)).astype(np.float16)

    def block(self, width: int) -> Block:
        return Block(self.half(self.hidden, width), np.zeros(self.hidden, np.float32))

    def heads(self, kind: str, blocks: int) -> Path:
        widths = [self.hidden * (k + 2) if kind != "medusa" else self.hidden for k in range(LEVELS)]
        return self.write(
            kind,
            DraftHeads(
                blocks=[[self.block(width), *(self.block(self.hidden) for _ in range(blocks - 1))] for width in widths],
                residuals=[self.block(width) for width in widths] if kind != "medusa" else [],
                lm_head="draft_vocab",
                d2t=self.d2t,
                kind=kind,
                weight_type="q8_0",
                base_name="",
                base_fingerprint=fingerprint(self.file.metadata),
            ),
        )

    def streams(self, layers: int) -> Path:
        first = self.layers - layers
        adapters = []
        for layer in range(first, self.layers):
            shapes = {name: self.shapes[f"blk.{layer}.{name}.weight"][::-1] for name in schema.STREAM_MATRICES}
            adapters.append(
                {
                    name: (self.half(self.rank, shape[1]), self.half(shape[0], self.rank))
                    for name, shape in shapes.items()
                }
            )
        return self.write(
            f"streams{layers}",
            StreamHeads(
                embedding=self.rng.standard_normal((LEVELS, self.hidden)).astype(np.float32),
                first_layer=first,
                layers=layers,
                adapters=adapters if self.rank else [],
                alpha=float(self.rank),
                mode="lossless" if self.rank else "shared",
                d2t=self.d2t,
                root=(np.ones((64, self.hidden), np.float16), np.ones((self.hidden, 64), np.float16)),
                base_name="",
                base_fingerprint=fingerprint(self.file.metadata),
            ),
        )

    def write(self, name: str, heads: DraftHeads | StreamHeads) -> Path:
        path = self.folder / f"{name}.gguf"
        write_heads(path, heads)
        return path

    def share(self, layers: int) -> float:
        """Of the bytes that a pass of the model reads: those of the top layers, of adapters, of the draft's rows."""
        sizes = {tensor.name: tensor.nbytes for tensor in self.file.tensors}
        output = sizes.get("output.weight", sizes["token_embd.weight"])
        all_layers = sum(size for name, size in sizes.items() if name.startswith("blk."))
        top = sum(
            sizes[name] for name in sizes if name.startswith("blk.") and int(name.split(".")[1]) >= self.layers - layers
        )
        added = sum(
            2 * self.rank * sum(self.shapes[f"blk.{layer}.{name}.weight"])
            for layer in range(self.layers - layers, self.layers)
            for name in schema.STREAM_MATRICES
        )
        return (top + added + output * len(self.d2t) / self.rows) / (all_layers + output)


@dataclass
class Streams:
    """What a draft costs: streams through a model's own top layers beside Medusa and Hydra heads.

    Random heads of 4 levels each (Medusa with one block, Hydra with two, q8_0; streams with adapters in f16, none with
    --rank 0) over a draft vocabulary of 8192 tokens fill the same tree of 8 nodes. Sessions take turns; the least time
    of a draft and of a pass among the rounds. Expected: the time of a pass over as many nodes as there are streams,
    times the share of the weights that the streams read.
    """

    model: str
    _: KW_ONLY
    layers: tuple[int, ...] = (2, 4)
    rank: int = 32
    context: int = 200
    rounds: int = 6
    threads: int = 0

    def run(self) -> None:
        path = common.find_model(self.model).path
        model = native.Model(str(path))
        with tempfile.TemporaryDirectory() as folder:
            maker = Maker(path, Path(folder), self.rank)
            files = {"medusa": maker.heads("medusa", 1), "hydra": maker.heads("hydra", 2)}
            files |= {f"streams, {layers} layers": maker.streams(layers) for layers in self.layers}
            tree = native.Tree(TREE)
            sessions = {
                name: native.Session(model, native.Heads(model, str(file)), tree=tree, n_threads=self.threads)
                for name, file in files.items()
            }
            sizes = {name: file.stat().st_size / 1e6 for name, file in files.items()}
        prompt = fixed_text(model, self.context)
        timer = native.VerifyTimer(model, LEVELS, n_threads=self.threads)
        plain, wide = math.inf, math.inf
        least: dict[str, tuple[float, float]] = dict.fromkeys(sessions, (math.inf, math.inf))
        for _ in range(self.rounds):
            plain = min(plain, *timer.time(1, passes=8)[1:])
            wide = min(wide, *timer.time(LEVELS, passes=8)[1:])
            for name, session in sessions.items():
                stats = session.generate(prompt, max_tokens=TOKENS, ignore_eos=True).stats
                draft, verify = (stats["timings_ms"][part] / stats["steps"] for part in ("draft", "verify"))
                least[name] = min(least[name][0], draft), min(least[name][1], verify)
        table = Table("drafter", "draft, ms", "of a plain step", "expected, ms", "check of 8 nodes, ms", "file, MB")
        for name, (draft, verify) in least.items():
            expected = f"{maker.share(int(name.split()[1])) * wide:.2f}" if name.startswith("streams") else ""
            table.add_row(name, f"{draft:.2f}", f"{draft / plain:.2f}", expected, f"{verify:.2f}", f"{sizes[name]:.1f}")
        common.show(f"plain step {plain:.2f} ms, over {LEVELS} nodes {wide:.2f} ms", table)


VOCABULARY, DRAFTED = 49_152, 15
PIECE, REPEATED = 24, 0.3  # tokens of a piece; the share of pieces that stood there before
PARTS = (1_024, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072)  # where a row of the table ends


def conversation(length: int) -> list[int]:
    """So many token ids, of which about REPEATED stand in pieces that occurred before."""
    rng = random.Random(0)
    text: list[int] = []
    while len(text) < length:
        if len(text) > PIECE and rng.random() < REPEATED:
            start = rng.randrange(len(text) - PIECE)
            text += text[start : start + PIECE]
        else:
            text += [rng.randrange(VOCABULARY) for _ in range(PIECE)]
    return text[:length]


@dataclass
class Lookup:
    """What prompt lookup costs a token, by how long the text is already.

    The text repeats itself now and then, as a conversation does: pieces of earlier tokens between new ones. For each
    part of the text, the microseconds of CPU time for one token: it is appended, the longest match is found, and 15
    tokens that followed the match are read.
    """

    _: KW_ONLY
    length: int = 131_072
    repeat: int = 5

    def run(self) -> None:
        from _native_testing import LookupIndex

        text = conversation(self.length)
        parts = [end for end in PARTS if end <= self.length]
        best = dict.fromkeys(parts, float("inf"))
        for _ in range(self.repeat):
            index, begin = LookupIndex(2, 8), 0
            for end in parts:
                start = time.process_time()
                for token in text[begin:end]:
                    index.append(token)
                    index.continuation(DRAFTED)
                best[end] = min(best[end], (time.process_time() - start) / (end - begin) * 1e6)
                begin = end
        table = Table("tokens", "µs a token")
        begin = 0
        for end, cost in best.items():
            table.add_row(f"{begin:,} to {end:,}", f"{cost:.2f}")
            begin = end
        common.show(table)


@dataclass
class Commit:
    """What committing the accepted path costs in a long context, with a wide tree.

    Fills the given shares of the context with random tokens, then generates with a tree of --leaves leaves: the
    engine's own times per step.
    """

    _: KW_ONLY
    model: str = "demo"
    heads: Path | None = None
    context: int = 32768
    leaves: int = 42
    fill: tuple[float, ...] = (0.01, 0.25, 0.98)
    max_tokens: int = 64

    def run(self) -> None:
        bench = common.Bench(self.model, self.heads, 1)
        # A chain through the first heads beside single guesses: as many leaves as asked for, as deep as the heads go.
        chain = [[0] * length for length in range(1, bench.heads.head_count + 1)]
        tree = native.Tree(chain + [[rank] for rank in range(1, self.leaves)])
        session = native.Session(bench.model, bench.heads, tree=tree, n_ctx=self.context)
        rng = random.Random(0)
        tokens = [rng.randrange(1000, bench.model.n_vocab - 1000) for _ in range(self.context)]
        table = Table("cells used", "tokens/step", "draft", "verify", "accept", "commit", "other", title="ms per step")
        for fill in sorted(self.fill):
            count = min(int(self.context * fill), self.context - self.max_tokens - tree.size)
            result = session.generate(tokens[:count], max_tokens=self.max_tokens, ignore_eos=True)
            steps = result.stats["steps"]
            times = [f"{value / steps:.3f}" for value in result.stats["timings_ms"].values()]
            table.add_row(str(count), f"{result.stats['tokens_per_step']:.2f}", *times)
        common.show(table, f"tree of {tree.size} nodes, {tree.leaf_count} leaves; context {session.n_ctx}")


@dataclass
class Caches:
    """What a quantized KV cache brings behind a long text: plain tokens with each type of cache, in turn.

    Each session reads the same text once (the training passages, then --text; default: the pages in docs) and goes on
    with it for --max-tokens a round, greedily. Milliseconds of a token: the median over the rounds.
    """

    model: str
    _: KW_ONLY
    context: int = 32000
    types: tuple[str, ...] = ("f16", "q8_0")
    max_tokens: int = 16
    rounds: int = 4
    threads: int = 2
    text: tuple[Path, ...] = DOCS

    def run(self) -> None:
        model = common.open_model(self.model)
        text = fixed_text(model, self.context, self.text)
        n_ctx = self.context + self.max_tokens + 1
        sessions = {
            name: native.Session(model, n_ctx=n_ctx, type_k=name, type_v=name, n_threads=self.threads)
            for name in self.types
        }
        times: dict[str, list[float]] = {name: [] for name in sessions}
        for turn in range(self.rounds + 1):  # the first one reads the text
            for name, session in sessions.items():
                answer = session.generate(text, max_tokens=self.max_tokens, ignore_eos=True)
                if turn:
                    steps = sum(answer.stats["timings_ms"].values())
                    times[name].append(steps / (len(answer.tokens) - 1))
        first = median(times[self.types[0]])
        table = Table("cache", "ms a token", "speed")
        for name, found in times.items():
            table.add_row(name, f"{median(found):.1f}", f"{first / median(found):.2f}")
        common.show(table)


def parser() -> ArgumentParser:
    return common.parser(__doc__, Streams, Lookup, Commit, Caches)


if __name__ == "__main__":
    common.main(parser())
