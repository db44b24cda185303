"""Whole training runs on a made-up engine: a file in the end, Ctrl-C anywhere, the same bytes again."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fixtures
import numpy as np
import pytest
from medusa_cli.converters.gguf.header import read_header
from medusa_cli.converters.heads.single_file import split
from rich.console import Console

from medusa_cli import native
from medusa_cli.decoding.context_size import bytes_per_token
from medusa_cli.support import machine
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import loop, train
from medusa_cli.training.options import TREE_NODES, RecipeFile, TrainOptions
from medusa_cli.training.phases import collect, fitting
from medusa_cli.training.phases.collect import texts_that_fit
from medusa_cli.training.phases.planning import EPOCHS, FIRST_TOKENS, MAX_EPOCHS, Schedule
from medusa_cli.training.recipes import KINDS, OBJECTIVES, RECIPES
from medusa_cli.training.text.corpus import Corpus

EOS = 2
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}<assistant>"


class FakeModel:
    """Answers are walks along a fixed permutation of the vocabulary: no loops, and every token decides the next."""

    n_vocab, n_embd, n_ctx_train = fixtures.BASE_VOCAB, fixtures.BASE_HIDDEN, 4096
    bos_text, eos_text, add_bos = "<s>", "</s>", False
    gpu, size_bytes = False, 1000
    chat_template: str | None = TEMPLATE

    def __init__(self, path: str, **options: Any) -> None:
        self.follow = np.random.default_rng(0).permutation(np.arange(10, self.n_vocab))
        self.embedding = np.random.default_rng(1).normal(size=(self.n_vocab, self.n_embd)).astype(np.float16)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return [3 + byte for byte in text.encode()]

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return " ".join(f"word{token}" for token in tokens)

    def is_eog(self, token: int) -> bool:
        return token == EOS

    def answer(self, prompt: Sequence[int], seed: int) -> list[int]:
        rng = np.random.default_rng([seed, len(prompt), *prompt[-8:]])
        at, length = int(rng.integers(len(self.follow))), int(rng.integers(20, 60))
        return [int(self.follow[(at + i) % len(self.follow)]) for i in range(length)] + [EOS]


class Engine:
    """Stands in for native.collect; `on_call(texts so far)` lets a test interrupt it."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.texts = 0
        self.on_call: Callable[[int], None] = lambda texts: None

    def collect(
        self, model: FakeModel, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], **options: Any
    ) -> None:
        assert len(prompts) == len(temperatures)
        total = 0
        for index, prompt in enumerate(prompts):
            self.prompts.append(bytes(token - 3 for token in prompt).decode())
            tokens = model.answer(prompt, options["seed"])[: options["max_tokens"]]
            total += len(tokens)
            self.texts += 1
            self.on_call(self.texts)
            states = model.embedding[tokens] if options["hidden"] else None
            if options["on_sequence"](index, tokens, states) is False:
                return
            if options.get("on_progress"):
                options["on_progress"](total)


class States:
    """Stands in for native.StatesReader."""

    def __init__(self, model: FakeModel, longest: int, **options: Any) -> None:
        self.model, self.longest = model, longest

    def read(self, tokens: Sequence[int], outputs_from: int = 0) -> Any:
        assert 0 < len(tokens) <= self.longest
        states = self.model.embedding[np.array(tokens) % self.model.n_vocab].astype(np.float32)
        return SimpleNamespace(post_norm=states[outputs_from:])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    fake = Engine()
    monkeypatch.setattr(native, "Model", FakeModel)
    monkeypatch.setattr(native, "collect", fake.collect)
    monkeypatch.setattr(native, "StatesReader", States)
    return fake


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fixtures.tiny_base(tmp_path_factory.mktemp("base") / "tiny.gguf")


def options(base: Path, folder: Path, **changes: Any) -> TrainOptions:
    fields: dict[str, Any] = {
        "model": base,
        "output": folder / "out.gguf",
        "sidecar": True,
        "heads": 3,
        "tokens": 6000,
        "threads": 1,
        "parallel": 4,
        "work_dir": folder / "work",
        "console": Console(file=io.StringIO(), width=160),
    }
    return TrainOptions(**{**fields, **changes})


