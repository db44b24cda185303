"""What MTP layers, EAGLE-3 files and draft models bring: levels beside their bytes, whole speed, llama.cpp's driving.

    python benchmarks/drafters.py speed MODEL [--drafter FILE] [--accept 0.67] [--behind 8000]
    python benchmarks/drafters.py beside MODEL --llama-server FILE [--drafter FILE] [--accept 0.67]
    python benchmarks/drafters.py write FILE [--vocabulary 248320]
    python benchmarks/drafters.py eagle MODEL FILE [--size 8b]
    python benchmarks/drafters.py fewer MODEL FILE [--layers 0 1 26 27]
    python benchmarks/drafters.py rows MODEL TEXT...

The models are made up, too: `write` makes one in the shape of Qwen3.5, of 1.2 billion parameters, with one layer, which
with `--agree 0.67` or `0.9` often says what the model says. `eagle` makes one in the shape of Llama 3.1 8B, and an
EAGLE-3 drafter for it. `fewer` makes a draft model of a model's own layers, which drafts nothing useful, but at the
price of one that was tuned.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import time
import urllib.request
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import common
import made_up_model
import numpy as np
from medusa_cli.converters.gguf.header import UINT32, build, encode_kv, padded, placed, read_header
from rich.table import Table

from medusa_cli import native
from medusa_cli.support.atomic import atomic_file
from medusa_cli.support.errors import MedusaError

CHAIN = 3
"""Drafts in a row, unless --chain says otherwise: llama-server's default."""
STARTS_S = 120


def chain(length: int) -> native.Tree:
    return native.Tree([[0] * depth for depth in range(1, length + 1)])


def prompt(length: int, number: int = 0) -> list[int]:
    """Made up: token ids."""
    return [int(token) for token in np.random.default_rng(number).integers(5, 250, length)]


@dataclass(frozen=True)
class Speed:
    """Plain decoding and chains, and drafts grown by prices, in alternating rounds, each in a session of its own.

    --drafter: a file that drafts in place of the model's own layers. --accept: each draft is accepted with this
    probability, whatever the model says; growing learns nothing from that and is left out. Else the model decides, on
    other made-up prompts in each round. A level's share is that of its bytes: the layer and the output matrix beside
    all that a pass reads. --draft-rows: of the output matrix; 0: all, by default a part of a large vocabulary. Growing
    is left out with a draft model, too.
    """

    model: str
    _: KW_ONLY
    drafter: Path | None = None
    accept: float | None = None
    chain: int = CHAIN
    behind: int = 60
    tokens: int = 96
    rounds: int = 5
    draft_rows: int | None = None

    def run(self) -> None:
        path = str(common.find_model(self.model).path)
        model, drafter = load(path, self.drafter)
        is_model = self.drafter is not None and is_draft_model(self.drafter)
        ways: dict[str, dict[str, Any]] = {
            "plain": {},
            "chain of 1": {"tree": chain(1)},
            f"chain of {self.chain}": {"tree": chain(self.chain)},
            **({} if self.accept or is_model else {"grown": {"dynamic": native.DynamicTree()}}),
        }
        drafts = {"draft_model": drafter} if is_model else {"drafter": drafter, "draft_rows": self.draft_rows}
        for way in ways.values():
            way.update(drafts if way else {})
        n_ctx = self.behind + self.tokens + 64
        sessions = {name: native.Session(model, n_ctx=n_ctx, **way) for name, way in ways.items()}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sessions}
        for number in range(self.rounds + 1):
            for name, session in sessions.items():
                found[name].append(self._figures(session, prompt(self.behind, number), drafts=name != "plain"))
        found = {name: figures[1:] for name, figures in found.items()}
        files = [native.read_gguf(str(path))] + ([native.read_gguf(str(self.drafter))] if self.drafter else [])
        show(found, share(*files), self.chain)

    def _figures(self, session: native.Session, prompt: Sequence[int], *, drafts: bool) -> dict[str, float]:
        rule = native.Accept("synthetic", synthetic_rate=self.accept) if drafts and self.accept else None
        stats = session.generate(prompt, max_tokens=self.tokens, ignore_eos=True, accept=rule).stats
        each = {name: ms / stats["steps"] for name, ms in stats["timings_ms"].items()}
        return {"speed": stats["tokens_per_second"], "tokens": stats["tokens_per_step"], **each}


def load(path: str, drafter: Path | None) -> tuple[native.Model, native.Model]:
    """The model, and what drafts for it: another file, or itself."""
    model = native.Model(path, n_gpu_layers=0, next_layers=drafter is None)
    if drafter is None:
        return model, model
    return model, native.Model(str(drafter), n_gpu_layers=0, next_layers=not is_draft_model(drafter))


