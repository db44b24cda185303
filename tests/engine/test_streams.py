"""Streams: native drafts against NumPy, the model's own bits beside them, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import _native_testing as testing
import lossless
import numpy as np
import pytest
from fixtures import BASE_VOCAB, tiny_base
from hypothesis import given, settings
from hypothesis import strategies as st
from medusa_cli.converters.heads.draft_heads import write_heads
from medusa_cli.converters.heads.stream_heads import StreamHeads
from numpy.typing import NDArray
from random_bases import random_base
from random_heads import RootInput, random_heads, random_streams, write
from stream_numpy import Base, NumpyStreams

from medusa_cli import native

OURS = native.kernel_info()["selected"] is not None
EXACT, LONG, PACKED = (2e-3, 2e-3, 2.5e-2) if OURS else (1.5e-2, 0.1, 2.5e-2)
"""Relative error of the logits: F16 caches and adapters; behind a long text, where llama.cpp's own attention adds up in
F16; and where products round to 8 bits."""
Q8_0 = 7
LAYERS = 7
TEXT = np.random.default_rng(3).integers(3, BASE_VOCAB, 400).tolist()


class Case:
    """A base, streams for it, and both in NumPy."""

    def __init__(self, path: Path, streams: StreamHeads, *, repack: bool = True) -> None:
        self.path, self.streams = path, streams
        self.file = path.with_suffix(".streams.gguf")
        write_heads(self.file, streams)
        self.model = native.Model(str(path), repack=repack)
        self.heads = native.Heads(self.model, str(self.file))
        self.numpy = NumpyStreams(Base(path), streams)
        self.states = native.StatesReader(self.model, 5000, tap_layers=[streams.first_layer - 1], n_threads=1)

    def logits(self, text: Sequence[int]) -> NDArray[np.float64]:
        """[gamma, D] behind text[-2], with text[-1] as the root."""
        states = self.states.read(text[:-1]).after_layers
        assert states is not None
        return self.numpy.logits(states[-1], text[-1], self.numpy.caches(states))


def deviation(probabilities: NDArray[np.float32], logits: NDArray[np.float64]) -> float:
    """Of the worst stream's logits, relative to the norm of the wanted ones; both without their means."""
    ours = np.log(probabilities.astype(np.float64))
    ours, wanted = (x - x.mean(1, keepdims=True) for x in (ours, logits))
    return float((np.linalg.norm(ours - wanted, axis=1) / np.linalg.norm(wanted, axis=1)).max())


@pytest.mark.slow
@pytest.mark.parametrize("root", get_args(RootInput))
@pytest.mark.parametrize(("layers", "rank"), [(1, 4), (3, 8), (6, 1), (2, 0)])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_probabilities_equal_numpy(tmp_path: Path, architecture: str, layers: int, rank: int, root: RootInput) -> None:
    path = random_base(tmp_path / "base.gguf", architecture, tied=root != "none", rope_factors=architecture == "llama")
    streams = random_streams(Base(path), gamma=5, layers=layers, rank=rank, root=root)
    case = Case(path, streams, repack=False)
    assert (case.heads.kind, case.heads.head_count, case.heads.output_rows) == ("streams", 5, 48)
    reader = native.StreamReader(case.model, case.heads, 300, n_threads=1)
    for length in (2, 40, 300):
        actual = testing.stream_probabilities(reader, TEXT[:length])
        np.testing.assert_allclose(actual.sum(1), 1, rtol=1e-4)
        assert deviation(actual, case.logits(TEXT[:length])) < EXACT


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = random_base(tmp_path_factory.mktemp("streams") / "base.gguf", "qwen3")
    return Case(path, random_streams(Base(path), layers=2), repack=False)


@pytest.mark.parametrize("repack", [True, False])
def test_quantized_layers(tmp_path: Path, repack: bool) -> None:
    random_base(tmp_path / "full.gguf", "llama")
    native.quantize_model(str(tmp_path / "full.gguf"), str(tmp_path / "base.gguf"), file_type=Q8_0)
    base = Base(tmp_path / "base.gguf")
    for rank in (5, 32):
        case = Case(tmp_path / "base.gguf", random_streams(base, layers=3, rank=rank), repack=repack)
        reader = native.StreamReader(case.model, case.heads, 60)
        assert deviation(testing.stream_probabilities(reader, TEXT[:60]), case.logits(TEXT[:60])) < PACKED


