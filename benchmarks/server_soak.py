"""Many clients for minutes: whether a server leaks, mixes conversations up, or says anything else than plain generate.

    python benchmarks/server_soak.py --minutes 10 --clients 8

Starts `medusa serve` in a process of its own. Each client goes through conversations of its own as front ends do:
streamed and whole answers, several turns, retries, answers given up half-way. Every whole answer is compared with that
of `medusa generate --no-spec` for the same prompt and seed. Memory, threads and open files of the server are looked at
all the time; they may grow in the first quarter, while caches fill, and not later.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from medusa_cli.api.model import Model

SAID = ["Name three colours.", "Why?", "Write a haiku about rain.", "What is 12 times 12?", "Who wrote Faust?",
        "Explain a hash table.", "Say it in one sentence.", "Give an example in Python.", "And in French?"]  # fmt: skip
MOST_GROWTH = 1.05
"""Of memory, from the first quarter to the last one."""


@dataclass
class Told:
    """What was asked and answered."""

    messages: list[dict[str, str]]
    temperature: float
    seed: int
    most: int
    text: str


@dataclass
class Tally:
    answers: list[Told] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1


def client(url: str, number: int, until: float, tally: Tally) -> None:
    """One front end: conversations until the time is over."""
    source = random.Random(number)
    with httpx.Client(base_url=url, timeout=300) as http:
        while time.monotonic() < until:
            messages: list[dict[str, str]] = []
            for _ in range(source.randint(1, 4)):
                messages.append({"role": "user", "content": source.choice(SAID)})
                text = ask(http, source, messages, tally)
                if text is None or time.monotonic() > until:
                    break
                messages.append({"role": "assistant", "content": text})


def ask(http: httpx.Client, source: random.Random, messages: list[dict[str, str]], tally: Tally) -> str | None:
    """The answer; None where it was given up. A full queue is waited for, as clients do."""
    temperature, seed, most = source.choice([0.0, 0.8]), source.randrange(3), source.choice([8, 24, 48])
    body = {"messages": messages, "temperature": temperature, "seed": seed, "max_tokens": most}
    gives_up, stream = source.random() < 0.15, source.random() < 0.6
    while True:
        try:
            if stream:
                text = streamed(http, body, gives_up)
            else:
                response = http.post("/v1/chat/completions", json=body, timeout=0.2 if gives_up else 300)
                response.raise_for_status()
                text = response.json()["choices"][0]["message"]["content"]
        except httpx.ReadTimeout:
            text = None
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 429:
                raise
            tally.count("refused for a while")
            time.sleep(min(2.0, float(error.response.headers["retry-after"])))
            continue
        break
    tally.count("given up" if text is None else "streamed" if stream else "whole")
    if text is not None:
        with tally.lock:
            tally.answers.append(Told([dict(one) for one in messages], temperature, seed, most, text))
    return text


def streamed(http: httpx.Client, body: dict[str, Any], gives_up: bool) -> str | None:
    text = ""
    with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RuntimeError(chunk["error"]["message"])
                text += chunk["choices"][0]["delta"].get("content", "")
                if gives_up and len(text) > 10:
                    return None
    return text


def watch(process: psutil.Process, until: float) -> list[tuple[int, int, int]]:
    """(memory, threads, open files), once a second."""
    found = []
    while time.monotonic() < until:
        found.append((process.memory_info().rss, process.num_threads(), process.num_fds()))
        time.sleep(1)
    return found


def differences(model: str, answers: list[Told]) -> tuple[int, list[Told]]:
    """How many different questions there were, and the answers that plain decoding does not give."""
    expected: dict[str, str] = {}
    wrong = []
    with Model(model, no_spec=True, quiet=True) as plain:
        for told in answers:
            key = json.dumps([told.messages, told.temperature, told.seed, told.most])
            if key not in expected:
                answer = plain.generate(
                    told.messages, temperature=told.temperature, seed=told.seed, max_tokens=told.most
                )
                expected[key] = answer.text
            if expected[key] != told.text:
                wrong.append(told)
    return len(expected), wrong


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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--cache-memory", type=int, default=400, help="MiB; little, so that caches are full early")
    options = parser.parse_args()
    cache = str(options.cache_memory)
    command = [sys.executable, "-m", "medusa_cli", "serve", options.model, "--port", "0", "--cache-memory", cache]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"at (http://\S+?): ", process.stderr.readline())
        assert found is not None
        tally, until = Tally(), time.monotonic() + 60 * options.minutes
        threads = [
            threading.Thread(target=client, args=(found[1], number, until, tally)) for number in range(options.clients)
        ]
        for thread in threads:
            thread.start()
        samples = watch(psutil.Process(process.pid), until)
        for thread in threads:
            thread.join()
        process.terminate()
        process.wait()
    print(", ".join(f"{count} {what}" for what, count in sorted(tally.counts.items())))
    fine = report(samples)
    different, wrong = differences(options.model, tally.answers)
    print(f"{len(tally.answers)} answers to {different} questions, {len(wrong)} unlike plain decoding")
    for told in wrong[:3]:
        print(f"  {told}")
    return 0 if fine and not wrong and tally.answers else 1


if __name__ == "__main__":
    raise SystemExit(main())
