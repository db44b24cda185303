"""Sessions whose caches are saved, restored and copied, and prompts that are cut, with real models."""

from __future__ import annotations

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
from architectures import ARCHITECTURES, TOKENS
from random_models import write_random_model

from medusa_cli import MedusaError, Model, native
from medusa_cli.api.job import Turn
from medusa_cli.decoding import saved_caches
from medusa_cli.decoding.saved_caches import CacheStore
from medusa_cli.models import demo

KERNELS = native.kernel_info()["selected"] is not None
SYSTEM = "You are the keeper of a lighthouse. Answer in one short sentence. " * 8
OPTIONS: dict[str, Any] = {"max_tokens": 16, "temperature": 0.8, "seed": 5}
Messages = list[dict[str, Any]]


@pytest.fixture(scope="module")
def model(demo_model_path: Path) -> Iterator[Model]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(demo.DEMO_VARIABLE, str(demo_model_path))
        with Model("demo", ctx_size=1024, quiet=True) as opened:
            yield opened


def asking(text: str) -> Messages:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


@pytest.mark.model
def test_a_saved_session_goes_on(model: Model, tmp_path: Path) -> None:
    first = asking("What do you see?")
    with model.session() as stays:
        answer = stays.generate(first, **OPTIONS)
        stays.save(tmp_path / "a.cache")
        second = [*first, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "And at night?"}]
        expected, known = stays.generate(second, **OPTIONS), stays.cached_tokens
    if hasattr(os, "geteuid"):
        assert (tmp_path / "a.cache").stat().st_mode & 0o777 == 0o600
    with model.session() as moves:
        moves.restore(str(tmp_path / "a.cache"))
        assert moves.nbytes > 0
        answer = moves.generate(second, **OPTIONS)
        assert (answer.text, answer.cached_tokens) == (expected.text, expected.cached_tokens)
        # Whether the newest token is cached depends on the last step, and so on how long steps took.
        common = min(len(moves.cached_tokens), len(known))
        assert moves.cached_tokens[:common] == known[:common]
        assert max(len(moves.cached_tokens), len(known)) - common <= 1
        assert answer.cached_tokens > len(model.tokens(first)) - 4


