"""Trained heads as a Hugging Face checkpoint, in the layouts that other engines and `medusa convert` read.

Medusa heads over all tokens get their authors' layout: v1 if they have their own output matrices, v2 if they use the
base's. It has no draft vocabulary, so heads with one get vLLM's layout, which has (token_map), with one output matrix
for all heads, whose rows are the base's, or one for each. Hydra heads, and all heads after a prefix layer, get the
layout of Hydra's authors: an output matrix over all tokens for each, with a bias that no token outside the draft
vocabulary overcomes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medusa_cli.converters.checkpoints.safetensors_file import TensorToWrite, write_safetensors
from medusa_cli.converters.heads import schema
from medusa_cli.converters.heads.formats.hydra import PREFIX_CONFIG, PREFIX_NAMES
from medusa_cli.models.base_file import BaseModel, output_rows
from medusa_cli.support.atomic import atomic_file, explain_os_error
from medusa_cli.support.errors import MedusaError

from .shape import BaseTensors

NEVER = -30000.0
"""Bias of a token that must not be drafted: far below any logit, and representable in F16, where -65504 is the end."""

STORED_PREFIX = {schema.prefix(ours): theirs for theirs, ours in PREFIX_NAMES.items()}
"""By our name for a prefix layer's tensor: the checkpoint's name, after its module."""


def check_folder(folder: Path) -> None:
    """MedusaError if no checkpoint could be written to `folder`."""
    if folder.exists() and not folder.is_dir():
        raise MedusaError(f"{folder}: is a file, give a folder for the exported heads")
    if not folder.absolute().parent.is_dir():
        raise MedusaError(f"{folder}: its parent folder does not exist, create it first")


def export_heads(heads: Path, base: BaseModel, folder: Path) -> list[Path]:
    """Writes the heads in the GGUF `heads` (sidecar or single file, for `base`) to `folder`.

    Returns the files written.
    """
    check_folder(folder)
    source = HeadsFile(heads)
    if source.kind != "medusa" or source.prefix:
        name, (config, tensors) = "hydra_lm_head.safetensors", _hydra(source, base)
    elif source.d2t is not None:
        name, (config, tensors) = "model.safetensors", _vllm(source, base)
    else:
        name, (config, tensors) = "medusa_lm_head.safetensors", _medusa(source)
    return write_folder(folder, name, tensors, {"config.json": config}, indent=2)


def write_folder(
    folder: Path, name: str, tensors: Sequence[TensorToWrite], files: Mapping[str, Any], indent: int
) -> list[Path]:
    """Writes weights as `name`, and JSON files, name -> content; returns the files. MedusaError if that fails."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise explain_os_error(error, folder) from error
    write_safetensors(folder / name, tensors)
    for other, content in files.items():
        with atomic_file(folder / other) as file:
            file.write((json.dumps(content, indent=indent, ensure_ascii=False) + "\n").encode())
    return [folder / name, *(folder / other for other in files)]


