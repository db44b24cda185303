"""Long conversations: what a large context costs in memory, and how long the next turn waits for its first token.

    python benchmarks/conversations.py memory MODEL --ctx 32768
    python benchmarks/conversations.py turns MODEL --tokens 8000
    python benchmarks/conversations.py restart MODEL --tokens 16000
    python benchmarks/conversations.py servers MODEL --llama-server FILE

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import common
import httpx
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding import context_size
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.decoding.runtime import open_engine
from medusa_cli.decoding.saved_caches import CacheStore
from medusa_cli.decoding.settings import Settings
from medusa_cli.support.children import child
from medusa_cli.support.errors import MedusaError


@dataclass
class Memory:
    """Memory of this process when a context is opened, and after a short answer in it. Linux alone."""

    model: str = "demo"
    _: KW_ONLY
    ctx: int = 32768

    def run(self) -> None:
        model = common.open_model(self.model)
        cache = context_size.each_token(model, EngineOptions()) * self.ctx
        before = memory_mib()[0]
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak of loading the model is another one
        start = time.monotonic()
        session = native.Session(model, n_ctx=self.ctx)
        seconds, opened = time.monotonic() - start, memory_mib()
        session.generate(model.tokenize("The sea is"), max_tokens=32, ignore_eos=True)
        table = Table("", "MiB")
        table.add_row("a full cache, by its formula", f"{cache / 2**20:.0f}")
        table.add_row(f"opened, in {seconds:.2f} s", f"{opened[0] - before:+.0f}")
        table.add_row("peak until then", f"{opened[1] - before:+.0f}")
        table.add_row("after 32 tokens", f"{memory_mib()[0] - before:+.0f}")
        common.show(table)


def memory_mib() -> tuple[float, float]:
    """Of this process: now, and at most so far."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise MedusaError("no /proc/self/status: this needs Linux") from error
    found = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return int(found["VmRSS"].split()[0]) / 1024, int(found["VmHWM"].split()[0]) / 1024


@dataclass
class Turns:
    """Time to the first token of a next turn, beside reading the whole conversation.

    A text of --tokens is answered. The next turn keeps the text, --kept tokens of the answer's end (a template drops
    its thinking), and adds --new. The same prompt is then read by a session that knows nothing. Both continuations are
    compared.
    """

    model: str = "demo"
    _: KW_ONLY
    tokens: int = 8000
    answer: int = 100
    kept: int = 50
    new: int = 50

    def run(self) -> None:
        model = common.open_model(self.model)
        text = common.fixed_text(model, self.tokens + self.new, common.DOCS)
        n_ctx = self.tokens + self.answer + self.new + 64
        session = native.Session(model, lookup=True, n_ctx=n_ctx)
        first = session.generate(text[: self.tokens], max_tokens=self.answer, ignore_eos=True)
        # The last tokens of a prompt open the answer, and are others once its thinking is gone.
        turn = [*text[: self.tokens - 3], *first.tokens[len(first.tokens) - self.kept :], *text[self.tokens :]]
        then = session.generate(turn, max_tokens=16, ignore_eos=True)
        whole = native.Session(model, lookup=True, n_ctx=n_ctx).generate(turn, max_tokens=16, ignore_eos=True)
        table = Table("", "read again", "seconds to the first token")
        for name, one in (("next turn", then), ("everything", whole)):
            table.add_row(name, str(one.prompt_tokens - one.reused_tokens), f"{one.stats['ttft_ms'] / 1e3:.2f}")
        common.show(
            table,
            f"ratio {then.stats['ttft_ms'] / whole.stats['ttft_ms']:.3f}; the same text: {then.tokens == whole.tokens}",
        )


@dataclass
class Restart:
    """Time to the first token of a next turn after a restart, from a saved cache and beside reading everything.

    A text of --tokens is answered, and what the model has read is saved. A new session brings it back, and reads --new
    more. Then a session that knows nothing reads all of it.
    """

    model: str = "demo"
    _: KW_ONLY
    tokens: int = 16000
    new: int = 50

    def run(self) -> None:
        options = EngineOptions(ctx_size=self.tokens + self.new + 128)
        engine = open_engine(self.model, options, DraftOptions(no_heads=True), Console(stderr=True))
        text = common.fixed_text(engine.model, self.tokens + self.new, common.DOCS)
        settings = Settings(max_tokens=16, ignore_eos=True)
        first = engine.generate(text[: self.tokens], settings, 1, None)
        turn = [*text[: self.tokens], *first.tokens, *text[self.tokens :]]
        with tempfile.TemporaryDirectory() as folder:
            store, again = CacheStore(Path(folder)), engine.another()
            saving = _seconds(lambda: store.keep(engine))
            bytes_ = store.files()[0].stat().st_size
            bringing = _seconds(lambda: store.bring(again, turn))
            then = again.generate(turn, settings, 1, None)
        whole = engine.another().generate(turn, settings, 1, None)
        brought, read = bringing + then.stats["ttft_ms"] / 1e3, whole.stats["ttft_ms"] / 1e3
        table = Table("", "tokens read", "seconds to the first token")
        table.add_row("from the saved cache", str(then.prompt_tokens - then.reused_tokens), f"{brought:.2f}")
        table.add_row("everything", str(whole.prompt_tokens), f"{read:.2f}")
        common.show(
            table,
            f"saved in {saving:.2f} s, {bytes_ / 2**20:.0f} MiB; brought back in {bringing:.2f} s; "
            f"ratio {brought / read:.4f}; the same text: {then.tokens == whole.tokens}",
        )


