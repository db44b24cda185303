"""What a GGUF file holds, from its header alone: the report behind `medusa inspect`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from medusa_cli.converters.gguf.file_types import FILE_TYPES
from medusa_cli.converters.heads import schema
from medusa_cli.decoding import drafting, trees
from medusa_cli.decoding.trees import AskedTree
from medusa_cli.models import drafters
from medusa_cli.support.errors import MedusaError, describe, is_reportable

if TYPE_CHECKING:
    from medusa_cli import native

MOST_RANKS = 1 << 16
"""Ranks of heads over the whole vocabulary, whose size a file of heads alone does not tell."""


def inspect_file(
    gguf: native.GgufFile,
    heads: native.GgufFile | None = None,
    tree: AskedTree | None = None,
    drafter: native.GgufFile | None = None,
) -> dict[str, Any]:
    """The report on one file, JSON-ready. heads: a sidecar that belongs to it (the demo), reported as its heads.

    tree: reported in place of the one stored with the heads; MedusaError if they cannot fill it.

    drafter: layers in another file that draft for it.

    "content" is "model", "single file" (model with heads), "heads" (sidecar) or "drafter" (layers that draft for
    another model). Keys that do not apply are None.
    """
    metadata = gguf.metadata
    own_heads = _head_tensors(gguf)
    base = [tensor for tensor in gguf.tensors if not schema.is_of_heads(tensor.name)]
    sidecar = metadata.get("general.architecture") == schema.ARCHITECTURE
    content = "heads" if sidecar else "single file" if own_heads else "model"
    if gguf.next_layers_alone:
        content = "drafter"
    head_source = heads if heads is not None else gguf if own_heads or sidecar else None
    if tree is not None and head_source is None:
        raise MedusaError(f"--tree needs draft heads, and {gguf.path} has none: give a file with heads")
    return {
        "path": gguf.path,
        "file_size": gguf.file_size,
        "content": content,
        "architecture": metadata.get("general.architecture"),
        "name": metadata.get("general.name"),
        "quantization": None if sidecar else _quantization(base, metadata),
        "parameters": None if sidecar else _parameters(base),
        "tensors": len(gguf.tensors),
        "context_length": _of_architecture(metadata, "context_length"),
        "embedding_length": _of_architecture(metadata, "embedding_length"),
        "layers": _of_architecture(metadata, "block_count"),
        "vocabulary": _vocabulary(gguf.path, metadata),
        "chat_template": None if sidecar else bool(metadata.get("tokenizer.chat_template")),
        "heads": None if head_source is None else _heads(head_source, tree),
        "drafter": _drafter(gguf if gguf.next_layers else drafter),
    }


def _drafter(gguf: native.GgufFile | None) -> dict[str, Any] | None:
    """The file's layers that draft. "kind": DrafterRef's. "problem": why llama.cpp cannot run them, or None."""
    if gguf is None:
        return None
    problem = None
    try:
        gguf.check_next_layers()
    except Exception as error:
        if not is_reportable(error):
            raise
        problem = describe(error)
    return {"path": gguf.path, "kind": drafters.kind_of(gguf), "layers": gguf.next_layers, "problem": problem}


def _of_architecture(metadata: dict[str, Any], key: str) -> Any:
    return metadata.get(f"{metadata.get('general.architecture')}.{key}")


def _vocabulary(path: str, metadata: dict[str, Any]) -> int | None:
    tokens = _array(path, metadata, "tokenizer.ggml.tokens", str)
    return len(tokens) or _of_architecture(metadata, "vocab_size")


def _array(path: str, metadata: dict[str, Any], key: str, kind: type) -> list[Any]:
    """The array of `kind` under `key`, empty if there is none. MedusaError if there is something else."""
    values = metadata.get(key, [])
    if isinstance(values, list) and all(isinstance(value, kind) for value in values[:1]):
        return values
    raise MedusaError(f"{path}: its {key} is damaged: fetch, convert or train it again")


def _head_tensors(gguf: native.GgufFile) -> list[native.GgufTensor]:
    return [item for item in gguf.tensors if schema.is_of_heads(item.name) and item.name != schema.BASE_HEADER]


def _parameters(tensors: list[native.GgufTensor]) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors)


def _by_type(tensors: list[native.GgufTensor]) -> dict[str, dict[str, int]]:
    """{type: {tensors, parameters, bytes}}, largest first."""
    types: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        entry = types.setdefault(tensor.type, {"tensors": 0, "parameters": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["parameters"] += math.prod(tensor.shape)
        entry["bytes"] += tensor.nbytes
    return dict(sorted(types.items(), key=lambda item: -item[1]["bytes"]))


def _quantization(tensors: list[native.GgufTensor], metadata: dict[str, Any]) -> dict[str, Any]:
    types = _by_type(tensors)
    return {
        "name": FILE_TYPES.get(metadata.get("general.file_type", -1)),
        "dominant": next(iter(types), None),
        "types": types,
    }


def _heads(gguf: native.GgufFile, asked: AskedTree | None) -> dict[str, Any]:
    """The heads' part of the report. MedusaError for a layout of another version or damaged keys."""
    metadata = gguf.metadata
    version = metadata.get(schema.VERSION_KEY)
    if version != schema.VERSION:
        raise MedusaError(f"{gguf.path}: heads of layout version {version!r}, this medusa knows {schema.VERSION}")
    tensors = _head_tensors(gguf)
    choices, accuracy = _tree(gguf.path, metadata), _accuracy(gguf.path, metadata)
    name = None
    if asked is not None:
        name, choices = _asked(asked, metadata)
    shares = _array(gguf.path, metadata, schema.SELF_CHECK_KEY, float)
    return {
        "path": gguf.path,
        "kind": metadata.get(schema.KIND_KEY),
        "head_count": metadata.get(schema.HEAD_COUNT_KEY),
        "block_count": metadata.get(schema.BLOCK_COUNT_KEY),
        "streams": _streams(metadata) if metadata.get(schema.KIND_KEY) == schema.STREAMS else None,
        "lm_head": metadata.get(schema.LM_HEAD_KEY),
        "draft_vocab_size": metadata.get(schema.DRAFT_VOCAB_SIZE_KEY),
        "parameters": _parameters(tensors),
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "types": _by_type(tensors),
        "base_name": metadata.get(schema.BASE_NAME_KEY),
        "base_fingerprint": metadata.get(schema.BASE_FINGERPRINT_KEY),
        "source": _under(metadata, schema.SOURCE_KEYS),
        "base_source": _under(metadata, schema.BASE_SOURCE_KEYS),
        "check_top1": [None if math.isnan(share) else share for share in shares],
        "accuracy": accuracy,
        "tree_name": name,
        "tree": choices,
        "expected_tokens_per_step": trees.expected_tokens(choices, accuracy),
    }