def test_a_long_context(case: Case) -> None:
    text = np.random.default_rng(4).integers(3, BASE_VOCAB, 4096).tolist()
    short = replace(case.streams, first_layer=LAYERS - 1, layers=1, adapters=case.streams.adapters[:1])
    one = Case(case.path, short, repack=False)
    reader = native.StreamReader(one.model, one.heads, len(text))
    assert deviation(testing.stream_probabilities(reader, text), one.logits(text)) < LONG


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[native.Tree, int, int]]:
    """Trees of any shape up to 40 nodes; which node is the last accepted one; how many tokens are taken back then."""
    out = []
    for _ in range(draw(st.integers(1, 6))):
        choices: list[list[int]] = []
        level: list[list[int]] = [[]]
        for _ in range(draw(st.integers(0, 4))):
            level = [[*parent, rank] for parent in level for rank in range(draw(st.integers(0, 3)))][:10]
            choices += level
        tree = native.Tree(choices)
        out.append((tree, draw(st.integers(0, tree.size - 1)), draw(st.sampled_from([0, 0, 1, 3, 30]))))
    return out


@settings(max_examples=25, deadline=None)
@given(steps=steps(), prompt=st.integers(2, 60), seed=st.integers(0, 99))
def test_after_trees_and_roll_backs_of_any_shape(
    case: Case, steps: list[tuple[native.Tree, int, int]], prompt: int, seed: int
) -> None:
    """What streams say depends on the committed text alone, whatever was verified and taken back on the way."""
    rng = np.random.default_rng(seed)
    probe = testing.StreamProbe(case.model, case.heads, 512)
    text: list[int] = TEXT[:prompt]
    probe.prefill(text)
    row = 0
    for tree, last, taken_back in steps:
        root = int(rng.integers(3, BASE_VOCAB))
        assert deviation(probe.probabilities([*text, root], row), case.logits([*text, root])) < EXACT
        tokens = [root, *rng.integers(3, BASE_VOCAB, tree.size - 1).tolist()]
        probe.verify(tree, tokens)
        if last == 0 and taken_back == 1:
            probe.discard()
            probe.verify(tree, tokens)
        path, node = [last], last
        while node != 0:
            node = tree.parents[node]
            path.insert(0, node)
        probe.commit(tree, path)
        text += [tokens[node] for node in path]
        row = last
        if taken_back:
            kept = max(1, len(text) - taken_back)
            assert probe.truncate(kept) == kept
            text = [*text[:kept], 5, 6]
            probe.prefill([5, 6])
            row = 0


TREE = native.Tree([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 0, 0]])


def decoded(case: Case, heads: native.Heads, drafting: bool) -> list[NDArray[np.float32]]:
    """All logits of a few steps that accept this and that."""
    rng = np.random.default_rng(1)
    probe = testing.StreamProbe(case.model, heads, 256)
    text, row, out = TEXT[:30], 0, []
    probe.prefill(text)
    for step in range(12):
        tokens = rng.integers(3, BASE_VOCAB, TREE.size).tolist()
        if drafting:
            probe.probabilities([*text, tokens[0]], row)
        probe.verify(TREE, tokens)
        out += [probe.logits(node) for node in range(TREE.size)]
        path = [[0], [0, 1, 4], [0, 2], [0, 1, 4, 7, 8]][step % 4]
        probe.commit(TREE, path)
        text, row = text + [tokens[node] for node in path], path[-1]
    return out


@pytest.mark.parametrize("strength", [0.3, 2e4])
def test_streams_change_no_bit_of_what_the_model_says(case: Case, strength: float) -> None:
    """Also where their keys and values are as large as a file can make them."""
    heads = case.heads
    if strength > 1:
        streams = random_streams(Base(case.path), layers=2, strength=strength)
        write_heads(case.path.with_suffix(".strong.gguf"), streams)
        heads = native.Heads(case.model, str(case.path.with_suffix(".strong.gguf")))
    for with_drafts, without in zip(decoded(case, heads, True), decoded(case, heads, False), strict=True):
        assert np.isfinite(with_drafts).all()
        np.testing.assert_array_equal(with_drafts, without)


def lucky(case: Case, prompt: list[int], tokens: int) -> native.Heads:
    """Streams over the few tokens that the model is going to say, so that some of their drafts are right."""
    said = native.Session(case.model).generate(prompt, max_tokens=tokens, ignore_eos=True).tokens
    few = np.array(sorted(set(said)))[:6]
    file = case.path.with_suffix(".lucky.gguf")
    write_heads(file, replace(case.streams, d2t=few.astype(np.int32)))
    return native.Heads(case.model, str(file))


