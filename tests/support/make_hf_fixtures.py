"""Writes the tiny Hugging Face models under tests/data/hf and the goldens of their conversion.

    python tests/support/make_hf_fixtures.py [NAME...]      models (all, or the named ones) and goldens
    python tests/support/make_hf_fixtures.py --goldens      goldens only, from the models that are there

Each model is seeded: the same versions of torch, transformers, tokenizers and sentencepiece write the same files.
Weights are random but of a size at which every tensor matters; vocabularies are trained on the text below.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf_digests import described

HERE = Path(__file__).parents[1] / "data" / "hf"
GOLDENS = "goldens.json"
HIDDEN, HEADS, HEADS_KV, FEED_FORWARD = 32, 4, 2, 64
SPM_PIECES, MERGED = 440, 60

TEXT = [
    "The quick brown fox jumps over the lazy dog, and then the dog jumps over the fox.",
    "There isn't any reason we'd say that they're wrong; I've told them, 'it's fine'.",
    "def add(first, second):\n    return first + second\n\n\nprint(add(12, 345))  # 357",
    "  leading blanks,   runs    of blanks\tand\ttabs \n\n trailing blanks   ",
    "Grüße aus Köln: süß, größer, naïve café. Привет, мир! 你好,世界。 3.14159 1000000 2026",
    "for (int i = 0; i < 10; ++i) { total += values[i]; }  // 100% of 50 $ at x@example.org",
    "UPPER lower Title camelCase snake_case kebab-case HTTPServer iPhone",
]

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# --- tokenizers ------------------------------------------------------------------------------------------------------


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def train_sentencepiece(folder: Path, *, dummy_prefix: bool = True, gemma: bool = False) -> Any:
    """tokenizer.model with byte fallback; returns the processor."""
    import sentencepiece

    out = io.BytesIO()
    special: dict[str, Any] = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
    if gemma:
        special = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>", "eos_piece": "<eos>"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 4),
        model_writer=out,
        vocab_size=SPM_PIECES,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=dummy_prefix,
        character_coverage=0.98,
        num_threads=1,
        minloglevel=2,
        **special,
    )
    (folder / "tokenizer.model").write_bytes(out.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def added(
    id: int, text: str, *, special: bool = True, rstrip: bool = False, normalized: bool = False
) -> dict[str, Any]:
    """An added token as both JSON files write it."""
    flags = {"lstrip": False, "normalized": normalized, "rstrip": rstrip, "single_word": False, "special": special}
    return {"id": id, "content": text, **flags}


def decoder(tokens: list[dict[str, Any]]) -> dict[str, Any]:
    """added_tokens_decoder of tokenizer_config.json."""
    return {str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in tokens}


def llama_tokenizer(folder: Path, extra: list[dict[str, Any]], name: str = "LlamaTokenizer") -> int:
    """Llama 2's files: tokenizer.model and tokenizer_config.json. Returns the number of tokens."""
    train_sentencepiece(folder)
    tokens = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"), *extra]
    config = {
        "add_bos_token": True,
        "add_eos_token": False,
        "add_prefix_space": True,
        "added_tokens_decoder": decoder(tokens),
        "bos_token": "<s>",
        "chat_template": CHAT,
        "eos_token": "</s>",
        "legacy": False,
        "model_max_length": 2048,
        "pad_token": None,
        "tokenizer_class": name,
        "unk_token": "<unk>",
    }
    write_json(folder / "tokenizer_config.json", config)
    return SPM_PIECES + len(extra)


