"""EAGLE-3 drafters: one decoder layer that reads hidden states of three layers of its target.

The checkpoints of SpecForge, AngelSlim, speculators, ModelOpt and EAGLE's authors differ in the names of the layer
and in where the configuration keeps its values. The file is the one that libllama reads as architecture eagle3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ..base.config import Config
from ..base.model_file import IGNORED, ModelFile, PlannedTensor, Progress, check_weights, kind_of, tensor_label
from ..base.registry import Llama
from ..checkpoints.checkpoint import CONFIG, Checkpoint
from ..errors import MedusaError
from .target import Target

ARCHITECTURE = "eagle3"
NAMES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
STATES = 3
"""Layers of the target whose hidden states are read."""
LAYER_IDS, NESTED_CONFIG, LAYER_CONFIG = "eagle_aux_hidden_state_layer_ids", "eagle_config", "transformer_layer_config"

LAYER_PREFIXES = ("midlayer.", "layers.0.")
IN_LAYER = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Stored name inside the layer -> GGUF name there, both without ".weight"."""
FUSION, INPUT_NORM, EMBEDDING, HEAD = "fc.weight", "enc.output_norm.weight", "token_embd.weight", "output.weight"
OUTSIDE = {"fc": FUSION, "input_norm": INPUT_NORM, "embed_tokens": EMBEDDING, "lm_head": HEAD}
OUTSIDE |= {"norm": "output_norm.weight"}
D2T, T2D = "d2t", "t2d"
"""Draft token -> target token, as the difference of the two; whether a target token is a draft token (not needed)."""
INTEGERS = ("I64", "I32", "I16", "I8", "U32", "U16", "U8")


