"""What a drafter's file takes from the model that it drafts for: sizes and the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base.config import MAX_LAYERS, Config
from ..base.vocabulary import Vocabulary, read_vocabulary
from ..checkpoints.checkpoint import CONFIG, Checkpoint
from ..errors import MedusaError
from ..gguf.header import Header, KeyValue, read_header

TOKENIZER_KEYS = "tokenizer."
TOKENS_KEY = "tokenizer.ggml.tokens"


@dataclass(frozen=True)
class Target:
    """A model with `vocabulary` tokens and `layers` layers, whose hidden states have size `hidden`.

    name: what messages call it. tokenizer: read from its checkpoint, or the entries of its GGUF.
    """

    name: str
    vocabulary: int
    layers: int
    hidden: int
    tokenizer: Vocabulary | Sequence[KeyValue]


def read_gguf_target(path: Path) -> Target:
    """The target in a GGUF, of any quantization. MedusaError if it is no language model."""
    header, _ = read_header(path)
    tokens = header.get(TOKENS_KEY)
    if not isinstance(tokens, list) or not tokens:
        raise MedusaError(f"{path}: holds no tokenizer, give a GGUF of the whole model")
    # Layers for further tokens (MTP) are counted among the blocks, and come after the model's own.
    extra = _size(header, "nextn_predict_layers", 0) if _key(header, "nextn_predict_layers") is not None else 0
    layers = _size(header, "block_count") - extra
    entries = tuple(entry for entry in header.kv if entry.key.startswith(TOKENIZER_KEYS))
    return Target(str(path), len(tokens), layers, _size(header, "embedding_length"), entries)


def read_checkpoint_target(checkpoint: Checkpoint) -> Target:
    """The target in a folder with config.json and the tokenizer's files. MedusaError if libllama cannot read those."""
    where = str(checkpoint.root / CONFIG)
    # Models that see or hear keep the sizes of their language model in a section.
    values = {**checkpoint.config, **Config(checkpoint.config, where, {}).section("text_config")}
    config = Config(values, where, {})
    vocabulary = config.integer("vocab_size")
    layers, hidden = config.integer("num_hidden_layers", high=MAX_LAYERS), config.integer("hidden_size")
    return Target(str(checkpoint.root), vocabulary, layers, hidden, read_vocabulary(checkpoint, config, vocabulary))


def _key(header: Header, key: str) -> object:
    return header.get(f"{header.get('general.architecture')}.{key}")


def _size(header: Header, key: str, low: int = 1) -> int:
    value = _key(header, key)
    if type(value) is not int or value < low:
        raise MedusaError(f"{header.name}: not a language model: its metadata has no usable {key}")
    return value