def train_byte_level(
    folder: Path, pre_tokenizer: Any, extra: list[str], *, normalizer: Any = None, **model: Any
) -> tuple[dict[str, Any], int]:
    """The tokenizer.json (not written yet) of a byte-level BPE with `extra` special tokens behind it, and its size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=256 + MERGED, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in extra])
    return json.loads(tokenizer.to_str()), tokenizer.get_vocab_size()


def split(regex: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(regex), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def with_bos(tokenizer: dict[str, Any], text: str) -> None:
    """Llama 3's post-processor: a BOS before each text."""
    id = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == text)

    def sequence(name: str, type_id: int) -> list[dict[str, Any]]:
        special = {"SpecialToken": {"id": text, "type_id": type_id}}
        return [special, {"Sequence": {"id": name, "type_id": type_id}}]

    template = {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": sequence("A", 0) + sequence("B", 1),
        "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}},
    }
    tokenizer["post_processor"] = {"type": "Sequence", "processors": [tokenizer["post_processor"], template]}


def byte_fallback_json(folder: Path) -> int:
    """Mistral's newer files: a tokenizer.json made from a SentencePiece model, and no tokenizer.model."""
    processor = train_sentencepiece(folder)
    (folder / "tokenizer.model").unlink()
    vocabulary = {processor.IdToPiece(id): id for id in range(processor.GetPieceSize())}
    merges = [
        (id, vocabulary[piece[:at]], vocabulary[piece[at:]], [piece[:at], piece[at:]])
        for piece, id in vocabulary.items()
        if not processor.IsByte(id) and not processor.IsControl(id) and not processor.IsUnknown(id)
        for at in range(1, len(piece))
        if piece[:at] in vocabulary and piece[at:] in vocabulary
    ]
    tokens = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"), added(SPM_PIECES, "[INST]")]
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [merge for *_, merge in sorted(merges)],
        },
    }
    first = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, sequence],
        "pair": [first, sequence, first, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "add_eos_token": False,
            "added_tokens_decoder": decoder(tokens),
            "bos_token": "<s>",
            "eos_token": "</s>",
            "legacy": False,
            "tokenizer_class": "LlamaTokenizerFast",
            "unk_token": "<unk>",
        },
    )
    return SPM_PIECES + 1


# --- models ----------------------------------------------------------------------------------------------------------


def save_model(folder: Path, config: Any, dtype: str, seed: int, *, norms_from_zero: bool = False) -> None:
    """Seeded weights for a transformers config, saved with it."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            if parameter.dim() > 1:
                parameter.copy_(noise if "embed" in name else noise / parameter.shape[1] ** 0.5)
            elif name.endswith("bias"):
                parameter.copy_(noise * 0.3)
            else:
                parameter.copy_(noise * 0.2 + (0.0 if norms_from_zero else 1.0))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)


def sizes(vocabulary: int, **more: Any) -> dict[str, Any]:
    """The arguments that all configs share."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS_KV,
        "max_position_embeddings": 512,
        **more,
    }


