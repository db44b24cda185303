"""`medusa convert` from end to end: small checkpoints, then a real model."""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import BASE_HIDDEN, BASE_VOCAB, tiny_base
from gguf import GGUFReader
from gguf.quants import dequantize
from medusa_cli.converters.heads import single_file
from typer.testing import CliRunner

from medusa_cli import cli, native
from medusa_cli.conversion import self_check
from medusa_cli.decoding.prompts import chat_tokens

MEDUSA_HEADS = Path(__file__).parents[1] / "data" / "demo-medusa.gguf"
PROMPTS = Path(__file__).parents[2] / "benchmarks" / "prompts.jsonl"


def save_v1(
    folder: Path, *, heads: int = 2, hidden: int = BASE_HIDDEN, vocab: int = BASE_VOCAB, base: str | None = None
) -> Path:
    """A FasterDecoding checkpoint with random weights: blocks of one layer, an lm_head for each head."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(7)
    tensors: dict[str, torch.Tensor] = {}
    for i in range(heads):
        tensors[f"{i}.0.linear.weight"] = torch.randn(hidden, hidden, generator=generator) / hidden**0.5
        tensors[f"{i}.0.linear.bias"] = torch.randn(hidden, generator=generator) * 0.1
        tensors[f"{i}.1.weight"] = torch.randn(vocab, hidden, generator=generator) / hidden**0.5
    torch.save(tensors, folder / "medusa_lm_head.pt")
    config = {"medusa_num_heads": heads, "medusa_num_layers": 1, "base_model_name_or_path": base}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_base(tmp_path / "base.gguf")


def convert(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["convert", *map(str, arguments)])


def one_line(result: Any, *parts: str) -> None:
    assert result.exit_code == 1, result.output
    message = [line for line in result.stderr.splitlines() if not line.startswith("note:")]
    assert len(message) == 1, message
    for part in parts:
        assert part in message[0]


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".part") or path.name == "out.gguf")


def test_a_checkpoint_and_a_gguf_become_one_file(base: Path, tmp_path: Path) -> None:
    heads, out = save_v1(tmp_path / "heads"), tmp_path / "out.gguf"
    result = convert(heads, "--base", base, "-o", out, "--quant", "F32", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["heads"]["family"], report["heads"]["head_count"], report["heads"]["lm_head"]) == ("v1", 2, "own")
    assert report["check"]["deviation"] <= report["check"]["bound"]
    model = native.Model(str(out))
    loaded = native.Heads(model, str(out))
    tree = native.Tree([[0], [1], [0, 0]])
    drafted = native.Session(model, loaded, tree=tree).generate([5, 6, 7], max_tokens=12, ignore_eos=True)
    plain = native.Session(native.Model(str(base))).generate([5, 6, 7], max_tokens=12, ignore_eos=True)
    assert drafted.tokens == plain.tokens
    # The base inside is the given file, byte for byte.
    single_file.split(out, tmp_path / "again.gguf", tmp_path / "again-heads.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == base.read_bytes()


def test_drafts_are_those_of_the_checkpoint(base: Path, tmp_path: Path) -> None:
    heads, out = save_v1(tmp_path / "heads"), tmp_path / "out.gguf"
    assert convert(heads, "--base", base, "-o", out, "--sidecar", "--heads-quant", "F16").exit_code == 0
    tensors = torch.load(heads / "medusa_lm_head.pt", weights_only=True)
    loaded = native.Heads(native.Model(str(base)), str(out))
    x = torch.randn(BASE_HIDDEN, generator=torch.Generator().manual_seed(1))
    drafts = loaded.draft_tokens(x.numpy(), 3)
    for i in range(2):
        y = x + torch.nn.functional.silu(tensors[f"{i}.0.linear.weight"] @ x + tensors[f"{i}.0.linear.bias"])
        assert drafts[i] == (tensors[f"{i}.1.weight"] @ y).topk(3).indices.tolist()


def test_a_draft_vocabulary_keeps_the_frequent_tokens(base: Path, tmp_path: Path) -> None:
    heads, out = save_v1(tmp_path / "heads"), tmp_path / "out.gguf"
    text = tmp_path / "text.txt"
    text.write_text("abcabcabcaab" * 20)
    arguments = ("--base", base, "-o", out, "--sidecar", "--draft-vocab", 2, "--calibration", text)
    assert convert(heads, *arguments).exit_code == 0
    model = native.Model(str(base))
    loaded = native.Heads(model, str(out))
    assert (loaded.lm_head, loaded.output_rows) == ("draft_vocab", 2)
    drafts = {token for row in loaded.draft_tokens(np.ones(BASE_HIDDEN, np.float32), 2) for token in row}
    counted = Counter(model.tokenize(text.read_text(), add_special=False))
    assert drafts == {token for token, _ in counted.most_common(2)}


def test_a_base_is_quantized_on_request(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base.gguf")
    out = tmp_path / "out.gguf"
    result = convert(save_v1(tmp_path / "heads"), "--base", base, "-o", out, "--quant", "Q8_0")
    assert result.exit_code == 0, result.output
    types = {tensor.type for tensor in native.read_gguf(str(out)).tensors if tensor.name.startswith("blk.")}
    assert "q8_0" in types


def test_a_dry_run_writes_nothing(base: Path, tmp_path: Path) -> None:
    result = convert(save_v1(tmp_path / "heads"), "--base", base, "-o", tmp_path / "out.gguf", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "would write" in result.stdout
    assert left_behind(tmp_path) == []


def test_heads_for_another_base_are_refused(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    wide = save_v1(tmp_path / "wide", hidden=2 * BASE_HIDDEN)
    one_line(convert(wide, "--base", base, "-o", out), "hidden size", "--base")
    many = save_v1(tmp_path / "many", vocab=BASE_VOCAB + 8)
    one_line(convert(many, "--base", base, "-o", out), str(BASE_VOCAB + 8), "--base")
    one_line(convert(save_v1(tmp_path / "nobase"), "-o", out), "names no base model", "--base")
    assert left_behind(tmp_path) == []


def test_options_are_named_where_they_help(base: Path, tmp_path: Path) -> None:
    heads, out = save_v1(tmp_path / "heads"), tmp_path / "out.gguf"
    one_line(convert(heads, "--base", base, "-o", out, "--quant", "Q9"), "--quant Q9: unknown, choose one of")
    tensors = torch.load(heads / "medusa_lm_head.pt", weights_only=True)
    tensors["0.0.linear.weight"][0, 0] = 1e5
    torch.save(tensors, heads / "medusa_lm_head.pt")
    wider = "holds values beyond F16, choose BF16 or F32 with --heads-quant or --blocks-quant"
    one_line(convert(heads, "--base", base, "-o", out, "--sidecar"), wider)
    assert left_behind(tmp_path) == []


def test_useless_heads_are_named_and_strict_refuses_them(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "USELESS", 1.1)
    heads, out = save_v1(tmp_path / "heads"), tmp_path / "out.gguf"
    one_line(convert(heads, "--base", base, "-o", out, "--strict"), "heads 1, 2 predict nothing")
    assert left_behind(tmp_path) == []
    result = convert(heads, "--base", base, "-o", out)
    assert result.exit_code == 0
    assert "heads 1, 2 predict nothing" in result.stderr
    shares = native.read_gguf(str(out)).metadata["medusa.check.top1"]
    assert len(shares) == 2
    assert all(0 <= share <= 1 for share in shares)


def test_an_existing_file_is_kept(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("mine")
    heads = save_v1(tmp_path / "heads")
    one_line(convert(heads, "--base", base, "-o", out), "exists", "--force")
    assert out.read_text() == "mine"
    assert convert(heads, "--base", base, "-o", out, "--force").exit_code == 0


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_nothing_half_written_stays(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(single_file, "join", fail)
    result = convert(save_v1(tmp_path / "heads"), "--base", base, "-o", tmp_path / "out.gguf")
    assert result.exit_code != 0
    if isinstance(failure, OSError):
        one_line(result, "no space left")
    assert left_behind(tmp_path) == []


def test_inspect_shows_where_the_parts_came_from(base: Path, tmp_path: Path) -> None:
    heads, out = save_v1(tmp_path / "heads"), tmp_path / "out.gguf"
    assert convert(heads, "--base", base, "-o", out).exit_code == 0
    shown = CliRunner().invoke(cli.app, ["inspect", str(out)])
    assert "v1" in shown.stdout
    metadata = native.read_gguf(str(out)).metadata
    assert metadata["medusa.source.family"] == "v1"


@pytest.mark.slow
def test_a_real_model_from_hugging_face_files(demo_model_path: Path, tmp_path: Path) -> None:
    """The demo base as a Hugging Face folder and its heads in FasterDecoding's layout (base lm_head): same drafts."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "hf"
    source = {"gguf_file": demo_model_path.name}
    network = transformers.AutoModelForCausalLM.from_pretrained(demo_model_path.parent, **source, dtype=torch.float16)
    # The network that was read counts as quantized, and such ones are not saved: its weights go into a plain one.
    del network.config.quantization_config
    plain = transformers.AutoModelForCausalLM.from_config(network.config, dtype=torch.float16)
    plain.load_state_dict(network.state_dict())
    plain.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(demo_model_path.parent, **source).save_pretrained(folder)
    del network, plain
    # transformers loses the splitting of digits when it reads a GGUF's tokenizer.
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, byte_level]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")

    stored = {tensor.name: tensor for tensor in GGUFReader(MEDUSA_HEADS).tensors}
    tensors = {}
    for k in range(4):
        for part in ("weight", "bias"):
            tensor = stored[f"medusa.{k}.block.0.{part}"]
            values = dequantize(np.array(tensor.data), tensor.tensor_type)
            tensors[f"{k}.0.linear.{part}"] = torch.from_numpy(values)
    heads = tmp_path / "heads"
    heads.mkdir()
    torch.save(tensors, heads / "medusa_lm_head.pt")
    (heads / "config.json").write_text(json.dumps({"version": "2", "base_model_name_or_path": str(folder)}))

    out = tmp_path / "out.gguf"
    result = convert(heads, "-o", out, "--quant", "Q8_0", "--blocks-quant", "Q8_0", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["heads"]["lm_head"] == "base"
    assert report["check"]["top1"][0] > 0.2

    model = native.Model(str(out))
    converted, trained = native.Heads(model, str(out)), native.Heads(model, str(MEDUSA_HEADS))
    lines = PROMPTS.read_text("utf-8").splitlines()
    asked = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines]
    prompts = [chat_tokens(model, messages) for messages in asked]
    texts: list[tuple[list[int], Any]] = []
    native.collect(
        model,
        prompts,
        [0.0] * len(prompts),
        max_tokens=96,
        on_sequence=lambda _, tokens, states: texts.append((tokens, states)),
    )
    known = set(stored["medusa.d2t"].data.tolist())
    states = np.concatenate([states for _, states in texts])[::7].astype(np.float32)

    def of_draft_vocabulary(state: Any, ranks: int) -> list[list[int]]:
        """The converted heads choose from all tokens, the trained ones from `known`."""
        return [[token for token in row if token in known][:ranks] for row in converted.draft_tokens(state, 8 * ranks)]

    same = sum(
        ours == theirs
        for state in states
        for ours, theirs in zip(of_draft_vocabulary(state, 3), trained.draft_tokens(state, 3), strict=True)
    )
    assert same >= 0.99 * len(states) * trained.head_count
    drafts = (of_draft_vocabulary, converted.draft_tokens, trained.draft_tokens)
    rates = [tokens_per_step(draft, texts, trained.tree) for draft in drafts]
    assert rates[2] > 1.5
    assert rates[0] == pytest.approx(rates[2], rel=0.01)
    # Tokens outside the draft vocabulary take ranks that training never taught the heads to deny them.
    assert rates[1] == pytest.approx(rates[2], rel=0.03)


def tokens_per_step(
    draft: Callable[[Any, int], list[list[int]]], texts: list[tuple[list[int], Any]], choices: list[list[int]]
) -> float:
    """What drafting with a static tree would have brought along given greedy texts."""
    tree, ranks = {tuple(choice) for choice in choices}, 1 + max(max(choice) for choice in choices)
    depth = max(map(len, choices))
    steps = committed = 0
    for tokens, states in texts:
        at = 0
        while at + depth < len(tokens):
            path: tuple[int, ...] = ()
            for drafts, token in zip(draft(states[at].astype(np.float32), ranks), tokens[at + 1 :], strict=False):
                if token not in drafts or (*path, drafts.index(token)) not in tree:
                    break
                path = (*path, drafts.index(token))
            steps += 1
            committed += 1 + len(path)
            at += 1 + len(path)
    return committed / steps
