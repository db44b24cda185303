"""Answers that a file gives: how they are read, the rows they make, and whole runs on them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from test_training_run import Engine, FakeModel, base, engine  # noqa: F401

from medusa_cli import native
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import train
from medusa_cli.training.options import TrainOptions
from medusa_cli.training.recipes import TextRecipe
from medusa_cli.training.text.corpus import Corpus
from medusa_cli.training.text.dialogs import FileSource
from medusa_cli.training.text.generate import TextWriter
from medusa_cli.training.text.given import Dialog, GivenTexts, load_dialogs, rows_of
from medusa_cli.training.text.records import read_dialogs


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records), "utf-8")
    return path


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "Hi\n\nthere", "completion": "Hello"},
        {"prompt": "Hi\n\nthere", "response": "Hello"},
        {"instruction": "Hi", "input": "there", "output": "Hello"},
        {"messages": [user("Hi\n\nthere"), assistant("Hello")]},
        {"conversations": [{"from": "human", "value": "Hi\n\nthere"}, {"from": "gpt", "value": "Hello"}]},
    ],
)
def test_answers_in_all_forms(tmp_path: Path, record: Any) -> None:
    ((where, messages),) = read_dialogs(write(tmp_path / "d.jsonl", record))
    assert where.endswith("d.jsonl:1")
    assert messages == [user("Hi\n\nthere"), assistant("Hello")]
    assert FileSource(tmp_path / "d.jsonl").take(0, 1)[0].turns == ("Hi\n\nthere",)


def test_which_messages_are_answers() -> None:
    system = {"role": "system", "content": "Be brief."}
    said = [system, user("a"), assistant("b"), assistant(" "), user("c"), assistant("d")]
    found = list(Dialog("", [*said, {"role": "tool", "content": "e"}, assistant("f")]).answers())
    assert found == [(said[:2], "b"), (said[:5], "d")]
    called: Any = {"role": "assistant", "content": None, "tool_calls": []}
    assert list(Dialog("", [user("a"), called, assistant("b")]).answers()) == []


def test_a_file_without_answers(tmp_path: Path) -> None:
    with pytest.raises(MedusaError, match="holds no answers"):
        load_dialogs(write(tmp_path / "d.jsonl", {"prompt": "Hi"}, {"turns": ["a", "b"]}))
    with pytest.raises(MedusaError, match=r"d\.jsonl:1: 'instruction' holds no user text"):
        load_dialogs(write(tmp_path / "d.jsonl", {"instruction": 3, "output": "x"}))


@pytest.mark.model
def test_own_answers_given_make_the_same_rows(tmp_path: Path, demo_model_path: Path) -> None:
    model = native.Model(str(demo_model_path))
    asked = [f"Write two sentences about {what}." for what in ("rain", "a lighthouse", "bread", "the moon")]
    recipe = TextRecipe(longest_answer=120)
    prompts = write(tmp_path / "p.jsonl", *({"turns": [text, "Go on."]} for text in asked))
    own = Corpus(tmp_path / "own", model.n_embd)
    writer = TextWriter(
        model, own, FileSource(prompts), seed=1, parallel=4, threads=1, self_written=False, recipe=recipe
    )
    writer.run(lambda: float(own.tokens < 600), lambda: False)

    written = [(text, tokens, prompt) for (text, tokens), prompt in zip(own.stored(), own.load_prompts(), strict=True)]
    whole = [one for one in written if one[0].complete]
    assert len(whole) >= 4
    compared = 0
    given = Corpus(tmp_path / "given", model.n_embd)
    dialogs = []
    for text, tokens, prompt in whole:
        shown = model.detokenize(prompt.tolist(), special=True)
        turns = [turn for turn in asked if turn in shown]
        answer = model.detokenize(tokens[:-1].tolist())
        if "Go on." not in shown and answer == answer.strip():
            dialogs.append(Dialog("x", [user(turns[0]), assistant(answer)]))
            asked_for, said = rows_of(model, dialogs[-1].messages[:1], answer)
            canonical = model.tokenize(answer, add_special=False)
            assert asked_for == prompt.tolist()
            if canonical == tokens[:-1].tolist():  # the model may split a text in other ways than its tokenizer
                assert said == tokens.tolist()
                compared += text.length
    assert compared > 100
    GivenTexts(model, given, dialogs, recipe, 1).run(lambda: 1.0, lambda: False)
    theirs = {tokens.tobytes(): rows for (_, tokens), rows in zip(own.stored(), split_rows(own), strict=True)}
    same = 0
    for (text, tokens), rows in zip(given.stored(), split_rows(given), strict=True):
        assert (text.source, text.temperature) == ("given", None)
        if (there := theirs.get(tokens.tobytes())) is not None:
            same += text.length
            off = np.abs(rows.astype(np.float32) - there.astype(np.float32)).max()
            assert off < 0.1 * np.abs(there).max()  # batches of other widths round differently
    assert same == compared


def split_rows(corpus: Corpus) -> list[np.ndarray[Any, Any]]:
    whole = np.concatenate(corpus.open_states())
    return np.split(whole, np.cumsum([text.length for text in corpus.texts])[:-1])


def options(base: Path, folder: Path, data: Path, **more: Any) -> TrainOptions:  # noqa: F811
    return TrainOptions(
        model=base,
        output=folder / "heads.gguf",
        sidecar=True,
        data=data,
        answers="given",
        tokens=2000,
        heads=2,
        draft_vocab=100,
        work_dir=folder / "work",
        console=Console(file=io.StringIO(), width=200),
        **more,
    )


def conversations(path: Path) -> Path:
    words = [f"w{number}" for number in range(40)]
    rng = np.random.default_rng(3)
    return write(
        path,
        *(
            {
                "messages": [
                    user(f"q{number}"),
                    assistant(" ".join(rng.choice(words, 30))),
                    user("?"),
                    assistant("x" * 9),
                ]
            }
            for number in range(60)
        ),
    )


def test_a_run_learns_the_given_answers_and_nothing_else(tmp_path: Path, base: Path, engine: Engine) -> None:  # noqa: F811
    data = conversations(tmp_path / "d.jsonl")
    asked = options(base, tmp_path, data)
    train.run(asked)
    assert engine.texts == 0  # the model wrote nothing
    report = json.loads((tmp_path / "heads.train.json").read_text("utf-8"))
    assert report["options"]["answers"] == "given"
    assert [row["source"] for row in report["text"]["sources"]] == ["given"]
    first = (tmp_path / "heads.gguf").read_bytes()
    (tmp_path / "heads.gguf").unlink()
    train.run(options(base, tmp_path, data))
    assert (tmp_path / "heads.gguf").read_bytes() == first
    said = asked.console.file.getvalue()  # type: ignore[attr-defined]
    assert "Learning the answers in" in said


def test_reading_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    model: Any = FakeModel("x")
    dialogs = load_dialogs(conversations(tmp_path / "d.jsonl"))

    class Reader:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def read(self, tokens: list[int], outputs_from: int) -> Any:
            outputs = len(tokens) - outputs_from
            return type("Found", (), {"post_norm": np.zeros((outputs, model.n_embd), np.float32)})

    def filled(name: str, stops: list[int]) -> list[int]:
        for stop in stops:
            corpus = Corpus(tmp_path / name, model.n_embd)
            before = corpus.tokens
            GivenTexts(model, corpus, dialogs, TextRecipe(), 1).run(
                lambda corpus=corpus, before=before, stop=stop: stop - (corpus.tokens - before),  # type: ignore[misc]
                lambda: False,
            )
        return Corpus(tmp_path / name, model.n_embd).load_tokens().tolist()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "StatesReader", Reader)
        assert filled("parts", [300, 500, 10**9]) == filled("whole", [10**9])


def test_what_does_not_go_together(tmp_path: Path, base: Path) -> None:  # noqa: F811
    with pytest.raises(MedusaError, match="give a file with conversations"):
        TrainOptions(model=base, output=tmp_path / "x.gguf", sidecar=True, answers="given").check()