def old_spelling(folder: Path, scaling: dict[str, Any] | None, drop: tuple[str, ...] = ()) -> None:
    """Rewrites config.json as transformers 4 wrote it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"], config["rope_scaling"] = rope["rope_theta"], scaling
    config["torch_dtype"] = config.pop("dtype")
    write_json(path, {key: value for key, value in config.items() if key not in drop})


def llama_spm(folder: Path) -> None:
    """Llama 2: linear rope scaling in the old spelling, a head that is not tied, added chat tokens."""
    from transformers import LlamaConfig

    extra = [added(SPM_PIECES, "<|im_start|>"), added(SPM_PIECES + 1, "<|im_end|>")]
    extra += [added(SPM_PIECES + 2, "<tool>", special=False)]
    vocabulary = llama_tokenizer(folder, extra)
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    config = LlamaConfig(**sizes(vocabulary, rope_parameters=rope, rms_norm_eps=1e-5, tie_word_embeddings=False))
    save_model(folder, config, "float16", 1)
    old_spelling(folder, {"type": "linear", "factor": 2.0}, drop=("head_dim",))


def llama_bpe(folder: Path) -> None:
    """Llama 3: byte-level BPE, llama3 rope scaling, tied embedding, and biases everywhere."""
    from medusa_cli.converters.base.pretokenizers import LLAMA3
    from transformers import LlamaConfig

    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>"]
    tokenizer, vocabulary = train_byte_level(folder, split(LLAMA3), names, ignore_merges=True)
    with_bos(tokenizer, names[0])
    write_json(folder / "tokenizer.json", tokenizer)
    config = {"bos_token": names[0], "eos_token": names[2], "tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(CHAT)
    first = vocabulary - len(names)
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 64, "rope_theta": 500000.0}
    more = {"bos_token_id": first, "eos_token_id": [first + 1, first + 2], "attention_bias": True, "mlp_bias": True}
    model = LlamaConfig(**sizes(vocabulary, rope_parameters=rope, tie_word_embeddings=True, **more))
    save_model(folder, model, "bfloat16", 2)


def mistral_spm(folder: Path) -> None:
    """Mistral 7B v0.1: a sliding window, an added_tokens.json, rows of the embedding that no token uses."""
    from transformers import MistralConfig

    vocabulary = llama_tokenizer(folder, []) + 4
    write_json(folder / "added_tokens.json", {"[TOOL]": SPM_PIECES, "[/TOOL]": SPM_PIECES + 1})
    config = MistralConfig(**sizes(vocabulary, head_dim=16, sliding_window=128))
    save_model(folder, config, "bfloat16", 3)


def mistral_json(folder: Path) -> None:
    """Mistral with a tokenizer.json alone."""
    from transformers import MistralConfig

    vocabulary = byte_fallback_json(folder)
    save_model(folder, MistralConfig(**sizes(vocabulary, sliding_window=None)), "bfloat16", 4)


def qwen_tokenizer(folder: Path) -> int:
    from medusa_cli.converters.base.pretokenizers import QWEN2
    from tokenizers import normalizers

    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer, count = train_byte_level(folder, split(QWEN2), names, normalizer=normalizers.NFC())
    tokenizer["added_tokens"].append(added(count, "<tool_call>", special=False))
    write_json(folder / "tokenizer.json", tokenizer)
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder(tokenizer["added_tokens"]),
        "bos_token": None,
        "chat_template": CHAT,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    write_json(folder / "tokenizer_config.json", config)
    return count + 1


def qwen2(folder: Path) -> None:
    """Qwen 2.5: yarn, tied embedding, more rows than tokens."""
    from transformers import Qwen2Config

    vocabulary = qwen_tokenizer(folder) + 3
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1e6}
    ids = {"bos_token_id": vocabulary - 7, "eos_token_id": vocabulary - 5}
    config = Qwen2Config(**sizes(vocabulary, rope_parameters=rope, tie_word_embeddings=True, **ids))
    save_model(folder, config, "bfloat16", 5)
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    old_spelling(folder, scaling, drop=("layer_types",))


def qwen3(folder: Path) -> None:
    """Qwen 3: a head size of its own, norms on queries and keys."""
    from transformers import Qwen3Config

    vocabulary = qwen_tokenizer(folder)
    config = Qwen3Config(**sizes(vocabulary, head_dim=16, eos_token_id=vocabulary - 2, tie_word_embeddings=False))
    save_model(folder, config, "float32", 6)


def gemma3(folder: Path) -> None:
    """Gemma 3: six layers, the sixth attends fully; a window of 8; linear scaling of the full layers' positions."""
    from transformers import Gemma3TextConfig

    processor = train_sentencepiece(folder, dummy_prefix=False, gemma=True)
    tokens = [added(0, "<pad>"), added(1, "<eos>"), added(2, "<bos>"), added(3, "<unk>")]
    tokens += [added(SPM_PIECES, "<start_of_turn>"), added(SPM_PIECES + 1, "<unused0>", special=False)]
    tokens += [added(processor.PieceToId("▁▁▁"), "▁▁▁", special=False)]
    config = {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": decoder(tokens),
        "bos_token": "<bos>",
        "chat_template": "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "tokenizer_class": "GemmaTokenizer",
        "unk_token": "<unk>",
    }
    write_json(folder / "tokenizer_config.json", config)
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    more = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "rope_parameters": rope}
    more |= {"num_hidden_layers": 6, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48}
    model = Gemma3TextConfig(**{**sizes(SPM_PIECES + 2), **more})
    save_model(folder, model, "bfloat16", 7, norms_from_zero=True)


