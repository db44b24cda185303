"""The keys of small models, one for each architecture that people run: every feature on, all sizes small."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TOKENS = 256
CONTEXT = 512
Keys = dict[str, Any]


@dataclass(frozen=True)
class Architecture:
    """name: as libllama spells it. keys: of its metadata, without the architecture's own name in front."""

    name: str
    keys: Keys = field(hash=False)


def _common(layers: int, width: int, heads: int, kv_heads: int, ff: int) -> Keys:
    return {
        "vocab_size": TOKENS,
        "context_length": CONTEXT,
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": ff,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }


def _experts(ff: int) -> Keys:
    return {
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_feed_forward_length": ff,
        "expert_shared_feed_forward_length": ff,
        "expert_gating_func": 2,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "expert_group_scale": 1.0,
        "experts_per_group": 1,
        "leading_dense_block_count": 1,
        "interleave_moe_layer_step": 2,
    }


def _windows(layers: int, pattern: int | list[bool] = 2) -> Keys:
    return {"attention.sliding_window": 32, "attention.sliding_window_pattern": pattern}


def _latent_attention(width: int, heads: int) -> Keys:
    """Multi-head latent attention: keys and values from one low-rank state."""
    return {
        "attention.q_lora_rank": 64,
        "attention.kv_lora_rank": 128,
        "attention.key_length": 128 + 64,
        "attention.value_length": 128,
        "attention.key_length_mla": 128,
        "attention.value_length_mla": 64,
        "rope.dimension_count": 64,
    }


def _state_space(inner: int, state: int, rank: int, groups: int) -> Keys:
    return {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": rank,
        "ssm.group_count": groups,
    }


def _indexer() -> Keys:
    """Sparse attention: a small scorer chooses the cells that count."""
    return {"attention.indexer.head_count": 64, "attention.indexer.key_length": 128, "attention.indexer.top_k": 64}


DENSE = _common(2, 256, 4, 2, 512)
MANY_KEYS = _common(2, 256, 4, 4, 512)
"""As many heads of keys as of queries."""
WIDE_HEADS = _common(2, 256, 2, 1, 512)
HYBRID = {**_common(4, 256, 4, 2, 512), "attention.head_count_kv": [2, 0, 2, 0], "attention.head_count": [4, 0, 4, 0]}

ARCHITECTURES = {
    a.name: a
    for a in (
        Architecture("llama", DENSE),
        Architecture("llama4", {**_common(4, 256, 4, 2, 512), **_experts(256), **_windows(4)}),
        Architecture("mistral3", DENSE),
        Architecture("qwen2", DENSE),
        Architecture("qwen2moe", {**DENSE, **_experts(256)}),
        Architecture("qwen3", DENSE),
        Architecture("qwen3moe", {**DENSE, **_experts(256)}),
        Architecture(
            "qwen3next",
            {
                **_common(4, 256, 4, 2, 512),
                **_experts(256),
                **_state_space(1024, 64, 16, 8),
                "full_attention_interval": 2,
                "rope.dimension_count": 32,
            },
        ),
        Architecture(
            "qwen35",
            {
                **_common(4, 256, 4, 2, 512),
                **_state_space(1024, 64, 16, 8),
                "full_attention_interval": 2,
                "rope.dimension_sections": [8, 8, 8, 8],
            },
        ),
        Architecture(
            "qwen35moe",
            {
                **_common(4, 256, 4, 2, 512),
                **_experts(256),
                **_state_space(1024, 64, 16, 8),
                "full_attention_interval": 2,
                "rope.dimension_sections": [8, 8, 8, 8],
            },
        ),
        Architecture(
            "gemma2",
            {
                **WIDE_HEADS,
                **_windows(2),
                "attention.key_length": 128,
                "attention.value_length": 128,
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
            },
        ),
        Architecture(
            "gemma3", {**WIDE_HEADS, **_windows(2), "attention.key_length": 128, "attention.value_length": 128}
        ),
        Architecture(
            "gemma3n",
            {**_common(22, 64, 1, 1, 96), **_windows(22), "attention.key_length": 64, "attention.value_length": 64},
        ),
        Architecture(
            "gemma4",
            {
                **_common(10, 128, 2, 1, 192),
                **_windows(10, [True, True, True, True, False] * 2),
                "embedding_length_per_layer_input": 64,
                "attention.shared_kv_layers": 5,
                "attention.key_length": 64,
                "attention.value_length": 64,
                "attention.key_length_swa": 64,
                "attention.value_length_swa": 64,
                "rope.freq_base_swa": 10000.0,
            },
        ),
        Architecture("gpt-oss", {**DENSE, **_experts(256), **_windows(2)}),
        Architecture("phi3", {**DENSE, **_windows(2)}),
        Architecture("phimoe", {**DENSE, **_experts(256)}),
        Architecture(
            "granite",
            {**DENSE, "residual_scale": 0.2, "embedding_scale": 12.0, "attention.scale": 0.015, "logit_scale": 8.0},
        ),
        Architecture(
            "granitemoe",
            {
                **DENSE,
                **_experts(256),
                "residual_scale": 0.2,
                "embedding_scale": 12.0,
                "attention.scale": 0.015,
                "logit_scale": 8.0,
            },
        ),
        Architecture(
            "granitehybrid",
            {
                **HYBRID,
                **_state_space(512, 64, 16, 2),
                "residual_scale": 0.2,
                "embedding_scale": 12.0,
                "attention.scale": 0.015,
                "logit_scale": 8.0,
            },
        ),
        Architecture("smollm3", DENSE),
        Architecture("olmo", {**DENSE, "attention.clamp_kqv": 8.0}),
        Architecture("olmo2", {**DENSE, **_windows(2)}),
        Architecture("olmoe", {**MANY_KEYS, **_experts(256)}),
        Architecture("glm4", DENSE),
        Architecture("glm4moe", {**DENSE, **_experts(256)}),
        Architecture("deepseek2", {**_common(2, 128, 1, 1, 192), **_experts(128), **_latent_attention(128, 1)}),
        Architecture("lfm2", {**HYBRID, "shortconv.l_cache": 3}),
        Architecture("lfm2moe", {**HYBRID, **_experts(256), "shortconv.l_cache": 3}),
        Architecture("nemotron_h", {**HYBRID, **_state_space(512, 64, 16, 2), "feed_forward_length": [0, 0, 512, 0]}),
        Architecture("falcon-h1", {**DENSE, **_state_space(512, 64, 16, 2)}),
        Architecture("mamba", {**DENSE, **_state_space(512, 16, 16, 1)}),
        Architecture("mamba2", {**DENSE, **_state_space(512, 64, 16, 2)}),
        Architecture("jamba", {**HYBRID, **_experts(256), **_state_space(512, 16, 16, 1)}),
        Architecture("exaone4", {**DENSE, **_windows(2)}),
        Architecture("ernie4_5", DENSE),
        Architecture("ernie4_5-moe", {**DENSE, **_experts(256)}),
        Architecture("hunyuan-dense", DENSE),
        Architecture("hunyuan-moe", {**DENSE, **_experts(256)}),
        Architecture("command-r", {**DENSE, "logit_scale": 0.0625}),
        Architecture("cohere2", {**DENSE, **_windows(2), "logit_scale": 0.0625}),
        Architecture("minicpm", {**DENSE, "residual_scale": 0.2, "embedding_scale": 12.0, "logit_scale": 1.0}),
        Architecture("minicpm3", {**_common(2, 256, 4, 4, 512), **_latent_attention(256, 4)}),
        Architecture(
            "kimi-linear",
            {
                **_common(4, 128, 1, 1, 192),
                **_experts(128),
                **_latent_attention(128, 1),
                "attention.head_count_kv": [1, 0, 1, 0],
                "kda.head_dim": 128,
                "ssm.conv_kernel": 4,
            },
        ),
        Architecture("seed_oss", DENSE),
        Architecture(
            "rwkv7",
            {
                **DENSE,
                "wkv.head_size": 64,
                "attention.decay_lora_rank": 32,
                "attention.iclr_lora_rank": 32,
                "attention.value_residual_mix_lora_rank": 32,
                "attention.gate_lora_rank": 32,
                "token_shift_count": 2,
            },
        ),
        Architecture("bailingmoe2", {**DENSE, **_experts(256)}),
        Architecture("minimax-m2", {**DENSE, **_experts(256)}),
        Architecture("dots1", {**MANY_KEYS, **_experts(256)}),
        Architecture("smallthinker", {**DENSE, **_experts(256), **_windows(2)}),
        Architecture("plamo2", {**HYBRID, **_state_space(512, 64, 16, 0)}),
        Architecture(
            "rwkv6",
            {
                **MANY_KEYS,
                "wkv.head_size": 64,
                "time_mix_extra_dim": 32,
                "time_decay_extra_dim": 64,
                "rescale_every_n_layers": 0,
                "token_shift_count": 2,
            },
        ),
        Architecture("phi2", MANY_KEYS),
        Architecture("starcoder2", DENSE),
        Architecture("internlm2", DENSE),
        Architecture("gemma", DENSE),
        Architecture("arcee", DENSE),
        Architecture(
            "apertus",
            {
                **MANY_KEYS,
                "xielu.alpha_n": [1.0] * 2,
                "xielu.alpha_p": [1.0] * 2,
                "xielu.beta": [1.0] * 2,
                "xielu.eps": [1e-7] * 2,
            },
        ),
        Architecture("bitnet", DENSE),
        Architecture("grok", {**MANY_KEYS, **_experts(256)}),
        Architecture("deepseek", {**MANY_KEYS, **_experts(256)}),
        Architecture(
            "deepseek32", {**_common(2, 128, 1, 1, 192), **_experts(128), **_latent_attention(128, 1), **_indexer()}
        ),
        Architecture(
            "deepseek4",
            {
                **_common(4, 512, 8, 1, 1024),
                **_experts(256),
                **_indexer(),
                "attention.key_length": 64,
                "attention.value_length": 64,
                "rope.dimension_count": 32,
                "attention.q_lora_rank": 64,
                "attention.sliding_window": 64,
                "attention.output_group_count": 8,
                "attention.output_lora_rank": 32,
                "attention.compress_ratios": [0, 0, 4, 128],
                "attention.compress_rope_freq_base": 160000.0,
                "hyper_connection.count": 4,
                "hyper_connection.sinkhorn_iterations": 2,
                "hyper_connection.epsilon": 1e-6,
                "hash_layer_count": 0,
                "swiglu_clamp_exp": 10.0,
                "expert_gating_func": 4,
            },
        ),
        Architecture("mimo2", {**MANY_KEYS, **_experts(256), **_windows(2, [False, True])}),
        Architecture("step35", {**MANY_KEYS, **_experts(256), **_windows(2, [False, True])}),
        Architecture("afmoe", {**MANY_KEYS, **_experts(256), **_windows(2)}),
    )
}
