"""Long runs: whether memory grows, and whether many clients get what plain decoding says.

    python benchmarks/soak.py session [--tokens 5000]
    python benchmarks/soak.py chat [MODEL] --minutes 60
    python benchmarks/soak.py server [MODEL] --minutes 10 --clients 8
    python benchmarks/soak.py kills [MODEL] --kills 200 --clients 8
    python benchmarks/soak.py bodies [MODEL]

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from statistics import median

import common
import httpx
import psutil
from rich.console import Console
from soak_clients import CHAT, SAID, Tally, Told, clients

from medusa_cli import native
from medusa_cli.api.model import Model
from medusa_cli.chat.repl import Repl
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.decoding.runtime import open_engine
from medusa_cli.decoding.saved_caches import CacheStore
from medusa_cli.decoding.settings import Settings
from medusa_cli.support.children import child
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.reading import ReadingLine

ANSWER = 500
"""Tokens of one of the session's answers, at most."""


@dataclass
class Session:
    """Memory over a long run: resident size of one process before and after thousands of generated tokens.

    Answers of up to 500 tokens, one after another in one session, sampled, after a warm-up of one answer. Exits with 1
    when the process grew by more than --limit-mib. Linux alone.
    """

    _: KW_ONLY
    model: str = "demo"
    heads: Path | None = None
    tokens: int = 5000
    limit_mib: float = 2.0

    def run(self) -> None:
        bench = common.Bench(self.model, self.heads, 16)

        def answer(number: int) -> int:
            prompt = common.chat_tokens(bench.model, f"Write a long story about the number {number}.")
            sampling = native.Sampling(temperature=0.8, seed=number)
            return len(bench.drafting.generate(prompt, max_tokens=ANSWER, sampling=sampling, ignore_eos=True).tokens)

        answer(0)
        before, done, number = resident_mib(), 0, 0
        while done < self.tokens:
            number += 1
            done += answer(number)
            print(f"\r{done} tokens, {resident_mib():.2f} MiB", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        after = resident_mib()
        print(f"before {before:.2f} MiB, after {done} tokens {after:.2f} MiB: {after - before:+.2f} MiB")
        if after - before > self.limit_mib:
            raise MedusaError(f"grew by more than {self.limit_mib:g} MiB")


def resident_mib() -> float:
    """Of this process: memory of its own, file pages left out (they come and go with the cache)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise MedusaError("no RssAnon in /proc/self/status: this needs Linux")


MOST_GROWTH = 1.05
"""Of memory, from the first quarter to the last one."""
MOST_STALLED = 35.0
"""Seconds from the beginning of an answer that nobody reads until its connection is closed."""


def memory_of(server: psutil.Process) -> int:
    """Bytes that it and its engine have."""
    return sum(one.memory_info().rss for one in [server, *server.children()])


def watch(process: psutil.Process, until: float) -> list[tuple[int, int, int]]:
    """(memory, threads, open files) of a server and its engine, once a second. MedusaError if it ends."""
    found = []
    while time.monotonic() < until:
        if process.status() == psutil.STATUS_ZOMBIE:
            raise MedusaError("the server has ended")
        both = [process, *process.children()]
        found.append((memory_of(process), sum(one.num_threads() for one in both), sum(one.num_fds() for one in both)))
        time.sleep(1)
    return found


@dataclass
class Comparison:
    """Of answers with those of plain decoding, as they come."""

    model: str
    tally: Tally
    questions: dict[str, str] = field(default_factory=dict)
    """What plain decoding answers, by what was asked."""
    wrong: list[Told] = field(default_factory=list)
    """The answers that it does not give."""

    def run(self, goes_on: Callable[[], bool]) -> None:
        with Model(self.model, no_spec=True, quiet=True) as plain:
            done, is_last = 0, False
            while not is_last:
                is_last = not goes_on()  # and what came until now is all
                found = self.tally.answers[done:]
                done += len(found)
                for told in sorted(found, key=lambda told: json.dumps(told.messages)):  # the cache keeps beginnings
                    self._compare(plain, told)
                time.sleep(0 if is_last else 1)

    def _compare(self, plain: Model, told: Told) -> None:
        seed = told.seed if told.temperature else 0
        key = json.dumps([told.messages, told.temperature, seed, told.most])
        if key not in self.questions:
            answer = plain.generate(told.messages, temperature=told.temperature, seed=told.seed, max_tokens=told.most)
            self.questions[key] = answer.text
        if self.questions[key] != told.text:
            self.wrong.append(told)

    def report(self) -> bool:
        """Prints how many answers were compared; whether there were any, and all were the same."""
        answers = len(self.tally.answers)
        print(f"{answers} answers to {len(self.questions)} questions, {len(self.wrong)} unlike plain decoding")
        for told in self.wrong[:3]:
            print(f"  {told}")
        return answers > 0 and not self.wrong


@contextlib.contextmanager
def compared(model: str, tally: Tally) -> Iterator[Comparison]:
    """All that is answered in the block: in a thread of its own, with a model of its own."""
    comparison, ended = Comparison(model, tally), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(comparison.run, lambda: not ended.is_set())
        try:
            yield comparison
        finally:
            ended.set()
        running.result()


def report(samples: list[tuple[int, int, int]]) -> bool:
    """Prints how the server fared; whether nothing grew."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter - 1 : 2 * quarter], samples[-quarter:]
    fine = True
    for index, (name, unit) in enumerate((("memory", 1e6), ("threads", 1), ("open files", 1))):
        before, after = (max(sample[index] for sample in part) / unit for part in (early, late))
        grew = after > before * MOST_GROWTH if index == 0 else after > before + 2
        fine = fine and not grew
        print(f"{name}: at most {before:.0f} in the second quarter, {after:.0f} in the last{'  LEAK?' if grew else ''}")
    return fine


@contextlib.contextmanager
def started(model: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`medusa serve`, and its address."""
    command = child("medusa_cli.cli", "serve", model, "--port", "0", *options)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"at (http://\S+?): ", process.stderr.readline())
        if found is None:
            raise MedusaError("the server did not start")
        threading.Thread(target=process.stderr.read, daemon=True).start()  # what it logs would fill the pipe
        try:
            yield process, found[1]
        finally:
            process.terminate()


LONG = 3950
"""Tokens of a text that nearly fills the cache of a conversation: one of 4,096 tokens, as sessions begin with."""


def fill(url: str, server: psutil.Process) -> None:
    """Asks long questions until the server's memory no longer grows: its caches are then as large as they get."""
    before, numbers = 0, itertools.count(1)
    while memory_of(server) > 1.01 * before:
        before = memory_of(server)
        for number in itertools.islice(numbers, 4):
            messages = [{"role": "user", "content": f"{number}" + " word" * LONG}]
            httpx.post(url + CHAT, json={"messages": messages, "max_tokens": 1}, timeout=300).raise_for_status()


@dataclass
class Server:
    """Many clients for minutes: does a server leak, mix conversations up, or say anything else than plain generate?

    Starts `medusa serve` in a process of its own. Each client goes through conversations of its own as front ends do:
    streamed and whole answers, several turns. A fifth of the answers are given up half-way; one client in twenty reads
    nothing of a long answer until the server drops it, or sends an odd request. Every whole answer is compared with
    that of `medusa generate --no-spec` for the same prompt and seed, and looked at for the secret words of other
    clients' prompts. Long questions fill the caches first. Memory, threads and open files of the server are looked at
    all the time; they may grow in the first quarter and not later. --cache-memory: MiB; little, so that caches are full
    early. Exits with 1 when something grew or differs, or a client that reads nothing was not dropped within 35 s.
    """

    model: str = "demo"
    _: KW_ONLY
    minutes: float = 10.0
    clients: int = 8
    cache_memory: int = 400

    def run(self) -> None:
        tally = Tally()
        with compared(self.model, tally) as comparison:
            with started(self.model, "--cache-memory", str(self.cache_memory)) as (process, url):
                server = psutil.Process(process.pid)
                fill(url, server)
                until = time.monotonic() + 60 * self.minutes
                with clients(self.clients, url, lambda: time.monotonic() < until, tally, server):
                    samples = watch(server, until)
            print(", ".join(f"{count} {what}" for what, count in sorted(tally.counts.items())))
            fine = report(samples)
            if tally.stalls:
                longest = max(tally.stalls)
                fine = fine and longest <= MOST_STALLED
                print(f"{len(tally.stalls)} clients that read nothing were dropped within {longest:.1f} s")
            for what in tally.strange:
                print(f"strange: {what}")
        if not comparison.report() or not fine or tally.strange:
            raise MedusaError("the server did not stand it")


BODY_BYTES = (8 << 20) - 500
PARTS = ("a", " ", "\n", "0", "<", "-", "\u6c34", "\U0001f600", "e\u0301", "a b ", "</s>", "{{ 7*7 }}", '{"a":',
         "\x1b[2J", "```\n", "<think>", "</think>", "<|im_start|>", "<|im_end|>\n<|im_start|>user\nhi")  # fmt: skip


@dataclass
class Bodies:
    """Requests as large as the server lets in, each of one text over and over: how soon they are refused, how soon
    /health answers meanwhile, and how much more memory the server takes.

    Exits with 1 at more than a second, half a second, or 64 MiB.
    """

    model: str = "demo"

    def run(self) -> None:
        with started(self.model, "-c", "2048") as (process, url), httpx.Client(base_url=url, timeout=300) as http:
            http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2}).raise_for_status()
            server = psutil.Process(process.pid)
            before, most = memory_of(server), 0
            refusals, healths = list[float](), list[float]()
            for part in PARTS:
                text = part * (BODY_BYTES // (len(json.dumps(part, ensure_ascii=False).encode()) - 2))
                for path, body in (
                    ("/v1/completions", {"prompt": text}),
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
                ):
                    content = json.dumps(body, ensure_ascii=False).encode()
                    with ThreadPoolExecutor(1) as pool:
                        asked = pool.submit(timed, url, path, content)
                        while not asked.done():
                            healths.append(timed(url, "/health")[0])
                            most = max(most, memory_of(server))
                            time.sleep(0.02)
                    seconds, status = asked.result()
                    if status != 400:
                        raise MedusaError(f"{path} with {part!r} got {status}")
                    refusals.append(seconds)
        more = (most - before) / (1 << 20)
        print(f"{len(refusals)} bodies refused within {max(refusals):.2f} s, "
              f"/health within {max(healths):.2f} s, {more:.0f} MiB more memory")  # fmt: skip
        if max(refusals) > 1 or max(healths) > 0.5 or more > 64:
            raise MedusaError("the server did not stand it")


def timed(url: str, path: str, content: bytes | None = None) -> tuple[float, int]:
    """Seconds, and the status."""
    begun = time.monotonic()
    headers = {"content-type": "application/json"}
    response = httpx.request("GET" if content is None else "POST", url + path, content=content, headers=headers,
                             timeout=300)  # fmt: skip
    return time.monotonic() - begun, response.status_code


SIGNALS = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


@dataclass
class Kills:
    """Many clients, while the engine's process is killed again and again, by signals in turn.

    After each kill, a piece of a new answer has to come before the next one. Reported are the time from a kill to the
    errors of the requests that it concerned, and to the first piece of the next answer. Every whole answer is compared
    with plain decoding. Exits with 1 if an error took more than 2 s, an answer differs, or the server ended.
    """

    model: str = "demo"
    _: KW_ONLY
    kills: int = 200
    clients: int = 8

    def run(self) -> None:
        tally, kills, nexts = Tally(), list[float](), list[float]()
        source, begun = random.Random(1), time.monotonic()
        with started(self.model) as (process, url):
            start = time.monotonic() - begun
            server, ended = psutil.Process(process.pid), threading.Event()
            with clients(self.clients, url, lambda: not ended.is_set(), tally):
                try:
                    for number in range(self.kills):
                        time.sleep(source.uniform(0, 0.3))
                        (engine,) = server.children()
                        engine.send_signal(SIGNALS[number % len(SIGNALS)])
                        kills.append(time.monotonic())
                        nexts.append(self._next(tally, kills[-1]))
                        print(f"\r{number + 1} kills", end="", file=sys.stderr, flush=True)
                finally:
                    ended.set()
            is_alive = process.poll() is None
        print(file=sys.stderr)
        late = [min(end - kill for kill in kills if kill < end) for end in tally.ends]
        print(f"{len(kills)} kills in {(time.monotonic() - begun) / 60:.1f} minutes; a start takes {start:.2f} s")
        print(", ".join(f"{count} {what}" for what, count in sorted(tally.counts.items())))
        print(f"{len(late)} requests were told, after {median(late):.3f} s (median), {max(late):.3f} s (longest)")
        print(f"the next answer began after {median(nexts):.2f} s (median), {max(nexts):.2f} s (longest)")
        comparison = Comparison(self.model, tally)
        comparison.run(lambda: False)
        if not comparison.report() or max(late) > 2 or not is_alive:
            raise MedusaError("the server did not stand it")

    def _next(self, tally: Tally, killed: float) -> float:
        """Seconds from a kill until a piece of another answer came."""
        while tally.wrote < killed + 0.05:  # what was on its way then still comes
            if time.monotonic() - killed > 60:
                raise MedusaError("no answer came any more")
            time.sleep(0.005)
        return tally.wrote - killed


class Nobody:
    """A screen that shows nothing, and a reader of nothing."""

    interactive = True
    reading = ReadingLine(wanted=False)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


@dataclass
class Chat:
    """Memory over a long chat in a small context: the oldest messages leave it again and again, and every 20 messages
    the conversation is saved, and goes on in a new session.

    Exits with 1 when the process grew by more than 5% from the first quarter of the time to the last one. Linux alone.
    """

    model: str = "demo"
    _: KW_ONLY
    minutes: float = 60
    ctx: int = 1024

    def run(self) -> None:
        engine = open_engine(self.model, EngineOptions(ctx_size=self.ctx), DraftOptions(), Console(stderr=True))
        settings, source = Settings(temperature=0.7, max_tokens=200, stop_loops=True), random.Random(1)
        chat = Repl(engine, Nobody(), Nobody(), settings, "Answer briefly.")  # type: ignore[arg-type]
        start, seen, cuts = time.monotonic(), [], 0
        with tempfile.TemporaryDirectory() as folder:
            store = CacheStore(Path(folder))
            for number in itertools.count(1):
                left_out = chat.conversation.left_out
                chat.submit(source.choice(SAID) + " " * source.randrange(3))
                cuts += chat.conversation.left_out > left_out
                if number % 20 == 0:
                    store.keep(chat.engine)
                    chat.engine = engine.another()
                    store.bring(chat.engine, chat.engine.chat_tokens(chat.conversation.prompt()))
                    del chat.conversation.turns[: chat.conversation.left_out]  # as a file would grow without end
                    chat.conversation.left_out = 0
                passed = time.monotonic() - start
                seen.append((passed, resident_mib()))
                print(f"\r{number} messages, {cuts} cuts, {seen[-1][1]:.1f} MiB", end="", file=sys.stderr, flush=True)
                if passed > 60 * self.minutes:
                    break
        print(file=sys.stderr)
        quarters = [[mib for at, mib in seen if quarter <= 4 * at / seen[-1][0] <= quarter + 1] for quarter in range(4)]
        means = [sum(found) / len(found) for found in quarters]
        print(f"{len(seen)} messages, {cuts} cuts, {len(seen) // 20} restarts in {self.minutes:g} minutes")
        print("MiB by quarters of the time: " + ", ".join(f"{mean:.1f}" for mean in means))
        if means[-1] > MOST_GROWTH * means[0]:
            raise MedusaError(f"grew by more than {MOST_GROWTH - 1:.0%}")


def parser() -> ArgumentParser:
    return common.parser(__doc__, Session, Chat, Server, Kills, Bodies)


if __name__ == "__main__":
    common.main(parser())