DRAFTING: dict[str, dict[str, Any]] = {
    "static": {"tree": TREE},
    "dynamic": {"dynamic": native.DynamicTree()},
    "lookup": {"tree": TREE, "lookup": True},
    "recycling": {"dynamic": native.DynamicTree(), "recycling": True},
}


@pytest.mark.parametrize("how", list(DRAFTING))
def test_drafts_do_not_change_the_text(case: Case, how: str) -> None:
    prompt = TEXT[:20]
    heads = lucky(case, prompt, 200)
    plain = native.Session(case.model).generate(prompt, max_tokens=200, ignore_eos=True)
    session = native.Session(case.model, heads, **DRAFTING[how])
    drafted = session.generate(prompt, max_tokens=200, ignore_eos=True)
    assert lossless.compare(case.model, prompt, plain, drafted).explained
    if "tree" in DRAFTING[how]:  # grown ones depend on the clock
        assert drafted.stats["tokens_per_step"] > 1.05
    again = session.generate([*prompt[:10], *prompt], max_tokens=50, ignore_eos=True)
    plain = native.Session(case.model).generate([*prompt[:10], *prompt], max_tokens=50, ignore_eos=True)
    assert lossless.compare(case.model, [*prompt[:10], *prompt], plain, again).explained


def test_to_the_last_cell_of_the_context(case: Case) -> None:
    heads = lucky(case, TEXT[:20], 200)
    plain = native.Session(case.model, n_ctx=256).generate(TEXT[:20], ignore_eos=True)
    drafted = native.Session(case.model, heads, tree=TREE, n_ctx=256).generate(TEXT[:20], ignore_eos=True)
    assert plain.stop_reason == drafted.stop_reason == "context_full"
    assert lossless.compare(case.model, TEXT[:20], plain, drafted).explained


def test_the_reader_drafts_what_a_session_would(case: Case) -> None:
    reader = native.StreamReader(case.model, case.heads, 100, n_threads=1)
    drafts = reader.draft_tokens(TEXT[:100], 5, first=37)
    assert len(drafts) == 100 - 1 - 37
    for position in (37, 60, 98):
        p = testing.stream_probabilities(reader, TEXT[: position + 2])
        order = np.argsort(-p, axis=1, kind="stable")[:, :5]
        assert drafts[position - 37] == [case.streams.d2t[row].tolist() for row in order]


SESSIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a quantized cache": ({"type_k": "q8_0", "type_v": "q8_0"}, "streams do not support its attention.*F16 cache"),
    "quantized keys": ({"type_k": "q8_0"}, "streams do not support its attention"),
    "a tree too deep": ({"tree": native.Tree([[0] * depth for depth in range(1, 6)])}, "5 deep, there are 4"),
}


@pytest.mark.parametrize("which", list(SESSIONS))
def test_sessions_that_streams_cannot_draft_for(case: Case, which: str) -> None:
    options, message = SESSIONS[which]
    with pytest.raises(native.NativeError, match=message) as caught:
        native.Session(case.model, case.heads, **{"tree": TREE, **options})
    assert "\n" not in str(caught.value)


def test_streams_are_not_asked_without_a_context(case: Case) -> None:
    with pytest.raises(native.NativeError, match="within a session"):
        case.heads.probabilities(np.zeros(64, np.float32))
    write(case.path.with_suffix(".medusa.gguf"), random_heads("medusa", heads=2, blocks=1))
    others = native.Heads(case.model, str(case.path.with_suffix(".medusa.gguf")))
    with pytest.raises(native.NativeError, match="only streams"):
        native.StreamReader(case.model, others, 10)


