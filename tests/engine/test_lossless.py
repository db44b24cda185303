"""Tier 3 of losslessness (docs/design.md, Lossless): a real model, greedy, speculative against plain."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _native_testing as testing
import lossless
import pytest
from fixtures import tiny_base
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_fake import tree_choices

from medusa_cli import native
from medusa_cli.decoding.prompts import chat_tokens
from medusa_cli.models import demo
from medusa_cli.prompts.bench_set import built_in

PROMPTS = Path(__file__).parents[2] / "benchmarks" / "prompts.jsonl"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> native.Model:
    return native.Model(str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf")))


def generation(tokens: list[int], stop_reason: str = "length") -> Any:
    parents = [[-1, 0, 0, 1]] * len(tokens)
    return SimpleNamespace(tokens=tokens, stop_reason=stop_reason, parents=parents, paths=[[0]] * len(tokens))


def test_the_first_difference_includes_the_end() -> None:
    assert lossless.first_difference([1, 2, 3], [1, 2, 3]) is None
    assert lossless.first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert lossless.first_difference([1, 2], [1, 2, 3]) == 2


PROMPT = [5, 9, 17, 200]


def test_teacher_forcing_without_a_tree_is_plain_decoding(tiny: native.Model) -> None:
    plain = native.Session(tiny).generate(PROMPT, max_tokens=24, ignore_eos=True)
    forced, logits = testing.teacher_forced(tiny, [*PROMPT, *plain.tokens[:-1]], prompt_length=len(PROMPT))
    assert forced == plain.tokens
    assert len(logits) == tiny.n_vocab
    assert max(range(tiny.n_vocab), key=logits.__getitem__) == plain.tokens[-1]


@given(choices=tree_choices(), data=st.data())
@settings(max_examples=25)
def test_whatever_is_drafted_beside_the_path_changes_nothing(
    tiny: native.Model, choices: list[list[int]], data: st.DataObject
) -> None:
    # In F32 no width flips a token of this model.
    tree = native.Tree(choices)
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    paths = []
    for _ in range(6):
        path = [0]
        while (below := children.get(path[-1])) and data.draw(st.booleans()):
            path.append(data.draw(st.sampled_from(below)))
        paths.append(path)
    plain = native.Session(tiny).generate(PROMPT, max_tokens=16, ignore_eos=True)
    text = [*PROMPT, *plain.tokens[:-1]]
    forced, _ = testing.teacher_forced(
        tiny, text, prompt_length=len(PROMPT), parents=[tree.parents] * len(paths), paths=paths
    )
    assert forced == plain.tokens


def test_a_wrong_token_is_never_explained(tiny: native.Model) -> None:
    plain = native.Session(tiny).generate(PROMPT, max_tokens=12, ignore_eos=True)
    assert lossless.compare(tiny, PROMPT, plain, plain) == lossless.Comparison(12)
    for at in (0, 6, 11):
        tokens = list(plain.tokens)
        tokens[at] = (tokens[at] + 1) % 256
        result = lossless.compare(tiny, PROMPT, generation(list(plain.tokens)), generation(tokens))
        assert (result.first_difference, result.repeated, result.explained) == (at, False, False)
    for early in (generation(list(plain.tokens[:5]), "eos"), generation(list(plain.tokens[:5]))):
        assert not lossless.compare(tiny, PROMPT, generation(list(plain.tokens)), early).explained


@pytest.mark.parametrize(
    ("prompt_length", "paths"), [(0, []), (4, []), (1, [[1]]), (1, [[]]), (1, [[0, 2]]), (1, [[0, 9]])]
)
def test_teacher_forcing_refuses_nonsense(tiny: native.Model, prompt_length: int, paths: list[list[int]]) -> None:
    with pytest.raises(native.NativeError, match="teacher_forced"):
        testing.teacher_forced(
            tiny, [1, 2, 3], prompt_length=prompt_length, parents=[[-1, 0, 1]] * len(paths), paths=paths
        )


@pytest.mark.parametrize(
    ("nodes", "prompts", "tokens"), [pytest.param(16, 24, 128, marks=pytest.mark.slow), (16, 3, 64), (64, 2, 48)]
)
def test_the_demo_model_says_the_same_with_and_without_drafts(
    demo_model_path: Path, nodes: int, prompts: int, tokens: int
) -> None:
    model = native.Model(str(demo_model_path))
    heads = native.Heads(model, str(demo.DEMO_HEADS))
    choices = heads.tree if nodes == 16 else [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0], *([rank] for rank in range(1, 60))]
    tree = native.Tree(choices).clipped(heads.head_count, heads.output_rows, nodes)
    drafting, plain = native.Session(model, heads, tree=tree), native.Session(model)
    rows = [json.loads(line) for line in PROMPTS.read_text("utf-8").splitlines()]
    rows = rows[:: len(rows) // prompts][:prompts]
    assert len(rows) == prompts
    drafted = 0
    for row in rows:
        prompt = chat_tokens(model, [{"role": "user", "content": row["prompt"]}])
        plain.reset()
        drafting.reset()
        expected = plain.generate(prompt, max_tokens=tokens)
        actual = drafting.generate(prompt, max_tokens=tokens)
        drafted += sum(actual.stats["acceptance_per_depth"]) > 0
        result = lossless.compare(model, prompt, expected, actual)
        assert result.explained, (row["prompt"], result)
    assert drafted == len(rows), "nothing was drafted: the comparison proves nothing"


@pytest.mark.slow
@pytest.mark.parametrize("with_heads", [False, True])
def test_lookup_on_copied_text_says_the_same_in_fewer_steps(demo_model_path: Path, with_heads: bool) -> None:
    model = native.Model(str(demo_model_path))
    heads = native.Heads(model, str(demo.DEMO_HEADS)) if with_heads else None
    tree = native.Tree([[0], [0, 0], [1]]) if with_heads else None
    drafting, plain = native.Session(model, heads, tree=tree, lookup=True), native.Session(model)
    texts = [prompt.text for prompt in built_in() if prompt.category == "copy-edit"]
    assert texts
    committed = steps = 0
    for text in texts:
        prompt = chat_tokens(model, [{"role": "user", "content": text}])
        plain.reset()
        drafting.reset()
        expected = plain.generate(prompt, max_tokens=96)
        actual = drafting.generate(prompt, max_tokens=96)
        result = lossless.compare(model, prompt, expected, actual)
        assert result.explained, (text, result)
        committed += sum(map(len, actual.paths))
        steps += len(actual.paths)
    assert committed / steps > 1.5
