"""Base conversion of hostile and damaged files: one line that says what and where, never a wrong model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_hf_fixtures as fixtures
import numpy as np
import pytest
from hf_files import convert, edit_json, edit_weights
from medusa_cli.converters.gguf.header import read_header

from medusa_cli.support.errors import MedusaError


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """Copies a fixture, so that a test can damage it."""

    def make(name: str) -> Path:
        return Path(shutil.copytree(fixtures.HERE / name, tmp_path / name))

    return make


CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("llama-spm", {"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM cannot be converted"),
    ("llama-spm", {"architectures": None}, "architecture none cannot"),
    ("llama-spm", {"architectures": "LlamaForCausalLM"}, "architecture none cannot"),
    ("llama-spm", {"architectures": [7]}, "architecture none cannot"),
    ("llama-spm", {"vocab_size": -1}, "vocab_size is -1"),
    ("llama-spm", {"vocab_size": 10**15}, "vocab_size is 1000000000000000"),
    ("llama-spm", {"vocab_size": "444"}, "vocab_size is '444'"),
    ("llama-spm", {"vocab_size": True}, "vocab_size is True"),
    ("llama-spm", {"vocab_size": None}, "vocab_size is None"),
    ("llama-spm", {"vocab_size": 500}, "has shape 443x32, config.json asks for 500x32"),
    ("llama-spm", {"hidden_size": 64}, "config.json asks for"),
    ("llama-spm", {"hidden_size": 33}, "hidden_size is 33"),
    ("llama-spm", {"num_attention_heads": 0}, "num_attention_heads is 0"),
    ("llama-spm", {"num_key_value_heads": 3}, "num_key_value_heads is 3"),
    ("llama-spm", {"head_dim": 7}, "head_dim is 7"),
    ("llama-spm", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
    ("llama-spm", {"num_hidden_layers": 3}, "lacks the tensor for blk.2"),
    ("llama-spm", {"num_hidden_layers": 1}, "is unknown"),
    ("llama-spm", {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ("llama-spm", {"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    ("llama-spm", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ("llama-spm", {"rope_theta": 0}, "rope_theta is 0"),
    ("llama-spm", {"rope_scaling": [1]}, "rope_scaling is [1]"),
    ("llama-spm", {"rope_scaling": {"type": "ntk"}}, "rope scaling 'ntk' is not supported"),
    ("llama-spm", {"rope_scaling": {"type": ["linear"]}}, "rope scaling"),
    ("llama-spm", {"rope_scaling": {"type": "linear"}}, "factor of the linear rope scaling is None"),
    ("llama-spm", {"rope_scaling": {"type": "linear", "factor": -2}}, "factor of the linear rope scaling is -2"),
    ("llama-spm", {"rope_scaling": {"type": "yarn", "factor": 2, "mscale": 1}}, "yarn rope scaling with mscale"),
    ("llama-bpe", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8, "low_freq_factor": 4,
      "high_freq_factor": 4}}, "is not above low_freq_factor"),
    ("llama-spm", {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    ("qwen2", {"use_sliding_window": True}, "sliding-window attention is not supported"),
    ("qwen2", {"tie_word_embeddings": False}, "lacks the tensor for output.weight"),
    ("gemma3", {"layer_types": ["full_attention"] * 6}, "every sixth layer"),
    ("gemma3", {"layer_types": None, "sliding_window_pattern": 2}, "every sixth layer"),
    ("gemma3", {"query_pre_attn_scalar": 20}, "query_pre_attn_scalar is 20"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
    ("phi3-spm", {"rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0] * 4}},
     "long_factor of the rope scaling is not a list of 4"),
    ("phi3-spm", {"rope_scaling": {"type": "longrope", "long_factor": [1, 1, 1, "x"], "short_factor": [1.0] * 4}},
     "long_factor"),
    ("phi3-spm", {"rope_scaling": None, "partial_rotary_factor": 2.0}, "partial_rotary_factor is 2.0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "message"), CONFIGS)
def test_configs_that_cannot_be_right(
    name: str, changes: dict[str, Any], message: str, copy: Any, tmp_path: Path
) -> None:
    folder = copy(name)
    edit_json(folder / "config.json", lambda config: config.update(changes))
    with pytest.raises(MedusaError) as caught:
        convert(folder, tmp_path / "x.gguf")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    """A change: the last argument goes where the others lead."""

    def change(value: Any) -> None:
        *keys, last, new = path
        for key in keys:
            value = value[key]
        value[last] = new

    return change


TOKENIZERS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (_set("model", None), "has no model object"),
    (_set("model", "type", "Unigram"), "a Unigram tokenizer"),
    (_set("model", "vocab", []), "its vocab is not an object"),
    (_set("model", "vocab", {"a": 0, "b": 0}), "holds an id twice"),
    (_set("model", "vocab", {"a": -1}), "something that is not an id"),
    (_set("model", "vocab", {"a": "0"}), "something that is not an id"),
    (_set("model", "vocab", {"a": 10**9}), "do not belong together"),
    (_set("model", "merges", None), "merges are not a list of pairs"),
    (_set("model", "merges", [["a"]]), "merges are not a list of pairs"),
    (_set("model", "end_of_word_suffix", "</w>"), "word prefixes or suffixes"),
    (_set("pre_tokenizer", None), "no pre-tokenizer of libllama is known"),
    (_set("pre_tokenizer", "pretokenizers", 0, "pattern", {"Regex": "x+"}), "no pre-tokenizer of libllama is known"),
    (_set("pre_tokenizer", "pretokenizers", 0, "behavior", "Contiguous"), "no pre-tokenizer of libllama is known"),
    (_set("pre_tokenizer", "pretokenizers", 1, "add_prefix_space", True), "no pre-tokenizer of libllama is known"),
    (_set("model", "ignore_merges", True), "no pre-tokenizer of libllama is known"),
    (_set("normalizer", {"type": "Lowercase"}), "no normalizer like"),
    (_set("added_tokens", {"a": 1}), "added_tokens is not a list"),
    (_set("added_tokens", 0, {"content": "x"}), "lacks a text or an id"),
    (_set("added_tokens", 0, "id", "7"), "lacks a text or an id"),
    (_set("added_tokens", 0, "content", "a"), "to two tokens"),
]


@pytest.mark.parametrize(("change", "message"), TOKENIZERS)
def test_tokenizers_that_cannot_be_right(change: Any, message: str, copy: Any, tmp_path: Path) -> None:
    folder = copy("qwen2")
    edit_json(folder / "tokenizer.json", change)
    with pytest.raises(MedusaError, match=message) as caught:
        convert(folder, tmp_path / "x.gguf")
    assert "\n" not in str(caught.value)


def test_added_tokens_beyond_the_embedding_are_left_out(copy: Any, tmp_path: Path) -> None:
    folder = copy("qwen2")
    extra = fixtures.added(100_000, "<far>")
    edit_json(folder / "tokenizer.json", lambda value: value["added_tokens"].append(extra))
    assert "<far>" not in read_header(convert(folder, tmp_path / "x.gguf"))[0].get("tokenizer.ggml.tokens")


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x0a\xff\xff\xff\xff\x7f", b"\0" * 100])
def test_damaged_sentencepiece_model(content: bytes, copy: Any, tmp_path: Path) -> None:
    folder = copy("llama-spm")
    (folder / "tokenizer.model").write_bytes(content)
    with pytest.raises(MedusaError, match=r"tokenizer\.model"):
        convert(folder, tmp_path / "x.gguf")


def test_unigram_sentencepiece_is_refused(copy: Any, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = copy("llama-spm")
    prefix = tmp_path / "unigram"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(fixtures.TEXT * 4), model_prefix=str(prefix), vocab_size=130, minloglevel=2
    )
    shutil.copy(f"{prefix}.model", folder / "tokenizer.model")
    with pytest.raises(MedusaError, match="not a BPE model"):
        convert(folder, tmp_path / "x.gguf")


def test_no_tokenizer(copy: Any, tmp_path: Path) -> None:
    folder = copy("llama-spm")
    (folder / "tokenizer.model").unlink()
    with pytest.raises(MedusaError, match="add the tokenizer's files"):
        convert(folder, tmp_path / "x.gguf")


def test_chat_templates(copy: Any, tmp_path: Path) -> None:
    """A text, a list of named ones, a file; tokenizer_config.json goes before the file."""
    folder = copy("qwen2")
    path = folder / "tokenizer_config.json"

    def template() -> Any:
        return read_header(convert(folder, tmp_path / "x.gguf"))[0].get("tokenizer.chat_template")

    assert template() == fixtures.CHAT
    named = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    edit_json(path, lambda config: config.update(chat_template=named))
    assert template() == "one"
    (folder / "chat_template.jinja").write_text("from the file")
    assert template() == "one"
    edit_json(path, lambda config: config.pop("chat_template"))
    assert template() == "from the file"
    edit_json(path, lambda config: config.update(chat_template=7))
    with pytest.raises(MedusaError, match="chat_template is neither"):
        template()


WEIGHTS: list[tuple[Callable[[dict[str, np.ndarray]], Any], str]] = [
    (lambda weights: weights["model.norm.weight"].fill(np.nan), "'model.norm.weight' holds values that are not finite"),
    (lambda weights: weights["lm_head.weight"].__setitem__((3, 5), np.inf), "'lm_head.weight' holds values"),
    (lambda weights: weights["lm_head.weight"].__setitem__((3, 5), 1e5), "'lm_head.weight' holds values .* use BF16"),
    (lambda weights: weights.update(x=np.ones(3, np.float32)), "tensor 'x' is unknown"),
    (lambda weights: weights.update({"model.layers.0.self_attn.q_proj.SCB": np.ones(1, np.float32)}),
     "SCB' is unknown"),
    (lambda weights: weights.update({"model.norm.bias": np.ones(32, np.float32)}), "has no place in this architecture"),
    (lambda weights: weights.update({"model.layers.0.mlp.up_proj.weight": np.ones((64, 32), np.int8)}), "dtype I8"),
    (lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"), "lacks the tensor for blk.1.ffn_up.weight"),
    (lambda weights: weights.update({"lm_head.weight": weights["lm_head.weight"].T.copy()}), "has shape 32x443"),
    (lambda weights: weights.update({"transformer.wte.weight": weights["model.embed_tokens.weight"]}), "are both"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), WEIGHTS)
def test_weights_that_cannot_be_right(change: Any, message: str, copy: Any, tmp_path: Path) -> None:
    folder = copy("llama-spm")
    edit_weights(folder, change)
    with pytest.raises(MedusaError, match=message) as caught:
        convert(folder, tmp_path / "x.gguf")
    assert "\n" not in str(caught.value)


def test_large_values_fit_bf16(copy: Any, tmp_path: Path) -> None:
    folder = copy("llama-spm")
    edit_weights(folder, lambda weights: weights["lm_head.weight"].__setitem__((3, 5), 1e5))
    convert(folder, tmp_path / "x.gguf", "BF16")


def test_full_disk_is_one_line() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(MedusaError, match="no space left"):
        convert(fixtures.HERE / "llama-spm", full)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside a JSON value; long lists and objects by their first entries."""
    found = [path] if path else []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in list(entries)[:12]:
        found += _leaves(entry, (*path, key))
    return found


