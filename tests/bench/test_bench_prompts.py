"""The prompts of `medusa bench`: its own set, and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medusa_cli.prompts import bench_set
from medusa_cli.prompts.bench_set import Prompt
from medusa_cli.prompts.seeds.prompts import iter_conversations
from medusa_cli.support.errors import MedusaError

KINDS = [
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities", "copy-edit",
    "summarisation",
]  # fmt: skip


def test_the_built_in_prompts_are_five_of_each_kind() -> None:
    found = bench_set.built_in()
    assert [sum(prompt.category == kind for prompt in found) for kind in KINDS] == [5] * 10
    assert len({prompt.text for prompt in found}) == len(found) == 50


def test_no_built_in_prompt_is_trained_on() -> None:
    stream = iter_conversations(0)
    trained = {turn for _ in range(3000) for turn in next(stream).turns}
    assert not trained & {prompt.text for prompt in bench_set.built_in()}


def test_files_of_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]},
        {"prompt": "Hello\nthere"},
        {"prompt": "Hi", "category": "qa", "question_id": "x7"},
    ]
    path.write_text("\ufeff" + "\r\n\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    assert bench_set.read(path) == [
        Prompt("81", "writing", "First."),
        Prompt("line 3", "all", "Hello\nthere"),
        Prompt("x7", "qa", "Hi"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no prompts"),
        (b"\n  \n", "holds no prompts"),
        (b'{"prompt": "a"}\n{"prompt": \n', "line 2: not JSON"),
        (b'{"prompt": "a"}\n\xff\n', "line 2: not UTF-8"),
        (b"3\n", "line 1: no text"),
        (b'{"prompt": " "}', "line 1: no text"),
        (b'{"turns": []}', "line 1: no text"),
        (b'{"turns": [5]}', "line 1: no text"),
        (b'{"text": "a"}', "line 1: no text"),
        (b'{"prompt": "a", "category": 5}', "line 1: 'category'"),
        (b'{"prompt": "a", "question_id": [1]}', "line 1: 'question_id'"),
        (b'{"prompt": "a", "question_id": 1}\n{"prompt": "b", "question_id": 1}', "question_id 1 appears twice"),
    ],
)
def test_bad_data_names_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(MedusaError, match=message) as caught:
        bench_set.read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(MedusaError, match="is a directory"):
        bench_set.read(tmp_path)
    with pytest.raises(MedusaError, match="no such file"):
        bench_set.read(tmp_path / "gone")


def test_a_limit_is_spread_over_the_categories() -> None:
    given = [Prompt(str(n), kind, "x") for n, kind in enumerate(["a", "a", "a", "b", "c", "c"])]
    assert [prompt.id for prompt in bench_set.spread(given)] == ["0", "3", "4", "1", "5", "2"]
    assert [prompt.id for prompt in bench_set.spread(given, 4)] == ["0", "3", "4", "1"]