def is_draft_model(path: Path) -> bool:
    """Whether a file drafts by its own, not from the states of another model."""
    file = native.read_gguf(str(path))
    return file.next_layers == 0 and not str(file.get("general.architecture")).startswith(("eagle", "dflash"))


def share(file: native.GgufFile, drafter: native.GgufFile | None = None) -> float:
    """Bytes of one next-token layer with the output matrix, over those that a plain pass reads."""
    if drafter is not None:
        return bytes_read(drafter) / bytes_read(file)
    first = int(file.get(f"{file.get('general.architecture')}.block_count")) - file.next_layers
    sizes = {tensor.name: tensor.nbytes for tensor in file.tensors}
    tied = "output.weight" not in sizes
    output = sizes["token_embd.weight" if tied else "output.weight"]
    layer = sum(nbytes for name, nbytes in sizes.items() if name.startswith(f"blk.{first}."))
    layers = sum(nbytes for name, nbytes in sizes.items() if name.startswith("blk.") and not is_next(name, first))
    return (layer + output) / (layers + output)


def bytes_read(file: native.GgufFile) -> int:
    """By a pass over one token: of embeddings, only where they are the output matrix, too. What EAGLE's `fc` reads is
    from the pass before."""
    sizes = {tensor.name: tensor.nbytes for tensor in file.tensors}
    left_out = ("token_embd", "fc") if "output.weight" in sizes else ("fc",)
    return sum(nbytes for name, nbytes in sizes.items() if not name.startswith(left_out))


def is_next(name: str, first: int) -> bool:
    return int(name.split(".")[1]) >= first


def show(found: dict[str, list[dict[str, float]]], share: float, longest: int) -> None:
    def middle(name: str, key: str) -> float:
        return statistics.median(figures[key] for figures in found[name])

    table = Table("", "tokens/s", "over plain", "tokens a step", "ms draft", "ms verify")
    for name, rounds in found.items():
        ratio = statistics.median(
            mine["speed"] / base["speed"] for mine, base in zip(rounds, found["plain"], strict=True)
        )
        table.add_row(
            name, f"{middle(name, 'speed'):.1f}", f"{ratio:.2f}", f"{middle(name, 'tokens'):.2f}",
            f"{middle(name, 'draft'):.2f}", f"{middle(name, 'verify'):.2f}",
        )  # fmt: skip
    long = f"chain of {longest}"
    levels = [(b["draft"] - a["draft"]) / (longest - 1) for a, b in zip(found["chain of 1"], found[long], strict=True)]
    costs = [level / base["verify"] for level, base in zip(levels, found["plain"], strict=True)]
    cost = statistics.median(costs)
    common.show(table, f"a level takes {cost:.3f} of a plain pass, {cost / share:.2f} of its share of the bytes")


@dataclass(frozen=True)
class Beside:
    """`medusa` beside llama-server with the same drafter, chains as long, the same acceptance, and both plain.

    llama-server, a program of the same release built from its source, runs on its own kernels.
    """

    model: str
    _: KW_ONLY
    llama_server: Path
    drafter: Path | None = None
    accept: float = 0.67
    chain: int = CHAIN
    tokens: int = 96
    rounds: int = 5
    threads: int = 2

    def run(self) -> None:
        path = str(common.find_model(self.model).path)
        model, drafter = load(path, self.drafter)
        text = prompt(60)
        rates = ",".join(f"{self.accept**depth:.4f}" for depth in range(1, self.chain + 1))
        kind = ["draft-eagle3", "--model-draft", str(self.drafter)] if self.drafter else ["draft-mtp"]
        drafts = ["--spec-type", *kind, "--spec-draft-n-max", str(self.chain), "--spec-synth-rates", rates]
        ours: dict[str, dict[str, Any]] = {
            "medusa, plain": {},
            "medusa, drafts": {"drafter": drafter, "tree": chain(self.chain)},
        }
        sessions = {
            name: native.Session(model, n_ctx=1024, n_threads=self.threads, **way) for name, way in ours.items()
        }
        speeds: dict[str, list[float]] = {name: [] for name in (*ours, "llama-server, plain", "llama-server, drafts")}
        with self._server(path, 8191, []) as plain, self._server(path, 8192, drafts) as drafting:
            for _ in range(self.rounds + 1):
                for name, session in sessions.items():
                    rule = native.Accept("synthetic", synthetic_rate=self.accept) if "drafter" in ours[name] else None
                    answer = session.generate(text, max_tokens=self.tokens, ignore_eos=True, accept=rule)
                    speeds[name].append(answer.stats["tokens_per_second"])
                speeds["llama-server, plain"].append(self._ask(plain, text))
                speeds["llama-server, drafts"].append(self._ask(drafting, text))
        table = Table("", "tokens/s", "over its plain", "over llama-server's plain")
        middle = {name: statistics.median(found[1:]) for name, found in speeds.items()}
        for name, speed in middle.items():
            own = middle[f"{name.split(',')[0]}, plain"]
            table.add_row(name, f"{speed:.1f}", f"{speed / own:.2f}", f"{speed / middle['llama-server, plain']:.2f}")
        common.show(table)

    @contextmanager
    def _server(self, model: str, port: int, more: Sequence[str]) -> Iterator[str]:
        """Its address, once it answers."""
        command = [str(self.llama_server), "-m", model, "--port", str(port), "-c", "1024", "-np", "1", "-t",
                   str(self.threads), "-ngl", "0", *more]  # fmt: skip
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            begun = time.monotonic()
            while not answers(f"http://127.0.0.1:{port}/health"):
                if server.poll() is not None or time.monotonic() - begun > STARTS_S:
                    raise MedusaError(f"{self.llama_server} does not start with {' '.join(more) or 'this model'}")
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()

    def _ask(self, address: str, prompt: Sequence[int]) -> float:
        body = {"prompt": list(prompt), "n_predict": self.tokens, "temperature": 0, "ignore_eos": True,
                "cache_prompt": False}  # fmt: skip
        request = urllib.request.Request(f"{address}/completion", json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            return float(json.load(answer)["timings"]["predicted_per_second"])


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address):
            return True
    except OSError:
        return False


