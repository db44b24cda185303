"""Stand-ins for the parts of the native engine that need a model, and a GGUF writer for small files.

The fake model's text is its tokens: one token per character. The fake session answers each prompt with the next of
`answers`, a few characters a step, so commands can be tested whole and fast.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TYPES = {"f32": (0, 4), "f16": (1, 2), "i8": (24, 1)}


@dataclass
class FakePiece:
    token: int
    text: str
    drafted: bool
    logprob: float | None = None
    top: tuple[Any, ...] = ()


@dataclass
class FakeModel:
    """chat_template, is_recurrent, has_heads, gpu, backend, device, devices, placement can be set on the class."""

    path: str
    chat_template: ClassVar[str | None] = TEMPLATE
    is_recurrent: ClassVar[bool] = False
    can_draft: ClassVar[bool] = True
    has_heads: ClassVar[bool] = False
    gpu: ClassVar[bool] = False
    devices: ClassVar[list[Any]] = []
    placement: ClassVar[list[Any]] = [SimpleNamespace(role="matrix", type="f32", buffer="of llama.cpp")]
    backend: ClassVar[str] = "CPU"
    device: ClassVar[str] = "a CPU that is none"
    description: str = "fake 1M F32"
    architecture: str = "fake"
    n_vocab: int = 0x110000
    size_bytes: int = 1_000_000
    n_ctx_train: int = 2048
    bos_text: str = "<s>"
    eos_text: str = "</s>"
    add_bos: bool = False

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return "".join(map(chr, tokens))


@dataclass
class FakeHeads:
    model: FakeModel
    path: str
    kind: str = "medusa"
    head_count: int = 4
    output_rows: int = 1000
    tree: list[list[int]] = field(default_factory=list)


@dataclass
class FakeGeneration:
    tokens: list[int]
    text: str
    stop_reason: str
    prompt_tokens: int
    reused_tokens: int = 0
    loop_tokens: int = 0

    @property
    def stats(self) -> dict[str, Any]:
        timings = dict.fromkeys(("draft", "verify", "accept", "commit", "other"), 1.0)
        return {
            "tokens_per_step": 1.5,
            "acceptance_per_depth": [0.4, 0.1],
            "tokens_per_second": 100.0,
            "prompt_tokens_per_second": 1000.0,
            "steps": 2,
            "timings_ms": timings,
            "ttft_ms": 3.0,
            "peak_rss_bytes": 1_000_000,
            "tree_nodes": 16,
            "accept": "exact",
        }


class FakeSession:
    """answers: texts, or exceptions to raise after the text generated so far. calls: what generate() was asked.

    delay: seconds of a step, and of each of the `pieces` of 512 tokens that a prompt has.
    """

    answers: ClassVar[list[str | BaseException]] = []
    delay: ClassVar[float] = 0.0
    pieces: ClassVar[int] = 0
    stop_reason: ClassVar[str] = "eos"
    calls: ClassVar[list[SimpleNamespace]] = []
    created: ClassVar[list[SimpleNamespace]] = []
    cached_tokens: ClassVar[list[int]] = []

    def __init__(self, model: FakeModel, heads: FakeHeads | None = None, **options: Any) -> None:
        from medusa_cli import native

        self.tree = options["tree"] or native.Tree([])
        self.n_ctx = options["n_ctx"] or 2048
        self.last: FakeGeneration | None = None
        self.created.append(
            SimpleNamespace(heads=heads, tree=self.tree, **{k: options[k] for k in options if k != "tree"})
        )

    def generate(
        self,
        prompt: Sequence[int],
        *,
        on_step: Callable[[list[FakePiece]], None] | None,
        on_prompt: Callable[[int, int], None] | None,
        **options: Any,
    ) -> FakeGeneration:
        self.calls.append(SimpleNamespace(text="".join(map(chr, prompt)), **options))
        answer = self.answers.pop(0)
        text, error = (answer, None) if isinstance(answer, str) else (str(answer), answer)
        done = ""
        try:
            for at in range(self.pieces):
                if on_prompt is not None:
                    on_prompt(512 * at, 512 * self.pieces)
                time.sleep(self.delay)
            for at in range(0, len(text), 3):
                part = text[at : at + 3]
                time.sleep(self.delay)
                done += part
                if on_step is not None:
                    on_step([FakePiece(ord(c), c, drafted=index > 0) for index, c in enumerate(part)])
            if error is not None:
                raise error
        finally:
            reason = self.stop_reason if done == text and error is None else "cancelled"
            self.last = FakeGeneration([ord(c) for c in done], done, reason, len(prompt))
        return self.last


def install(monkeypatch: pytest.MonkeyPatch) -> type[FakeSession]:
    """Puts the fakes in the native module's place for one test and returns the session class to script."""
    from medusa_cli import native

    session = type("Session", (FakeSession,), {"answers": [], "calls": [], "created": [], "stop_reason": "eos"})
    monkeypatch.setattr(native, "Model", lambda path, **options: FakeModel(path))
    monkeypatch.setattr(native, "Heads", FakeHeads)
    monkeypatch.setattr(native, "Session", session)
    monkeypatch.setattr(native, "Sampling", lambda **options: SimpleNamespace(**options))
    monkeypatch.setattr(native, "Accept", lambda kind, **options: SimpleNamespace(kind=kind, **options))
    return session


