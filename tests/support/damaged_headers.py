"""Damaged GGUF headers, each made from a seed, and a program that opens them in every way there is.

The program is a process of its own, because ggml ends the process over some damaged models (one line, code 1), and
because its memory is limited: no header may ask for more than what is in the file.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from medusa_cli.converters.gguf import header as gh

from medusa_cli.decoding import trial
from medusa_cli.support.errors import MedusaError

Kind = Literal["heads", "base", "embedder"]

COUNTS = (0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
TYPES = (*range(0, 45), 99, 2**16, 2**31, 2**32 - 1)
BYTES = (0x00, 0x0A, 0x1B, 0x7F, 0x80, 0xC3, 0xED, 0xFF)
ALIGNMENTS = (0, 1, 2, 3, 8, 31, 64, 4096, 2**20, 2**31, 2**32 - 1)
# Types and values of entries.
VALUES = (
    struct.pack("<II", gh.UINT32, 3),
    struct.pack("<II", gh.UINT32, 2**32 - 1),
    struct.pack("<Ii", gh.INT32, -1),
    struct.pack("<If", gh.FLOAT32, float("nan")),
    struct.pack("<I?", gh.BOOL, True),
    struct.pack("<IQ", gh.UINT64, 2**63),
    struct.pack("<I", gh.STRING) + gh.encode_string("x\n"),
    struct.pack("<IQ", gh.STRING, 2) + b"\xff\xfe",
    struct.pack("<IIQ", gh.ARRAY, gh.INT32, 0),
    struct.pack("<IIQ3i", gh.ARRAY, gh.INT32, 3, 1, -1, 2**31 - 1),
    struct.pack("<IIQ2f", gh.ARRAY, gh.FLOAT32, 2, float("inf"), float("nan")),
    struct.pack("<IIQ", gh.ARRAY, gh.STRING, 2) + gh.encode_string("ab") + struct.pack("<Q", 1) + b"\xff",
)
SECONDS_PER_FILE = 60
PATTERN, PATTERNED, WEIGHTS = 64, 1 << 20, 16 << 20
"""Bytes, as in native/fuzz_engine/engine.h."""
MEMORY = 1 << 30
"""Bytes that the process may add to what it has with the intact model."""


@dataclass(frozen=True)
class Field:
    """Bytes [at, at + size) of a header; role: what they mean there."""

    role: str
    at: int
    size: int


def fields_of(data: bytes) -> tuple[list[Field], int]:
    """All fields of an intact header in file order, and where its key-values end."""
    fields: list[Field] = []
    at = 0

    def take(role: str, size: int) -> int:
        nonlocal at
        fields.append(Field(role, at, size))
        at += size
        return int.from_bytes(data[at - size : at], "little")

    def value(kind: int) -> None:
        if kind == gh.STRING:
            take("text", take("length", 8))
        elif kind == gh.ARRAY:
            kind, count = take("value type", 4), take("count", 8)
            for _ in range(count):
                value(kind)
        else:
            take("value", struct.calcsize(gh.SCALARS[kind]))

    take("magic", 4)
    take("version", 4)
    tensors, entries = take("count", 8), take("count", 8)
    for _ in range(entries):
        take("name", take("length", 8))
        value(take("value type", 4))
    end_of_entries = at
    for _ in range(tensors):
        take("name", take("length", 8))
        for _ in range(take("dimensions", 4)):
            take("shape", 8)
        take("tensor type", 4)
        take("offset", 8)
    return fields, end_of_entries


def values_of(fields: list[Field], end_of_entries: int) -> list[tuple[int, int]]:
    """(begin of the type, end of the value) of each entry."""
    keys = [field for field in fields if field.role == "name" and field.at < end_of_entries]
    ends = [key.at - 8 for key in keys[1:]] + [end_of_entries]
    return [(key.at + key.size, end) for key, end in zip(keys, ends, strict=True)]


class Damage:
    """Damaged copies of the GGUF file `data`; the same number gives the same damage."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.fields, self.end_of_entries = fields_of(data)
        self.end = self.fields[-1].at + self.fields[-1].size
        # Of each entry: where its type begins and its value ends.
        self.values = values_of(self.fields, self.end_of_entries)
        self.roles: dict[str, list[Field]] = {}
        for field in self.fields:
            if field.size:
                self.roles.setdefault(field.role, []).append(field)
        self.kinds: list[Callable[[random.Random, bytearray], None]] = [
            self._flip_bits,
            self._replace_bytes,
            self._replace_in_text,
            self._truncate,
            self._swap_lengths,
            self._number,
            self._number,
            self._type,
            self._type,
            self._alignment,
            self._repeat_entry,
            self._other_value,
            self._other_value,
            self._shift,
        ]

    def copy(self, number: int) -> bytes:
        """The `number`-th damaged copy: one to three damages of one kind, or of several."""
        rng = random.Random(number)
        out = bytearray(self.data)
        rng.choice(self.kinds)(rng, out)
        while rng.random() < 0.2:
            rng.choice(self.kinds[:6])(rng, out)
        return bytes(out)

    def _field(self, rng: random.Random, *roles: str) -> Field:
        """Any field, whatever its role: vocabularies would drown all others."""
        return rng.choice(self.roles[rng.choice(roles or [*self.roles])])

    def _put(self, out: bytearray, at: int, data: bytes) -> None:
        out[at : at + len(data)] = data[: max(0, len(out) - at)]

    def _flip_bits(self, rng: random.Random, out: bytearray) -> None:
        for _ in range(rng.choice((1, 1, 2, 8))):
            field = self._field(rng)
            at = min(field.at + rng.randrange(field.size), len(out) - 1)
            out[at] ^= 1 << rng.randrange(8)

    def _replace_bytes(self, rng: random.Random, out: bytearray) -> None:
        for _ in range(rng.choice((1, 1, 2, 8))):
            out[rng.randrange(min(self.end, len(out)))] = rng.choice((*BYTES, rng.randrange(256)))

    def _replace_in_text(self, rng: random.Random, out: bytearray) -> None:
        field = self._field(rng, "name", "name", "text")
        self._put(out, field.at + rng.randrange(field.size), bytes([rng.choice((*BYTES, 0xFF))]))

    def _truncate(self, rng: random.Random, out: bytearray) -> None:
        field = self._field(rng)
        del out[max(1, rng.choice((field.at, field.at + field.size // 2, rng.randrange(len(self.data))))) :]

    def _swap_lengths(self, rng: random.Random, out: bytearray) -> None:
        role = rng.choice(("length", "count", "shape", "offset"))
        first, second = self._field(rng, role), self._field(rng, role)
        for to, source in ((first, second), (second, first)):
            self._put(out, to.at, self.data[source.at : source.at + source.size])

    def _number(self, rng: random.Random, out: bytearray) -> None:
        """A hostile number, or one off by little, where a length, a count, a size or a value stands."""
        field = self._field(rng, "length", "count", "shape", "offset", "dimensions", "value", "version")
        old = int.from_bytes(self.data[field.at : field.at + field.size], "little")
        new = rng.choice((*COUNTS, old + 1, old - 1, old * 2, old + 2**63, rng.getrandbits(64)))
        self._put(out, field.at, (new % 2 ** (8 * field.size)).to_bytes(field.size, "little"))

    def _type(self, rng: random.Random, out: bytearray) -> None:
        field = self._field(rng, "value type", "tensor type")
        self._put(out, field.at, struct.pack("<I", rng.choice(TYPES)))

    def _alignment(self, rng: random.Random, out: bytearray) -> None:
        entry = gh.encode_kv("general.alignment", rng.choice((gh.UINT32, gh.UINT32, gh.INT32)), 32).raw
        entry = entry[:-4] + struct.pack("<I", rng.choice(ALIGNMENTS))
        self._insert_entry(out, entry)

    def _repeat_entry(self, rng: random.Random, out: bytearray) -> None:
        """A key once more, with a value of some type."""
        name = self._field(rng, "name")
        key = self.data[name.at - 8 : name.at + name.size]
        raw = rng.choice((struct.pack("<II", 4, 7), struct.pack("<Iq", 11, -1), struct.pack("<IQ", 8, 0)))
        self._insert_entry(out, key + raw)

    def _other_value(self, rng: random.Random, out: bytearray) -> None:
        """A value of another type under a known key: whole in itself, of use to nobody."""
        at, end = rng.choice(self.values)
        del out[at:end]
        out[at:at] = rng.choice(VALUES)

    def _insert_entry(self, out: bytearray, entry: bytes) -> None:
        count = int.from_bytes(self.data[16:24], "little")
        self._put(out, 16, struct.pack("<Q", count + 1))
        out[self.end_of_entries : self.end_of_entries] = entry

    def _shift(self, rng: random.Random, out: bytearray) -> None:
        """Bytes that are missing or too many."""
        at = self._field(rng).at
        if rng.random() < 0.5:
            del out[at : at + rng.choice((1, 4, 8))]
        else:
            out[at:at] = bytes(rng.choice((1, 4, 8)))


@dataclass(frozen=True)
class Input:
    """What fuzzing found: a header, which weights follow as in native/fuzz_engine."""

    data: bytes

    def copy(self, number: int) -> bytes:
        is_patterned = len(self.data) >= PATTERN and self.data[-1] != 0
        repeated = self.data[-PATTERN:] * (PATTERNED // PATTERN) if is_patterned else b""
        return self.data + repeated + bytes(WEIGHTS)


def opened(kind: Kind, path: Path, base: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """The ways to open the file at `path`; `base`: the intact model that heads belong to."""
    from medusa_cli import native
    from medusa_cli.commands.inspect import inspect

    def read() -> object:
        file = native.read_gguf(str(path))
        return file.metadata, [(tensor.name, tensor.type, tensor.shape) for tensor in file.tensors]

    def load() -> object:
        if kind == "heads":
            heads = native.Heads(base, str(path))
            decode(base, heads)
            return heads.kind, heads.accuracy, heads.tree
        model = native.Model(str(path), n_gpu_layers=0, embeds=kind == "embedder")
        if kind == "embedder":
            return native.Embedder(model, n_threads=1).embed([[1 % model.n_vocab] * 3, [0]])
        decode(model, None)
        return model.description, model.architecture, model.chat_template, model.bos_text, model.eos_text, model.n_vocab

    def decode(model: Any, heads: Any) -> None:
        tree = None if heads is None else native.Tree(heads.tree or [[0]])
        try:
            session = native.Session(model, heads, tree=tree, n_ctx=64, n_threads=1)
            session.generate([1 % model.n_vocab], max_tokens=3, ignore_eos=True)
        except native.NativeError as error:
            if str(path) in str(error) or not str(error).isprintable():
                raise
            return  # of numbers, not of the file

    def show(as_json: bool) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            inspect(str(path), as_json)

    yield "read_gguf", read
    yield "read_header", lambda: gh.read_header(path)[0].metadata()
    yield "inspect", lambda: show(False)
    yield "inspect --json", lambda: show(True)
    yield "load", load


def complaint(path: Path, use: Callable[[], object]) -> str | None:
    """What is wrong with how `use` took the damaged file; None: it took it, or refused it with one line."""
    from medusa_cli.support.errors import is_reportable

    try:
        use()
    except Exception as error:
        if not is_reportable(error):
            return "".join(traceback.format_exception(error))
        if str(path) not in str(error) or not str(error).isprintable():
            return f"not one line that names the file: {error!r}"
    return None


def limit_memory() -> None:
    """Where the system tells how much address space is taken: sanitizers alone take terabytes of it."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        import resource

        limit = int(statm.read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def work(kind: Kind, folder: Path, numbers: range) -> None:
    """Opens the damaged copies; stdout: each number before its turn, and a JSON object for each complaint."""
    from medusa_cli import native

    base = native.Model(str(folder / "base.gguf"), n_gpu_layers=0)
    limit_memory()
    sources: list[Damage | Input] = [Damage(path.read_bytes()) for path in sorted(folder.glob(f"{kind}*.gguf"))]
    sources += [Input(path.read_bytes()) for path in sorted(folder.glob(f"inputs/{kind}/*"))]
    target = folder / f"damaged-{kind}.gguf"
    for number in numbers:
        print(number, flush=True)
        target.write_bytes(sources[number % len(sources)].copy(number))
        if hasattr(signal, "alarm"):
            signal.alarm(SECONDS_PER_FILE)
        for name, use in opened(kind, target, base):
            found = complaint(target, use)
            if found:
                print(json.dumps({"number": number, "use": name, "found": found}), flush=True)


def is_found_by_trial(path: Path, mtp: Path | None = None) -> bool:
    """Whether a trial run refuses the model in one line that names the file. They are off in other tests."""
    with patch.dict(os.environ):
        os.environ.pop(trial.VARIABLE, None)
        try:
            trial.run(path, mtp, remembers=False)
        except MedusaError as error:
            return str(mtp or path) in str(error) and str(error).isprintable()
    return False


def run(kind: Kind, folder: Path, total: int) -> list[str]:
    """Opens `total` damaged copies of the files KIND*.gguf in `folder`, or inputs/KIND/* as they are; returns what went
    wrong.

    folder/base.gguf: the intact model. A model may end the process where a trial run finds that out; heads may not.
    """
    complaints: list[str] = []
    begin = 0
    while begin < total:
        command = [sys.executable, __file__, kind, str(folder), str(begin), str(total)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        lines = done.stdout.splitlines()
        complaints += [line for line in lines if line.startswith("{")]
        last = max((int(line) for line in lines if line.isdigit()), default=None)
        finished = (done.returncode, done.stderr, last) == (0, "", total - 1)
        stopped = kind != "heads" and is_found_by_trial(folder / f"damaged-{kind}.gguf")
        if last is None or not (finished or stopped):
            complaints.append(f"number {last}: code {done.returncode}, stderr {done.stderr[-2000:]!r}")
        begin = total if last is None else last + 1
    return complaints


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), range(int(sys.argv[3]), int(sys.argv[4])))  # type: ignore[arg-type]