class HeadsFile(BaseTensors):
    """Keys and tensors of a GGUF with heads."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.metadata = self.header.metadata()
        self.kind = str(self.metadata.get(schema.KIND_KEY))
        self.count = int(self.metadata.get(schema.HEAD_COUNT_KEY, 0))
        self.blocks = int(self.metadata.get(schema.BLOCK_COUNT_KEY, 0))
        self.scale = float(self.metadata.get(schema.EMBEDDING_SCALE_KEY, 1.0))
        self.d2t = self.raw(schema.D2T).view(np.int32)[0].astype(np.int64) if self.has(schema.D2T) else None
        self.has_own_outputs = self.has(schema.output(0, "weight"))
        self.prefix = [name for name in self.tensors if name in STORED_PREFIX]

    def stored(self, name: str, target: str, load: Callable[[], NDArray[Any]] | None = None) -> TensorToWrite:
        """A tensor to write as `target`: what load() returns, else as stored."""
        shape = self.tensors[name].shape[::-1]
        return TensorToWrite(target, shape, "F16" if len(shape) > 1 else "F32", load or partial(self.load, name))

    def residual_blocks(self, head: int, theirs: str) -> list[TensorToWrite]:
        """The blocks of one head. theirs: their name for a part, with slots for the block and the part."""
        return [
            self.stored(schema.block(head, j, part), theirs.format(j, part))
            for j in range(self.blocks)
            for part in schema.PARTS
        ]


def _medusa(heads: HeadsFile) -> tuple[dict[str, Any], list[TensorToWrite]]:
    tensors: list[TensorToWrite] = []
    for k in range(heads.count):
        tensors += heads.residual_blocks(k, f"{k}.{{}}.linear.{{}}")
        if heads.has_own_outputs:
            tensors.append(heads.stored(schema.output(k, "weight"), f"{k}.{heads.blocks}.weight"))
    config = {"medusa_num_heads": heads.count, "medusa_num_layers": heads.blocks}
    return config, tensors


def _vllm(heads: HeadsFile, base: BaseModel) -> tuple[dict[str, Any], list[TensorToWrite]]:
    assert heads.d2t is not None
    d2t, tensors = heads.d2t, []
    for k in range(heads.count):
        tensors += heads.residual_blocks(k, f"blocks.{k}.layers.{{}}.{{}}")
    if heads.has_own_outputs:
        tensors += [heads.stored(schema.output(k, "weight"), f"lm_heads.{k}.weight") for k in range(heads.count)]
    else:  # under this name, one matrix serves all heads, in vLLM and in `medusa convert`
        tensors.append(TensorToWrite("lm_head.weight", (len(d2t), base.n_embd), "F16", partial(output_rows, base, d2t)))
    tensors.append(TensorToWrite("token_map", d2t.shape, "I64", lambda: d2t))
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": base.n_embd,
        "num_heads": heads.count,
        "num_hidden_layers": heads.blocks,
        "vocab_size": base.n_vocab,
        "truncated_vocab_size": len(d2t),
        "original_lm_head": not heads.has_own_outputs,
        "medusa_fc_bias": True,
    }
    return config, tensors


def _hydra(heads: HeadsFile, base: BaseModel) -> tuple[dict[str, Any], list[TensorToWrite]]:
    """Blocks are at 0, 1, 2, ..; with a prefix layer at 1, 3, 5, .. (the authors' Dropout modules are in between)."""
    has_prefix, grounded = bool(heads.prefix), heads.kind != "medusa"
    tensors: list[TensorToWrite] = []
    for k in range(heads.count):
        for j in range(heads.blocks):
            index = 2 * j + 1 if has_prefix else j
            linear_maps = {"linear": partial(schema.block, k, j)}
            if j == 0 and grounded:
                linear_maps["res_connection"] = partial(schema.residual, k)
            for theirs, ours in linear_maps.items():
                for part in schema.PARTS:
                    name = ours(part)
                    scaled = partial(_scaled, heads, name, base.n_embd) if (j, part) == (0, "weight") else None
                    tensors.append(heads.stored(name, f"hydra_mlp.{k}.{index}.{theirs}.{part}", scaled))
    behind = "1." if has_prefix else ""
    for k in range(heads.count):
        matrix = partial(_whole_output, heads, k, base)
        tensors.append(TensorToWrite(f"hydra_lm_head.{k}.{behind}weight", (base.n_vocab, base.n_embd), "F16", matrix))
        bias = partial(_vocabulary_bias, heads, base.n_vocab)
        tensors.append(TensorToWrite(f"hydra_lm_head.{k}.{behind}bias", (base.n_vocab,), "F32", bias))
    for name in heads.prefix:
        tensors.append(heads.stored(name, f"prefix_embeding_layer.{STORED_PREFIX[name]}"))
    config: dict[str, Any] = {
        "hydra_num_heads": heads.count,
        "hydra_num_layers": heads.blocks,
        "hydra_head_arch": "prefix-mlp" if has_prefix else "mlp",
        "grounded_heads": heads.kind != "medusa",
        "hidden_state_offset": 0,
        "hidden_size": base.n_embd,
        "vocab_size": base.n_vocab,
    }
    if has_prefix:
        config |= {name: heads.metadata[key] for key, (name, _) in PREFIX_CONFIG.items()}
    return config, tensors


def _scaled(heads: HeadsFile, name: str, hidden: int) -> NDArray[Any]:
    """The first block's weight for plain embeddings: the layout has no scale, so the weight includes it."""
    weight = heads.load(name).astype(np.float32)
    weight[:, hidden:] *= np.float32(heads.scale)
    return weight


def _whole_output(heads: HeadsFile, head: int, base: BaseModel) -> NDArray[Any]:
    """[V, h]: the base's rows, with the head's own in their places."""
    if not heads.has_own_outputs:
        return output_rows(base, np.arange(base.n_vocab))
    own = heads.load(schema.output(head, "weight"))
    if heads.d2t is None:
        return own
    rows = output_rows(base, np.arange(base.n_vocab))
    rows[heads.d2t] = own
    return rows


def _vocabulary_bias(heads: HeadsFile, n_vocab: int) -> NDArray[np.float32]:
    if heads.d2t is None:
        return np.zeros(n_vocab, np.float32)
    bias = np.full(n_vocab, NEVER, np.float32)
    bias[heads.d2t] = 0.0
    return bias