def run_cli(arguments: list[str], answers: list[str], delay: float, pieces: int = 0) -> None:
    """The whole command with the fakes, for tests that need a process of their own (terminals, pipes, signals).

    pieces: of each prompt, of which something is said from 0.1 s on.
    """
    from medusa_cli.cli import main
    from medusa_cli.support import reading

    session = install(pytest.MonkeyPatch())
    session.answers, session.delay, session.pieces = list(answers), delay, pieces
    reading.SECONDS = 0.1
    sys.argv = ["medusa", *arguments]
    main()


def write_gguf(path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...]]]) -> Path:
    """A GGUF file: metadata of str, bool, int, float and lists of them; tensors: name -> (type, shape), all zero."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def value(item: Any) -> tuple[int, bytes]:
        if isinstance(item, bool):
            return 7, struct.pack("<?", item)
        if isinstance(item, int):
            return (4, struct.pack("<I", item)) if item >= 0 else (5, struct.pack("<i", item))
        if isinstance(item, float):
            return 6, struct.pack("<f", item)
        if isinstance(item, list):
            kinds = [value(entry) for entry in item]
            return 9, struct.pack("<IQ", kinds[0][0], len(item)) + b"".join(raw for _, raw in kinds)
        return 8, string(item)

    out = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, item in metadata.items():
        kind, raw = value(item)
        out += string(key) + struct.pack("<I", kind) + raw
    offset = 0
    for name, (type_name, shape) in tensors.items():
        type_id, width = TYPES[type_name]
        out += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, offset)
        size = width
        for dimension in shape:
            size *= dimension
        offset += -(-size // 32) * 32
    path.write_bytes(out.ljust(-(-len(out) // 32) * 32, b"\0") + bytes(offset))
    return path


BASE_METADATA = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.file_type": 1,
    "llama.context_length": 512,
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.chat_template": TEMPLATE,
}
BASE_TENSORS = {"token_embd.weight": ("f16", (32, 3)), "output_norm.weight": ("f32", (32,))}
HEADS_METADATA = {
    "general.architecture": "medusa",
    "medusa.version": 1,
    "medusa.kind": "medusa",
    "medusa.head_count": 2,
    "medusa.block_count": 1,
    "medusa.lm_head": "base",
    "medusa.accuracy": [0.5, 0.25, 0.25, 0.125],
    "medusa.accuracy_ranks": 2,
    "medusa.tree": [1, 0, 2, 0, 0, 1, 1],
    "medusa.base.name": "Tiny",
    "medusa.base.fingerprint": "llama-1x32-3-9f183aef2c64",
}
HEADS_TENSORS = {
    "medusa.0.block.0.weight": ("f16", (32, 32)),
    "medusa.0.block.0.bias": ("f32", (32,)),
    "medusa.1.block.0.weight": ("f16", (32, 32)),
    "medusa.1.block.0.bias": ("f32", (32,)),
}


def base_gguf(path: Path, **metadata: Any) -> Path:
    """A file that looks like a model to everything that only reads headers. metadata: more keys."""
    return write_gguf(path, {**BASE_METADATA, **metadata}, BASE_TENSORS)


def heads_gguf(path: Path) -> Path:
    """A sidecar of two heads with a tree of four nodes."""
    return write_gguf(path, HEADS_METADATA, HEADS_TENSORS)