def text_of(given: TrainOptions) -> Corpus:
    assert given.work_dir is not None
    return Corpus(next(given.work_dir.glob("*/text")), fixtures.BASE_HIDDEN)


def shown(given: TrainOptions) -> str:
    assert isinstance(given.console.file, io.StringIO)
    return given.console.file.getvalue()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_writes_heads_with_a_tree(base: Path, tmp_path: Path, engine: Engine, kind: str, objective: str) -> None:
    given = options(base, tmp_path, kind=kind, objective=objective)
    result = train.run(given)
    header, _ = read_header(given.output)
    names = [tensor.name for tensor in header.tensors]
    assert header.get("medusa.head_count") == 3
    assert header.get("medusa.kind") == kind
    assert ("medusa.0.block.0.residual.weight" in names) == kind.startswith("hydra")
    assert ("medusa.cell.gate.weight" in names) == (kind == "recurrent")
    assert ("medusa.prefix.attn_q.weight" in names) == (kind == "hydra++")
    assert ("and teacher: 0.00 GiB" in shown(given)) == (objective == "teacher")
    assert "Checkpoint: up to 0.00 GiB" in shown(given)
    assert "Best at step" in shown(given)
    assert list(result.by_size) == [4, 8, 16]
    assert result.by_size[4] <= result.by_size[16] <= 4
    assert header.get("medusa.lm_head") == "draft_vocab"
    assert "medusa.output.weight" not in names
    assert header.get("medusa.accuracy_ranks") == 10
    assert 1 <= len(result.tree) <= TREE_NODES - 1
    assert header.get("medusa.base.fingerprint").startswith("llama-2x64-320-")
    assert 1 <= result.measured <= 4
    assert "tokens per step predicted" in shown(given)
    assert "GiB free" in shown(given)
    two_turns = [prompt for prompt in engine.prompts if prompt.count("<user>") == 2]
    assert two_turns
    assert all("<assistant>word" in prompt for prompt in two_turns)
    assert any(prompt.startswith("<user>") and "</user>" not in prompt for prompt in engine.prompts)  # self-written


