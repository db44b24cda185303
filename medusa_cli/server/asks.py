"""From a request to what the engine is asked: messages for the template, sampling settings, the prompt's tokens."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from fastapi.concurrency import run_in_threadpool

from medusa_cli.decoding.options import MAX_SEED, AcceptKind
from medusa_cli.decoding.settings import given, is_greedy, needs_temperature
from medusa_cli.decoding.shortening import INSTRUCTIONS
from medusa_cli.decoding.thinking import REMEMBERED, Thinking
from medusa_cli.grammars.schema import any_object
from medusa_cli.parts.call_formats import may_call
from medusa_cli.parts.call_stream import written
from medusa_cli.server.engine.failures import TooLong
from medusa_cli.server.engine.remote import Engine, Tokens
from medusa_cli.server.errors import wrong
from medusa_cli.server.schemas import (
    OPTIONS,
    ChatRequest,
    Message,
    Sampled,
    TemplateArguments,
    TextRequest,
    ThinkingSwitch,
)
from medusa_cli.support.errors import MedusaError, describe

Options = dict[str, Any]
"""Keyword arguments of an answer: decoding.options.AnswerArguments."""
NOTHING_AT_0 = ("frequency_penalty", "presence_penalty")
"""Options that many clients send as 0, which then means nothing."""
MOST_AT_A_TIME = 2
"""Prompts that are rendered and tokenized at once."""
LEVELS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""How much models think, by the words of clients; "none" is off."""
COMPLETION_TOKENS = 16
"""The default of /v1/completions, as with OpenAI."""


def options_for(request: Sampled, defaults: Options, engine: Engine) -> Options:
    """`defaults` overridden by the request. ApiError 400 for token ids that the vocabulary lacks."""
    bias = None if request.logit_bias is None else {int(token): value for token, value in request.logit_bias.items()}
    if bias and (highest := max(bias)) >= engine.n_vocab:
        raise wrong(f"token {highest}: the vocabulary ends at {engine.n_vocab - 1}", "logit_bias")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop
    ours = {name: getattr(request, name) for name in OPTIONS} | _thinking(request)
    ours |= {name: ours[name] or None for name in NOTHING_AT_0}
    options = defaults | given(
        **ours,
        max_tokens=_most_tokens(request, defaults),
        logit_bias=bias,
        seed=None if request.seed is None else request.seed if request.seed == -1 else request.seed % (MAX_SEED + 1),
        stop=None if stops is None else tuple(stops),
        logprobs=request.chances,
    )
    if options.get("thinking") is False and options.get("think", -1) > 0:  # one of both is the server's default
        options["think"] = -1
        if request.think is not None:
            options["thinking"], options["think"] = None, request.think
    if any(structured := _structure(request)):
        options.pop("json_schema", None), options.pop("grammar", None)
        options |= given(json_schema=structured[0], grammar=structured[1])
    elif isinstance(request, ChatRequest) and (request.forced_tool is not None or request.response_format is not None):
        options.pop("json_schema", None), options.pop("grammar", None)
    rule, warm = options.get("accept"), not is_greedy(options["temperature"])
    if rule == AcceptKind.greedy.value if warm else needs_temperature(rule):
        del options["accept"]
    return options


def _structure(request: Sampled) -> tuple[str | None, str | None]:
    """The JSON schema that the text of an answer follows, or the grammar: nothing where the answer is a call."""
    is_chat = isinstance(request, ChatRequest)
    if is_chat and request.forced_tool is not None:
        return None, None
    form = request.response_format if is_chat else None
    if form is None or form.type == "text":
        return None, request.grammar
    if form.json_schema is None:
        return None, any_object()
    return json.dumps(form.json_schema.schema_), None


async def check_structure(request: ChatRequest | TextRequest, options: Options, engine: Engine) -> None:
    """ApiError 400 for a schema, grammar or tool that cannot be enforced. Compiled once, it is known to the engine."""
    tools, choice = [], None
    if isinstance(request, ChatRequest):
        tools, choice = offered(request), request.forced_tool
    if choice is not None or any(tool["function"].get("strict") for tool in tools):
        await _check(engine, "tools" if choice is None else "tool_choice", None, None, tools, choice)
    json_schema, grammar = options.get("json_schema"), options.get("grammar")
    if json_schema is not None or grammar is not None:
        await _check(engine, "grammar" if json_schema is None else "response_format", json_schema, grammar, [], None)


async def _check(engine: Engine, param: str, *asked: Any) -> None:
    try:
        await run_in_threadpool(engine.check, *asked)
    except MedusaError as error:
        raise wrong(describe(error), param) from error


def _thinking(request: Sampled) -> Options:
    """What a request says about thinking, in whichever of the ways that clients have."""
    if not isinstance(request, ChatRequest):
        return {}
    told = request.chat_template_kwargs or TemplateArguments()
    thinking = next((one for one in (request.thinking, told.enable_thinking, told.thinking) if one is not None), None)
    if isinstance(thinking, ThinkingSwitch):
        thinking = thinking.type == "enabled"
    level = request.reasoning_effort or told.reasoning_effort
    if level is not None and thinking is None:
        thinking = level != "none"
    return {"thinking": thinking, "reasoning_effort": LEVELS.get(level or "")}


def _most_tokens(request: Sampled, defaults: Options) -> int | None:
    """None: as many as in `defaults`."""
    if isinstance(request, ChatRequest):
        return request.max_completion_tokens or request.max_tokens
    return request.max_tokens or (None if "max_tokens" in defaults else COMPLETION_TOKENS)


