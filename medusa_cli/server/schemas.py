"""What requests may hold. Wrong values are refused, and so are fields of the body that are not known here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator, model_validator

from medusa_cli.decoding import fields
from medusa_cli.decoding.options import SamplingOptions
from medusa_cli.server.known_fields import LACKING, supported

MOST_STOPS = 16
MOST_BIASES = 4096
MOST_COUNT = 2**31 - 1
SEEDS = 2**63

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
StopText = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]


ONE_ERROR = Field(fail_fast=True)
"""For lists: the first wrong element ends the check. Each error takes a kilobyte."""


class Strict(BaseModel):
    """No conversions: "5" is no number, and 1 is no truth value."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class Body(Strict):
    """A whole request. Objects within it may have fields that are not known here."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(Strict):
    include_usage: bool | None = Field(None, description="End the stream with a chunk that holds `usage`.")


def _schema(option: fields.Field) -> Any:
    """The schema of an option that requests have: its type and range, and its default."""
    kind = option.kind
    if option.is_number:
        kind = Annotated[kind, Field(ge=option.option.low, le=option.option.request_high or option.high)]
    return kind | None, Field(None, description=option.option.request or None)


OPTIONS = {name: one for name, one in fields.fields(SamplingOptions).items() if one.option.request is not None}
"""Our options that requests have, too. Those that mean something of their own to OpenAI are declared below."""
_Options: Any = create_model("_Options", __base__=Body, **{name: _schema(one) for name, one in OPTIONS.items()})


class Sampled(_Options):
    """What both kinds of completions have. None: the server's default, set by the options of `medusa serve`."""

    model: str | None = Field(None, description="Ignored: the server has one model.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    seed: Annotated[int, Field(ge=-SEEDS, lt=SEEDS)] | None = Field(None, description="-1: a new one. Modulo 2^32.")
    stop: StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, description="Values to add to the logits of tokens, by token id."
    )
    n: Literal[1] | None = Field(None, description="Only one answer per request is supported.")
    drafted: bool | None = Field(None, description="Beyond OpenAI: stream which tokens were drafted (`medusa.pieces`).")

    @model_validator(mode="before")
    @classmethod
    def _is_supported(cls, data: Any) -> Any:
        return supported(data, cls.model_fields, LACKING)

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _few_biases(cls, bias: Any) -> Any:
        if isinstance(bias, dict) and len(bias) > MOST_BIASES:
            raise ValueError(f"at most {MOST_BIASES} tokens")
        return bias

    @field_validator("logit_bias")
    @classmethod
    def _token_ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for token in bias or {}:
            if not (token.isascii() and token.isdigit() and len(token) < 10):
                raise ValueError('keys must be token ids, such as "15043"')
        return bias

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def chances(self) -> int | None:
        """Likeliest tokens to name beside each one; None: no log-probabilities."""
        raise NotImplementedError


# --- chat ------------------------------------------------------------------------------------------


class TextPart(Strict):
    type: Literal["text"] = Field(description="Only text is supported, no images or audio.")
    text: str


class FunctionCall(Strict):
    name: str
    arguments: str = Field(description="JSON.")


class ToolCall(Strict):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], ONE_ERROR] | None = None
    tool_calls: Annotated[list[ToolCall], ONE_ERROR] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = Field(None, description="Beyond OpenAI: what the model thought before.")
    reasoning: str | None = Field(None, description="The same, as some clients call it.")
    prefix: Literal[False] | None = Field(None, description="Going on with a message is not supported.")
    partial: Literal[False] | None = Field(None, description="The same, as some clients call it.")

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only assistant messages have tool_calls")
        return self


class Function(Strict):
    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, description="true: calls of it follow its schema.")


class Tool(Strict):
    type: Literal["function"]
    function: Function


class SchemaFormat(Strict):
    name: str | None = None
    description: str | None = None
    strict: bool | None = Field(None, description="Schemas are always enforced.")
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None

    @model_validator(mode="after")
    def _has_a_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with the type json_schema, and only with that")
        return self


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class ThinkingSwitch(Strict):
    type: Literal["enabled", "disabled"]


class TemplateArguments(Strict):
    """The variables of chat templates that are supported."""

    model_config = ConfigDict(strict=True, extra="forbid")

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: Effort | None = None


class ChatRequest(Sampled):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = Field(None, description="Takes precedence over `max_tokens`.")
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], ONE_ERROR] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = Field(
        None, description="required, or a tool by its name: the answer is one call, with arguments by its schema."
    )
    parallel_tool_calls: bool | None = Field(None, description="false: the answer ends with its first call.")
    response_format: ResponseFormat | None = None
    thinking: bool | ThinkingSwitch | None = Field(None, description="Whether the model thinks before it answers.")
    reasoning_effort: Effort | None = Field(
        None, description="none: no thinking; else how much, for templates with levels."
    )
    chat_template_kwargs: TemplateArguments | None = None
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="auto: the oldest turns leave a prompt that the context does not hold (`medusa.left_out`)."
    )

    @model_validator(mode="after")
    def _chances_are_asked_for(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @model_validator(mode="after")
    def _thinking_is_clear(self) -> ChatRequest:
        is_off = self.thinking is False or self.reasoning_effort == "none"
        if is_off and self.think is not None and self.think > 0:
            raise ValueError("think: the thinking is off in this request")
        return self

    @model_validator(mode="after")
    def _structure_is_clear(self) -> ChatRequest:
        is_text = self.response_format is None or self.response_format.type == "text"
        if self.grammar is not None and not (is_text and self.forced_tool is None):
            raise ValueError("a grammar excludes response_format and a forced tool_choice")
        return self

    @property
    def forced_tool(self) -> str | None:
        """The tool that the answer has to call; "": any."""
        if isinstance(self.tool_choice, NamedTool):
            return self.tool_choice.function.name
        return "" if self.tool_choice == "required" else None

    @property
    def chances(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def as_chat(fields: Mapping[str, Any]) -> ChatRequest:
    """What another interface asks for. RequestValidationError where it breaks a rule that both share."""
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


# --- plain text ------------------------------------------------------------------------------------


class TextRequest(Sampled):
    """`POST /v1/completions`."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=1, fail_fast=True)]
        | Annotated[list[Annotated[int, Field(ge=0, le=MOST_COUNT)]], Field(min_length=1, fail_fast=True)]
    ) = Field(description="One text, or its token ids.")
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None
    thinking: None = Field(None, description="A text without the chat template has no thinking to switch.")
    think: None = None
    truncation: Literal["disabled"] | None = Field(None, description="A text has no turns that could be left out.")

    @property
    def chances(self) -> int | None:
        return self.logprobs


# --- errors ----------------------------------------------------------------------------------------


class ErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every error of OpenAI's endpoints."""

    error: ErrorDetails


class MessageErrorDetails(BaseModel):
    type: str
    message: str


class MessageErrorBody(BaseModel):
    """Every error of Anthropic's endpoints."""

    type: Literal["error"]
    error: MessageErrorDetails
