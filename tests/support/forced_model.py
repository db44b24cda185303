"""A made-up model that says what a test wants: each token has one that follows it, whatever came before.

Its layer does nothing, its embeddings are one-hot, and its output matrix is the table of what follows what. So the
engine, its drafts and its caches are the real ones, and the text is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np

CONTROL, USER_DEFINED, BYTE, UNKNOWN = 3, 4, 6, 2
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SHARPNESS = 40.0


def write_forced_model(
    path: Path, template: str, said: Sequence[Sequence[str]], control: Sequence[str] = (), context: int = 512
) -> Path:
    """said: chains of texts, each a token; what the model says after the first of a chain, up to the next chain's
    beginning or its own end. control: texts that are control tokens; these have no text of their own."""
    texts = list(dict.fromkeys([*control, *(text for chain in said for text in chain)]))
    texts = [text for text in texts if text not in (*BYTES, "</s>")]
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *texts]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    kinds += [CONTROL if text in control else USER_DEFINED for text in texts]
    width = -(-len(tokens) // 32) * 32
    ids = {text: token for token, text in enumerate(tokens)}
    follows = dict.fromkeys(range(len(tokens)), ids["</s>"])
    for chain in said:
        for one, other in pairwise(chain):
            assert follows[ids[one]] in (ids["</s>"], ids[other]), f"{one!r} is followed by two"
            follows[ids[one]] = ids[other]

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("forced")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(template)

    def zeros(name: str, *shape: int) -> None:
        writer.add_tensor(name, np.zeros(shape, np.float32))

    embedding, output = np.zeros((2, len(tokens), width), np.float32)
    for token, following in follows.items():
        embedding[token, token] = 1.0
        output[following, token] = SHARPNESS / np.sqrt(width)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        zeros(f"blk.0.{name}.weight", width, width)
    for name, shape in (("ffn_gate", (32, width)), ("ffn_up", (32, width)), ("ffn_down", (width, 32))):
        zeros(f"blk.0.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# --- templates in the shapes of those that people have ---------------------------------------------

SWITCHED = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' and m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content }}{% endfor %}<|assistant|>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
"""Like Qwen 3: a switch, and the model opens the thinking."""
OPENED = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}{% endfor %}"
    "{{ '<|assistant|><think>\n' }}"
)
"""Like DeepSeek R1: the template opens the thinking, and there is no switch."""
CLOSED = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}\n<think></think>{% endif %}"
    "{{ m.content }}{{ '/nothink' if m.role == 'user' and enable_thinking is defined and not enable_thinking }}"
    "{% endfor %}<|assistant|>{{ '\n<think></think>' if enable_thinking is defined and not enable_thinking }}"
)
"""Like GLM 4.5: earlier turns have an empty thinking."""
CHANNELS = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' and m.tool_calls %}"
    "{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}"
    "<|channel|>commentary to=functions.{{ m.tool_calls[0].function.name }}<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% else %}{{ '<|channel|>final' if m.role == 'assistant' }}<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}{{ tools | default([]) | length }}<|start|>assistant"
    "{# message.thinking #}"
)
"""Like gpt-oss's harmony."""
ASSISTANT, NEWLINE = "<|assistant|>", "<0x0A>"
THOUGHTS = ["So", " the", " user", " says", " hello"]
REPLY = ["Hello", " to", " you", "!"]
THINKING = [ASSISTANT, "<think>", *THOUGHTS, "</think>", *REPLY, "</s>"]
"""What it says with the first two of these templates; after a line's end, it replies."""
AFTER_A_LINE = [NEWLINE, REPLY[0]]
MARKS = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>", "<|return|>"]
