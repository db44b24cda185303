"""From a request to what the engine is asked: messages for the template, sampling settings, the prompt's tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from medusa_cli.decoding.options import MAX_SEED, AcceptKind
from medusa_cli.decoding.settings import given, is_greedy, needs_temperature
from medusa_cli.server import tool_calls
from medusa_cli.server.engine import Engine, Options
from medusa_cli.server.errors import wrong
from medusa_cli.server.schemas import ChatRequest, Message, Sampled, TextRequest
from medusa_cli.support.errors import MedusaError

COMPLETION_TOKENS = 16
"""Of /v1/completions where nothing is said, as OpenAI has it."""


def options_for(request: Sampled, defaults: Options, engine: Engine) -> Options:
    """`defaults` with what the request says. ApiError 400 for token ids that the vocabulary lacks."""
    bias = None if request.logit_bias is None else {int(token): value for token, value in request.logit_bias.items()}
    if bias and (highest := max(bias)) >= engine.n_vocab:
        raise wrong(f"token {highest}: the vocabulary ends at {engine.n_vocab - 1}", "logit_bias")
    options = defaults | given(
        max_tokens=_most_tokens(request, defaults),
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repeat_penalty=request.repeat_penalty,
        # Nothing is what these do at 0.
        frequency_penalty=request.frequency_penalty or None,
        presence_penalty=request.presence_penalty or None,
        logit_bias=bias,
        seed=None if request.seed is None else request.seed if request.seed == -1 else request.seed % (MAX_SEED + 1),
        stop=None if request.stop is None else request.stops,
        stop_loops=request.stop_loops,
        logprobs=request.chances,
    )
    rule, warm = options.get("accept"), not is_greedy(options["temperature"])
    if rule == AcceptKind.greedy.value if warm else needs_temperature(rule):
        del options["accept"]
    return options


def _most_tokens(request: Sampled, defaults: Options) -> int | None:
    """None: as many as `defaults` say."""
    if isinstance(request, ChatRequest):
        return request.max_completion_tokens or request.max_tokens
    return request.max_tokens or (None if "max_tokens" in defaults else COMPLETION_TOKENS)


def chat_prompt(request: ChatRequest, engine: Engine) -> list[int]:
    """Token ids of the conversation. ApiError 400 where tools are given to a template that knows none."""
    tools = offered(request)
    if tools and not tool_calls.knows_tools(engine.chat_template):
        raise wrong("this model's chat template does not support tools", "tools")
    return engine.tokens([_for_template(message) for message in request.messages], tools=tools or None)


def offered(request: ChatRequest) -> list[dict[str, Any]]:
    """The tools that the model may call, as templates take them."""
    if request.tool_choice == "none":
        return []
    return [tool.model_dump(exclude_none=True) for tool in request.tools or []]


def text_prompt(request: TextRequest, engine: Engine) -> list[int]:
    """Token ids of the prompt of a plain completion. ApiError 400 for ids that are none, MedusaError for no text."""
    prompt = request.prompt
    if isinstance(prompt, str):
        tokens = engine.tokens(prompt, raw=True)
    elif isinstance(prompt[0], str):
        tokens = engine.tokens(prompt[0], raw=True)
    else:
        tokens = [token for token in prompt if isinstance(token, int)]
        if (highest := max(tokens)) >= engine.n_vocab:
            raise wrong(f"token {highest}: the vocabulary ends at {engine.n_vocab - 1}", "prompt")
    return tokens


def check_length(prompt: Sequence[int], engine: Engine, param: str) -> None:
    """ApiError 400 for a prompt that leaves no room for an answer."""
    if len(prompt) >= engine.n_ctx:
        raise wrong(
            f"the prompt has {len(prompt)} tokens, the context holds {engine.n_ctx}: shorten it, or start the "
            "server with a larger -c",
            param,
            "context_length_exceeded",
        )


def _for_template(message: Message) -> dict[str, Any]:
    """A message as chat templates know it: content is text, arguments are objects."""
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content or [])
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": text}
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    for key in ("tool_call_id", "name"):
        if (value := getattr(message, key)) is not None:
            plain[key] = value
    return plain


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
        tool_calls.written(arguments)
    except (ValueError, RecursionError) as error:
        raise MedusaError("the arguments of a tool call are not JSON") from error
    if not isinstance(arguments, dict):
        raise MedusaError("the arguments of a tool call are not a JSON object")
    return arguments
