"""Prompts, loop filter, stored text and the rows made from it."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli.decoding import loops
from medusa_cli.models.base_file import embedding_rows, output_rows, read_base
from medusa_cli.prompts.seeds.prompts import WEIGHTS, iter_conversations
from medusa_cli.support.errors import MedusaError
from medusa_cli.training.text import dataset, dialogs
from medusa_cli.training.text.corpus import Corpus, NewText, Text
from medusa_cli.training.text.dialogs import is_usable

# --- loop filter -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**6), max_size=80, unique=True))
def test_text_without_repetition_is_kept(tokens: list[int]) -> None:
    assert loops.loop_start(tokens) == len(tokens)


@given(
    st.lists(st.integers(100, 10**6), max_size=60, unique=True),
    st.integers(1, 12),
    st.integers(60, 90),
)
def test_a_loop_is_cut_after_its_first_round(lead: list[int], period: int, length: int) -> None:
    tokens = lead + [at % period for at in range(length)]
    kept = loops.loop_start(tokens)
    assert len(lead) <= kept <= len(lead) + max(period, loops.WINDOW)
    assert loops.loop_start(tokens[:kept]) == kept


def test_a_phrase_may_come_three_times_but_not_more() -> None:
    phrase, fresh = list(range(8)), itertools.count(100)

    def text(times: int) -> list[int]:
        return [token for _ in range(times) for token in (*phrase, *(next(fresh) for _ in range(30)))]

    assert loops.loop_start(text(3)) == 3 * 38
    assert loops.loop_start(text(4)) == 38  # before the second occurrence


# --- prompt files ----------------------------------------------------------------------------------


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_all_four_forms_are_read(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "p.jsonl",
        '\ufeff{"prompt": "one"}',
        "",
        '{"turns": ["two", "three"], "category": "writing"}',
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "four"},'
        ' {"role": "assistant", "content": "ignored"}, {"role": "user", "content": "five"}]}',
        '{"conversations": [{"from": "human", "value": "six"}, {"from": "gpt", "value": "ignored"}]}',
    )
    assert dialogs.load_conversations(path) == [
        dialogs.Conversation(("one",)),
        dialogs.Conversation(("two", "three")),
        dialogs.Conversation(("four", "five"), "s"),
        dialogs.Conversation(("six",)),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a JSON object on one line"),
        ("[1]", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ('{"text": "a"}', "no 'prompt'"),
        ('{"prompt": 3}', "'prompt' holds no user text"),
        ('{"prompt": "  "}', "'prompt' holds no user text"),
        ('{"turns": []}', "'turns' holds no user text"),
        ('{"turns": "a"}', "'turns' holds no user text"),
        ('{"turns": ["a", null]}', "not text"),
        ('{"messages": "a"}', "list of objects"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "no user text"),
        ('{"conversations": [1]}', "list of objects"),
        ("[" * 100_000, "not a JSON object"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = write_lines(tmp_path / "p.jsonl", '{"prompt": "fine"}', line)
    with pytest.raises(MedusaError, match=rf"p\.jsonl:2: .*{message}") as caught:
        dialogs.load_conversations(path)
    assert "\n" not in str(caught.value)


def test_other_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(MedusaError, match=r"p\.jsonl:2: not UTF-8"):
        dialogs.load_conversations(path)
    path.write_bytes(b"\n \n")
    with pytest.raises(MedusaError, match="holds no prompts"):
        dialogs.load_conversations(path)
    with pytest.raises(MedusaError, match="cannot be read"):
        dialogs.load_conversations(tmp_path)


def test_a_file_is_used_up_after_some_passes(tmp_path: Path) -> None:
    source = dialogs.FileSource(write_lines(tmp_path / "p.jsonl", '{"prompt": "a"}', '{"prompt": "b"}'))
    assert [item.turns[0] for item in source.take(1, 3)] == ["b", "a", "b"]
    assert (source.is_repeat(1), source.is_repeat(2)) == (False, True)
    assert len(source.take(0, 10**6)) == 2 * dialogs.MAX_PASSES
    assert source.take(2 * dialogs.MAX_PASSES, 5) == []


# --- made-up prompts -------------------------------------------------------------------------------


def grams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9']+", text.lower())
    return {tuple(words[at : at + 8]) for at in range(len(words) - 7)}


def test_made_up_prompts_are_many_distinct_and_repeatable() -> None:
    items = list(itertools.islice(iter_conversations(0), 20_000))
    prompts = [item.turns[0] for item in items]
    assert len({prompt.lower() for prompt in prompts}) == 20_000
    assert items[:500] == list(itertools.islice(iter_conversations(0), 500))
    assert prompts[:500] != [item.turns[0] for item in itertools.islice(iter_conversations(1), 500)]
    assert {item.source for item in items} == set(WEIGHTS)
    assert 0.2 < sum(len(item.turns) == 2 for item in items) / len(items) < 0.5
    assert len({word for prompt in prompts for word in prompt.lower().split()}) > 4000
    plain = [item for item in items if item.source not in ("coding", "math")]
    assert not [item for item in plain if re.search(r"[{}\[\]|]", " ".join(item.turns)) and item.source != "extraction"]


def test_made_up_prompts_stay_the_same() -> None:
    """A run that goes on after an update, and figures that are repeated, count on it: change the texts knowingly."""
    streams = [itertools.islice(iter_conversations(seed), 1000) for seed in (0, 7)]
    items = [(item.source, *item.turns, item.system) for stream in streams for item in stream]
    assert items[4] == ("stem", "Explain specific heat.", None)
    digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()
    assert digest == "7b2ac4404de54eb012af3966ddd80e0161c36d3381c7b4787ea6b15eef09283d"


@pytest.mark.parametrize("name", ["mt_bench_dev.jsonl"])
def test_made_up_prompts_share_nothing_with_the_benchmark(name: str) -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / name
    if not path.is_file():
        pytest.skip("the benchmark's questions are not here")
    lines = path.read_text("utf-8").splitlines()
    held_out = {gram for line in lines for turn in json.loads(line)["turns"] for gram in grams(turn)}
    for item in itertools.islice(iter_conversations(0), 20_000):
        for turn in item.turns:
            assert not grams(turn) & held_out, turn


def test_seed_source_goes_on_at_any_position() -> None:
    source = dialogs.SeedSource(3)
    first = source.take(0, 30)
    assert source.take(10, 5) == first[10:15]
    assert dialogs.SeedSource(3).take(25, 5) == first[25:]


@pytest.mark.parametrize(
    ("turn", "usable"),
    [
        ("How do I fix a squeaky door at home?", True),
        ("Hi there", False),
        ("the the the the the the the the", False),
        ("1 2 3 4 5 6 7 8 9 + - * / = ? 10 11", False),
        ("What is this <|im_start|> thing about?", False),
        ("word " * 400, False),
    ],
)
def test_self_written_turns_are_filtered(turn: str, usable: bool) -> None:
    assert is_usable(turn) == usable


# --- stored text and rows --------------------------------------------------------------------------


def fill(corpus: Corpus, lengths: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 50, sum(lengths)).astype(np.int32)
    states = rng.normal(size=(sum(lengths), corpus.n_embd)).astype(np.float16)
    at = 0
    for job, length in enumerate(lengths):
        part, prompt = slice(at, at + length), rng.integers(0, 50, job).astype(np.int32)
        text = Text(job, f"g{job}", length, True, prompt=job)
        corpus.add(NewText(text, tokens[part], states[part], prompt))
        at += length
        if job % 3 == 2:
            corpus.flush()
    corpus.flush()
    return tokens, states


def test_corpus_comes_back_from_disk(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "text", 4)
    corpus.state["seconds"] = 1.5
    tokens, states = fill(corpus, [5, 3, 8, 2, 7])
    again = Corpus(tmp_path / "text", 4)
    assert again.texts == corpus.texts
    assert again.state == {"seconds": 1.5}
    assert again.tokens == 25
    assert again.done_jobs() == set(range(5))
    np.testing.assert_array_equal(again.load_tokens(), tokens)
    np.testing.assert_array_equal(np.concatenate(again.open_states()), states)
    assert [part.tolist() for _, part in again.stored()][1] == tokens[5:8].tolist()
    assert [len(prompt) for prompt in again.load_prompts()] == [0, 1, 2, 3, 4]


def test_text_of_older_versions_has_no_prompts(tmp_path: Path) -> None:
    fill(Corpus(tmp_path, 4), [5])
    (tmp_path / "shard-00000.prompts.npy").unlink()
    again = Corpus(tmp_path, 4)
    fill(again, [2, 2, 2])
    assert [len(prompt) for prompt in again.load_prompts()] == [0, 0, 1, 2]
    (tmp_path / "shard-00001.prompts.npy").unlink()
    with pytest.raises(MedusaError, match="prompts of another length"):
        again.load_prompts()


def test_an_unlisted_shard_does_not_count(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, 4)
    fill(corpus, [5, 3, 8])
    (tmp_path / "shard-00001.tokens.npy").write_bytes(b"half written")
    again = Corpus(tmp_path, 4)
    assert again.tokens == 16
    fill(again, [2, 2, 2])
    assert Corpus(tmp_path, 4).load_tokens().size == 22


@pytest.mark.parametrize("damage", ["manifest", "missing", "width"])
def test_damaged_text_is_refused(tmp_path: Path, damage: str) -> None:
    fill(Corpus(tmp_path, 4), [5, 3, 8])
    if damage == "manifest":
        (tmp_path / "manifest.json").write_text("{}")
    elif damage == "missing":
        (tmp_path / "shard-00000.json").unlink()
    with pytest.raises(MedusaError, match="remove the folder"):
        Corpus(tmp_path, 5 if damage == "width" else 4)


def test_no_group_is_on_two_sides() -> None:
    texts = [Text(i, f"g{i % 300}", 10, True) for i in range(900)]
    split = dataset.split_texts(texts)
    sides = [{span.group for span in part} for part in (split.train, split.build, split.score)]
    assert all(not a & b for a, b in itertools.combinations(sides, 2))
    assert sum(len(side) for side in sides) == 300
    assert 5 <= len(sides[1]) + len(sides[2]) <= 30
    spans = sorted((*split.train, *split.build, *split.score), key=lambda span: span.start)
    assert [span.start for span in spans] == list(range(0, 9000, 10))
    limited = dataset.split_texts(texts, limit=1001)
    assert sum(span.length for part in (limited.train, limited.build, limited.score) for span in part) == 1010


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_few_prompts_still_hold_something_out(count: int) -> None:
    split = dataset.split_texts([Text(i, f"g{i}", 10, True) for i in range(count)])
    assert split.train
    assert split.build
    assert split.score or count == 2


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(1, 4), st.randoms())
def test_targets_follow_their_definition(lengths: list[int], heads: int, rng: random.Random) -> None:
    tokens = np.array([rng.randrange(6) for _ in range(sum(lengths))], dtype=np.int32)
    ends = list(itertools.accumulate(lengths))
    spans = [dataset.Span(end - length, length, "") for end, length in zip(ends, lengths, strict=True)]
    d2t = np.array([4, 0, 2], dtype=np.int32)
    t2d = dataset.token_to_draft(d2t, 6)
    rows, table = dataset.targets(tokens, spans, t2d, heads)
    expected = {}
    for span in spans:
        for row in range(span.start, span.start + span.length - 1):
            wanted = []
            for k in range(1, heads + 1):
                inside = row + k < span.start + span.length and tokens[row + k] in d2t
                wanted.append(d2t.tolist().index(tokens[row + k]) if inside else dataset.MISSING)
            expected[row] = wanted
    assert dict(zip(rows.tolist(), table.tolist(), strict=True)) == expected


def test_a_draft_vocabulary_begins_with_frequent_tokens() -> None:
    tokens = np.array([7, 7, 7, 3, 3, 5, 5, 5, 5, 9, 1, 1], dtype=np.int32)
    spans = [dataset.Span(0, 10, "")]
    assert dataset.draft_vocabulary(tokens, spans, 12).tolist() == [5, 7, 3, 9, 0, 1, 2, 4, 6, 8, 10, 11]
    assert dataset.draft_vocabulary(tokens, spans, 12, limit=2).tolist() == [5, 7]
    assert dataset.frequent_tokens(tokens, spans) == 3
    prompts = {0: np.array([9, 9, 9, 2, 2, 8], dtype=np.int32), 10: np.array([0, 0, 0], dtype=np.int32)}
    assert dataset.draft_vocabulary(tokens, spans, 12, 7, prompts).tolist() == [5, 7, 3, 9, 2, 8, 0]


# --- base model file -------------------------------------------------------------------------------


def write_model(path: Path, matrix: np.ndarray, kind: GGMLQuantizationType, name: str = "output.weight") -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(matrix.shape[1])
    writer.add_head_count(2)
    writer.add_token_list([f"t{i}" for i in range(len(matrix))])
    writer.add_tensor("token_embd.weight", np.zeros_like(matrix))
    if name != "token_embd.weight":
        writer.add_tensor(name, quantize(matrix, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1", "Q5_0"])
def test_output_rows_are_those_of_the_matrix(tmp_path: Path, kind: str) -> None:
    quantization = GGMLQuantizationType[kind]
    matrix = np.random.default_rng(0).normal(size=(20, 64)).astype(np.float32)
    base = read_base(write_model(tmp_path / "m.gguf", matrix, quantization))
    rows = np.array([7, 0, 19, 7])
    expected = dequantize(quantize(matrix, quantization), quantization)[rows]
    np.testing.assert_array_equal(output_rows(base, rows), expected)
    assert (base.n_embd, base.n_vocab) == (64, 20)
    with pytest.raises(MedusaError, match="20 rows"):
        output_rows(base, np.array([20]))


def test_embeddings_are_read_where_they_fit_the_output_matrix(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).normal(size=(20, 64)).astype(np.float32)
    tied = read_base(write_model(tmp_path / "t.gguf", matrix, GGMLQuantizationType.F32, "token_embd.weight"))
    untied = read_base(write_model(tmp_path / "u.gguf", matrix, GGMLQuantizationType.F32))
    assert embedding_rows(untied, np.array([3])).tolist() == [[0.0] * 64]
    assert tied.embedding is not None
    with pytest.raises(MedusaError, match="Hydra heads need one"):
        embedding_rows(replace(tied, embedding=None), np.array([3]))


def test_tied_embeddings_are_found_and_strangers_refused(tmp_path: Path) -> None:
    tied = write_model(tmp_path / "t.gguf", np.ones((4, 32), np.float32), GGMLQuantizationType.F32, "token_embd.weight")
    assert read_base(tied).output.name == "token_embd.weight"
    writer = GGUFWriter(tmp_path / "h.gguf", "medusa")
    writer.add_uint32("medusa.version", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(MedusaError, match="medusa split"):
        read_base(tmp_path / "h.gguf")
    (tmp_path / "e.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    with pytest.raises(MedusaError, match="not a language model"):
        read_base(tmp_path / "e.gguf")
