"""The Python API with the real demo model: answers equal those of `medusa generate`, whole, by pieces, and at once."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke

from medusa_cli import MedusaError, Model
from medusa_cli.api.job import Turn, Turns
from medusa_cli.models import demo

pytestmark = pytest.mark.model
PROMPT = "Name three colours of the rainbow."
LONG = "Write a long story about a lighthouse and the sea."
WARM: dict[str, Any] = {"temperature": 0.8, "seed": 11, "max_tokens": 24}


@pytest.fixture(scope="module")
def model(demo_model_path: Path) -> Iterator[Model]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(demo.DEMO_VARIABLE, str(demo_model_path))
        with Model("demo", ctx_size=1024, quiet=True) as opened:
            yield opened


def in_command(*options: str) -> dict[str, Any]:
    code, out, err = invoke("generate", "demo", "--json", "-p", PROMPT, "-c", "1024", *options)
    assert (code, err) == (0, "")
    return dict(json.loads(out))


def wait_until_free(model: Model, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while model.queue_length:
        assert time.monotonic() < end, "the engine is not free"
        time.sleep(0.005)


def test_texts_equal_those_of_the_command(model: Model, demo_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(demo.DEMO_VARIABLE, str(demo_model_path))
    assert model.generate(PROMPT, max_tokens=24).text == in_command("-n", "24")["text"]
    options = ("-n", "24", "--temp", "0.8", "-s", "11", "--top-k", "20", "--presence-penalty", "0.5")
    warm = in_command(*options)
    answer = model.generate(PROMPT, **WARM, top_k=20, presence_penalty=0.5)
    assert (answer.text, answer.tokens, answer.seed) == (warm["text"], warm["tokens"], 11)
    assert answer.stats.keys() == warm.keys()
    assert (answer.stop_reason, answer.prompt_tokens) == (warm["stop_reason"], warm["prompt_tokens"])
    with Model("demo", ctx_size=1024, repeatable=True, quiet=True) as repeatable:
        again = repeatable.generate(PROMPT, **WARM, top_k=20, presence_penalty=0.5)
    assert again.text == warm["text"]
    fixed = in_command(*options, "--repeat-steps")
    with Model("demo", ctx_size=1024, repeat_steps=True, quiet=True) as repeating:
        again = repeating.generate(PROMPT, **WARM, top_k=20, presence_penalty=0.5)
    assert (again.text, again.stats["steps"]) == (fixed["text"], fixed["steps"])


def test_a_prompt_is_text_messages_or_tokens(model: Model) -> None:
    answer = model.generate(PROMPT, max_tokens=12)
    messages = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
    assert model.generate(messages, max_tokens=12).text == answer.text
    assert model.generate(model.tokens(PROMPT), max_tokens=12).text == answer.text
    assert len(model.tokens(PROMPT, raw=True)) < len(model.tokens(PROMPT)) == answer.prompt_tokens


def test_pieces_make_up_the_answer(demo_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(demo.DEMO_VARIABLE, str(demo_model_path))
    # With drafts in every step: on a busy machine they may not pay.
    with Model("demo", ctx_size=1024, repeat_steps=True, quiet=True) as model:
        whole = model.generate(LONG, max_tokens=40, repeat_penalty=1.0)
        with model.stream(LONG, max_tokens=40, repeat_penalty=1.0) as stream:
            pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == whole.text == str(stream.answer)
    assert [piece.token for piece in pieces if piece.token is not None] == whole.tokens
    assert {piece.drafted for piece in pieces} == {True, False}
    assert stream.answer.pieces == pieces
    assert whole.tokens_per_step > 1


def test_stop_texts_and_biases(model: Model) -> None:
    plain = model.generate(PROMPT, max_tokens=16)
    cut = plain.text[6:10]
    stopped = model.generate(PROMPT, max_tokens=16, stop=cut)
    assert (stopped.text, stopped.stop_reason) == (plain.text[: plain.text.index(cut)], "stop")
    first = plain.tokens[0]
    assert model.generate(PROMPT, max_tokens=1, logit_bias={first: -math.inf}).tokens[0] != first


def test_logprobs_are_the_models_own(model: Model) -> None:
    answer = model.generate(PROMPT, max_tokens=12, logprobs=3, repeat_penalty=1.0)
    for piece in answer.pieces:
        assert [one.logprob for one in piece.top] == sorted((one.logprob for one in piece.top), reverse=True)
        assert (piece.top[0].token, piece.top[0].logprob) == (piece.token, piece.logprob)
        assert sum(math.exp(one.logprob) for one in piece.top) <= 1 + 1e-6
    warm = model.generate(PROMPT, **WARM, logprobs=0)
    assert all(piece.top == () and piece.logprob is not None and piece.logprob < 0 for piece in warm.pieces)
    assert {piece.logprob for piece in model.generate(PROMPT, max_tokens=3).pieces} == {None}


def test_a_stream_that_is_left_frees_the_engine(model: Model) -> None:
    for piece in model.stream(LONG):
        if piece.text:
            break
    wait_until_free(model)
    stream = model.stream(LONG)
    next(stream)
    del stream
    gc.collect()
    wait_until_free(model)
    assert model.generate(PROMPT, max_tokens=4).stop_reason == "length"


def test_cancel_from_another_thread(model: Model) -> None:
    stream = model.stream(LONG)
    waiting = model.stream(LONG)
    threading.Timer(0.1, stream.cancel).start()
    text = "".join(piece.text for piece in stream)
    assert (stream.answer.stop_reason, stream.answer.text) == ("cancelled", text)
    threading.Timer(0.1, model.cancel).start()
    assert model.generate(LONG).stats == {}  # it waited behind the other
    assert waiting.answer.stop_reason == "cancelled"
    assert text == model.generate(LONG, max_tokens=len(stream.answer.tokens)).text[: len(text)]


def test_threads_take_turns(model: Model) -> None:
    prompts = [f"Count from {number} to 20." for number in range(6)]
    alone = [model.generate(prompt, max_tokens=16).text for prompt in prompts]
    found: dict[int, str] = {}
    sessions = [model.session() if number % 2 else model for number in range(6)]

    def ask(number: int) -> None:
        found[number] = sessions[number].generate(prompts[number], max_tokens=16).text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(6)] == alone


def test_ctrl_c_ends_the_answer_and_is_raised(model: Model) -> None:
    stream = None

    def ask_whole() -> None:
        model.generate(LONG)

    def ask_by_pieces() -> None:
        nonlocal stream
        stream = model.stream(LONG)  # kept: forgetting it would end it, too
        for _ in stream:
            pass

    for ask in (ask_whole, ask_by_pieces):
        threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            ask()
        wait_until_free(model)
    assert stream is not None


def test_a_program_ends_while_an_answer_is_under_way(demo_model_path: Path, tmp_path: Path) -> None:
    program = f"""