class Prompts:
    """The prompts of requests, on threads. Few at a time: a tokenizer takes a hundred times the text's memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._few = asyncio.Semaphore(MOST_AT_A_TIME)

    async def tokens_of(self, request: ChatRequest | TextRequest, options: Options) -> Tokens:
        """The prompt as tokens. options: of the answer.

        ApiError 400 if it is not a prompt for this model, or leaves no room for an answer.
        """
        async with self._few:
            return await run_in_threadpool(self._tokens_of, request, options)

    def _tokens_of(self, request: ChatRequest | TextRequest, options: Options) -> Tokens:
        if isinstance(request, TextRequest):
            self._check_size("prompt", _prompts(request))
            prompt, param = text_prompt(request, self._engine), "prompt"
        else:
            param, shortens = "messages", request.truncation == "auto"
            self._check_size(param, _all_texts(request, _always(request) if shortens else request.messages))
            if shortens:
                prompt = shortened_prompt(request, self._engine, options)
            else:
                prompt = chat_prompt(request, self._engine, options)
        if prompt.count >= (context := self._engine.n_ctx):
            room = f"the prompt has {prompt.count} tokens, the context holds {context}"
            text = f"{room}: shorten it, or start the server with a larger -c"
            raise wrong(text, param, "context_length_exceeded")
        return prompt

    def _check_size(self, param: str, texts: Iterable[str]) -> None:
        """Before the work of tokenizing: ApiError 400 for texts that would not fit even in the longest tokens."""
        size = sum(len(text.encode()) for text in texts)
        if size > self._engine.n_ctx and size > self._engine.n_ctx * self._engine.longest_token:
            raise wrong(
                f"the prompt has {size} bytes, far more than the {self._engine.n_ctx} tokens of the context hold",
                param,
                "context_length_exceeded",
            )


def _always(request: ChatRequest) -> list[Message]:
    """What remains of a conversation when all turns but the newest are left out."""
    roles = [message.role for message in request.messages]
    newest = max((at for at, role in enumerate(roles) if role == "user"), default=0)
    stays = itertools.takewhile(lambda message: message.role in INSTRUCTIONS, request.messages[:newest])
    return [*stays, *request.messages[newest:]]


def _all_texts(request: ChatRequest, messages: Iterable[Message]) -> Iterator[str]:
    for message in messages:
        yield from _texts(message)
        yield from (call.function.arguments for call in message.tool_calls or [])
        yield message.reasoning_content or message.reasoning or ""
    yield from map(json.dumps, offered(request))


def _prompts(request: TextRequest) -> list[str]:
    """The prompts that are text, not token ids."""
    prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    return [prompt for prompt in prompts if isinstance(prompt, str)]


def _texts(message: Message) -> Iterator[str]:
    if isinstance(message.content, str):
        yield message.content
    else:
        yield from (part.text for part in message.content or [])


def chat_prompt(request: ChatRequest, engine: Engine, options: Options) -> Tokens:
    """The tokens of the conversation. ApiError 400 if tools are given to a template that cannot take any."""
    messages = [_for_template(message) for message in request.messages]
    return engine.tokens(messages, tools=_tools(request, engine), thinking=_wanted(options))


def shortened_prompt(request: ChatRequest, engine: Engine, options: Options) -> Tokens:
    """The same without the oldest turns if these do not fit the context."""
    messages, tools = [_for_template(message) for message in request.messages], _tools(request, engine)
    most, thinking = options.get("max_tokens", -1), _wanted(options)
    try:
        return engine.shortened(messages, tools=tools, most=most, thinking=thinking)
    except TooLong as error:
        raise wrong(describe(error), "messages", "context_length_exceeded") from error


def _wanted(options: Options) -> Thinking:
    on = False if options.get("think") == 0 else options.get("thinking")
    return Thinking(on, options.get("reasoning_effort"))


def _tools(request: ChatRequest, engine: Engine) -> list[dict[str, Any]] | None:
    tools = offered(request)
    if tools and not may_call(engine.chat_template):
        raise wrong("this model's chat template does not support tools", "tools")
    return tools or None


def offered(request: ChatRequest) -> list[dict[str, Any]]:
    """The tools that the model may call, as templates take them."""
    if request.tool_choice == "none":
        return []
    return [tool.model_dump(exclude_none=True) for tool in request.tools or []]


def text_prompt(request: TextRequest, engine: Engine) -> Tokens:
    """The tokens of the prompt of a plain completion. ApiError 400 for invalid ids, MedusaError for invalid text."""
    if texts := _prompts(request):
        return engine.tokens(texts[0], raw=True)
    tokens = [token for token in request.prompt if isinstance(token, int)]
    if (highest := max(tokens)) >= engine.n_vocab:
        raise wrong(f"token {highest}: the vocabulary ends at {engine.n_vocab - 1}", "prompt")
    return Tokens(tokens, len(tokens))


def _for_template(message: Message) -> dict[str, Any]:
    """A message as chat templates know it: content is text, arguments are objects."""
    role = "system" if message.role == "developer" else message.role
    others = message.model_dump(exclude={"role", "content", "reasoning", "prefix", "partial"}, exclude_none=True)
    if (thought := message.reasoning_content or message.reasoning) is not None:
        others[REMEMBERED] = thought
    for call in others.get("tool_calls", []):
        call["function"]["arguments"] = _arguments(call["function"]["arguments"])
    if not message.tool_calls:  # templates have many ways to ask whether there are any
        others.pop("tool_calls", None)
    return {"role": role, "content": "".join(_texts(message)), **others}


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
        written(arguments)
    except (ValueError, RecursionError) as error:
        raise MedusaError("the arguments of a tool call are not JSON") from error
    if not isinstance(arguments, dict):
        raise MedusaError("the arguments of a tool call are not a JSON object")
    return arguments