@dataclass
class Servers:
    """Time to the first token of the same requests to `medusa serve` and to llama-server, one after the other.

    Questions about a text of about --tokens; the next turn; another question about the same text; back to the first
    conversation, and the same once more after a restart. llama-server, a program of the same release that was built
    beside us, reuses its cache (--cache-reuse) and is told to save and restore its slot, which counts as part of the
    restart; ours does that by itself.
    """

    model: str = "demo"
    _: KW_ONLY
    llama_server: Path
    tokens: int = 2000
    threads: int = 2

    def run(self) -> None:
        table = Table("", "medusa serve", "llama-server")
        with tempfile.TemporaryDirectory() as folder:
            model = common.open_model(self.model).path
            shared = ["-c", str(self.tokens + 3000), "-t", str(self.threads), "--temp", "0", "--port", str(PORT)]
            ours = [*child("medusa_cli.cli", "serve", model), *shared, "--cache-dir", f"{folder}/caches"]
            theirs = [str(self.llama_server), "-m", model, *shared, "-np", "1"]
            theirs += ["--cache-reuse", "256", "--slot-save-path", f"{folder}/"]
            found = [asked_of(command, self.tokens) for command in (ours, theirs)]
        for name in found[0]:
            table.add_row(name, *(f"{one[name]:.2f}" for one in found))
        common.show(table, "seconds to the first token")


PORT = 8093
SLOT = f"http://127.0.0.1:{PORT}/slots/0"


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[None]:
    """The server, once it answers."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{PORT}/health").status_code == 200:
                    break
            if server.poll() is not None:
                raise MedusaError(f"{command[0]} ended with {server.returncode}")
            time.sleep(0.1)
        yield
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


def asked_of(command: list[str], tokens: int) -> dict[str, float]:
    """Seconds to the first token of each request."""
    text = " ".join(path.read_text("utf-8") for path in common.DOCS)[: 4 * tokens]
    talk = [{"role": "system", "content": f"Answer briefly. Here is a text:\n{text}"}]
    other = [*talk, {"role": "user", "content": "Write a title for it."}]
    talk += [{"role": "user", "content": "What is it about?"}]
    found, has_slots = {}, "--slot-save-path" in command
    with running(command):
        found["a new text"], answer = first_token(talk)
        talk += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Name one more thing."}]
        found["the next turn"], answer = first_token(talk)
        found["another question about the text"], _ = first_token(other)
        talk += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And a last one?"}]
        found["back to the first conversation"], before = first_token(talk)
        if has_slots:
            httpx.post(SLOT, params={"action": "save"}, json={"filename": "slot"}, timeout=600).raise_for_status()
    with running(command):
        start = time.monotonic()
        if has_slots:
            httpx.post(SLOT, params={"action": "restore"}, json={"filename": "slot"}, timeout=600).raise_for_status()
        brought = time.monotonic() - start
        seconds, after = first_token(talk)
        found["after a restart"] = brought + seconds
        if after != before:
            raise MedusaError(f"{command[0]} says something else after a restart")
    return found


def first_token(messages: list[dict[str, str]]) -> tuple[float, str]:
    """Seconds until a streamed answer has text, and the text."""
    body = {"model": "any", "messages": messages, "stream": True, "max_tokens": 60, "temperature": 0}
    start, first, text = time.monotonic(), 0.0, ""
    with httpx.stream("POST", f"http://127.0.0.1:{PORT}/v1/chat/completions", json=body, timeout=3600) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line.removeprefix("data: ")).get("choices", []):
                text += choice["delta"].get("content") or ""
            first = first or (time.monotonic() - start if text else 0.0)
    return first, text


def _seconds(call: Callable[[], object]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


def parser() -> ArgumentParser:
    return common.parser(__doc__, Memory, Turns, Restart, Servers)


if __name__ == "__main__":
    common.main(parser())