def test_the_single_file_holds_the_base_as_it_was(base: Path, tmp_path: Path, engine: Engine) -> None:
    given = options(base, tmp_path, sidecar=False)
    train.run(given)
    split(given.output, tmp_path / "b.gguf", tmp_path / "h.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == base.read_bytes()
    assert [path.name for path in (tmp_path / "work").rglob("*.gguf")] == []


def test_the_same_seed_gives_the_same_file(base: Path, tmp_path: Path, engine: Engine) -> None:
    first = options(base, tmp_path, output=tmp_path / "1.gguf")
    second = options(base, tmp_path, output=tmp_path / "2.gguf", work_dir=tmp_path / "other")
    train.run(first)
    train.run(second)
    train.run(options(base, tmp_path, output=tmp_path / "3.gguf", work_dir=tmp_path / "third", seed=1))
    files = [(tmp_path / f"{i}.gguf").read_bytes() for i in (1, 2, 3)]
    assert files[0] == files[1] != files[2]


def test_an_interrupted_generation_goes_on(base: Path, tmp_path: Path, engine: Engine) -> None:
    given = options(base, tmp_path)
    engine.on_call = lambda texts: interrupt() if texts == 70 else None
    with pytest.raises(KeyboardInterrupt):
        train.run(given)
    saved = text_of(given)
    assert saved.texts
    assert not given.output.exists()
    assert "Saved in" in shown(given)
    engine.on_call = lambda texts: None
    train.run(given)
    finished = text_of(given)
    jobs = [text.job for text in finished.texts]
    assert len(jobs) == len(set(jobs))
    assert finished.texts[: len(saved.texts)] == saved.texts
    assert finished.tokens >= 6000
    undisturbed = options(base, tmp_path, work_dir=tmp_path / "other")
    train.run(undisturbed)
    assert finished.state["generated"] == text_of(undisturbed).state["generated"]  # nothing was written twice
    calls = engine.texts
    train.run(given)  # everything is there already: no more text is written
    assert engine.texts == calls


@pytest.mark.parametrize("stop", [1, 9])
def test_an_interrupted_training_ends_in_the_same_file(
    base: Path, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    given = options(base, tmp_path, output=tmp_path / "1.gguf")
    train.run(given)
    shutil.copytree(tmp_path / "work", tmp_path / "again")
    for left in (tmp_path / "again").glob("*/*.pt"):
        left.unlink()
    again = options(base, tmp_path, output=tmp_path / "2.gguf", work_dir=tmp_path / "again")
    real = loop.learning_rate

    def rate(step: int, *rest: Any) -> float:
        if step == stop:
            interrupt()
        return real(step, *rest)

    monkeypatch.setattr(loop, "learning_rate", rate)
    with pytest.raises(KeyboardInterrupt):
        train.run(again)
    monkeypatch.setattr(loop, "learning_rate", real)
    assert not again.output.exists()
    train.run(again)
    assert again.output.read_bytes() == given.output.read_bytes()


@pytest.mark.parametrize("form", ["turns", "messages", "sharegpt"])
def test_given_prompts_are_used_and_nothing_else(base: Path, tmp_path: Path, engine: Engine, form: str) -> None:
    turns = [[f"question {i}?", f"and then {i}?", f"at last {i}?"] for i in range(30)]
    data = tmp_path / "prompts.json"
    if form == "turns":
        data.write_text("\n".join(json.dumps({"turns": row}) for row in turns))
    elif form == "messages":
        rows = [[part for turn in row for part in (("user", turn), ("assistant", "no"))] for row in turns]
        lines = [{"messages": [{"role": role, "content": text} for role, text in row]} for row in rows]
        data.write_text("\n".join(map(json.dumps, lines)))
    else:  # ShareGPT's own files are one array
        rows = [[part for turn in row for part in (("human", turn), ("gpt", "no"))] for row in turns]
        data.write_text(json.dumps([{"conversations": [{"from": a, "value": b} for a, b in row]} for row in rows]))
    given = options(base, tmp_path, data=data, tokens=8000)
    train.run(given)
    assert all(prompt.startswith("<user>question ") for prompt in engine.prompts)
    third = [prompt for prompt in engine.prompts if prompt.count("<user>") == 3]
    assert third
    assert all("<user>and then " in prompt and "<user>at last " in prompt for prompt in third)
    assert all("<assistant>word" in prompt and "no</" not in prompt for prompt in third)
    assert {text.source for text in text_of(given).texts} == {"given", "later turn"}


def test_the_model_writes_the_later_turns_where_a_recipe_says_so(
    base: Path, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spelt(_: FakeModel, tokens: Sequence[int], *, special: bool = False) -> str:
        return " ".join(chr(97 + token // 26 % 26) + chr(97 + token % 26) for token in tokens)

    monkeypatch.setattr(FakeModel, "detokenize", spelt)
    data = tmp_path / "prompts.jsonl"
    data.write_text("\n".join(json.dumps({"turns": [f"question {i}?", "and then?"]}) for i in range(30)))
    recipe = RecipeFile(values={"later_turns": "self-written", "turns": 3})
    given = options(base, tmp_path, data=data, tokens=8000, file=recipe)
    train.run(given)
    turns = [prompt for prompt in engine.prompts if prompt.endswith("<user>")]
    assert turns
    assert all(prompt.startswith("<user>question ") and prompt.endswith("</assistant><user>") for prompt in turns)
    answered = [prompt for prompt in engine.prompts if prompt.endswith("<assistant>")]
    counts = [prompt.count("<user>") for prompt in answered]
    assert set(counts) == {1, 2, 3}
    assert not any("and then?" in prompt for prompt in answered)
    second = [re.findall("<user>(.*?)</user>", prompt)[1] for prompt in answered if prompt.count("<user>") > 1]
    assert all(len(turn.split()) >= 4 for turn in second)
    assert {text.source for text in text_of(given).texts} == {"given", "later turn"}


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_a_recipe_says_how_many_answers_are_greedy(base: Path, tmp_path: Path, engine: Engine, share: float) -> None:
    given = options(base, tmp_path, file=RecipeFile(values={"greedy": share}))
    train.run(given)
    temperatures = [text.temperature for text in text_of(given).texts]
    assert len(temperatures) > 50
    assert temperatures.count(0.0) / len(temperatures) == pytest.approx(share, abs=0.12)
    assert all(value == 0 or 0.3 <= value <= 1.0 for value in temperatures if value is not None)


def test_self_written_turns_need_a_template(
    base: Path, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeModel, "chat_template", None)
    with pytest.raises(MedusaError, match="later_turns: the model has no chat template"):
        train.run(options(base, tmp_path, file=RecipeFile(values={"later_turns": "self-written"})))


def test_a_model_without_a_template_continues_plain_text(
    base: Path, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeModel, "chat_template", None)
    train.run(options(base, tmp_path))
    assert not any("<user>" in prompt for prompt in engine.prompts)


def test_a_timed_run_plans_and_ends(base: Path, tmp_path: Path, engine: Engine) -> None:
    given = options(base, tmp_path, tokens=None, minutes=0.05)
    result = train.run(given)
    assert result.tokens > 1000
    plan = json.loads(next((tmp_path / "work").glob("*/hydra.plan.json")).read_text())
    assert plan["minutes"] == 0.05
    assert plan["steps"] >= 1


def test_tokens_and_minutes_together(base: Path, tmp_path: Path, engine: Engine) -> None:
    """The tokens say how much text there is, the minutes how long it is trained on."""
    train.run(options(base, tmp_path, tokens=2000))
    alone = json.loads((tmp_path / "out.train.json").read_text())
    written = engine.texts
    result = train.run(options(base, tmp_path, tokens=2000, minutes=1000.0))
    plan = json.loads(next((tmp_path / "work").glob("*/hydra.plan.json")).read_text())
    assert engine.texts == written
    assert result.tokens == alone["text"]["trained_on"]
    assert (plan["tokens"], plan["minutes"]) == (2000, 1000.0)
    assert plan["steps"] == MAX_EPOCHS / EPOCHS * alone["training"]["planned_steps"]


def test_a_model_that_only_loops_is_refused(
    base: Path, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeModel, "answer", lambda self, prompt, seed: [9] * 4 + [EOS])
    with pytest.raises(MedusaError, match="no usable text"):
        train.run(options(base, tmp_path))
    assert not (tmp_path / "out.gguf").exists()


def test_too_little_text_is_refused(base: Path, tmp_path: Path, engine: Engine) -> None:
    data = tmp_path / "one.jsonl"
    data.write_text('{"prompt": "only one"}')
    with pytest.raises(MedusaError, match="usable text"):
        train.run(options(base, tmp_path, data=data))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": Path("none.gguf")}, "no such model file"),
        ({"data": Path("none.jsonl")}, "no such prompts file"),
        ({"output": Path("none/out.gguf")}, "existing folder"),
        ({"output": Path(".")}, "existing folder"),
        ({"heads": 0}, "--heads"),
        ({"kind": "eagle"}, "--kind eagle"),
        ({"objective": "joy"}, "objective joy"),
        ({"tokens": None, "minutes": float("nan")}, "--minutes"),
        ({"tokens": 5}, "tokens 5"),
        ({"parallel": 500}, "parallel 500"),
    ],
)
def test_bad_options_are_refused_at_once(base: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MedusaError, match=message):
        train.run(options(base, tmp_path, **changes))
    assert list(tmp_path.iterdir()) == []


def test_the_model_itself_is_never_overwritten(base: Path, tmp_path: Path) -> None:
    with pytest.raises(MedusaError, match="overwrite the model"):
        train.run(options(base, tmp_path, output=base))


def test_too_little_space_is_said_at_the_start(
    base: Path, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(MedusaError, match="set work_dir in a recipe"):
        train.run(options(base, tmp_path))
    assert engine.texts == 0


def test_too_little_memory_is_said_at_the_start(
    base: Path, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 1_500_000
    monkeypatch.setattr(machine, "memory", lambda: (1 << 40, room))
    with pytest.raises(MedusaError, match=r"training hydra heads for tiny.gguf takes about .* GiB") as caught:
        train.run(options(base, tmp_path, heads=4))
    assert "end other programs or --kind medusa (0.0 GiB) or --kind recurrent (0.0 GiB)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert engine.texts == 0
    monkeypatch.setattr(machine, "memory", lambda: (None, None))  # as on a Mac
    train.run(options(base, tmp_path, heads=4))


def test_fewer_texts_are_written_at_a_time_where_memory_is_scarce(
    base: Path, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, each = options(base, tmp_path), bytes_per_token(str(base), "f16", "f16")
    monkeypatch.setattr(native, "buffers_are_lazy", lambda: True)
    for texts, wanted in ((2.5, 2), (1, 1), (0.5, 1), (-3, 1), (4, 4), (400, 4)):
        room = int(1000 + texts * each * (384 + 256)) + 1
        monkeypatch.setattr(machine, "memory", lambda room=room: (1 << 40, room))
        assert texts_that_fit(given, FakeModel("")) == wanted  # type: ignore[arg-type]
    monkeypatch.setattr(collect, "texts_that_fit", lambda given, model: 3)
    monkeypatch.setattr(machine, "memory", lambda: (None, None))
    train.run(given)
    assert "3 texts at a time: there is no memory for 4" in shown(given)


@pytest.mark.parametrize(("kind", "hidden", "weights"), [("hydra", 1536, 75_515_904), ("recurrent", 1536, 25_853_952)])
def test_the_weights_of_large_heads_are_known_without_them(kind: str, hidden: int, weights: int) -> None:
    setup: Any = SimpleNamespace(options=SimpleNamespace(heads=4), base=SimpleNamespace(n_embd=hidden))
    needed = fitting._bytes_in_training(setup, kind, RECIPES[kind])
    assert needed / fitting.BYTES_PER_WEIGHT == pytest.approx(weights, rel=0.15)


def test_time_is_split_by_the_measured_rates() -> None:
    def generation_share(train_rate: float, generation_rate: float = 100.0) -> float:
        schedule, tokens, seconds = Schedule(None, 1000.0, train_rate), 0.0, 0.0
        while schedule.tokens_left(int(tokens), seconds) > 0:
            seconds += 1.0
            tokens += generation_rate
        return seconds / 1000.0

    assert generation_share(400) == pytest.approx(2 / 3, abs=0.01)  # 100 tokens/s against two epochs at 400/s
    assert generation_share(10**6) == pytest.approx(0.85, abs=0.01)
    assert generation_share(10) == pytest.approx(0.5, abs=0.01)
    nothing_yet = [Schedule(None, 1000.0, 400.0).tokens_left(0, seconds) for seconds in (0.0, 840.0, 860.0)]
    assert nothing_yet == [FIRST_TOKENS, FIRST_TOKENS, 0]


def test_training_fills_the_time_that_is_left() -> None:
    schedule = Schedule(None, 1000.0, 400.0)
    assert schedule.steps(50_000, 500, seconds=600) == 320
    assert schedule.steps(50_000, 500, seconds=5000) == 100  # at least one epoch
    assert schedule.steps(5_000, 500, seconds=0) == MAX_EPOCHS * 10
    assert schedule.steps(5_000, 500, seconds=0, epochs=20) == 20 * 10
    assert schedule.steps(50_000, 500, seconds=600, epochs=20) == 320
    assert Schedule(10_000, None, 1.0).steps(5_000, 500, seconds=99) == EPOCHS * 10
    assert Schedule(10_000, None, 1.0).steps(5_000, 500, seconds=99, epochs=2.5) == 25
    assert Schedule(10_000, None, 1.0).tokens_left(4_000, 99) == 6_000
    assert Schedule(10_000, 1000.0, 400.0).tokens_left(4_000, 5000) == 6_000
    assert Schedule(10_000, 1000.0, 400.0).steps(50_000, 500, seconds=600) == 320


def test_a_model_that_repeats_itself_ends_the_text(
    base: Path, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    different = FakeModel.answer
    monkeypatch.setattr(FakeModel, "answer", lambda self, prompt, seed: different(self, prompt[:1], 0))
    given = options(base, tmp_path, tokens=100_000)
    with pytest.raises(MedusaError, match="give more time"):
        train.run(given)
    assert 0 < text_of(given).tokens < 1000
