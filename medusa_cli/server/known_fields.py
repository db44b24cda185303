"""Fields of requests that this server lacks: those that change no answer, and those that would change it elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


IGNORED = _names(
    """
    user safety_identifier metadata store service_tier prompt_cache_key prompt_cache_retention prediction
    client_metadata max_tool_calls include

    cache_prompt id_slot slot_id n_keep n_discard n_cache_reuse min_keep timings_per_token return_progress
    sse_ping_interval verbose t_max_prompt_ms penalize_nl
    dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_threshold mirostat_tau mirostat_eta
    dynatemp_exponent adaptive_decay backend_sampling grammar_lazy

    priority request_id rid cache_salt kv_transfer_params spaces_between_special_tokens guided_decoding_backend
    guided_whitespace_pattern session_params

    keep_alive

    incremental_output tool_stream provider models route usage
    chat_id session_id conversation_id message_id thread_id trace_id timeout

    speed cache_control betas anthropic_version anthropic_beta user_profile_id
    """
)
"""Fields that other servers know and that leave an answer as it is: OpenAI, llama-server, vLLM and SGLang, Ollama,
OpenRouter and front ends, Anthropic."""

DRAFTING = "speculative."
"""llama-server's options of drafting, which are the server's own here, begin with this."""

Lacking = Mapping[str, tuple[Any, ...]]
"""Fields that change what other servers answer, and the values with which they do not."""


def _each(names: str, *neutral: Any) -> dict[str, tuple[Any, ...]]:
    return dict.fromkeys(names.split(), neutral)


LACKING: Lacking = {
    **_each("function_call", "none"),
    **_each("functions audio web_search_options grammar json_schema response_fields multimodal_data lora samplers"),
    **_each("guided_json guided_regex guided_choice guided_grammar structured_outputs structural_tag regex ebnf"),
    **_each("stop_token_ids allowed_token_ids bad_words logits_processors custom_logit_processor vllm_xargs lora_path"),
    **_each("documents chat_template truncate_prompt_tokens mm_processor_kwargs extra_body options plugins transforms"),
    **_each("stop_sequences random_seed num_ctx thinking_budget thinking_budget_tokens reasoning"),
    **_each("template system raw format prompt_mode search_parameters moderation", "", False),
    **_each("min_tokens min_new_tokens n_probs n_indent prompt_logprobs top_a", 0),
    **_each("mirostat xtc_probability dry_multiplier dynatemp_range", 0),
    **_each("n_predict num_predict max_new_tokens max_output_tokens t_max_predict_ms top_n_sigma adaptive_target", -1),
    **_each("reasoning_budget reasoning_budget_tokens", -1),
    **_each("repeat_last_n", 64),
    **_each("typical_p typical tfs_z repetition_penalty length_penalty", 1),
    **_each("use_beam_search ignore_eos continue_final_message prefix partial echo_reasoning deferred", False),
    **_each("include_stop_str_in_output return_tokens return_token_ids return_tokens_as_token_ids safe_prompt", False),
    **_each("return_hidden_states no_stop_trim post_sampling_probs thinking_forced_open enable_search", False),
    **_each("add_generation_prompt skip_special_tokens include_reasoning parse_tool_calls separate_reasoning", True),
    **_each("stream_reasoning do_sample", True),
    **_each("add_special_tokens", True, False),
    **_each("enable_thinking"),
    **_each("reasoning_format", "auto", "deepseek", "parsed"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
}
INSTEAD = {
    **dict.fromkeys(("n_predict", "num_predict", "max_new_tokens", "max_output_tokens"), "max_tokens"),
    **dict.fromkeys(
        ("thinking_budget", "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_tokens"), "think"
    ),
    "repetition_penalty": "repeat_penalty",
    "enable_thinking": "thinking",
    "reasoning": "reasoning_effort",
    "random_seed": "seed",
    "stop_sequences": "stop",
    "functions": "tools",
    **dict.fromkeys(("json_schema", "guided_json", "structured_outputs"), "response_format"),
    **dict.fromkeys(("guided_grammar", "ebnf"), "grammar"),
    "function_call": "tool_choice",
}
"""What requests for completions have in place of some of them."""


def check_text(data: Any) -> None:
    """ValueError for what cannot be written down: JSON can name half of a surrogate pair, which is not text."""
    try:
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("a text holds half of a surrogate pair") from error
    except RecursionError as error:
        raise ValueError("the body is nested too deeply") from error


def supported(data: Any, fields: Mapping[str, Any], lacking: Lacking, spare: Iterable[str] = IGNORED) -> Any:
    """A request without what changes nothing. ValueError for a field that would change the answer elsewhere.

    What is left and not among `fields` nobody knows.
    """
    check_text(data)
    if not isinstance(data, dict):
        return data
    for name in lacking.keys() & data.keys() - fields.keys():
        if not _is_neutral(data[name], lacking[name]):
            advice = f"use {INSTEAD[name]}" if INSTEAD.get(name) in fields else "leave it out"
            raise ValueError(f"{name} is not supported: {advice}")
    left_out = {*spare, *lacking} - fields.keys()
    left_out |= {name for name in data if name.startswith(DRAFTING) or (name not in fields and data[name] is None)}
    return {name: value for name, value in data.items() if name not in left_out}


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return value is None or value in ([], {}) or any(value == one for one in neutral)