def is_eagle3(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is an EAGLE-3 drafter, or says that it is one."""
    names = checkpoint.config.get("architectures")
    if isinstance(names, list) and any(name in NAMES for name in names):
        return True
    layered = any(name.endswith(".hidden_norm.weight") for name in checkpoint.tensors)
    return FUSION in checkpoint.tensors and (layered or "draft_vocab_size" in checkpoint.config)


def stated_target(checkpoint: Checkpoint) -> str | None:
    """The target that the configuration names (speculators' do), unchanged: text from a foreign file."""
    found: Any = checkpoint.config
    for key in ("speculators_config", "verifier", "name_or_path"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) and found.strip() else None


class _Layer(Llama):
    """The decoder layer: Llama's, but attention reads a token's embedding and a hidden state side by side."""

    def block_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name inside the block -> torch shape."""
        shapes = super().block_shapes()
        wide = {f"attn_{part}.weight": (shapes[f"attn_{part}.weight"][0], 2 * self.hidden) for part in "qkv"}
        return {**shapes, **wide, "attn_norm_2.weight": (self.hidden,)}


class Eagle3:
    """The drafter in a checkpoint, checked, for one target.

    hidden: size of its states. target_layers: the target's layers whose inputs it reads. draft_vocabulary: rows of its
    output matrix. own: which of "embedding" and "output" it has; the target's are used for the others.
    """

    def __init__(self, checkpoint: Checkpoint, target: Target) -> None:
        """MedusaError for damaged checkpoints and for drafters of another model."""
        where = str(checkpoint.root / CONFIG)
        self.checkpoint, self.target = checkpoint, target
        self.stated = Config(checkpoint.config, where, {})
        values = {**checkpoint.config, **self.stated.section(LAYER_CONFIG)}
        if values.get("num_hidden_layers") != 1:
            raise Config(values, where, {}).refuse("num_hidden_layers", "1, the only number of layers libllama runs")
        self.layer = _Layer(values, where)
        self.hidden = self.layer.hidden
        self._check_target()
        self.target_layers = self._target_layers()
        self.norms = {key: self.stated.flag(key) for key in ("norm_before_residual", "norm_before_fc")}
        self.stored = self._mapped()
        self.own = [name for name, tensor in (("embedding", EMBEDDING), ("output", HEAD)) if tensor in self.stored]
        self.draft_vocabulary = self._draft_vocabulary()
        self._check_tensors()
        self.d2t = self._read_d2t() if D2T in checkpoint.tensors else None

    def write(
        self, path: Path, file_type: str, provenance: Mapping[str, str], progress: Progress | None = None
    ) -> None:
        """Writes `path` (the caller's temporary file) in "F32", "F16" or "BF16"; see write_base()."""
        name = provenance.get("general.name") or self.checkpoint.root.resolve().name
        rest = {key: text for key, text in provenance.items() if key != "general.name"}
        planned = self.tensors(file_type)
        file = ModelFile(ARCHITECTURE, name, rest, self._add_parameters, file_type, self.target.tokenizer, planned)
        file.write(path, progress)

    # --- the configuration -------------------------------------------------------------------------

    def _check_target(self) -> None:
        """The sizes that drafter and target share."""
        target = self.target
        stated = self.stated.get("target_hidden_size")
        if stated is not None and self.stated.integer("target_hidden_size") != target.hidden:
            raise self._other_target(f"reads hidden states of size {stated}", target.hidden)
        if self.layer.vocabulary != target.vocabulary:
            raise self._other_target(f"is for a vocabulary of {self.layer.vocabulary} tokens", target.vocabulary)

    def _other_target(self, found: str, wanted: int) -> MedusaError:
        return MedusaError(
            f"{self.checkpoint.name}: {found}, the base {self.target.name} has {wanted}: give the base it was made for"
        )

    def _target_layers(self) -> list[int]:
        """Numbers of layers; the state before layer i is read, which is the output of layer i - 1.

        ModelOpt and SpecForge keep numbers in a section of their own, where they count outputs.
        """
        layers, config, shift = self.target.layers, self.stated, 0
        if not config.get(LAYER_IDS):
            config, shift = Config(self.stated.section(NESTED_CONFIG), f"{self.stated.where}: {NESTED_CONFIG}", {}), 1
        ids = config.get(LAYER_IDS)
        if not ids:
            usual = [2, layers // 2, layers - 3]
            if usual[-1] < 0:
                raise MedusaError(
                    f"{self.target.name}: has {layers} layers, too few for the usual choice of layers to read: "
                    f"name them in {self.stated.where} ({LAYER_IDS})"
                )
            return usual
        good = isinstance(ids, list) and len(ids) == STATES and all(type(id) is int for id in ids)
        shifted = [id + shift for id in ids] if good else []
        if not good or shifted != sorted(set(shifted)) or shifted[0] < 0 or shifted[-1] > layers:
            raise config.refuse(LAYER_IDS, f"{STATES} layers of the base's {layers} in ascending order")
        return shifted

    def _add_parameters(self, writer: gguf.GGUFWriter) -> None:
        self.layer.write_parameters(writer)
        # Methods of the writer for these keys are newer than the oldest gguf package that we accept.
        writer.add_array(f"{ARCHITECTURE}.target_layers", self.target_layers)
        writer.add_uint32(f"{ARCHITECTURE}.target_hidden_size", self.target.hidden)
        for key, value in self.norms.items():
            writer.add_bool(f"{ARCHITECTURE}.{key}", value)

    # --- the tensors -------------------------------------------------------------------------------

    def _mapped(self) -> dict[str, str]:
        """GGUF name -> stored name."""
        stored: dict[str, str] = {}
        for source in self.checkpoint.tensors:
            if source in (D2T, T2D) or source.endswith(IGNORED):
                continue
            name = _gguf_name(source)
            if name is None:
                raise MedusaError(f"{tensor_label(self.checkpoint, source)} has no place in an EAGLE-3 drafter")
            if name in stored:
                root = self.checkpoint.root
                raise MedusaError(f"{root}: tensors {stored[name]!r} and {source!r} are both {name}, remove one")
            stored[name] = source
        return stored

    def _draft_vocabulary(self) -> int:
        """Rows of the output matrix; MedusaError unless there is a map for a vocabulary that is not the target's."""
        checkpoint, vocabulary = self.checkpoint, self.target.vocabulary
        rows = vocabulary
        if HEAD in self.stored:
            shape = checkpoint.tensors[self.stored[HEAD]].shape
            if len(shape) != 2 or not 0 < shape[0] <= vocabulary:
                label = tensor_label(checkpoint, self.stored[HEAD])
                raise MedusaError(f"{label} has shape {list(shape)}, not a row for each of at most {vocabulary} tokens")
            rows = shape[0]
        if self.stated.get("draft_vocab_size") is not None and self.stated.integer("draft_vocab_size") != rows:
            raise self.stated.refuse("draft_vocab_size", f"{rows}, the number of output rows")
        mapped = checkpoint.tensors.get(D2T)
        if mapped is None and rows != vocabulary:
            raise MedusaError(
                f"{checkpoint.name}: lacks {D2T!r}, which says what tokens its {rows} output rows are: download all "
                "weight files"
            )
        if mapped is not None and (mapped.shape != (rows,) or mapped.dtype not in INTEGERS):
            raise MedusaError(
                f"{tensor_label(checkpoint, D2T)} has shape {list(mapped.shape)} and dtype {mapped.dtype}, not a whole "
                f"number for each of {rows} output rows: download the checkpoint again"
            )
        return rows

    def _check_tensors(self) -> None:
        """Every tensor libllama asks for is there, with its shape, and no other."""
        hidden, width = self.hidden, STATES * self.target.hidden
        required = {f"blk.0.{name}": shape for name, shape in self.layer.block_shapes().items()}
        required |= {FUSION: (hidden, width), "output_norm.weight": (hidden,)}
        if self.norms["norm_before_fc"]:
            required[INPUT_NORM] = (width,)
        elif INPUT_NORM in self.stored:
            raise self.stated.refuse("norm_before_fc", f"true with the tensor {self.stored[INPUT_NORM]!r}")
        if EMBEDDING not in self.stored and hidden != self.target.hidden:
            raise MedusaError(
                f"{self.checkpoint.name}: lacks 'embed_tokens.weight', and the embeddings of {self.target.name} have "
                f"another size ({self.target.hidden}, not {hidden}): download all weight files"
            )
        if HEAD not in self.stored and hidden != self.target.hidden:
            raise MedusaError(
                f"{self.checkpoint.name}: lacks 'lm_head.weight', and that of {self.target.name} reads states of "
                f"another size ({self.target.hidden}, not {hidden}): download all weight files"
            )
        optional = {EMBEDDING: (self.target.vocabulary, hidden), HEAD: (self.draft_vocabulary, hidden)}
        missing = [name for name in required if name not in self.stored]
        if missing:
            raise MedusaError(f"{self.checkpoint.root}: lacks the tensor for {missing[0]}, download all weight files")
        shapes = {**required, **optional}
        for name, source in self.stored.items():
            check_weights(self.checkpoint, source, shapes[name])

    def _read_d2t(self) -> NDArray[np.int64]:
        """The target's token of each output row. MedusaError for tokens outside its vocabulary or out of order."""
        tokens = self.checkpoint.load(D2T).astype(np.int64) + np.arange(self.draft_vocabulary, dtype=np.int64)
        if tokens.min() < 0 or tokens.max() >= self.target.vocabulary or (np.diff(tokens) <= 0).any():
            raise MedusaError(
                f"{tensor_label(self.checkpoint, D2T)} does not name ascending tokens of a vocabulary of "
                f"{self.target.vocabulary}: download the checkpoint again"
            )
        return tokens

    def tensors(self, file_type: str) -> list[PlannedTensor]:
        """What a file of that type holds, in the order of llama.cpp's converter."""
        planned = [
            PlannedTensor(name, values.shape, kind_of(name, values.shape, file_type), partial(np.array, values), name)
            for name, values in self.layer.extra_tensors().items()
        ]
        for name, source in self.stored.items():
            shape = self.checkpoint.tensors[source].shape
            load: Callable[[], NDArray[Any]] = partial(self._load, name, source)
            label = tensor_label(self.checkpoint, source)
            planned.append(PlannedTensor(name, shape, kind_of(name, shape, file_type), load, label))
        if self.d2t is not None:
            kind = gguf.GGMLQuantizationType.I64
            planned.append(PlannedTensor(D2T, self.d2t.shape, kind, partial(np.array, self.d2t), D2T))
        return planned

    def _load(self, name: str, source: str) -> NDArray[Any]:
        return self.layer.transform(name, self.checkpoint.load(source))


def _gguf_name(source: str) -> str | None:
    """The GGUF name of a stored tensor, None for one that no drafter has."""
    if not source.endswith(".weight"):
        return None
    plain = source.removesuffix(".weight").removeprefix("model.")
    for prefix in LAYER_PREFIXES:
        if plain.startswith(prefix):
            part = IN_LAYER.get(plain.removeprefix(prefix))
            return part and f"blk.0.{part}.weight"
    return OUTSIDE.get(plain)