Change = dict[str, Any]
FILES: dict[str, tuple[Change, str]] = {
    "an adapter is missing": ({"without": "medusa.stream.1.ffn_up.lora_b"}, "ffn_up.lora_b is missing"),
    "no embeddings": ({"without": "medusa.stream.embedding"}, "embedding is missing"),
    "no matrix of the root": ({"without": "medusa.stream.root.lora_b"}, "root.lora_b is missing"),
    "no rank of the root": ({"keys": {"medusa.streams.root_rank": 0}}, "root.lora_a is unknown for"),
    "another rank of the root": ({"keys": {"medusa.streams.root_rank": 9}}, "root.lora_a has shape"),
    "a root's rank beyond all sense": ({"keys": {"medusa.streams.root_rank": 2**31}}, "medusa.streams.root_rank"),
    "a root of NaN": ({"bytes": ("medusa.stream.root.lora_b", b"\0\x7e")}, "not numbers"),
    "adapters of other matrices": (
        {"swap": ("medusa.stream.0.attn_q.lora_b", "medusa.stream.0.attn_k.lora_b")},
        "attn_q.lora_b has shape .* another base",
    ),
    "an unknown tensor": ({"rename": ("medusa.stream.0.attn_q.lora_b", "medusa.stream.9.attn_q.lora_b")}, "unknown"),
    "NaN": ({"bytes": ("medusa.stream.0.ffn_down.lora_a", b"\0\x7e")}, "lora_a holds values that are not numbers"),
    "values too large": ({"bytes": ("medusa.stream.0.ffn_down.lora_b", b"\xff\x7b")}, "lora_b holds .* too large"),
    "embeddings without end": ({"bytes": ("medusa.stream.embedding", b"\0\0\x80\x7f")}, "not numbers"),
    "an unknown mode": ({"keys": {"medusa.streams.mode": "both"}}, "medusa.streams.mode is 'both'"),
    "another layer tapped": ({"keys": {"medusa.input_layer_offset": 3}}, "input_layer_offset is not"),
    "a base with fewer layers": ({"keys": {"medusa.streams.first_layer": 4}}, "layers 4 to 5, this base has 7"),
    "a rank beyond all sense": ({"keys": {"medusa.streams.rank": 2**31}}, "medusa.streams.rank"),
    "another rank": ({"keys": {"medusa.streams.rank": 4}}, "has shape .* this base needs"),
    "no rank": ({"keys": {"medusa.streams.rank": 0}}, "is unknown for"),
    "a strength of NaN": ({"keys": {"medusa.streams.alpha": float("nan")}}, "medusa.streams.alpha"),
    "blocks": ({"blocks": 1}, "streams have no blocks"),
    "output matrices of their own": ({"lm_head": "own"}, "no output matrix of their own"),
    "too many streams": ({"heads": 33}, "head_count is 33"),
    "more streams than embeddings": ({"heads": 5}, "embedding has shape"),
}


@pytest.mark.parametrize("which", FILES)
def test_unfit_streams_are_refused_in_one_line(case: Case, tmp_path: Path, which: str) -> None:
    change, message = FILES[which]
    source = case.streams.source()
    tensors = [tensor for tensor in source.tensors if tensor.name != change.get("without")]
    names: dict[str, str] = {}
    if "swap" in change:
        names = dict([change["swap"], change["swap"][::-1]])
    if "rename" in change:
        names = dict([change["rename"]])
    tensors = [replace(tensor, name=names.get(tensor.name, tensor.name)) for tensor in tensors]
    bad = replace(
        source,
        tensors=tensors,
        head_count=change.get("heads", source.head_count),
        block_count=change.get("blocks", 0),
        lm_head=change.get("lm_head", source.lm_head),
        metadata={**source.metadata, **change.get("keys", {})},
    )
    path = write(tmp_path / "heads.gguf", bad)
    if "bytes" in change:
        name, value = change["bytes"]
        at = next(tensor.offset for tensor in native.read_gguf(str(path)).tensors if tensor.name == name)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(value)
    with pytest.raises(native.NativeError, match=message) as caught:
        native.Heads(case.model, str(path))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_bases_that_streams_cannot_run_through(case: Case, tmp_path: Path) -> None:
    windows = native.Model(str(random_base(tmp_path / "gemma3.gguf", "gemma3")), n_gpu_layers=0)
    with pytest.raises(native.NativeError, match="layers of llama, qwen2 and qwen3 models, not of gemma3"):
        native.Heads(windows, str(case.file))
    mixture = native.Model(str(tiny_base(tmp_path / "experts.gguf", experts=4)), n_gpu_layers=0)
    one = replace(case.streams, first_layer=1, layers=1, adapters=case.streams.adapters[:1])
    write_heads(tmp_path / "heads.gguf", one)
    with pytest.raises(native.NativeError, match=r"cannot run through layers with a tensor blk\.1\.ffn_gate_inp"):
        native.Heads(mixture, str(tmp_path / "heads.gguf"))
    other = native.Model(str(random_base(tmp_path / "qwen2.gguf", "qwen2")), n_gpu_layers=0)
    with pytest.raises(native.NativeError, match=r"has shape .* these heads are for another base"):
        native.Heads(other, str(case.file))