from medusa_cli import Model
model = Model({str(demo_model_path)!r}, quiet=True)
print(next(model.stream("Write a very long story.", ignore_eos=True)) is not None)
stream = model.stream("Write a very long story.", ignore_eos=True)
print(next(stream) is not None)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nTrue\n", "")


def test_a_model_says_what_it_is(model: Model) -> None:
    assert repr(model) == "<Model 'demo', context 1024, drafts: tree dynamic, lookup>"


def test_an_answer_that_nobody_runs_holds_up_nobody(model: Model) -> None:
    session = model.session()
    dropped = session.job(PROMPT, None, False, {})
    cancelled = session.job(PROMPT, None, False, {})
    del dropped
    cancelled.cancel()
    assert model.queue_length == 0
    assert model.generate(PROMPT, max_tokens=2).stop_reason == "length"
    assert cancelled.run().stop_reason == "cancelled"


def test_turns_are_taken_in_order() -> None:
    turns, order = Turns(), list[int]()
    places = [Turn(None, lambda: order.append(-1)) for _ in range(5)]
    for place in places:
        turns.join(place)

    def take(number: int) -> None:
        with turns.taken(places[number]) as mine:
            order.append(number if mine else 100 + number)

    threads = [threading.Thread(target=take, args=(number,)) for number in (4, 3, 2, 1)]
    for thread in threads:
        thread.start()
    while not all(place.waited_for for place in places[1:]):
        time.sleep(0.001)
    turns.cancel(places[3])
    threads[1].join(5)
    assert order == [103]
    take(0)
    for thread in threads:
        thread.join(5)
    assert order == [103, 0, 1, 2, 4]
    assert turns.length == 0