def _refusal(folder: Path, target: Path) -> str:
    """The message that a conversion ends with, empty when it succeeds."""
    try:
        convert(folder, target)
    except MedusaError as error:
        return str(error)
    return ""


JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    10**30,
    1.5,
    float("inf"),
    "",
    "x",
    [],
    [[]],
    [None],
    {},
    {"type": "BPE"},
    {"": 0},
]


@pytest.mark.parametrize("name", ["llama-bpe", "mistral-json", "gemma3", "phi3-spm", "qwen2"])
def test_any_value_of_any_file_may_be_junk(name: str, copy: Any, tmp_path: Path) -> None:
    """Each value of each JSON file in turn becomes junk: a model or one line, never another exception."""
    folder = copy(name)
    refused = 0
    for path in sorted(folder.glob("*.json")):
        text = path.read_text()
        for number, leaf in enumerate(_leaves(json.loads(text))):
            value = json.loads(text)
            _set(*leaf, JUNK[number % len(JUNK)])(value)
            path.write_text(json.dumps(value))
            message = _refusal(folder, tmp_path / "x.gguf")
            assert "\n" not in message
            refused += bool(message)
        path.write_text(text)
    assert refused > 20


def test_nested_pretokenizers(copy: Any, tmp_path: Path) -> None:
    folder = copy("qwen2")
    step: dict[str, Any] = {"type": "ByteLevel"}
    for _ in range(200):
        step = {"type": "Sequence", "pretokenizers": [step]}
    edit_json(folder / "tokenizer.json", _set("pre_tokenizer", step))
    with pytest.raises(MedusaError, match="no pre-tokenizer of libllama is known"):
        convert(folder, tmp_path / "x.gguf")
