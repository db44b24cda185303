"""A jointly trained model with its Medusa heads as one Hugging Face checkpoint, as the Medusa authors publish Medusa-2.

Weights are dequantized to F16 and named as in transformers; heads are beside them as `medusa_head.*`. Their layout has
no draft vocabulary: each head gets the base's whole output matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gguf import TokenType
from numpy.typing import NDArray

from medusa_cli.converters.base.pretokenizers import KNOWN
from medusa_cli.converters.base.sentencepiece import BLANK
from medusa_cli.converters.base.tokenizer_files import TOKENIZER, TOKENIZER_CONFIG
from medusa_cli.converters.checkpoints.safetensors_file import TensorToWrite
from medusa_cli.converters.gguf.header import Header, TensorInfo
from medusa_cli.models.base_file import EMBEDDING_NAME
from medusa_cli.support.errors import MedusaError

from .export import HeadsFile, write_folder
from .shape import ROPE_FACTORS, BaseTensors, DecoderShape, read_shape

CLASSES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
}
"""config.json's class and model_type."""
MODEL_PARTS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_PARTS = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

SPECIAL = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
"""Names of special tokens in GGUF and in transformers."""


def check(header: Header) -> None:
    """MedusaError, before anything is trained, for a base with something that the layout has no place for."""
    if any(tensor.name == ROPE_FACTORS for tensor in header.tensors):
        raise MedusaError(
            f"{header.name}: {ROPE_FACTORS} does not say which scaling of transformers it came from: "
            "leave out export_hf"
        )


def write(path: Path, output: Path, folder: Path) -> list[Path]:
    """Writes the base in the GGUF `path` and the Medusa heads in the GGUF `output` to `folder`; returns the files."""
    tensors, heads = BaseTensors(path), HeadsFile(output)
    header = tensors.header
    check(header)
    shape = read_shape(header)
    metadata = header.metadata()
    stored = [_stored(tensors, tensor, shape) for tensor in header.tensors]
    for head in range(heads.count):
        stored += heads.residual_blocks(head, f"medusa_head.{head}.{{}}.linear.{{}}")
    rows = tensors.tensors[tensors.output_name].shape[::-1]
    matrix = partial(tensors.load, tensors.output_name)
    for head in range(heads.count):
        stored.append(TensorToWrite(f"medusa_head.{head}.{heads.blocks}.weight", rows, "F16", matrix))
    config = _config(metadata, shape, rows[0], tied=tensors.output_name == EMBEDDING_NAME)
    config |= {"medusa_num_heads": heads.count, "medusa_num_layers": heads.blocks}
    files = {"config.json": config, **tokenizer_files(metadata)}
    return write_folder(folder, "model.safetensors", stored, files, indent=1)


def _stored(tensors: BaseTensors, tensor: TensorInfo, shape: DecoderShape) -> TensorToWrite:
    def load() -> NDArray[Any]:
        values = tensors.load(tensor.name)
        part = tensor.name.split(".")[-2]
        if shape.adjacent_pairs and part in ("attn_q", "attn_k"):
            return halves(values, shape.heads if part == "attn_q" else shape.heads_kv)
        if shape.architecture == "gemma3" and tensor.name.endswith("norm.weight"):
            return values - 1
        return values

    size = tensor.shape[::-1]
    return TensorToWrite(_name(tensor.name, shape), size, "F16" if len(size) > 1 else "F32", load)


