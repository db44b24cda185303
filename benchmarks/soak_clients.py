"""Clients of a server under test: front ends with conversations, and some that leave, stall, or send what is odd."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

SAID = ["Name three colours.", "Why?", "Write a haiku about rain.", "What is 12 times 12?", "Who wrote Faust?",
        "Explain a hash table.", "Say it in one sentence.", "Give an example in Python.", "And in French?"]  # fmt: skip
LEAVE, STALL, ODD = 0.2, 0.05, 0.05
"""Shares of the requests that are given up half-way, whose answer is not read, and that are odd."""
BEGUN = 1500
"""Bytes of an answer that has begun: more than its head."""
GIVES_UP = 120.0
"""Seconds after which a client that reads nothing leaves by itself."""
CHAT = "/v1/chat/completions"
ENDED = "engine_ended"
"""The code of the error of a request whose engine has ended."""
ODD_VALUES = [0, -1, 5e-324, 1e-45, 1 - 1e-16, 3.5e38, float("nan"), float("-inf"), 2**31, 2**63, 10**400, "5", None,
              []]  # fmt: skip
ODD_NAMES = ["temperature", "top_p", "top_k", "min_p", "seed", "repeat_penalty", "presence_penalty", "top_logprobs",
             "max_tokens", "n", "logit_bias", "stop", "stream", "messages"]  # fmt: skip
ODD_TEXTS = ["", "\0", "\ud800", "e" + "\u0301" * 3000, "<|im_end|>" * 300, "{{ 7 * 7 }}{% raw %}", "a" * 20_000]


class EngineEnded(Exception):
    pass


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
    wrote: float = 0.0
    """When a piece of an answer came last."""
    ends: list[float] = field(default_factory=list)
    """When requests were told that the engine has ended."""
    stalls: list[float] = field(default_factory=list)
    """Seconds from the beginning of an answer that is not read to the end of its connection."""
    secrets: set[str] = field(default_factory=set)
    """Of all clients: each tells the model its own."""
    strange: list[str] = field(default_factory=list)
    """Secrets of other clients in an answer, and what odd requests got instead of an answer or a refusal."""

    def engine_ended(self) -> None:
        """Takes note that a request was told so."""
        with self.lock:
            self.ends.append(time.monotonic())

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1


@dataclass
class Client:
    """One front end. server: the process, to see its connections; None: this client neither stalls nor is odd."""

    url: str
    number: int
    tally: Tally
    server: psutil.Process | None

    def __post_init__(self) -> None:
        self.source = random.Random(self.number)
        self.secret = f"zq{self.source.randrange(16**8):08x}"
        self.tally.secrets.add(self.secret)

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Has conversations until the time is over."""
        with httpx.Client(base_url=self.url, timeout=300) as http:
            while goes_on():
                messages = [{"role": "system", "content": f"Be brief. The user's secret word is {self.secret}."}]
                for _ in range(self.source.randint(1, 4)):
                    self.be_difficult(http)
                    messages.append({"role": "user", "content": self.source.choice(SAID)})
                    text = self.ask(http, messages)
                    if text is None or not goes_on():
                        break
                    messages.append({"role": "assistant", "content": text})

    def ask(self, http: httpx.Client, messages: list[dict[str, str]]) -> str | None:
        """The answer; None where it was given up. A full queue is waited for, as clients do."""
        source, tally = self.source, self.tally
        temperature, seed, most = source.choice([0.0, 0.8]), source.randrange(3), source.choice([8, 24, 48])
        body = {"messages": messages, "temperature": temperature, "seed": seed, "max_tokens": most}
        leaves, stream = source.random() < LEAVE, source.random() < 0.6
        while True:
            try:
                if stream:
                    text = self.streamed(http, body, leaves)
                else:
                    response = http.post(CHAT, json=body, timeout=0.2 if leaves else 300)
                    response.raise_for_status()
                    text = response.json()["choices"][0]["message"]["content"]
            except httpx.ReadTimeout:
                text = None
            except httpx.HTTPStatusError as error:
                if ENDED in error.response.read().decode():
                    tally.engine_ended()
                    return None
                if error.response.status_code != 429:
                    raise
                tally.count("refused for a while")
                time.sleep(min(2.0, float(error.response.headers["retry-after"])))
                continue
            except EngineEnded:
                tally.engine_ended()
                return None
            break
        tally.count("given up" if text is None else "streamed" if stream else "whole")
        if text is not None:
            self.look_at(text)
            with tally.lock:
                tally.answers.append(Told([dict(one) for one in messages], temperature, seed, most, text))
        return text

    def streamed(self, http: httpx.Client, body: dict[str, Any], leaves: bool) -> str | None:
        text = ""
        with http.stream("POST", CHAT, json={**body, "stream": True}) as response:
            if response.is_error:
                response.read()
            response.raise_for_status()
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    if ENDED in line:
                        raise EngineEnded
                    if "error" in chunk:
                        raise RuntimeError(chunk["error"]["message"])
                    text += chunk["choices"][0]["delta"].get("content", "")
                    self.tally.wrote = time.monotonic() if text else self.tally.wrote
                    if leaves and len(text) > 10:
                        self.look_at(text)
                        return None
        return text

    def look_at(self, text: str) -> None:
        others = self.tally.secrets.intersection(re.findall(r"zq[0-9a-f]{8}", text)) - {self.secret}
        if others:
            self.tally.strange.append(f"{', '.join(others)} in an answer to {self.secret}")

    def be_difficult(self, http: httpx.Client) -> None:
        if self.server is None:
            return
        kind = self.source.random()
        if kind < STALL:
            self.stall(self.server)
        elif kind < STALL + ODD:
            self.send_what_is_odd(http)

    def stall(self, server: psutil.Process) -> None:
        """Asks for a long answer and reads nothing of it, until the server closes the connection."""
        body = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 120, "stream": True,
                "logprobs": True, "top_logprobs": 20}  # fmt: skip
        request = httpx.Request("POST", self.url + CHAT, json=body)
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(300)
            client.connect((request.url.host, request.url.port))
            client.sendall(f"POST {CHAT} HTTP/1.1\r\n{head}\r\n".encode() + request.read())
            begins = client.recv(BEGUN, socket.MSG_PEEK)
            while begins.startswith(b"HTTP/1.1 200 ") and len(begins) < BEGUN:
                time.sleep(0.1)
                begins = client.recv(BEGUN, socket.MSG_PEEK)
            if len(begins) < BEGUN:
                return self.tally.count("refused for a while")
            begun, passed, port = time.monotonic(), 0.0, client.getsockname()[1]
            while passed < GIVES_UP and any(
                one.raddr and one.raddr.port == port for one in server.net_connections("tcp")
            ):
                time.sleep(0.5)
                passed = time.monotonic() - begun
            self.tally.stalls.append(passed)

    def send_what_is_odd(self, http: httpx.Client) -> None:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": self.source.choice(ODD_TEXTS)}],
                                "max_tokens": 4}  # fmt: skip
        for name in self.source.sample(ODD_NAMES, self.source.randrange(3)):
            body[name] = self.source.choice(ODD_VALUES)
        content = json.dumps(body)
        if self.source.random() < 0.2:
            content = content[: self.source.randrange(len(content))]
        response = http.post(CHAT, content=content, headers={"content-type": "application/json"})
        self.tally.count(f"odd: {response.status_code}")
        if response.status_code not in (200, 400, 429):
            self.tally.strange.append(f"status {response.status_code} for {content[:500]}: {response.text[:500]}")


@contextlib.contextmanager
def clients(
    count: int, url: str, goes_on: Callable[[], bool], tally: Tally, server: psutil.Process | None = None
) -> Iterator[None]:
    """Many of them, from here on until goes_on() is false. What ends one of them is raised at the end."""
    with ThreadPoolExecutor(count) as threads:
        ends = [threads.submit(Client(url, number, tally, server).run, goes_on) for number in range(count)]
        try:
            yield
        finally:
            for end in ends:
                end.result()