@pytest.mark.model
def test_what_cannot_be_saved_or_restored_is_one_line(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "a.cache"
    with model.session() as session:
        session.generate(asking("Hello. " * 150), **OPTIONS)
        with pytest.raises(MedusaError, match="No such file"):
            session.save(tmp_path / "none" / "a.cache")
        session.save(path)
        known = session.cached_tokens
        damaged = bytearray(path.read_bytes())
        damaged[-5] ^= 1
        path.write_bytes(damaged)
        for content, message in (
            (damaged, "damaged, its check sum is wrong"),
            (damaged[:1000], "not a saved prompt cache of this version, or damaged"),
            (b"", "not a saved prompt cache"),
        ):
            path.write_bytes(content)
            with pytest.raises(MedusaError, match=message) as refused:
                session.restore(path)
            assert "\n" not in str(refused.value)
        assert session.cached_tokens == known
        with pytest.raises(MedusaError, match="No such file"):
            session.restore(tmp_path / "none")
        session.save(path)
        other, small = (Model("demo", quiet=True, **one) for one in ({"cache_type_k": "q8_0"}, {"ctx_size": 128}))
        with other, pytest.raises(MedusaError, match="another model, other cache types"):
            other.restore(path)
        with small:
            with pytest.raises(MedusaError, match=r"a\.cache: .*does not fit"):
                small.restore(path)
            assert small.cached_tokens == []


@pytest.mark.model
def test_saving_waits_for_its_turn(model: Model, tmp_path: Path) -> None:
    session, turn = model.session(), Turn(None, lambda: None)
    model._turns.join(turn)
    with model._turns.taken(turn):
        script = [session.save, session.restore]
        errors: list[str] = []

        def run(work: Any) -> None:
            try:
                work(tmp_path / "a.cache")
            except MedusaError as error:
                errors.append(str(error))

        threads = [threading.Thread(target=run, args=(work,)) for work in script]
        for thread in threads:
            thread.start()
        while model.queue_length < 3:
            time.sleep(0.005)
        session.cancel()
        for thread in threads:
            thread.join()
    assert sorted(error.removeprefix(f"{tmp_path / 'a.cache'} ") for error in errors) == [
        "was not restored: the session was cancelled", "was not saved: the session was cancelled",
    ]  # fmt: skip


@pytest.mark.model
def test_a_copy_says_the_same(model: Model) -> None:
    with model.session() as one, model.session() as other:
        one.generate(asking("What do you see? " * 20), **OPTIONS)
        fresh = other.generate(asking("Who are you?"), **OPTIONS)
        other.forget()
        other.copy_from(one)
        assert other.nbytes == one.nbytes
        copied = other.generate(asking("Who are you?"), **OPTIONS)
        assert copied.text == fresh.text
        assert copied.cached_tokens >= len(model.tokens([asking("")[0]])) - 8
        assert fresh.cached_tokens == 0


@pytest.mark.skipif(not KERNELS, reason="llama.cpp's kernels round by width")
@pytest.mark.parametrize("name", ["qwen35", "mamba2", "rwkv7"])
def test_copies_of_recurrent_models(name: str, tmp_path: Path) -> None:
    """They go on from a checkpoint in what both share, or read all of it: the text is the same."""
    full, path = tmp_path / "full.gguf", tmp_path / "model.gguf"
    write_random_model(full, ARCHITECTURES[name], seed=1)
    native.quantize_model(str(full), str(path), file_type=15)
    with Model(str(path), ctx_size=1024, quiet=True) as model:
        shared = [number * 7 % (TOKENS - 1) + 1 for number in range(300)]
        with model.session() as one, model.session() as other, model.session() as fresh:
            one.generate([*shared, *[5, 6, 7] * 30], ignore_eos=True, **OPTIONS)
            other.copy_from(one)
            prompt = [*shared, *[9, 8] * 20]
            expected, found = (session.generate(prompt, ignore_eos=True, **OPTIONS) for session in (fresh, other))
            assert found.tokens == expected.tokens
            assert found.cached_tokens <= len(shared)


WRITING = """
import sys
from medusa_cli import Model

with Model("demo", ctx_size=1024, quiet=True) as model:
    model.generate("word " * 500, max_tokens=2)
    print("writes", flush=True)
    while True:
        model.save(sys.argv[1])
"""


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are not killed so here")
def test_a_process_that_is_killed_while_it_writes(
    model: Model, demo_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(demo.DEMO_VARIABLE, str(demo_model_path))
    path = tmp_path / "a.cache"
    for round in range(4):
        command = [sys.executable, "-c", WRITING, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "writes\n"
            while not path.exists():
                time.sleep(0.01)
            time.sleep(0.013 * (round + 1))
            process.kill()
        model.restore(path)
        assert len(model.cached_tokens) > 500
    store = CacheStore(tmp_path)
    assert store.files() == [path]
    for part in tmp_path.glob(".*.part"):
        os.utime(part, (1, 1))
    assert store.prepare() == ""
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.model
def test_a_store(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners, a budget, the least recently used out first, and files that are none."""
    store = CacheStore(tmp_path / "a" / "b", 40 << 20)
    assert store.prepare() == ""
    prompts = [list(range(start, start + 500)) for start in range(1000, 7000, 1000)]
    with model.session() as session:
        for prompt in prompts[:5]:
            session.generate(prompt, max_tokens=2)
            session.keep_in(store, "me", time.time())
        size = max(path.stat().st_size for path in store.files())
        assert sum(path.stat().st_size for path in store.files()) <= store.budget
        newest = store.files()[-1]
        session.keep_in(store, "me", time.time())
        assert store.files()[-1] == newest, "it is known already"
        with model.session() as other:
            other.generate(prompts[5], max_tokens=2)
            before = store.files()
            other.keep_in(store, "me", 1.0)
            assert len(before) == 3
            assert store.files() == before, "it was used before the others, which fill the budget"

        def known(prompt: list[int], owner: str, beyond: int = 0) -> int:
            with model.session() as other:
                assert other.bring_from(store, prompt, owner, beyond) == ""
                return len(other.cached_tokens)

        assert known(prompts[4], "me") > 0
        assert known(prompts[4], "you") == 0
        assert known(prompts[4], "me", len(prompts[4])) == 0
        small = CacheStore(store.folder, size + 1000)
        (store.folder / "old.cache").write_bytes(b"medusa cache 0\n\0" + bytes(100))
        assert small.prepare().endswith("b: 1 damaged or older caches, or another user's, are left out")
        assert len(small.files()) == 1 + 1
        # A model that was replaced while it was loaded: its cache is not taken for the new one's.
        monkeypatch.setattr(saved_caches, "content_hash", lambda path: "another")
        assert known(prompts[4], "me") > 0
        with model.session() as other:
            assert other.bring_from(CacheStore(store.folder), prompts[4], "me", 0) == ""
            assert other.cached_tokens == []


# --- truncation ------------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.slow
def test_truncation(model: Model) -> None:
    """Turn by turn the oldest ones leave, and the text is that of a fresh prompt with the others."""
    messages, places = asking("What do you see from up there?"), set()
    with model.session() as session, model.session() as fresh:
        for turn in range(12):
            answer = session.generate(messages, truncation="auto", max_tokens=24)
            kept = [messages[0], *messages[1 + answer.left_out :]]
            assert kept[1]["role"] == "user"
            assert answer.text == fresh.generate(kept, max_tokens=24).text
            assert answer.prompt_tokens == len(model.tokens(kept))
            fresh.forget()
            places.add(answer.left_out)
            messages.append({"role": "assistant", "content": answer.text})
            messages.append({"role": "user", "content": f"What else, for the {turn}th time? " * 10})
        assert len(places) > 1
        assert len(places) < 6
        with pytest.raises(MedusaError, match=r"the prompt has .* tokens, the context holds 1024"):
            session.generate(messages, max_tokens=24)
        messages[-1]["content"] = "Long. " * 400
        with pytest.raises(MedusaError, match=r"more than half of the context of 1024.* or give a larger ctx_size"):
            session.generate(messages, truncation="auto")


@pytest.mark.model
def test_truncation_that_cannot_be(model: Model) -> None:
    wrong: Any = "middle"
    with pytest.raises(MedusaError, match="truncation takes 'disabled' or 'auto', not 'middle'"):
        model.generate(asking("x"), truncation=wrong)
    for prompt, raw in (("x", False), ("x", True), ([1, 2], False)):
        with pytest.raises(MedusaError, match="truncation='auto' needs a prompt of messages"):
            model.generate(prompt, raw=raw, truncation="auto")
    assert model.generate(asking("x"), truncation="auto", max_tokens=1).left_out == 0