def halves(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorders each head's rows, neighbours being a rotary pair: the pairs' first rows before their second ones."""
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _name(name: str, shape: DecoderShape) -> str:
    parts = name.split(".")
    if parts[0] != "blk":
        return f"{MODEL_PARTS[parts[0]]}.{parts[1]}"
    theirs = LAYER_PARTS | (GEMMA_PARTS if shape.architecture == "gemma3" else {})
    return f"model.layers.{parts[1]}.{theirs[parts[2]]}.{parts[3]}"


def _config(metadata: Mapping[str, Any], shape: DecoderShape, vocabulary: int, tied: bool) -> dict[str, Any]:
    def key(name: str, otherwise: Any = None) -> Any:
        return metadata.get(f"{shape.architecture}.{name}", otherwise)

    name, kind = CLASSES[shape.architecture]
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": kind,
        "torch_dtype": "float16",
        "vocab_size": vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": key("feed_forward_length"),
        "num_hidden_layers": len(shape.layers),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads_kv,
        "max_position_embeddings": key("context_length"),
        "rms_norm_eps": shape.eps,
        "rope_theta": key("rope.freq_base", 10000.0),
        "tie_word_embeddings": tied,
    }
    if shape.head_size * shape.heads != shape.hidden or shape.architecture in ("qwen3", "gemma3"):
        config["head_dim"] = shape.head_size
    if key("rope.scaling.type") == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": key("rope.scaling.factor")}
    if shape.architecture == "gemma3":
        config |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": key("attention.sliding_window"),
            "rope_local_base_freq": key("rope.freq_base_swa", 10000.0),
            "query_pre_attn_scalar": round(shape.query_scale**-2),
        }
    for end in ("bos", "eos"):
        if (token := metadata.get(f"tokenizer.ggml.{end}_token_id")) is not None:
            config[f"{end}_token_id"] = token
    return config


# --- the tokenizer ---------------------------------------------------------------------------------


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A GGUF's tokenizer as the files that transformers reads: name -> content.

    Without tokenizer.json if GGUF does not say enough: then it comes from the original.
    """
    tokens: list[str] = list(metadata.get("tokenizer.ggml.tokens") or [])
    types = list(metadata.get("tokenizer.ggml.token_type") or [int(TokenType.NORMAL)] * len(tokens))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for kind, theirs in SPECIAL.items():
        token = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if token is not None and token < len(tokens):
            config[f"{theirs}_token"] = tokens[token]
    for kind in ("bos", "eos"):
        if (adds := metadata.get(f"tokenizer.ggml.add_{kind}_token")) is not None:
            config[f"add_{kind}_token"] = bool(adds)
    if (prefix := metadata.get("tokenizer.ggml.add_space_prefix")) is not None:
        config["add_prefix_space"] = bool(prefix)
    if (template := metadata.get("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    described = _byte_level(metadata, tokens) or _byte_fallback(metadata, tokens, types)
    if described is None:
        return {TOKENIZER_CONFIG: config}
    added = [
        {
            "id": id,
            "content": tokens[id],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == TokenType.CONTROL,
        }
        for id, kind in enumerate(types)
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    vocabulary = {text: id for id, text in enumerate(tokens) if types[id] != TokenType.UNUSED}
    described["model"]["vocab"] = vocabulary
    return {TOKENIZER_CONFIG: config, TOKENIZER: {"version": "1.0", "added_tokens": added, **described}}


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any] | None:
    pre = metadata.get("tokenizer.ggml.pre")
    found = next((steps for steps, name in KNOWN.items() if name == pre), None)
    if metadata.get("tokenizer.ggml.model") != "gpt2" or found is None:
        return None
    regexes, ignores_merges = found
    split = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False} for regex in regexes
    ]
    bytes_: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split, bytes_]},
        "post_processor": None,
        "decoder": bytes_,
        "model": {
            "type": "BPE",
            "byte_fallback": False,
            "ignore_merges": ignores_merges,
            "merges": list(metadata.get("tokenizer.ggml.merges") or []),
        },
    }


def _byte_fallback(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> dict[str, Any] | None:
    """SentencePiece: its merges are all ways to make a token from two others, the best score first."""
    scores = metadata.get("tokenizer.ggml.scores")
    if metadata.get("tokenizer.ggml.model") != "llama" or scores is None:
        return None
    places = {text: id for id, text in enumerate(tokens) if types[id] == TokenType.NORMAL}
    merges = [
        (-scores[id], id, [text[:at], text[at:]])
        for text, id in places.items()
        for at in range(1, len(text))
        if text[:at] in places and text[at:] in places
    ]
    unknown = [tokens[id] for id, kind in enumerate(types) if kind == TokenType.UNKNOWN]
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, {"type": "Prepend", "prepend": BLANK})
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "fuse_unk": True,
            "unk_token": unknown[0] if unknown else None,
            "merges": [pair for _, _, pair in sorted(merges)],
        },
    }