def _streams(metadata: dict[str, Any]) -> dict[str, Any]:
    """Which layers of the base the streams run through, and with what."""
    return {
        "mode": metadata.get(schema.STREAMS_MODE_KEY),
        "layers": metadata.get(schema.STREAMS_LAYERS_KEY),
        "first_layer": metadata.get(schema.STREAMS_FIRST_LAYER_KEY),
        "rank": metadata.get(schema.STREAMS_RANK_KEY),
        "root": metadata.get(schema.STREAMS_ROOT_KEY),
    }


def _asked(tree: AskedTree, metadata: dict[str, Any]) -> tuple[str, trees.Choices]:
    """The tree as in a session: for a named one, without what the heads cannot fill."""
    from medusa_cli import native

    heads = metadata.get(schema.HEAD_COUNT_KEY, 0)
    rows = metadata.get(schema.DRAFT_VOCAB_SIZE_KEY) or MOST_RANKS
    name, found = drafting.filled(tree, drafting.HeadsFacts(heads, rows, []))
    if not isinstance(found, drafting.FixedTree):
        return name, []
    return name, [list(choice) for choice in native.Tree(found.choices).clipped(heads, rows).choices]


def _under(metadata: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The keys that begin with `prefix`, without it: what a part was converted from."""
    return {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}


def _tree(path: str, metadata: dict[str, Any]) -> trees.Choices:
    flat = _array(path, metadata, schema.TREE_KEY, int)
    try:
        return schema.unflatten_tree(flat)
    except MedusaError as error:
        raise MedusaError(f"{path}: {error}") from error


def _accuracy(path: str, metadata: dict[str, Any]) -> list[list[float]]:
    """The measured accuracies as [head][rank]; empty if the file has none."""
    flat = _array(path, metadata, schema.ACCURACY_KEY, float)
    ranks = metadata.get(schema.ACCURACY_RANKS_KEY, 0)
    if not flat:
        return []
    if not isinstance(ranks, int) or ranks < 1 or len(flat) % ranks:
        raise MedusaError(f"{path}: its {schema.ACCURACY_KEY} is damaged: convert or train the heads again")
    return [[float(value) for value in flat[at : at + ranks]] for at in range(0, len(flat), ranks)]