@dataclass(frozen=True)
class Write:
    """A made-up model in the shape of Qwen3.5 with a next-token layer."""

    file: Path
    _: KW_ONLY
    vocabulary: int = 32000
    agree: float = 0.0

    def run(self) -> None:
        size = dataclasses.replace(made_up_model.HYBRID_1B, vocabulary=self.vocabulary)
        made_up_model.write_hybrid(self.file, size, mtp=made_up_model.STRENGTHS[self.agree] if self.agree else 0.0)


@dataclass(frozen=True)
class Eagle:
    """A made-up model in the shape of Llama 3.1 8B, and an EAGLE-3 drafter for it."""

    model: Path
    drafter: Path
    _: KW_ONLY
    size: str = "8b"

    def run(self) -> None:
        size = made_up_model.SIZES[self.size]
        made_up_model.write_base(self.model, size)
        made_up_model.write_eagle(self.drafter, size)


@dataclass(frozen=True)
class Fewer:
    """A model of some of another's layers, in this order, with its embeddings and its output matrix."""

    model: str
    file: Path
    _: KW_ONLY
    layers: tuple[int, ...] = (0, 1, 26, 27)

    def run(self) -> None:
        source = common.find_model(self.model).path
        header, _ = read_header(source)
        count = encode_kv(f"{header.get('general.architecture')}.block_count", UINT32, len(self.layers))
        kv = [count if entry.key == count.key else entry for entry in header.kv]
        kept = [tensor for tensor in header.tensors if not tensor.name.startswith("blk.")]
        for number, layer in enumerate(self.layers):
            name = f"blk.{layer}."
            found = [tensor for tensor in header.tensors if tensor.name.startswith(name)]
            if not found:
                raise MedusaError(f"{source}: no layer {layer}")
            kept += [dataclasses.replace(one, name=one.name.replace(name, f"blk.{number}.")) for one in found]
        new = placed(kept, 0, header.alignment)
        with source.open("rb") as whole, atomic_file(self.file) as out:
            out.write(build(kv, new, header.alignment, header.version))
            for old, tensor in zip(kept, new, strict=True):
                whole.seek(header.data_offset + old.offset)
                out.write(whole.read(tensor.nbytes).ljust(padded(tensor.nbytes, header.alignment), b"\0"))


@dataclass(frozen=True)
class Rows:
    """How many tokens of texts would not be among the rows that a drafter with a large vocabulary chooses from.

    These are the first ones, and the newest others (native/draft_model/output_rows.h).
    """

    model: str
    texts: tuple[Path, ...]
    _: KW_ONLY
    first: int = 32768
    newest: int = 1024

    def run(self) -> None:
        model = native.Model(str(common.find_model(self.model).path), n_gpu_layers=0, repack=False)
        table = Table("text", "tokens", "beyond the first", "nor among the newest")
        for path in self.texts:
            tokens = model.tokenize(path.read_text("utf-8"), add_special=False)
            others: dict[int, None] = {}  # in the order of their last use
            beyond = missing = 0
            for token in (token for token in tokens if token >= self.first):
                beyond += 1
                missing += token not in others
                others.pop(token, None)
                others[token] = None
                if len(others) > self.newest:
                    del others[next(iter(others))]
            table.add_row(path.name, str(len(tokens)), f"{beyond / len(tokens):.3f}", f"{missing / len(tokens):.3f}")
        common.show(table)


def parser() -> ArgumentParser:
    return common.parser(__doc__, Speed, Beside, Write, Eagle, Fewer, Rows)


if __name__ == "__main__":
    common.main(parser())
