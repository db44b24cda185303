"""What a draft costs: streams through a model's own top layers beside Medusa and Hydra heads.

    python benchmarks/stream_cost.py MODEL [--layers 2 4] [--rank 32] [--context 200] [--rounds 6] [--threads 0]

Random heads of 4 levels each (Medusa with one block, Hydra with two, q8_0; streams with adapters in f16, none with
--rank 0) over a draft vocabulary of 8192 tokens fill the same tree of 8 nodes. Sessions take turns; the table shows the
least time of a draft and of a pass among the rounds. Expected: the time of a pass over as many nodes as there are
streams, times the share of the weights that the streams read.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np
from common import fixed_text
from medusa_cli.converters.gguf.fingerprint import fingerprint
from medusa_cli.converters.heads import schema
from medusa_cli.converters.heads.draft_heads import Block, DraftHeads, write_heads
from medusa_cli.converters.heads.stream_heads import StreamHeads
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.models import references

LEVELS, ROWS, TOKENS = 4, 8192, 24
TREE = [[0], [1], [0, 0], [0, 1], [0, 0, 0], [1, 0], [0, 0, 0, 0]]


class Maker:
    """Writes random heads for a model."""

    def __init__(self, path: Path, folder: Path, rank: int) -> None:
        self.rank = rank
        self.file, self.folder, self.rng = native.read_gguf(str(path)), folder, np.random.default_rng(0)
        self.shapes = {tensor.name: tensor.shape for tensor in self.file.tensors}
        architecture = self.file.metadata["general.architecture"]
        self.hidden = int(self.file.metadata[f"{architecture}.embedding_length"])
        self.layers = int(self.file.metadata[f"{architecture}.block_count"])
        self.d2t = np.arange(min(ROWS, len(self.file.metadata["tokenizer.ggml.tokens"])))

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
                root_scale=np.ones(self.hidden, np.float32),
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
        return (top + added + output * len(self.d2t) / self.rows()) / (all_layers + output)

    def rows(self) -> int:
        return len(self.file.metadata["tokenizer.ggml.tokens"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()

    path = references.resolve(args.model, Console(stderr=True)).path
    model = native.Model(str(path))
    with tempfile.TemporaryDirectory() as folder:
        maker = Maker(Path(path), Path(folder), args.rank)
        files = {"medusa": maker.heads("medusa", 1), "hydra": maker.heads("hydra", 2)}
        files |= {f"streams, {layers} layers": maker.streams(layers) for layers in args.layers}
        tree = native.Tree(TREE)
        sessions = {
            name: native.Session(model, native.Heads(model, str(file)), tree=tree, n_threads=args.threads)
            for name, file in files.items()
        }
        sizes = {name: file.stat().st_size / 1e6 for name, file in files.items()}
    prompt = fixed_text(model, args.context)
    timer = native.VerifyTimer(model, LEVELS, n_threads=args.threads)
    plain, wide = math.inf, math.inf
    least: dict[str, tuple[float, float]] = dict.fromkeys(sessions, (math.inf, math.inf))
    for _ in range(args.rounds):
        plain = min(plain, *timer.time(1, passes=8)[1:])
        wide = min(wide, *timer.time(LEVELS, passes=8)[1:])
        for name, session in sessions.items():
            stats = session.generate(prompt, max_tokens=TOKENS, ignore_eos=True).stats
            found = (stats["timings_ms"][part] / stats["steps"] for part in ("draft", "verify"))
            least[name] = tuple(map(min, zip(least[name], found, strict=True)))
    print(f"plain step {plain:.2f} ms, over {LEVELS} nodes {wide:.2f} ms")
    table = Table("drafter", "draft, ms", "of a plain step", "expected, ms", "check of 8 nodes, ms", "file, MB")
    for name, (draft, verify) in least.items():
        expected = f"{maker.share(int(name.split()[1])) * wide:.2f}" if name.startswith("streams") else ""
        table.add_row(name, f"{draft:.2f}", f"{draft / plain:.2f}", expected, f"{verify:.2f}", f"{sizes[name]:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