def test_asyncio(model: Model) -> None:
    expected = model.generate(PROMPT, max_tokens=20).text

    async def read() -> str:
        return "".join([piece.text async for piece in model.astream(PROMPT, max_tokens=20)])

    async def both() -> tuple[str, str, list[int]]:
        beats: list[int] = []

        async def beat() -> None:
            while True:
                beats.append(1)
                await asyncio.sleep(0.005)

        heart = asyncio.create_task(beat())
        whole, pieces = await asyncio.gather(model.agenerate(PROMPT, max_tokens=20), read())
        heart.cancel()
        return whole.text, pieces, beats

    whole, pieces, beats = asyncio.run(both())
    assert whole == pieces == expected
    assert len(beats) > 3


def test_a_cancelled_task_frees_the_engine(model: Model) -> None:
    async def leave() -> float:
        task = asyncio.create_task(model.agenerate(LONG))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with model.astream(LONG) as stream:
            async for _ in stream:
                break
        return time.monotonic()

    asyncio.run(leave())
    wait_until_free(model)
    with pytest.raises(MedusaError, match="no running event loop"):
        model.astream(PROMPT)
    assert model.queue_length == 0


def test_sessions_keep_what_they_have_decoded(model: Model) -> None:
    with model.session() as session, model.session() as other:
        first = session.generate(LONG, max_tokens=8)
        prompt = [*model.tokens(LONG), *first.tokens]
        assert session.cached_tokens[: first.prompt_tokens] == prompt[: first.prompt_tokens]
        assert session.generate(prompt, max_tokens=4).cached_tokens >= first.prompt_tokens
        assert other.generate(prompt, max_tokens=4).cached_tokens == 0
        assert session.nbytes == 1024 * 30 * 2 * 3 * 64 * 2
        assert session.n_ctx == model.n_ctx == 1024
    with pytest.raises(MedusaError, match="closed"):
        session.generate(PROMPT)


def test_two_models_answer_at_the_same_time(model: Model) -> None:
    expected = model.generate(PROMPT, **WARM).text
    with Model("demo", ctx_size=512, no_spec=True, quiet=True) as other:
        streams = [model.stream(PROMPT, **WARM), other.stream(PROMPT, **WARM)]
        assert [stream.answer.text for stream in streams] == [expected, expected]
        assert streams[1].answer.tokens_per_step == 1


def test_closing_ends_what_is_under_way(demo_model_path: Path) -> None:
    model = Model(demo_model_path, ctx_size=512, quiet=True)
    session = model.session()
    stream = session.stream(LONG)
    next(stream)
    model.close()
    assert stream.answer.stop_reason == "cancelled"
    for closed in (model, session):
        with pytest.raises(MedusaError, match="closed"):
            closed.generate(PROMPT)
    model.close()


def test_models_that_are_closed_give_their_memory_back(demo_model_path: Path) -> None:
    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("memory of a process is read from /proc")
    sizes = []
    for _ in range(14):
        with Model(demo_model_path, ctx_size=256, quiet=True) as model:
            model.generate("Hi", max_tokens=2)
        sizes.append(resident())
    # A model takes 100 MB: one that stayed would show.
    assert max(sizes[4:]) - sizes[3] < 30e6