def phi3_spm(folder: Path) -> None:
    """Phi 3: fused matrices, long and short rope factors, special tokens that swallow the blanks behind them."""
    from transformers import Phi3Config

    extra = [added(SPM_PIECES, "<|endoftext|>"), added(SPM_PIECES + 1, "<|user|>", rstrip=True)]
    extra += [added(SPM_PIECES + 2, "<|end|>", rstrip=True)]
    vocabulary = llama_tokenizer(folder, extra)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["added_tokens_decoder"]["2"]["rstrip"] = True
    config["eos_token"] = config["pad_token"] = "<|endoftext|>"
    del config["add_prefix_space"]
    write_json(path, config)
    half = HIDDEN // HEADS // 2
    rope = {
        "rope_type": "longrope",
        "long_factor": [1.0 + 2.0 * i for i in range(half)],
        "short_factor": [1.0 + 0.25 * i for i in range(half)],
        "rope_theta": 10000.0,
    }
    more = {"rope_parameters": rope, "original_max_position_embeddings": 256, "sliding_window": 512}
    ids = {"bos_token_id": 1, "eos_token_id": SPM_PIECES, "pad_token_id": SPM_PIECES}
    save_model(folder, Phi3Config(**sizes(vocabulary, **more, **ids)), "bfloat16", 8)
    old_spelling(folder, {"type": "longrope", "long_factor": rope["long_factor"], "short_factor": rope["short_factor"]})


def phi4_bpe(folder: Path) -> None:
    """Phi 4 mini: byte-level BPE with GPT-4o's splitting, three quarters of each head rotate, tied embedding."""
    from medusa_cli.converters.base.pretokenizers import GPT4O
    from transformers import Phi3Config

    names = ["<|endoftext|>", "<|user|>", "<|end|>"]
    tokenizer, vocabulary = train_byte_level(folder, split(GPT4O), names)
    write_json(folder / "tokenizer.json", tokenizer)
    config = {"bos_token": names[0], "eos_token": names[0], "unk_token": names[0], "tokenizer_class": "GPT2Tokenizer"}
    write_json(folder / "tokenizer_config.json", {**config, "add_prefix_space": False, "chat_template": CHAT})
    first = vocabulary - len(names)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
    more = {"rope_parameters": rope, "tie_word_embeddings": True, "num_attention_heads": 2, "num_key_value_heads": 1}
    ids = {"bos_token_id": first, "eos_token_id": first, "pad_token_id": first}
    model = Phi3Config(**{**sizes(vocabulary, **ids), **more})
    save_model(folder, model, "bfloat16", 9)


FIXTURES: dict[str, Callable[[Path], None]] = {
    "llama-spm": llama_spm,
    "llama-bpe": llama_bpe,
    "mistral-spm": mistral_spm,
    "mistral-json": mistral_json,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma3": gemma3,
    "phi3-spm": phi3_spm,
    "phi4-bpe": phi4_bpe,
}


# --- goldens ---------------------------------------------------------------------------------------------------------


def golden(folder: Path) -> dict[str, Any]:
    """What the F16 conversion of a fixture must be."""
    from medusa_cli.converters.base import write_base
    from medusa_cli.converters.checkpoints.checkpoint import open_checkpoint

    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "base.gguf"
        write_base(open_checkpoint(folder), path, "F16", provenance={"general.name": folder.name})
        return described(path)


def main(arguments: list[str]) -> None:
    if arguments != ["--goldens"]:
        for name in arguments or FIXTURES:
            shutil.rmtree(HERE / name, ignore_errors=True)
            (HERE / name).mkdir(parents=True)
            FIXTURES[name](HERE / name)
    goldens = {name: golden(HERE / name) for name in FIXTURES if (HERE / name).is_dir()}
    lines = [f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in goldens.items()]
    (HERE / GOLDENS).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
